"""Conformance kits: each port's contract as checks that any adapter can run, with any test runner or none.

A kit is a plain function: it takes a subject (how to open handles, get fresh names and let time pass) and returns
:class:`ConformanceCheck` objects. A failing ``run`` raises :class:`ConformanceFailure` that begins with the check's name.
"""

from shared.conformance.check import ConformanceCheck, ConformanceFailure
from shared.conformance.clock import HandClock
from shared.conformance.conversations import (
    BoundedConversationsSubject,
    ConversationStoreSubject,
    bounded_conversations_conformance,
    conversation_store_conformance,
)
from shared.conformance.conversations.whole_turns import WholeTurnSubject, whole_turn_conformance
from shared.conformance.inbox import inbox_conformance
from shared.conformance.inbox.stage import InboxSubject
from shared.conformance.job_queue import JobQueueSubject, job_queue_conformance
from shared.conformance.leases import LeasesSubject, leases_conformance
from shared.conformance.session_log import SessionLogSubject, session_log_conformance
from shared.conformance.session_log_recovery import (
    SessionLogRecoverySubject,
    session_log_recovery_conformance,
)
from shared.conformance.sessions import sessions_conformance
from shared.conformance.sessions.stage import SessionsSubject
from shared.conformance.task_store import task_store_conformance
from shared.conformance.task_store.stage import TaskStoreSubject
from shared.conformance.tasks import (
    MadeRunner,
    MadeTasks,
    MakeRunner,
    MakeTasks,
    task_runner_conformance,
    tasks_conformance,
)
from shared.conformance.transfers import TransferSubject, transfers_conformance
from shared.conformance.turn_composition import TurnCompositionSubject, turn_composition_conformance
from shared.conformance.turn_queue import turn_queue_conformance
from shared.conformance.turn_stage import TurnQueueSubject

__all__ = [
    "BoundedConversationsSubject",
    "ConformanceCheck",
    "ConformanceFailure",
    "ConversationStoreSubject",
    "HandClock",
    "InboxSubject",
    "JobQueueSubject",
    "LeasesSubject",
    "MadeRunner",
    "MadeTasks",
    "MakeRunner",
    "MakeTasks",
    "SessionLogRecoverySubject",
    "SessionLogSubject",
    "SessionsSubject",
    "TaskStoreSubject",
    "TransferSubject",
    "TurnCompositionSubject",
    "TurnQueueSubject",
    "WholeTurnSubject",
    "bounded_conversations_conformance",
    "conversation_store_conformance",
    "inbox_conformance",
    "job_queue_conformance",
    "leases_conformance",
    "session_log_conformance",
    "session_log_recovery_conformance",
    "sessions_conformance",
    "task_runner_conformance",
    "task_store_conformance",
    "tasks_conformance",
    "transfers_conformance",
    "turn_composition_conformance",
    "turn_queue_conformance",
    "whole_turn_conformance",
]
