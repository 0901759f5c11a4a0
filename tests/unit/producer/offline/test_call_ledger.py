"""The ledger of calls: counts, gates and waiting."""

from __future__ import annotations

import asyncio

from producer.dev.offline.ledger import CALLS_KEPT, Call, CallLedger


async def start(ledger: CallLedger, session: str = "s") -> Call:
    return await ledger.start(session=session, model="m", streamed=True, messages=1, step=1, text="")


async def test_calls_are_counted_by_state_and_session() -> None:
    ledger = CallLedger()
    first, _ = await start(ledger, "a"), await start(ledger, "b")
    await ledger.end(first, "finished")
    await ledger.end(first, "failed")
    assert [ledger.count(state, None) for state in ("started", "running", "ended", "finished")] == [
        2,
        1,
        1,
        1,
    ]
    assert [ledger.count(state, "a") for state in ("started", "running", "ended", "finished")] == [1, 0, 1, 1]


async def test_old_calls_leave_the_list_and_stay_counted() -> None:
    ledger = CallLedger()
    for _ in range(CALLS_KEPT + 5):
        await start(ledger)
    assert ledger.count("started", None) == CALLS_KEPT + 5
    assert ledger.count("started", "s") == CALLS_KEPT


async def test_waiting_ends_when_the_calls_are_there() -> None:
    ledger = CallLedger()
    waiting = asyncio.create_task(ledger.wait("started", 2, "s", 10))
    await start(ledger)
    await start(ledger, "other")
    assert not waiting.done()
    await start(ledger)
    assert await waiting
    assert not await ledger.wait("started", 3, "s", 0)


async def test_a_gate_holds_its_session_at_its_token_until_it_goes() -> None:
    ledger = CallLedger()
    await ledger.hold("s", 2)
    call, other = await start(ledger), await start(ledger, "other")
    other.tokens_sent = 5
    await ledger.pass_gates(other)
    await ledger.pass_gates(call)
    call.tokens_sent = 2
    passing = asyncio.create_task(ledger.pass_gates(call))
    assert await ledger.wait("held", 1, "s", 10)
    assert await ledger.release("other", None) == 0
    assert not passing.done()
    assert await ledger.release("s", None) == 1
    await passing
    assert call.state == "running"


async def test_calls_let_through_one_by_one_meet_a_later_gate_again() -> None:
    ledger = CallLedger()
    await ledger.hold(None, 0)
    calls = [await start(ledger) for _ in range(3)]
    passing = [asyncio.create_task(ledger.pass_gates(call)) for call in calls]
    assert await ledger.wait("held", 3, None, 10)
    assert await ledger.release(None, 2) == 2
    await asyncio.gather(*passing[:2])
    assert not passing[2].done()
    await ledger.pass_gates(calls[0])
    await ledger.hold(None, 0)
    again = asyncio.create_task(ledger.pass_gates(calls[0]))
    assert await ledger.wait("held", 2, None, 10)
    await ledger.release(None, None)
    await asyncio.gather(again, passing[2])


async def test_a_reset_forgets_calls_and_those_under_way_end_uncounted() -> None:
    ledger = CallLedger()
    await ledger.hold(None, 0)
    call = await start(ledger)
    passing = asyncio.create_task(ledger.pass_gates(call))
    assert await ledger.wait("held", 1, None, 10)
    await ledger.reset()
    await passing
    await ledger.end(call, "finished")
    assert set(ledger.describe(None, 10)["counts"].values()) == {0}


def test_faults_are_met_as_often_as_they_say_by_key() -> None:
    ledger = CallLedger()
    assert [ledger.meet_fault("a", 2) for _ in range(3)] == [True, True, False]
    assert ledger.meet_fault("b", None) and ledger.meet_fault("b", None)
