"""Wakes: doorbells that tell a pool's workers that something is owed; losing, doubling or reordering them is harmless.

Reading order: ``names`` (queues, jobs, bounds), ``port`` (the contract), ``coalescer`` (who shares a message with whom,
pure), ``outbox`` (when it is tried and what came of it, pure), ``opening`` (which of two publishers serves a broker):
``loop_publisher`` sends by ``redis_broker`` in the event loop, ``celery_publisher`` by kombu's ``broker`` in a thread beside it.
"""
