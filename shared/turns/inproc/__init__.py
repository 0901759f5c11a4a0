"""The twin of the turn queue, in this process's memory.

Reading order: :mod:`~shared.turns.inproc.rows` (what is stored, and moves that several operations share), then
:mod:`~shared.turns.inproc.admission`, :mod:`~shared.turns.inproc.claims`, :mod:`~shared.turns.inproc.queue`.
"""

from shared.turns.inproc.queue import InprocTurnQueue

__all__ = ["InprocTurnQueue"]
