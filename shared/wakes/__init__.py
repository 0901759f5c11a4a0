"""Wakes: doorbells that tell a pool's workers that something is owed; losing, doubling or reordering them is harmless.

Reading order: ``names`` (queues, jobs, bounds), ``port`` (the contract), ``coalescer`` (who shares a message with whom,
pure), ``broker`` (one message on the wire), ``celery_publisher`` (both, beside the event loop).
"""
