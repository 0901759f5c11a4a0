"""``turnkeeper chat``: talk to a running producer from the terminal (OPS-03)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, TextIO

import typer

from producer.dev.running import find_producer_url
from producer.dev.talk import Conversation, Rejected, ServerEvent, Turn
from shared.settings import load_settings

FAILED_STATUS = 1
PROMPT = "> "
RESUME = "/resume"
#: What is said for a resume without words of its own.
GO_ON = "Continue where you stopped."
ANSWERED = frozenset({"completed", "partial"})
CUT = frozenset({"cancelled", "interrupted"})


def command(
    url: Annotated[str | None, typer.Option("--url", help="The producer; else the running dev's.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="An API key; dev needs none on this machine.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Continue this session.")] = None,
    once: Annotated[str | None, typer.Option("--once", help="Send this one message and leave.")] = None,
) -> None:
    """Chat. Ctrl-C cancels the running turn and returns to the prompt; Ctrl-C or Ctrl-D there leaves.

    After a turn that was cancelled or interrupted, /resume goes on from it, with the words after it if there are any.
    """
    with Conversation(url or find_producer_url(load_settings()), key) as conversation:
        if session is None:
            session = conversation.create_session()
        else:
            conversation.read_session(session)
        if once is not None:
            if not run_turn(conversation, session, once, Turn(), Screen(sys.stdout)):
                raise typer.Exit(FAILED_STATUS)
            return
        print(f"session {session} (continue it with --session)")
        _converse(conversation, session)


def _converse(conversation: Conversation, session: str) -> None:
    """Run turn after turn; what can be resumed is the last one, or what it was to resume."""
    cut: str | None = None
    for text in _prompts():
        turn, screen = Turn(), Screen(sys.stdout)
        command, _, words = text.partition(" ")
        if command == RESUME:
            if cut is None:
                screen.note("there is nothing to resume here")
                continue
            turn.resumes, text = cut, words.strip() or GO_ON
        try:
            run_turn(conversation, session, text, turn, screen)
        except Rejected as error:
            if turn.resumes is None:
                raise
            screen.note(str(error))
        if screen.outcome in CUT:
            cut = turn.id
            screen.note(f"{RESUME} goes on from here")
        elif screen.outcome is not None and (turn.resumes is None or screen.outcome in ANSWERED):
            cut = None


def run_turn(conversation: Conversation, session: str, text: str, turn: Turn, screen: Screen) -> bool:
    """Say ``text`` and show the turn; say whether it completed. The first Ctrl-C cancels it and shows how it ends."""
    try:
        _show(conversation, session, text, turn, screen)
    except KeyboardInterrupt:
        if turn.id is None:
            # Not receipted yet: the same key finds the turn if it was admitted, so that it can be cancelled.
            next(conversation.say(session, text, turn), None)
        if turn.id is not None and not turn.ended:
            done = conversation.cancel(turn.id)
            screen.note("cancelling" if done["cancelled"] else f"not cancelled: {done['reason']}")
            _show(conversation, session, text, turn, screen)
    return screen.outcome in ANSWERED


def _show(conversation: Conversation, session: str, text: str, turn: Turn, screen: Screen) -> None:
    for event in conversation.say(session, text, turn):
        screen.show(event)


def _prompts() -> Iterator[str]:
    while True:
        try:
            text = input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text:
            yield text


class Screen:
    """Shows one turn: its text as it comes, its tool calls, and how it ended unless that was well."""

    def __init__(self, out: TextIO) -> None:
        self.outcome: str | None = None
        self._out = out
        self._held = ""
        self._at_line_start = True

    def show(self, event: ServerEvent) -> None:
        """Show an event; kinds that are nothing to see are passed over."""
        data = event.data
        match event.event:
            case "delta":
                self._held += data["text"]
                self._write(data["text"])
            case "snapshot":
                self._replace(data["text"])
            case "reset":
                self._void(data)
            case "tool.started":
                self.note(f"{data['name']} …")
            case "tool.completed":
                self.note(f"{data['name']}: {data['status']}")
            case "turn.reply":
                if data.get("text") is not None:
                    self._replace(data["text"])
            case "end":
                self._end(data)
            case "problem":
                self.note(f"{data['title']} [{data['code']}]")
            case _:
                pass

    def note(self, text: str) -> None:
        """Show a line of ours between the model's text."""
        self._end_line()
        self._write(f"  [{text}]\n")

    def _replace(self, text: str) -> None:
        if text.startswith(self._held):
            self._write(text[len(self._held) :])
        else:
            self._end_line()
            self._write(text)
        self._held = text

    def _void(self, data: dict[str, Any]) -> None:
        if self._held and data["reason"] in ("attempt", "retry", "gap", "reply"):
            self.note("starting over")
        self._end_line()
        self._held = ""

    def _end(self, data: dict[str, Any]) -> None:
        self.outcome = data.get("outcome") or data["status"]
        self._end_line()
        if self.outcome != "completed":
            code = data.get("code")
            self.note(self.outcome if code is None else f"{self.outcome}: {code}")

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")
