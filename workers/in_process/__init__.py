"""Agents in a program of their own: sessions in its memory without any server, or whole turns kept in a database.

``async with in_memory_sessions(...)`` opens one bounded store for a program, ``async with persistent_sessions(...)`` a
history that outlives it; ``Agent.run`` finds what is open. Nothing is admitted, leased or recovered: that is the turn
queue's, in sessions of its own.
"""

from shared.conversations import in_memory_conversation_store, in_memory_session_history
from workers.in_process.application import InMemorySessions, in_memory_sessions
from workers.in_process.persistent import PersistentSessions, persistent_sessions
from workers.in_process.whole_turn import TurnIds

__all__ = [
    "InMemorySessions",
    "PersistentSessions",
    "TurnIds",
    "in_memory_conversation_store",
    "in_memory_session_history",
    "in_memory_sessions",
    "persistent_sessions",
]
