"""Background tasks: a child session with one turn each, whose result its parent's inbox is told once.

Invariants (tests cite them by number):
1. A task is started whole or not at all: the parent's ``task.started``, the key, the child and its turn are one commit.
2. Whatever ends a task's turn owes the parent its result, in the same transaction; a cancel of the task alone does not.
3. What is owed is delivered once, as ``task:<id>``: the debt and the inbox item change places in one transaction.

Reading order: :mod:`~shared.tasks.port` (values and the store's contract), :mod:`~shared.tasks.states` (where a task
stands), :mod:`~shared.tasks.notice` (what the parent is told), then the adapters.
"""
