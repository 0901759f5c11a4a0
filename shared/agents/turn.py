"""What a host's own turn body is given and returns: :class:`Turn`, and the values beside it (TRN-08 to TRN-16)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from shared.agents.policy import Policy
from shared.agents.tasks import TurnTasks
from shared.domain.ids import SessionId
from shared.host.endings import TurnOutcome
from shared.host.port import AdmittedTurn
from shared.models.types import Message
from shared.sessions.vocabulary import UserMessage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run of the step loop came to (TRN-110).

    ``completed``: the model answered without calls. ``partial``: it was stopped, ``reason`` is ``step-cap``, or the
    provider's ``length`` or ``content_filter``. ``text`` is the last step's, ``usage`` the run's own.
    """

    outcome: Literal["completed", "partial"]
    reason: str
    text: str
    run: int
    step: int
    usage: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What a turn came to (TRN-15, TRN-16).

    ``usage`` sums every run's model calls. ``pending`` counts inbox items that the turn's end left waiting, for the
    caller to drain; 0 for a turn that the caller ends itself. For a turn over in-memory sessions it counts commands that
    wait. ``session_id`` is where the next turn goes on.
    """

    outcome: Literal["completed", "partial", "failed"]
    reply: str | None
    usage: Mapping[str, int] = field(default_factory=dict)
    pending: int = 0
    session_id: SessionId | None = None


class Turn(Protocol):
    """One admitted turn, as the host's code gets it. It ends when that code returns.

    **A worker may be lost at any instant.** Under ``on_worker_loss="continue"`` the next worker calls the body again from
    its beginning. What it may rely on: the ``n``-th :meth:`run` of the turn gives what the ``n``-th gave before: a stored
    run's result at once, without a model call; a run that was cut goes on where its log stands. So the body has to reach
    its runs in the same order each time. Everything else it does is repeated: an effect outside is to be keyed by
    ``admitted.run_id``. Once the body returned and its reply is stored it is not called again. A body that cannot be
    called twice belongs to an agent with ``on_worker_loss="interrupt"``.
    """

    @property
    def user_message(self) -> UserMessage:
        """The user's message."""
        ...

    @property
    def admitted(self) -> AdmittedTurn:
        """The turn as the session admitted it: meta, number, key, origin, command, claimed items (TRN-40)."""
        ...

    @property
    def memory(self) -> Sequence[Message]:
        """What the next run's model is shown of the conversation, its last message newest; read-only (TRN-09)."""
        ...

    @property
    def tasks(self) -> TurnTasks:
        """Work beside the body, joined before the reply is recorded (TRN-20)."""
        ...

    @property
    def usage(self) -> Mapping[str, int]:
        """The turn's totals so far, earlier attempts included."""
        ...

    def reply(self, text: str) -> TurnOutcome:
        """Return the outcome that answers with ``text``, without any step loop; the turn is recorded all the same."""
        ...

    async def run(self, policy: Policy | None = None) -> RunResult:
        """Run the step loop once; again for the turn's next run. Its last step is stored when this returns.

        ``policy`` replaces the agent's for this run: steps, calls and seconds count within it, beside the turn's own
        time. Raises ``RunOpen`` while another run of the turn is under way, and whatever fails the run.
        """
        ...

    async def context(self, text: str) -> None:
        """Record a context entry: the model reads it from the next request on. Raises ``RunOpen`` during a run."""
        ...

    async def flush(self) -> int:
        """Return the log's seq once all that was written before is committed."""
        ...

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """Run a write of the host's own after all that was written before, and return its result (SES-48)."""
        ...


#: A body: the host's own code of a turn.
Use = Callable[[Turn], Awaitable[TurnOutcome]]
