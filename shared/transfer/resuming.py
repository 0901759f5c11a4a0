"""Going on with an export that was cut: the file itself says how far it came."""

from __future__ import annotations

from typing import Any, BinaryIO, Final

from shared.domain.canonical import chain_tail, first_tail
from shared.domain.errors import TransferInvalid
from shared.transfer.export import Cursor, short
from shared.transfer.lines import Line, read_lines
from shared.transfer.reading import TransferFile
from shared.transfer.values import FACTS, SECTIONS, Section, Snapshot

_WHOLE: Final = "closing line"
_SECTION_OF: Final[dict[str, Section]] = {section[:-1]: section for section in SECTIONS}


def cursor_of(file: BinaryIO) -> tuple[Cursor, int] | None:
    """Return the cursor behind a cut file's last whole line, and how many bytes of it are whole.

    None when not even its manifest is. A whole file has nothing to go on with: ``TransferInvalid``. What was written is not
    checked against the store: the pages that follow are chained to it, so the closed file verifies or it does not.
    """
    cursor: Cursor | None = None
    size = 0
    try:
        for line in read_lines(file):
            cursor = _begun(file, line) if cursor is None else _after(cursor, line)
            size = file.tell()
    except TransferInvalid as error:
        if error.fields.get("field") == _WHOLE:
            raise
    return None if cursor is None else (cursor, size)


def _begun(file: BinaryIO, line: Line) -> Cursor:
    back = file.tell()
    file.seek(0)
    manifest = TransferFile(file).manifest
    file.seek(back)
    snapshot = Snapshot(**{name: getattr(manifest, name) for name in Snapshot.model_fields})
    tail = first_tail(snapshot.session.id).hex()
    return Cursor(snapshot=snapshot, place="records", done=0, last=None, check=line.check, tail=tail)


def _after(cursor: Cursor, line: Line) -> Cursor:
    said: dict[str, Any] = dict(line.said)
    kind = said.pop("line", None)
    if kind == "record":
        tail = chain_tail(
            bytes.fromhex(cursor.tail), said["seq"], said["turn"], bytes.fromhex(said["digest"])
        )
        return cursor.model_copy(update={"done": said["seq"], "tail": tail.hex(), "check": line.check})
    if (section := _SECTION_OF.get(str(kind))) is None:
        raise TransferInvalid(
            "the file is whole: there is nothing to go on with", field=_WHOLE, line=line.number
        )
    fact = short(FACTS[section].model_validate(said))
    done = cursor.done + 1 if cursor.place == section else 1
    update = {"place": section, "done": done, "last": fact.model_dump_json(), "check": line.check}
    return cursor.model_copy(update=update)
