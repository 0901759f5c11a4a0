"""Background tasks in a worker: what a task's turn records of its result, its delivery, the model's tools.

A task is a child session's turn (:mod:`shared.tasks`); a worker runs it like any other turn of the queue. What is special
stands here: the result in the closing commit, the cutoff before the deadline, and the delivery right after the end.
"""
