"""Checks of sessions: what a begin stores, and what it is refused for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from shared.conformance.check import check, checks_of, outcomes, refused, require, same
from shared.conformance.sessions.stage import COMPLETED, FIXED, SessionsSubject, new_turn, stage, write
from shared.domain.errors import (
    InvalidInput,
    KeyConflict,
    RunIdReused,
    SessionBusy,
    SessionMissing,
    TurnDuplicate,
)
from shared.domain.ids import new_run_id
from shared.host.port import Decision, NewTurn, SessionAddress, Sessions


@check("a new session has a view: whose it is, no turn, nothing open, nothing waiting", "SES-34")
async def new_view(subject: SessionsSubject) -> None:
    s = await stage(subject)
    view = await s.sessions.create(s.owner, title="Tea", meta={"page": "home"})
    same((view.address.owner, view.title, dict(view.meta)), (s.owner, "Tea", {"page": "home"}), "what it is")
    same((view.turns, view.open, view.pending, view.seq), (0, None, 0, 0), "nothing is in it")
    same([v.address.id for v in await s.other.list(s.owner)], [view.address.id, s.address.id], "newest first")


@check("a begin opens the turn with its turn.started, in one commit", "SES-36", "SES-37", "SES-144", "SES-43")
async def begin_stores(subject: SessionsSubject) -> None:
    s = await stage(subject)
    turn = new_turn("hello", key="k", command={"c": 1}, meta={"m": 10**30})
    async with s.sessions.begin(s.address, turn) as writer:
        admitted = writer.admitted
        [record] = await s.other.read(s.address)
        same((record.kind, record.turn, record.seq), ("turn.started", 1, 1), "its first record")
        held = dict(record.data)
        require(held["run_id"] == admitted.run_id and held["turn_id"] == str(admitted.turn_id), "its ids")
        same(
            (held["origin"], held["key"], held["user_message"]["text"], held["command"], held["meta"]),
            ("user", "k", "hello", {"c": 1}, {"m": 10**30}),
            "what it holds",
        )
        same(held["claimed"], [], "no inbox item is claimed by a user's turn")
        same((admitted.number, admitted.key, admitted.meta), (1, "k", {"m": 10**30}), "what the writer says")
        await s.require_open(1)
        await writer.end(COMPLETED)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        require(writer.admitted.run_id != admitted.run_id, "each begin has a run of its own")
        [_, _, record] = await s.other.read(s.address)
        require(
            not {"key", "command", "meta", "resumes"} & record.data.keys(), "what was not given is not held"
        )


@check(
    "a begin beside an open turn is busy, from any instance, and stores nothing",
    "SES-38",
    "SES-82",
    "KIT-43",
    "KIT-50",
)
async def busy(subject: SessionsSubject) -> None:
    s = await stage(subject)
    async with s.sessions.begin(s.address, new_turn()) as writer:
        for sessions in (s.sessions, s.other):
            async with refused(SessionBusy, "a turn is open"), sessions.begin(s.address, new_turn()):
                require(False, "the block never runs")
        same(await s.kinds(), [(1, "turn.started")], "nothing is stored")
        await writer.end(COMPLETED)
    same(await s.run_turn(s.other), 2, "then the next one begins")


@check(
    "the same key again names its turn, and with other content conflicts, open or ended",
    "SES-40", "SES-41", "SES-42", "SES-70", "KIT-43", "KIT-50",
)  # fmt: skip
async def keys(subject: SessionsSubject) -> None:
    s = await stage(subject)
    given = new_turn("hello", key="k", command={"c": 1})
    others = [new_turn("bye", key="k", command={"c": 1}), new_turn("hello", key="k", command={"c": 2})]
    async with s.sessions.begin(s.address, given) as writer:
        turn_id = writer.admitted.turn_id
        await _require_key_taken(s.other, s.address, given, others)
        same(await s.other.lookup(s.address, "k"), turn_id, "the key's turn is found")
        same(await s.other.lookup(s.address, "other"), None, "another key has none")
        await writer.end(COMPLETED)
    await s.run_turn()
    again = await subject.open(FIXED)
    await _require_key_taken(again, s.address, given, others)
    same(await again.lookup(s.address, "k"), turn_id, "also by a later instance")
    same([kind for _, kind in await s.kinds()].count("turn.started"), 2, "nothing of the repeats is stored")


@check("of two begins with one key at once one opens, and the other is its duplicate", "SES-40")
async def key_race(subject: SessionsSubject) -> None:
    s = await stage(subject)
    both_tried = asyncio.Barrier(2)

    async def begin(n: int) -> int:
        try:
            async with (s.sessions, s.other)[n].begin(s.address, new_turn(key="k")) as writer:
                await both_tried.wait()
                await writer.end(COMPLETED)
                return writer.admitted.number
        except TurnDuplicate:
            await both_tried.wait()
            raise

    found = await outcomes([begin(0), begin(1)])
    same(sorted(type(one).__name__ for one in found), ["TurnDuplicate", "int"], "one opens")
    same(await s.kinds(), [(1, "turn.started"), (1, "turn.ended")], "one turn is stored")


@check(
    "a run id is used once, also over what a fork inherits, and is asked for after the key",
    "SES-45",
    "SES-46",
)
async def run_ids(subject: SessionsSubject) -> None:
    s = await stage(subject)
    run = new_run_id()
    await s.run_turn(key="k", run_id=run)
    child = await s.sessions.fork(s.address, inherit=True)
    for address in (s.address, child.address):
        async with refused(RunIdReused, "the run id was used"), s.other.begin(address, new_turn(run_id=run)):
            require(False, "the block never runs")
    async with (
        refused(KeyConflict, "the key is looked at first"),
        s.other.begin(s.address, new_turn("bye", key="k", run_id=run)),
    ):
        require(False, "the block never runs")
    same(len(await s.kinds()), 2, "nothing is stored")
    same((await s.sessions.view(child.address)).seq, 0, "nor in the fork")
    apart = await s.sessions.fork(s.address, inherit=False)
    async with s.sessions.begin(apart.address, new_turn(run_id=run)) as writer:
        same(writer.admitted.number, 1, "a child that inherits nothing begins anew")


@check("another owner's address finds nothing, whatever is asked", "SES-35")
async def owners(subject: SessionsSubject) -> None:
    s = await stage(subject)
    foreign = SessionAddress(s.address.id, subject.new_owner())
    async with s.sessions.begin(s.address, new_turn(key="k")) as writer:
        await write(writer, 1)
        for call in (
            lambda: s.sessions.view(foreign),
            lambda: s.sessions.read(foreign),
            lambda: s.sessions.history(foreign),
            lambda: s.sessions.cancel(foreign, 1),
            lambda: s.sessions.lookup(foreign, "k"),
            lambda: s.sessions.fork(foreign, inherit=True),
            lambda: s.sessions.transact(foreign, lambda _: Decision()),
            lambda: anext(aiter(s.sessions.changes(foreign))),
            lambda: s.sessions.begin(foreign, new_turn()).__aenter__(),
        ):
            async with refused(SessionMissing, "as if there were none"):
                await call()
        same(await s.sessions.remove(foreign), [], "nothing is removed")
        same(await s.sessions.list(foreign.owner), [], "nothing is listed")
        await writer.end(COMPLETED)
    same(
        [kind for _, kind in await s.kinds()],
        ["turn.started", "note.added", "turn.ended"],
        "nothing was done",
    )


@check("what cannot be stored is refused with its field before anything is opened", "KIT-50")
async def invalid(subject: SessionsSubject) -> None:
    s = await stage(subject)
    bad = {
        "message": NewTurn({"text": 1}),
        "key": new_turn(key=" k"),
        "command": new_turn(command={"c": float("nan")}),
        "meta": new_turn(meta={"m": "\x00"}),
    }
    for field, turn in bad.items():
        try:
            async with s.sessions.begin(s.address, turn):
                require(False, "the block never runs")
        except InvalidInput as error:
            require(error.field.startswith(field), f"the error names {field}, not {error.field}")
    same(await s.kinds(), [], "nothing is stored")


async def _require_key_taken(
    sessions: Sessions, address: SessionAddress, given: NewTurn, others: Sequence[NewTurn]
) -> None:
    async with refused(TurnDuplicate, "the same turn again"), sessions.begin(address, given):
        require(False, "the block never runs")
    for other in others:
        async with refused(KeyConflict, "the key with other content"), sessions.begin(address, other):
            require(False, "the block never runs")


CHECKS: Final = checks_of(globals())
