"""A turn's body: the host's ``use``, or the step loop once.

Reading order: :mod:`~workers.turns.body.memory` (what the turn recorded so far),
:mod:`~workers.turns.body.turn` (what the host's code gets), :mod:`~workers.turns.body.lifecycle` (settle, finish, guard),
:mod:`~workers.turns.body.in_process` (a turn that a host's own process begins and ends).
"""
