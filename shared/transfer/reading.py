"""What a transfer file must say, line by line: the manifest, the log, each section in order, and the closing line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, Literal, TypeVar

from pydantic import ValidationError

from shared.domain.bounds import RECORD_MAX_BYTES
from shared.domain.canonical import chain_tail, first_tail, record_digest
from shared.domain.errors import TransferInvalid, TransferVersion
from shared.domain.ids import SessionId
from shared.sessions.records import Record
from shared.transfer.lines import Line, read_lines
from shared.transfer.values import (
    FACTS,
    FORMAT,
    SECTIONS,
    AnyFact,
    Count,
    Counts,
    Fact,
    Hex,
    Id,
    Moment,
    Section,
    Snapshot,
    place_of,
)

F = TypeVar("F", bound=Fact)


class Manifest(Snapshot):
    """The first line: the captured session, the format and the schema of the store that wrote it."""

    line: Literal["manifest"]
    format: Literal[1]
    schema_: int = 0


class RecordLine(Fact):
    """A record of the log; ``data`` is its canonical text."""

    line: Literal["record"]
    seq: Count
    turn: int | None
    kind: Id
    at: Moment
    data: str
    digest: Hex


class Closing(Counts):
    """The last line: what was written, and the tail that the records lead to. ``check`` stands for the whole file."""

    line: Literal["end"]
    tail: Hex


_SECTION_OF: Final[Mapping[str, Section]] = {section[:-1]: section for section in SECTIONS}


class TransferFile:
    """Reads one file from its beginning to its closing line, and holds no more than a line of it.

    Everything raises ``TransferInvalid`` with line, byte and field of the first thing that is wrong, and ``TransferVersion``
    for a format that this code does not read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._lines = read_lines(file)
        line = next(self._lines, None)
        if line is None:
            raise TransferInvalid("the file is empty", field="end", line=1, byte=0)
        self._at = line
        self.manifest: Final = self._manifest(line.said)
        self.session_id: Final = SessionId(self.manifest.session.id)
        self.check: str | None = None
        self._tail = first_tail(self.session_id)
        self._counts = dict.fromkeys(("records", *SECTIONS), 0)
        self._section = 0
        self._last: tuple[str | int, ...] | None = None

    @property
    def done(self) -> int:
        """How many records and facts were read."""
        return sum(self._counts.values())

    @property
    def total(self) -> int:
        """How many the manifest names."""
        counts = self.manifest.counts
        return counts.records + counts.turns + counts.keys + counts.calls

    @property
    def byte(self) -> int:
        """Where the line begins that was read last."""
        return self._at.byte

    def __iter__(self) -> Iterator[Record | AnyFact]:
        """Yield records, then facts; ends after the closing line and what must stand there: nothing more."""
        for line in self._lines:
            self._at = line
            if self.check is not None:
                raise self._wrong("something follows the closing line", "line")
            kind = line.said.get("line")
            if kind == "record":
                yield self._record(line)
            elif section := _SECTION_OF.get(str(kind)):
                yield self._fact(section, line.said)
            elif kind == "end":
                self._close(line)
            else:
                raise self._wrong("this line is of no kind that may stand here", "line")
        if self.check is None:
            end = self._at.number + 1
            raise TransferInvalid(
                f"the file ends before line {end}: its closing line is missing", field="end", line=end
            )

    def _manifest(self, said: Mapping[str, Any]) -> Manifest:
        if said.get("line") != "manifest":
            raise self._wrong("the file does not begin with a manifest", "line")
        if said.get("format") != FORMAT:
            raise TransferVersion(
                f"the file has format {said.get('format')!r}; this version reads {FORMAT}",
                format=said.get("format"),
                reads=FORMAT,
            )
        manifest = self._parsed(
            Manifest, {("schema_" if name == "schema" else name): v for name, v in said.items()}
        )
        if manifest.counts.records != manifest.seq:
            raise self._wrong("the manifest counts other records than its captured seq", "counts")
        return manifest

    def _record(self, line: Line) -> Record:
        said = self._parsed(RecordLine, line.said)
        if self._section:
            raise self._wrong("a record stands behind the facts", "line")
        expected = self._counts["records"] + 1
        if said.seq != expected:
            raise self._wrong(f"record {expected} should stand here", "seq", seq=expected)
        if len(said.data) > RECORD_MAX_BYTES or len(said.data.encode()) > RECORD_MAX_BYTES:
            raise self._wrong(f"a record holds more than {RECORD_MAX_BYTES} bytes", "data", seq=expected)
        if record_digest(said.kind, said.data).hex() != said.digest:
            raise self._wrong("a record does not match its digest", "kind, data or digest", seq=expected)
        digest = bytes.fromhex(said.digest)
        self._counts["records"] = expected
        self._tail = chain_tail(self._tail, said.seq, said.turn, digest)
        return Record(self.session_id, said.seq, said.turn, said.kind, said.at, said.data, digest)

    def _fact(self, section: Section, said: Mapping[str, Any]) -> AnyFact:
        self._require_whole_log()
        place = SECTIONS.index(section) + 1
        if place < self._section:
            raise self._wrong("a section stands behind a later one", "line")
        if place > self._section:
            self._section, self._last = place, None
        fact: AnyFact = self._parsed(
            FACTS[section], {name: value for name, value in said.items() if name != "line"}
        )
        here = place_of(fact)
        if self._last is not None and section != "keys" and here <= self._last:
            raise self._wrong(f"the {section} are out of order", "line")
        self._last = here
        self._counts[section] += 1
        return fact

    def _close(self, line: Line) -> None:
        self._require_whole_log()
        closing = self._parsed(Closing, line.said)
        stated = self.manifest.counts.model_dump()
        for name, count in self._counts.items():
            if not count == stated[name] == getattr(closing, name):
                raise self._wrong(f"the file holds {count} {name}; its manifest says {stated[name]}", name)
        if closing.tail != self._tail.hex():
            raise self._wrong("the closing line has another tail than the records", "tail")
        self.check = line.check

    def _require_whole_log(self) -> None:
        if self._section:
            return
        if self._counts["records"] != self.manifest.seq:
            raise self._wrong(
                f"record {self._counts['records'] + 1} should stand here",
                "seq",
                seq=self._counts["records"] + 1,
            )
        if self._tail.hex() != self.manifest.tail:
            raise self._wrong("the records do not lead to the captured tail", "tail")

    def _parsed(self, kind: type[F], said: Mapping[str, Any]) -> F:
        try:
            return kind.model_validate(said)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            field = "/".join(map(str, first["loc"])) or "line"
            raise self._wrong(f"{field}: {first['msg']}", field) from error

    def _wrong(self, message: str, field: str, **more: int) -> TransferInvalid:
        at = self._at
        return TransferInvalid(
            f"line {at.number}: {message}", field=field, line=at.number, byte=at.byte, **more
        )
