"""The benchmark ``recovery``: does a turn come back sooner in a young session than in one with a long log?"""
