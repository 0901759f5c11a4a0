"""A turn as its workers write it, one move at a time, for properties of what its followers show."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from shared.domain.ids import SessionId, TurnId, new_turn_id
from shared.feed.entries import Delta, Entry, Snapshot
from shared.feed.outgoing import Outgoing
from shared.sessions.records import Record
from shared.sessions.vocabulary import (
    Payload,
    StepEnded,
    StepStarted,
    TurnStarted,
    UserMessage,
    draft_of,
)
from tests.support.following import closing_of, message_of

SESSION = SessionId("ses_1")


@dataclass
class Turn:
    """One turn as its workers write it: the session's log, and the turn's stream in Redis. Entries carry the stream's ids."""

    log: list[Record] = field(default_factory=list)
    id: TurnId = field(default_factory=new_turn_id)
    number: int = 1
    stream: list[tuple[int, Entry]] = field(default_factory=list)
    text: str = ""
    step: int = 0
    epoch: int = 1
    clock: float = 0.0
    ids: int = 0
    is_over: bool = False
    writers: list[Outgoing] = field(default_factory=list)
    written: set[str] = field(default_factory=lambda: {""})
    zombie: tuple[int, str] = (0, "")

    def begin(self) -> None:
        started = TurnStarted(
            turn_id=str(self.id), run_id="r", entry="r:0", origin="user", user_message=UserMessage(text="hi")
        )
        self.commit(started, StepStarted(run=0, step=0))
        self.writers.append(Outgoing(self.id, 1, max_bytes=1_000_000))

    def commit(self, *payloads: Payload) -> None:
        for payload in payloads:
            made = draft_of(payload)
            at = datetime.now(UTC)
            self.log.append(
                Record(SESSION, len(self.log) + 1, self.number, made.kind, at, made.text, made.digest)
            )

    def push(self, word: str) -> None:
        self.text += word
        self.written.add(self.text)
        self.writers[-1].push(0, self.step, word)

    def start_over(self) -> None:
        self.text = ""
        self.writers[-1].begin(0, self.step)

    def next_attempt(self) -> None:
        """The worker dies, or stops and lives on as a zombie; another one asks the model anew."""
        if self.epoch == 1:
            self.zombie = (self.step, self.text)
        self.epoch += 1
        self.text = ""
        self.writers.append(Outgoing(self.id, self.epoch, max_bytes=1_000_000))

    def finish_step(self) -> None:
        self.commit(
            message_of("r", self.step, self.text),
            StepEnded(run=0, step=self.step, status="completed"),
            StepStarted(run=0, step=self.step + 1),
        )
        self.step, self.text = self.step + 1, ""

    def lose(self) -> None:
        """An entry vanishes unseen, such as one that a zombie's snapshot trimmed away."""
        self.stream = self.stream[:-1]

    def wipe(self) -> None:
        self.stream = []

    def flush(self, *, is_lost: bool = False) -> None:
        self.write(self.writers[-1], is_lost=is_lost)

    def write_as_zombie(self, word: str) -> None:
        """A worker that lost the turn writes on, until it learns of it."""
        if len(self.writers) > 1:
            step, text = self.zombie
            self.zombie = (self.step, (text if step == self.step else "") + word)
            self.written.add(self.zombie[1])
            self.writers[0].push(0, self.step, word)
            self.write(self.writers[0], is_lost=False)

    def write(self, writer: Outgoing, *, is_lost: bool) -> None:
        self.clock += 0.2
        entry = writer.plan(self.clock)
        if entry is None:
            return
        if is_lost or (isinstance(entry, Delta) and entry.offset and not self.stream):
            writer.fail()
            return
        self.ids += 1
        self.stream = [] if isinstance(entry, Snapshot) else self.stream
        self.stream.append((self.ids, entry))

    def reply(self) -> None:
        self.commit(*closing_of("r", self.step, self.text))
        self.is_over = True
