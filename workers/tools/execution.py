"""Runs one tool call and turns whatever it does into what the model reads. A tool's failure is data, never ours."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

from shared.agents.tools import ToolContext, call_handler
from shared.domain.bounds import clean_text
from shared.domain.errors import CallAbandoned
from workers.cancellation import is_cancelled
from workers.executor import BoundedExecutor
from workers.tools.calls import PlannedCall, Settled, settled_error

RESULT_MAX_BYTES: Final = 51_200

_log: Final = logging.getLogger(__name__)


async def run_call(plan: PlannedCall, context: ToolContext, executor: BoundedExecutor) -> Settled:
    """Run a planned call within its tool's time. Only cancellation comes out as an exception."""
    assert plan.tool is not None and plan.keywords is not None, "only checked calls are run"
    tool = plan.tool

    async def blocking(function: Any, timeout_s: float) -> Any:
        return await executor.run(function, timeout_s=timeout_s)

    try:
        async with asyncio.timeout(tool.timeout_s) as limit:
            value = await call_handler(tool, plan.keywords, context, blocking)
        return _result_of(value)
    except CallAbandoned:
        return Settled("error", f"The tool did not answer within {tool.timeout_s:g} s.")
    except asyncio.CancelledError as error:
        # Ours is never caught; one that the handler raised by itself (a task of its own was cancelled) is a failure:
        # taken for ours it would hand the turn back, uncounted, again and again.
        if is_cancelled():
            raise
        return _failure_of(plan, error)
    except (
        Exception,
        SystemExit,
    ) as error:  # the boundary of host code (decision 3): it is for the model to read
        if isinstance(error, TimeoutError) and limit.expired():
            return Settled("error", f"The tool did not answer within {tool.timeout_s:g} s.")
        return _failure_of(plan, error)


def _failure_of(plan: PlannedCall, error: BaseException) -> Settled:
    about = {"tool": plan.stored.name, "invocation": plan.stored.invocation_id}
    _log.info("a tool failed", extra=about, exc_info=error)
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # also how a host's exception describes itself is the host's code
        said = ""
    return settled_error(f"{name}: {said}" if said else name)


def _result_of(value: Any) -> Settled:
    """Return a handler's value as text: strings as they are, None as an empty text, the rest as JSON."""
    if value is None:
        text = ""
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            return settled_error(f"The tool's result cannot be written as JSON: {error}")
    text, replaced = clean_text(text)
    size = len(text.encode())
    if size > RESULT_MAX_BYTES:
        return Settled("error", f"The tool's result of {size} bytes is larger than {RESULT_MAX_BYTES}.")
    return Settled("ok", text, replaced_characters=replaced)
