"""A step's calls as the ledger sees them: planned from a response, settled from what the ledger says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from shared.agents import Agent, Tool
from shared.agents.tools import ToolInputError
from shared.domain.bounds import clean_text
from shared.domain.canonical import digest_of
from shared.models.types import ToolCall
from shared.sessions.vocabulary import StoredCall
from shared.turns.queue import CallEntry, CallState

ResultStatus = Literal["ok", "error", "unknown", "refused"]

ERROR_MAX_CHARS: Final = 2_000
UNKNOWN_TEXT: Final = (
    "The outcome of this call is unknown: the worker that ran it was lost before the result was stored. It may or may"
    " not have taken effect. It was not repeated."
)
LIMIT_TEXT: Final = "The call was refused: this turn's limit of tool calls is reached."


@dataclass(frozen=True, slots=True)
class Settled:
    """What one call came to, as the model will read it; the text is storable, and says whether it had to be made so."""

    status: ResultStatus
    text: str
    replaced_characters: bool = False


def settled_error(text: str) -> Settled:
    """Return a failure whose text may hold what a model or a tool wrote: cut and made storable (decision 22)."""
    cleaned, replaced = clean_text(text[:ERROR_MAX_CHARS])
    return Settled("error", cleaned, replaced_characters=replaced)


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A stored call with what is to be done about it: run it (``keywords``), or nothing any more (``settled``)."""

    stored: StoredCall
    ordinal: int
    tool: Tool | None
    keywords: Mapping[str, Any] | None = None
    settled: Settled | None = None

    def entry(self, step: int, state: CallState, result: str | None = None) -> CallEntry:
        """Return the ledger's line of this call in ``state``."""
        return CallEntry(
            invocation_id=self.stored.invocation_id,
            step=step,
            ordinal=self.ordinal,
            name=self.stored.name,
            argument_digest=self.stored.argument_digest,
            token=self.stored.token,
            state=state,
            result=result,
        )


def name_calls(
    calls: Sequence[ToolCall], *, number: int, run_id: str, run: int, step: int, before: int
) -> list[StoredCall]:
    """Give each call of a response its invocation id, argument digest and token (BEY-01).

    ``before`` counts the calls of the turn's earlier steps, so that tokens are unique within the run.
    """
    return [
        StoredCall(
            invocation_id=f"{number}.{run}.{step}:{call.name}:{n}",
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            argument_digest=digest_of({"arguments": call.arguments, "name": call.name}),
            token=f"{run_id}:call:{before + n}",
        )
        for n, call in enumerate(calls)
    ]


def plan_calls(
    stored: Sequence[StoredCall], agent: Agent, ledger: Mapping[str, CallEntry], *, calls_left: int
) -> list[PlannedCall]:
    """Decide about every call of a step, for a first attempt (empty ledger) and a continuing one alike (core 7).

    A settled call is reused; one that never started runs; a started one runs again only when its tool is declared
    repeatable, else it is unknown. Calls past the limit, of unknown tools or with unfit arguments never run.
    """
    return [
        _plan(call, n, agent.tool(call.name), ledger.get(call.invocation_id), allowed=n < calls_left)
        for n, call in enumerate(stored)
    ]


def _plan(
    call: StoredCall, n: int, tool: Tool | None, entry: CallEntry | None, *, allowed: bool
) -> PlannedCall:
    plan = PlannedCall(call, n, tool)
    if entry is not None and entry.argument_digest != call.argument_digest:
        return replace(plan, settled=Settled("unknown", UNKNOWN_TEXT))
    match entry.state if entry is not None else "planned":
        case "done":
            return replace(plan, settled=Settled("ok", (entry.result if entry else None) or ""))
        case "failed":
            text = (entry.result if entry else None) or ""
            return replace(plan, settled=Settled("refused" if text == LIMIT_TEXT else "error", text))
        case "unknown":
            return replace(plan, settled=Settled("unknown", UNKNOWN_TEXT))
        case "started" if tool is None or not tool.repeatable:
            return replace(plan, settled=Settled("unknown", UNKNOWN_TEXT))
        case _:
            return _check(plan, allowed=allowed)


def _check(plan: PlannedCall, *, allowed: bool) -> PlannedCall:
    if plan.tool is None:
        return replace(plan, settled=settled_error(f"There is no tool named {plan.stored.name!r}."))
    if not allowed:
        return replace(plan, settled=Settled("refused", LIMIT_TEXT))
    try:
        return replace(plan, keywords=plan.tool.decode(plan.stored.arguments))
    except ToolInputError as error:
        return replace(plan, settled=settled_error(str(error)))
