"""The inbox of a session: items that others deliver between its turns, and that inbox turns answer.

An item waits, or is claimed by an unfinished inbox turn; it is gone with its outcome. Whoever delivers, or ends a turn,
inserts the next inbox turn in the same transaction when items wait and none is unfinished, so nothing waits unnoticed.

Reading order: :mod:`~shared.inbox.port` (values and contract), then the adapters. What an inbox turn claims and gives back
is judged where turns open and end: :mod:`shared.turns`.
"""
