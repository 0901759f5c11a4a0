"""The parts a producer is made of; routes receive them, the root or a test builds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from producer.callers.rates import WriteRates
from producer.memory.parts import MemoryParts
from producer.metrics import ProducerMetrics
from producer.traffic import Traffic
from shared.agents import App
from shared.database.pool import Database
from shared.domain.failpoints import Failpoints
from shared.feed.follow import Following
from shared.feed.port import ChangeHints
from shared.inbox.port import Inbox
from shared.jobs.queue import JobQueue
from shared.owners.authenticator import Authenticator
from shared.sessions.log import SessionLog
from shared.settings import Settings
from shared.tasks.port import TaskLimits, TaskStore
from shared.turns.queue import AdmissionLimits, TurnQueue
from shared.turns.waiting import WaitingTotal
from shared.wakes.port import WakePublisher


@dataclass(frozen=True, slots=True)
class ProducerParts:
    """What the routes work with. ``limits`` bound an admission, ``waiting`` all of them together; ``hints`` is None where
    no Redis carries any, ``memory`` where the app remembers nothing."""

    settings: Settings
    database: Database
    log: SessionLog
    queue: TurnQueue
    inbox: Inbox
    tasks: TaskStore
    jobs: JobQueue
    wakes: WakePublisher
    following: Following
    hints: ChangeHints | None
    app: App
    authenticator: Authenticator
    rates: WriteRates
    traffic: Traffic
    metrics: ProducerMetrics
    waiting: WaitingTotal
    memory: MemoryParts | None = None
    failpoints: Failpoints = field(default_factory=Failpoints)
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    task_limits: TaskLimits = field(default_factory=TaskLimits)


def parts_of(request: Request) -> ProducerParts:
    """Return the parts of the app that a request came to."""
    parts: ProducerParts = request.app.state.parts
    return parts
