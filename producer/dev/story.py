"""The story that ``turnkeeper demo`` tells over HTTP, as owners who each know their own key and nothing else.

Ann tells a fact in one session and is asked for it in another; Ben asks the same; Ann withdraws it. Everything that the
story says it has seen in an answer of the service.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx2

from producer.dev.places import Say
from producer.dev.talk import ServerEvent, read_events
from shared.domain.errors import Unavailable

FACT: Final = "My favourite colour is teal."
QUESTION: Final = "What is my favourite colour?"
WORD: Final = "teal"
TELLER: Final = "ann"
STRANGER: Final = "ben"

TURN_BOUND_S: Final = 60.0
MEMORY_BOUND_S: Final = 30.0
LOOK_S: Final = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Said:
    """A turn that ended. Milliseconds as its caller saw them, from the request; ``ended_at`` is the closing commit."""

    reply: str
    admission_ms: float
    first_text_ms: float
    ended_at: datetime


@dataclass(slots=True)
class Findings:
    """What the story has seen so far."""

    recalled: bool = False
    isolated: bool = False
    withdrawn: bool = False
    commit_to_recall_ms: list[float] = field(default_factory=list)
    turns: list[Said] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.recalled and self.isolated and self.withdrawn

    def report(self) -> dict[str, Any]:
        """Return what ``--json`` prints: medians in milliseconds, null for what was not measured."""
        return {
            "ok": self.ok,
            "recalled": self.recalled,
            "isolated": self.isolated,
            "withdrawn": self.withdrawn,
            "commit_to_recall_ms": _median(self.commit_to_recall_ms),
            "admission_ms": _median([said.admission_ms for said in self.turns]),
            "first_delta_ms": _median([said.first_text_ms for said in self.turns]),
            "turns": len(self.turns),
        }


def owners_of(runs: int) -> list[str]:
    """Return every owner that the story with so many runs of tell and recall needs."""
    return [TELLER, STRANGER, *(f"{TELLER}-{n}" for n in range(2, runs + 1))]


class Story:
    """Tells the story once. ``keys``: the owners' API keys; ``findings`` fill as it goes, also when it fails."""

    def __init__(self, url: str, keys: Mapping[str, str], *, say: Say) -> None:
        self._url = url
        self._keys = keys
        self._say = say
        self.findings = Findings()

    def tell(self, runs: int = 1) -> Findings:
        """Tell it, then repeat telling and recalling with fresh owners. Raises ``Unavailable`` when something stays away."""
        with self._caller(TELLER) as ann, self._caller(STRANGER) as ben:
            self._say(f"\n1. {TELLER} tells something, in session A.")
            self._remember(ann)
            self._say(f"\n2. {TELLER} asks for it, in a new session B.")
            self._ask_who_told(ann)
            self._say(f"\n3. {STRANGER} asks the same, in session C.")
            self._ask_stranger(ben, ann.documents())
            self._say(f"\n4. {TELLER} withdraws it, and asks again in a new session D.")
            self._withdraw(ann)
        if runs > 1:
            self._repeat(runs)
        return self.findings

    def _remember(self, ann: Caller) -> None:
        session = ann.create_session()
        said = self._converse(ann, session, FACT)
        waited_ms = self._await_recall(ann, said)
        progress = ann.progress(session)
        for processor in progress["processors"]:
            self._note(
                "activity", f"read session A up to record {processor['through_seq']} of {progress['seq']}"
            )
        for document in ann.documents():
            self._note("remember", f"keeps “{document['text']}” as {document['id']}")
        self._note("recall", f"finds it {waited_ms:.0f} ms after the turn's commit")
        _await(lambda: _is_indexed(ann.progress(session)), "the index of meanings")
        self._note("index", "has its vectors: it is found by meaning, too")

    def _ask_who_told(self, ann: Caller) -> None:
        said = self._converse(ann, ann.create_session(), QUESTION)
        recall = ann.recall(QUESTION)
        sources = [o["id"] for o in recall["outcomes"] if o["status"] == "found"]
        self.findings.recalled = WORD in said.reply.lower() and _tells(recall)
        self._note(
            "recall", f"found by {', '.join(sources)}; shown to the model for this turn only, never stored"
        )

    def _ask_stranger(self, ben: Caller, of_ann: list[dict[str, Any]]) -> None:
        said = self._converse(ben, ben.create_session(), QUESTION)
        recall = ben.recall(QUESTION)
        seen = [document["id"] for document in of_ann if ben.can_read(document["id"])]
        is_empty = not (recall["passages"] or recall["text"] or ben.documents() or seen)
        self.findings.isolated = is_empty and WORD not in said.reply.lower()
        self._note("recall", f"has {'nothing' if is_empty else 'SOMETHING'} for {STRANGER}")

    def _withdraw(self, ann: Caller) -> None:
        for document in ann.documents():
            ann.withdraw(document)
            self._note("store", f"{document['id']} is withdrawn")
        said = self._converse(ann, ann.create_session(), QUESTION)
        recall = ann.recall(QUESTION)
        self.findings.withdrawn = not (
            _tells(recall) or recall["passages"] or WORD in said.reply.lower() or _live(ann.documents())
        )
        self._note("recall", "has nothing any more" if self.findings.withdrawn else "STILL has it")

    def _repeat(self, runs: int) -> None:
        self._say(f"\n5. Telling and recalling {runs - 1} times more, each time as a new owner.")
        for n in range(2, runs + 1):
            with self._caller(f"{TELLER}-{n}") as caller:
                said = caller.say(caller.create_session(), FACT)
                self.findings.turns.append(said)
                self._await_recall(caller, said)
        self._say(f"   commit to recall: median of {runs} is {_median(self.findings.commit_to_recall_ms)} ms")

    def _converse(self, caller: Caller, session: str, text: str) -> Said:
        said = caller.say(session, text)
        self.findings.turns.append(said)
        self._say(f"   {caller.owner:<10} {text}")
        self._say(f"   {'assistant':<10} {said.reply}")
        self._note(
            "turns", f"admitted in {said.admission_ms:.0f} ms, first text after {said.first_text_ms:.0f} ms"
        )
        return said

    def _await_recall(self, caller: Caller, said: Said) -> float:
        """Wait until the caller's recall has the fact; return and keep the milliseconds since the turn's commit."""
        _await(lambda: _tells(caller.recall(QUESTION)), "the fact in a recall")
        # The database is on this machine: both times are of one clock.
        waited_ms = (time.time() - said.ended_at.timestamp()) * 1_000
        self.findings.commit_to_recall_ms.append(waited_ms)
        return waited_ms

    def _note(self, where: str, what: str) -> None:
        self._say(f"      {where:<10} {what}")

    def _caller(self, owner: str) -> Caller:
        return Caller(self._url, owner, self._keys[owner])


class Caller:
    """One owner at the service. A context manager. Every method raises ``Unavailable`` when the service says no."""

    def __init__(self, url: str, owner: str, key: str) -> None:
        self.owner = owner
        headers = {"Authorization": f"Bearer {key}"}
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=TURN_BOUND_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def create_session(self) -> str:
        """Create a session and return its id."""
        return str(self._ask("POST", "/v1/sessions", json={})["session_id"])

    def say(self, session: str, text: str) -> Said:
        """Admit a turn, follow it to its end and return it."""
        began = time.monotonic()
        at: dict[str, float] = {}
        told: dict[str, Any] = {}
        for event in self._stream(f"/v1/sessions/{session}/turns", {"message": text}):
            kind = "delta" if event.event == "snapshot" else event.event
            at.setdefault(kind, (time.monotonic() - began) * 1_000)
            told[kind] = event.data
        turn = self._ask("GET", f"/v1/turns/{told['admitted']['turn_id']}")
        if turn["outcome"] != "completed" or turn["ended_at"] is None:
            raise Unavailable(f"a turn of {self.owner} ended as {turn['outcome']} ({turn['code']})")
        first = at.get("delta", at["turn.reply"])
        reply = str(told["turn.reply"]["text"])
        return Said(reply, at["admitted"], first, datetime.fromisoformat(turn["ended_at"]))

    def recall(self, query: str) -> dict[str, Any]:
        """Return what a turn with this text would be shown."""
        return self._ask("POST", "/v1/memory/recall", json={"query": query})

    def documents(self) -> list[dict[str, Any]]:
        """Return the owner's documents, withdrawn ones included."""
        return list(self._ask("GET", "/v1/memory/documents")["documents"])

    def can_read(self, document: str) -> bool:
        """Say whether the owner is shown this document."""
        return self._client.get(f"/v1/memory/documents/{document}").is_success

    def withdraw(self, document: Mapping[str, Any]) -> None:
        """Withdraw a document as it was read."""
        operation = {"expected_revision": document["revision"], "operation_id": str(uuid.uuid4())}
        self._ask("DELETE", f"/v1/memory/documents/{document['id']}", params=operation)

    def progress(self, session: str) -> dict[str, Any]:
        """Return how far the background is in a session."""
        return self._ask("GET", "/v1/memory/progress", params={"session_id": session})

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[ServerEvent]:
        try:
            with self._client.stream("POST", path, params={"stream": "true"}, json=body) as response:
                _check(response)
                yield from read_events(response)
        except httpx2.TransportError as error:
            raise Unavailable(f"the service does not answer POST {path}") from error

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **options)
        except httpx2.TransportError as error:
            raise Unavailable(f"the service does not answer {method} {path}") from error
        _check(response)
        found: dict[str, Any] = response.json()
        return found


def _check(response: httpx2.Response) -> None:
    if response.is_error:
        response.read()
        raise Unavailable(f"the service answered {response.status_code}: {response.text[:300]}")


def _await(look: Callable[[], T], what: str) -> T:
    """Return the first true answer of ``look``; raise ``Unavailable`` when there is none in time."""
    deadline = time.monotonic() + MEMORY_BOUND_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise Unavailable(f"not within {MEMORY_BOUND_S:g} s: {what}")
        time.sleep(LOOK_S)
    return found


def _tells(recall: Mapping[str, Any]) -> bool:
    return any(WORD in passage["text"].lower() for passage in recall["passages"])


def _is_indexed(progress: Mapping[str, Any]) -> bool:
    active = [index for index in progress["indexes"] if index["active"]]
    return any(index["ready"] for index in active) and not any(index["owed"] for index in active)


def _live(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [document for document in documents if not document["withdrawn"]]


def _median(values: list[float]) -> float | None:
    return round(median(values), 1) if values else None
