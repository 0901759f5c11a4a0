"""The Celery app, the pool, one job per queue, and the sweeps.

Boot: ``celery -A workers worker -Q turns`` → :mod:`workers.celery` (the app) → :mod:`workers.pool` (one event loop
a process) → :mod:`workers.compose` (builds the parts) → a pump per queue, which claims work from Postgres.
"""
