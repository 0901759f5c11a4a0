"""Each check of the kit of transfer and archives fails, by its name, on a store with the fault that it is about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from shared.conformance import transfers_conformance
from shared.domain.errors import ArchiveRefused, SessionExists, SessionMissing
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.inproc import InprocStore
from shared.sessions.records import Record
from shared.transfer.inproc import InprocArchives, InprocTransferStore
from shared.transfer.port import Anchor, Archives, Import, TransferStore
from shared.transfer.values import AnyFact, Counts, Obligations, Section, SessionFact, Snapshot
from tests.conformance.subjects import InprocTransferSubject
from tests.conformance.tampering import require_failure, require_fault_for_each


class Faulty(InprocTransferSubject):
    """A subject whose adapters are these."""

    def __init__(self, store: type[InprocTransferStore], archives: type[InprocArchives]) -> None:
        super().__init__()
        self._kinds = store, archives

    async def transfer(self) -> TransferStore:
        return self._kinds[0](self.store)

    async def archives(self) -> Archives:
        return self._kinds[1](self.store)


class Miscounting(InprocTransferStore):
    """Counts no unfinished turn."""

    async def capture(self, session_id: SessionId, owner: OwnerId | None = None) -> Snapshot:
        found = await super().capture(session_id, owner)
        counts = Counts(**found.counts.model_dump() | {"turns": 0})
        return found.model_copy(update={"counts": counts})


class Ownerless(InprocTransferStore):
    """Captures for anybody."""

    async def capture(self, session_id: SessionId, owner: OwnerId | None = None) -> Snapshot:
        return await super().capture(session_id)


class Restless(InprocTransferStore):
    """Captures nothing of the facts: shows what there is now."""

    async def facts(
        self, captured: Snapshot, section: Section, after: AnyFact | None, *, max_bytes: int
    ) -> Sequence[AnyFact]:
        later = captured.model_copy(update={"seq": 2**40, "at": self._store.now()})
        return await super().facts(later, section, after, max_bytes=max_bytes)


class _Losing:
    """Passes on what is added, without the keys."""

    def __init__(self, made: Import) -> None:
        self._made = made

    async def add_records(self, records: Sequence[Record]) -> None:
        await self._made.add_records(records)

    async def add_facts(self, section: Section, facts: Sequence[AnyFact]) -> None:
        if section != "keys":
            await self._made.add_facts(section, facts)


class Keyless(InprocTransferStore):
    """Makes sessions that answer no repeat."""

    @asynccontextmanager
    async def importing(self, session: SessionFact, **how: Any) -> AsyncIterator[Import | None]:
        async with super().importing(session, **how) as made:
            yield None if made is None else _Losing(made)


class Renumbering(InprocTransferStore):
    """Forgets how many turns there were."""

    @asynccontextmanager
    async def importing(self, session: SessionFact, **how: Any) -> AsyncIterator[Import | None]:
        async with super().importing(session.model_copy(update={"next_number": 1}), **how) as made:
            yield made


class Hasty(InprocTransferStore):
    """Shows the session before it is whole."""

    @asynccontextmanager
    async def importing(self, session: SessionFact, **how: Any) -> AsyncIterator[Import | None]:
        async with super().importing(session, **how) as made:
            if made is not None:
                async with super().importing(session, **how):
                    pass
            yield made


class Overwriting(InprocTransferStore):
    """Puts a session in the place of another."""

    @asynccontextmanager
    async def importing(self, session: SessionFact, **how: Any) -> AsyncIterator[Import | None]:
        try:
            async with super().importing(session, **how) as made:
                yield made
        except SessionExists:
            self._store.remove([SessionId(session.id)])
            async with super().importing(session, **how):
                yield None


class Carefree(InprocTransferStore):
    """Captures nothing that is owed."""

    async def capture(self, session_id: SessionId, owner: OwnerId | None = None) -> Snapshot:
        found = await super().capture(session_id, owner)
        return found.model_copy(update={"obligations": Obligations()})


class Losing(InprocArchives):
    """Loses the text of what it archives."""

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        await super().archive(session_id, owner, anchor)
        session = self._store.sessions[session_id]
        session.records[0] = replace(session.records[0], text="{}")


class Unanchored(InprocArchives):
    """Tells every range as if it were the first."""

    async def anchors(self, session_id: SessionId, *, after: int = 0) -> Sequence[Anchor]:
        found = await super().anchors(session_id, after=after)
        return [replace(one, first_seq=1) for one in found]


class Trusting(InprocArchives):
    """Takes whatever range it is given."""

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        try:
            await super().archive(session_id, owner, anchor)
        except ArchiveRefused as error:
            if error.fields["reason"] != "moved":
                raise


class Greedy(InprocArchives):
    """Archives what an open turn wrote, and the newest record."""

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        try:
            await super().archive(session_id, owner, anchor)
        except ArchiveRefused as error:
            if error.fields["reason"] != "open":
                raise


class Remembering(InprocArchives):
    """Keeps the ranges of removed sessions."""

    def __init__(self, store: InprocStore) -> None:
        super().__init__(store)
        self._kept: dict[SessionId, list[Anchor]] = {}

    async def archive(self, session_id: SessionId, owner: OwnerId, anchor: Anchor) -> None:
        await super().archive(session_id, owner, anchor)
        self._kept.setdefault(session_id, []).append(anchor)

    async def anchors(self, session_id: SessionId, *, after: int = 0) -> Sequence[Anchor]:
        return [one for one in self._kept.get(session_id, []) if one.last_seq > after]


class Unlisted(InprocArchives):
    """Tells the limit of anybody's session."""

    async def limit(self, session_id: SessionId, owner: OwnerId) -> int:
        try:
            return await super().limit(session_id, owner)
        except SessionMissing:
            return 0


Maker = Callable[[], Faulty]


def _of(
    store: type[InprocTransferStore] = InprocTransferStore, archives: type[InprocArchives] = InprocArchives
) -> Maker:
    return lambda: Faulty(store, archives)


FAULTS: Final[Mapping[str, Maker]] = {
    "a capture names the head, counts what there is, and says what is owed": _of(Miscounting),
    "another owner's session is missing for capture and archive": _of(Ownerless),
    "an export ends at its captured tail while a writer appends, and its file verifies": _of(Restless),
    "an import makes the same records, keys and turns, and repeats still answer": _of(Keyless),
    "what was imported goes on: the next turn has the next number": _of(Renumbering),
    "a cut import leaves nothing behind, and a repeat makes it whole": _of(Hasty),
    "a repeated import changes nothing, and no other session is overwritten": _of(Overwriting),
    "a session that was not at rest is exported, and refused as an import": _of(Carefree),
    "archived records read, verify and export as the live ones did, while newer ones are appended": _of(
        archives=Losing
    ),
    "ranges follow one another, and their anchors chain": _of(archives=Unanchored),
    "a range with wrong anchors, or out of turn, is refused and moves nothing": _of(archives=Trusting),
    "the newest record and an open turn's records stay live": _of(archives=Greedy),
    "a removed session leaves no range behind": _of(archives=Remembering),
}
CHECKS: Final = transfers_conformance(InprocTransferSubject())


def test_every_check_of_transfers_is_tried_on_a_fault() -> None:
    require_fault_for_each(CHECKS, list(FAULTS))


@pytest.mark.behaviour("KIT-01", "THR-108")
@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_store_fails_the_check_of_its_fault(name: str) -> None:
    await require_failure(transfers_conformance(FAULTS[name]()), name)


@pytest.mark.behaviour("KIT-01")
async def test_a_limit_told_to_anybody_is_seen_too() -> None:
    name = "another owner's session is missing for capture and archive"
    await require_failure(transfers_conformance(Faulty(InprocTransferStore, Unlisted)), name)
