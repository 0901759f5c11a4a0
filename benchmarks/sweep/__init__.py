"""The benchmark ``sweep``: does a sweep cost what is owed, or what has ever happened?"""
