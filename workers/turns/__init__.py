"""Turn workers: claim → open → run → end → release, and what a lost worker's successor does.

Reading order: :mod:`~workers.turns.next_action` (the decision), :mod:`~workers.turns.runner` (one turn),
:mod:`~workers.turns.loop` (its steps), :mod:`~workers.turns.holdings` (leases of the process),
:mod:`~workers.turns.claims` (what the pump asks).
"""
