"""The benchmark ``fairness``: how long does an owner of a few turns wait for one of ten thousand?"""
