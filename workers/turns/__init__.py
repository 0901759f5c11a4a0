"""Turn workers: claim → open → run → end → release, and what a lost worker's successor does.

Reading order: :mod:`~workers.turns.next_action` (the decision), :mod:`~workers.turns.runner` (one turn),
:mod:`~workers.turns.opening`, :mod:`~workers.turns.body` (what the host's code gets), :mod:`~workers.turns.loop` (a run's
steps), :mod:`~workers.turns.journal` (where they write), :mod:`~workers.turns.holdings` (leases of the process),
:mod:`~workers.turns.claims` (what the pump asks).
"""
