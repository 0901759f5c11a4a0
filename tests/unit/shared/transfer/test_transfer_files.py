"""A transfer file's damage is found wherever it is, and located; a cut export goes on from what its file says."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import InvalidInput, TransferInvalid, TransferVersion
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.transfer.export import Cursor, Page, begin_export, export_page
from shared.transfer.importing import import_session
from shared.transfer.inproc import InprocTransferStore
from shared.transfer.lines import FIRST_CHECK, encode_line, read_lines
from shared.transfer.resuming import cursor_of
from shared.transfer.values import PAGE_MAX_BYTES, PAGE_MAX_RECORDS
from shared.transfer.verify import verify_file
from tests.support.running import run

OWNER: Final = OwnerId("ann")
SESSION: Final = SessionId("s")


async def pages_of(store: InprocStore, cursor: Cursor | None = None) -> list[Page]:
    log, transfer = InprocSessionLog(store), InprocTransferStore(store)
    at = cursor if cursor is not None else await begin_export(transfer, SESSION)
    pages = [await export_page(log, transfer, at)]
    while (following := pages[-1].next) is not None:
        pages.append(await export_page(log, transfer, following))
    return pages


async def store_with(texts: Sequence[str], *, a_commit: int = 3) -> InprocStore:
    store = InprocStore()
    log = InprocSessionLog(store)
    await log.create(NewSession(SESSION, OWNER, key="k", meta={"a": 1}))
    for first in range(0, len(texts), a_commit):
        drafts = [draft("note", {"text": text}) for text in texts[first : first + a_commit]]
        await log.commit(SESSION, OWNER, drafts, commit_id=f"c{first}")
    return store


def lines_of(pages: Sequence[Page]) -> bytes:
    return b"".join(page.lines for page in pages)


FILE: Final = lines_of(run(pages_of(run(store_with([f'é "{n}"' for n in range(9)])))))
LINES: Final = FILE.splitlines(keepends=True)


def damage(file: bytes) -> TransferInvalid:
    with pytest.raises(TransferInvalid) as raised:
        verify_file(io.BytesIO(file))
    return raised.value


def line_at(place: int) -> int:
    return FILE[:place].count(b"\n") + 1


@pytest.mark.behaviour("OPS-06", "THR-103")
@given(place=st.integers(0, len(FILE) - 1), flip=st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_found_in_its_line(place: int, flip: int) -> None:
    found = damage(FILE[:place] + bytes([FILE[place] ^ flip]) + FILE[place + 1 :])
    assert found.fields["line"] == line_at(place)
    assert found.fields["byte"] == FILE.rfind(b"\n", 0, place) + 1


@pytest.mark.behaviour("OPS-06")
@given(place=st.integers(0, len(FILE) - 1))
def test_a_file_that_ends_early_is_found_anywhere(place: int) -> None:
    assert damage(FILE[:place]).fields["line"] in (line_at(place), line_at(place) + 1)


@pytest.mark.behaviour("OPS-06")
@given(first=st.integers(0, len(LINES) - 1), second=st.integers(0, len(LINES) - 1))
def test_lines_that_are_missing_doubled_or_moved_are_found_at_the_first(first: int, second: int) -> None:
    without = LINES[:first] + LINES[first + 1 :]
    assert damage(b"".join(without)).fields["line"] == first + 1
    doubled = LINES[: first + 1] + LINES[first:]
    assert damage(b"".join(doubled)).fields["line"] == first + 2
    moved = list(LINES)
    moved[first], moved[second] = moved[second], moved[first]
    if first != second:
        assert damage(b"".join(moved)).fields["line"] == min(first, second) + 1


def rewritten(change: dict[int, dict[str, object]]) -> bytes:
    """The file with what some lines say replaced, and every check made anew, as a careful forger would."""
    check, made = FIRST_CHECK, b""
    for line in read_lines(io.BytesIO(FILE)):
        raw, check = encode_line(check, {**line.said, **change.get(line.number, {})})
        made += raw
    return made


@pytest.mark.behaviour("OPS-06")
@pytest.mark.parametrize(
    ("change", "line", "field"),
    [
        ({3: {"data": "{}"}}, 3, "kind, data or digest"),
        ({3: {"kind": "other"}}, 3, "kind, data or digest"),
        ({3: {"seq": 7}}, 3, "seq"),
        ({3: {"turn": 1}}, 11, "tail"),
        ({3: {"at": "yesterday"}}, 3, "at"),
        ({3: {"more": 1}}, 3, "more"),
        ({3: {"line": "what"}}, 3, "line"),
        ({1: {"seq": 8}}, 1, "counts"),
        ({1: {"tail": "0" * 64}}, 11, "tail"),
        ({len(LINES): {"tail": "0" * 64}}, len(LINES), "tail"),
    ],
    ids=str,
)
def test_a_file_with_right_checks_must_still_say_what_holds(
    change: dict[int, dict[str, object]], line: int, field: str
) -> None:
    found = damage(rewritten(change))
    assert (found.fields["line"], found.fields["field"]) == (line, field)


@pytest.mark.behaviour("THR-107")
@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_refused_by_its_number(version: object) -> None:
    with pytest.raises(TransferVersion) as raised:
        verify_file(io.BytesIO(rewritten({1: {"format": version}})))
    assert raised.value.fields == {"format": version, "reads": 1}


@pytest.mark.behaviour("THR-107")
async def test_a_damaged_file_is_refused_before_anything_is_made() -> None:
    store = InprocStore()
    with pytest.raises(TransferInvalid):
        await import_session(InprocTransferStore(store), io.BytesIO(FILE[:-200]))
    assert store.sessions == {}


@pytest.mark.behaviour("THR-103")
def test_a_line_without_an_end_takes_no_more_memory_than_its_bound() -> None:
    with pytest.raises(TransferInvalid) as raised:
        list(read_lines(io.BytesIO(b"x" * 10_000), max_bytes=1_000))
    assert raised.value.fields["bound"] == "<= 1000 bytes"


@pytest.mark.behaviour("THR-103")
async def test_pages_are_bounded_in_lines_and_in_bytes() -> None:
    few = await pages_of(await store_with(["x" * 400_000 for _ in range(40)]))
    many = await pages_of(await store_with([str(n) for n in range(2_500)], a_commit=500))
    assert max(len(page.lines) for page in few) < PAGE_MAX_BYTES + 1_000_000
    assert [page.records for page in many if page.records] == [PAGE_MAX_RECORDS, PAGE_MAX_RECORDS, 500]
    assert all(page.lines.count(b"\n") <= PAGE_MAX_RECORDS for page in (*few, *many))
    assert [page.done for page in many] == sorted(page.done for page in many)
    assert many[-1].done == many[-1].total


@pytest.mark.behaviour("THR-103")
async def test_a_stored_cursor_yields_the_same_pages() -> None:
    store = await store_with([str(n) for n in range(2_500)], a_commit=500)
    whole = await pages_of(store)
    for n, page in enumerate(whole[:-1]):
        assert page.next is not None
        again = await pages_of(store, Cursor.decode(page.next.encode()))
        assert lines_of(again) == lines_of(whole[n + 1 :])
    with pytest.raises(InvalidInput):
        Cursor.decode('{"place": "records"}')


@pytest.mark.behaviour("THR-103")
@given(place=st.integers(0, len(FILE)))
def test_a_cut_file_goes_on_to_the_same_end(place: int) -> None:
    store = run(store_with([f'é "{n}"' for n in range(9)]))
    whole = lines_of(run(pages_of(store)))
    cut = whole[: min(place, len(whole) - 1)]
    found = cursor_of(io.BytesIO(cut))
    if found is None:
        assert b"\n" not in cut
        return
    cursor, size = found
    assert cut[:size].endswith(b"\n")
    assert cut[:size] + lines_of(run(pages_of(store, cursor))) == whole


@pytest.mark.behaviour("THR-103")
def test_a_whole_file_has_nothing_to_go_on_with() -> None:
    with pytest.raises(TransferInvalid, match="whole"):
        cursor_of(io.BytesIO(FILE))


@pytest.mark.behaviour("THR-103")
def test_texts_travel_as_text_so_that_every_byte_comes_back() -> None:
    said = [line.said for line in read_lines(io.BytesIO(FILE)) if line.said["line"] == "record"]
    assert [json.loads(one["data"])["text"] for one in said] == [f'é "{n}"' for n in range(9)]
