"""The port of chat models and its contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from shared.models.types import ModelEvent, ModelRequest


class ChatModel(Protocol):
    """A model that answers a conversation, piece by piece.

    **Order.** The stream yields any number of ``TextDelta`` and then exactly one ``Finished``, and ends. The deltas
    joined are exactly ``Finished.response.text``. Tool calls come whole, in ``Finished`` only, in the model's order.

    **Text.** Lone surrogates and NUL of the provider are U+FFFD in deltas, text, call names and arguments, and
    ``response.replaced_characters`` says so. Arguments are otherwise the provider's text: they may be no JSON at all.

    **Failure.** What is raised is typed, and nothing follows it:
    ``ModelUnavailable`` the endpoint is away, over its rate or too slow; its tries, which an adapter bounds, are spent;
    ``ModelStreamBroken`` the stream ended early, broke the protocol or a bound; after a delta was yielded nothing is
    tried again here, because the caller has shown the text: it decides; ``ModelRefused`` the request is wrong;
    ``ModelAuthFailed`` the credentials are. No error text, field or cause holds a credential.

    **Ending early.** Cancelling the task that iterates closes the provider's connection before the cancellation comes
    out. A caller that stops iterating on its own closes the stream itself:
    ``async with contextlib.aclosing(model.stream(request)) as events``.

    **Sharing.** Any number of streams run side by side on one model; each belongs to one task at a time. Nothing is
    sent before the first event is asked for. A stream that nobody asks for the next event reads no further.
    """

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Return the stream of one call."""
        ...
