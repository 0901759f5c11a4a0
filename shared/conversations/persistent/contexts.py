"""What the model is shown next, when that is not simply everything so far: rules of the host's choice (THR-62)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from shared.conversations.messages import ConversationMessage
from shared.conversations.persistent.whole_turn import WHOLE_TURN_MAX_BYTES, messages_bytes
from shared.domain.errors import ConfigError

#: Gives the context after a turn from what was shown before it, its input and its messages, in order. Pure; what it
#: leaves out stays in the log as source.
ContextRule: TypeAlias = Callable[[Sequence[ConversationMessage]], Sequence[ConversationMessage]]


def newest_exchanges(max_bytes: int) -> ContextRule:
    """Return the rule that shows the newest whole exchanges, each from a user's message on, of ``max_bytes`` in all.

    The newest one is always shown, so that calls and results stay together (law 11). ``max_bytes`` is 1 up to
    ``WHOLE_TURN_MAX_BYTES`` and should leave room for one more input and response; raises ``ConfigError``.
    """
    if isinstance(max_bytes, bool) or not 1 <= max_bytes <= WHOLE_TURN_MAX_BYTES:
        raise ConfigError(f"max_bytes must be 1..{WHOLE_TURN_MAX_BYTES}", field="max_bytes")

    def rule(messages: Sequence[ConversationMessage]) -> Sequence[ConversationMessage]:
        starts = [n for n, message in enumerate(messages) if message.role == "user"]
        for start in starts[:-1]:
            if messages_bytes(messages[start:]) <= max_bytes:
                return messages[start:]
        return messages[starts[-1] :] if starts else messages

    return rule
