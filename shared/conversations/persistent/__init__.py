"""Whole-turn history: each successful turn of an identified conversation is appended to a session log as a whole.

One append holds the turn's input, its messages and its end (:mod:`~shared.conversations.persistent.whole_turn`), behind
exactly the tail that the turn began from; nothing of a turn that failed is stored. Reading folds those records into what
the model is shown next (:mod:`~shared.conversations.persistent.reducing`); :mod:`~shared.conversations.persistent.history`
joins both over a session log.
"""

from shared.conversations.persistent.contexts import ContextRule, newest_exchanges
from shared.conversations.persistent.history import LoadedSession, PersistentHistory
from shared.conversations.persistent.reducing import RetainedHistory, SourceTurn
from shared.conversations.persistent.whole_turn import WHOLE_TURN_MAX_BYTES, WholeTurn

__all__ = [
    "WHOLE_TURN_MAX_BYTES",
    "ContextRule",
    "LoadedSession",
    "PersistentHistory",
    "RetainedHistory",
    "SourceTurn",
    "WholeTurn",
    "newest_exchanges",
]
