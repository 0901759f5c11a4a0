"""Where a turn in memory writes: whole messages go to its conversation, and everything else of a step nowhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shared.conversations import (
    ConversationMessage,
    HistoryUpdate,
    OnHistory,
    ToolCallPart,
    ToolResultPart,
)
from shared.conversations.history import RecordedConversation
from shared.host.endings import call_host
from shared.sessions.vocabulary import MemoryMessage, MemorySection, MemoryToolResult, Payload, TurnReply
from shared.turns.queue import CallEntry

T = TypeVar("T")


class ConversationJournal:
    """Implements :class:`workers.turns.journal.StepJournal` over a conversation; one object a turn.

    A step's message comes with the results of all its calls or not at all, so what is recorded is always whole (THR-12,
    THR-14). ``observe`` hears of each update after it is recorded.
    """

    def __init__(self, conversation: RecordedConversation, observe: OnHistory | None = None) -> None:
        self.conversation = conversation
        self._observe = observe

    async def append(
        self, payloads: Sequence[Payload], *, stepped: bool = False, calls: Sequence[CallEntry] = ()
    ) -> int:
        """Record the messages among these, and tell the observer. Returns how many messages there are."""
        messages = messages_of(payloads)
        if messages:
            await self.tell(await self.record(messages))
        return len(self.conversation.prompt)

    async def record(self, messages: Sequence[ConversationMessage]) -> HistoryUpdate:
        """Record messages without telling anyone yet."""
        return await self.conversation.record(messages)

    async def tell(self, update: HistoryUpdate) -> None:
        """Tell the observer of what was recorded; its failure is the host's, and takes nothing back."""
        if self._observe is not None:
            await call_host(self._observe, update)

    async def flush(self) -> int:
        """Return how many messages are recorded: nothing ever waits."""
        return len(self.conversation.prompt)

    async def write(self, op: Callable[[], Awaitable[T]]) -> T:
        """See the port."""
        return await op()


def messages_of(payloads: Sequence[Payload]) -> list[ConversationMessage]:
    """Return the native messages that a step's records hold. Pure."""
    messages: list[ConversationMessage] = []
    results = [_result(payload) for payload in payloads if isinstance(payload, MemoryToolResult)]
    for payload in payloads:
        match payload:
            case MemoryMessage():
                calls = [
                    ToolCallPart(call_id=call.call_id, name=call.name, arguments=call.arguments)
                    for call in payload.calls
                ]
                messages.append(ConversationMessage.assistant(payload.text, calls))
                if calls:
                    messages.append(ConversationMessage.tool(*results))
            case MemorySection():
                messages.append(ConversationMessage.user(payload.text))
            case TurnReply(step=None, text=str(text)) if text:
                messages.append(ConversationMessage.assistant(text))
            case _:
                continue
    return messages


def _result(payload: MemoryToolResult) -> ToolResultPart:
    return ToolResultPart(
        call_id=payload.call_id, name=payload.name, text=payload.text, status=payload.status
    )
