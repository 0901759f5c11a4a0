"""The queue that steering and follow-ups are put into: its bounds, and what a hook gives back."""

from __future__ import annotations

import pytest

from shared.agents import TurnCommands, to_turn_input_hook
from shared.agents.input import COMMANDS_MAX
from shared.domain.errors import CommandsFull, InputTooLarge, InvalidInput


def test_a_queue_holds_64_commands_and_refuses_one_more() -> None:
    commands = TurnCommands()
    for n in range(COMMANDS_MAX):
        commands.steer(f"command {n}")
    with pytest.raises(CommandsFull) as full:
        commands.follow_up("one too many")
    assert full.value.fields == {"field": "commands", "bound": "<= 64"}
    assert [command.text for command in commands.waiting] == [f"command {n}" for n in range(64)]
    hook = to_turn_input_hook(commands)
    taken = hook.take_steering()
    with pytest.raises(CommandsFull):
        commands.steer("what was taken may come back")
    hook.entered(taken[:1])
    commands.steer("now there is room")
    assert hook.release() == 64


@pytest.mark.parametrize(
    ("text", "error"),
    [("a\x00", InvalidInput), ("é" * 524_289, InputTooLarge)],
    ids=["NUL", "too large"],
)
def test_a_text_that_cannot_be_stored_is_refused_when_it_is_sent(
    text: str, error: type[InvalidInput]
) -> None:
    commands = TurnCommands()
    with pytest.raises(error) as refused:
        commands.steer(text)
    assert (refused.value.field, commands.waiting) == ("steering", ())


@pytest.mark.behaviour("THR-T14")
def test_what_was_taken_and_did_not_enter_waits_again_at_its_place() -> None:
    commands = TurnCommands()
    commands.steer("a")
    commands.follow_up("b")
    commands.steer("c")
    hook = to_turn_input_hook(commands)
    taken = hook.take_steering()
    assert [command.text for command in taken] == ["a", "c"]
    follow_up = hook.take_follow_up()
    assert follow_up is not None
    assert (follow_up.text, commands.waiting) == ("b", ())
    hook.entered(taken[:1])
    commands.steer("d")
    assert hook.release() == 3
    assert [command.text for command in commands.waiting] == ["b", "c", "d"]
    assert hook.release() == 3, "a second release gives nothing back"
