"""Checks of the turn queue: how many turns stand, read at once."""

from __future__ import annotations

from typing import Final

from shared.conformance.check import check, checks_of, same
from shared.conformance.turn_stage import TurnQueueSubject, stage
from shared.domain.ids import new_turn_id
from shared.turns.queue import Standing


@check("how many turns stand is read at once, and absent ones are left out")
async def standings(subject: TurnQueueSubject) -> None:
    s = await stage(subject)
    over = await s.open_turn()
    await s.end(over)
    open_ = await s.open_turn()
    waiting, dropped = await s.admit(open_.session_id), await s.admit(open_.session_id)
    await s.queue.cancel(dropped.turn_id, s.owner)
    asked = [over.turn_id, open_.turn_id, waiting.turn_id, dropped.turn_id]
    view = await s.view(dropped)
    same(
        dict(await s.queue.standings([*asked, new_turn_id()])),
        {
            over.turn_id: Standing("ended", 1, "completed", None),
            open_.turn_id: Standing("running", 1, None, None),
            waiting.turn_id: Standing("queued", None, None, None),
            dropped.turn_id: Standing("cancelled", None, None, view.code),
        },
        "those that are there, as they stand",
    )
    await s.log.remove(open_.session_id, s.owner)
    same(set(await s.queue.standings(asked)), {over.turn_id}, "a session's turns go with it")
    same(dict(await s.queue.standings([])), {}, "nobody asked")


CHECKS: Final = checks_of(globals())
