"""The baseline of queues: an empty Celery job, published by one process and run by one worker, on the same broker.

Nothing of the product takes part: a plain Celery app on a database of its own of the same Redis, no results, early
acknowledgement, and the pool that runs most of such jobs on this class of machine (solo; threads come to three quarters of it).
"""
