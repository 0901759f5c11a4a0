"""The benchmark ``growth``: does what has ended long ago cost anything when a turn is admitted and claimed?"""
