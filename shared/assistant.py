"""The default app: an assistant with two harmless tools (decision 39) that remembers what its user says."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shared.agents import Agent, App, MemoryPolicy, tool

_OPERATORS: Final[dict[type[ast.AST], Callable[..., float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
EXPRESSION_MAX_CHARS = 200


@tool(repeatable=True)
async def current_time(zone: str = "UTC") -> str:
    """Tell the current date and time in an IANA time zone such as Europe/Berlin."""
    try:
        return datetime.now(ZoneInfo(zone)).isoformat(timespec="seconds")
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder's name or an overlong one is an OSError
        return f"unknown zone {zone!r}; in UTC it is {datetime.now(UTC).isoformat(timespec='seconds')}"


@tool(repeatable=True)
async def calculate(expression: str) -> str:
    """Calculate an arithmetic expression of numbers, + - * / // % and parentheses."""
    if len(expression) > EXPRESSION_MAX_CHARS:
        raise ValueError(f"an expression has at most {EXPRESSION_MAX_CHARS} characters")
    value = _evaluate(ast.parse(expression, mode="eval").body)
    return str(int(value)) if float(value).is_integer() else str(value)


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(operand))
        case _:
            raise ValueError("only numbers, + - * / // % and parentheses are understood")


app = App(
    agents=[
        Agent(
            name="assistant",
            instructions=(
                "You are a helpful, brief assistant. Use your tools when they answer better than you could:"
                " current_time for the time, calculate for arithmetic."
            ),
            tools=[current_time, calculate],
        )
    ],
    memory=MemoryPolicy(),
)
