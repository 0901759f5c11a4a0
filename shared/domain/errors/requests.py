"""The request is wrong."""

from __future__ import annotations

from typing import Any

from shared.domain.errors.families import Refused, TurnBeginError


class InvalidInput(Refused):
    """A value breaks a bound. ``field`` names it (a JSON pointer at the wire), ``bound`` says the bound."""

    code = "input.invalid"
    title = "Invalid input"

    def __init__(self, message: str, *, field: str, bound: str, **fields: Any) -> None:
        super().__init__(message, field=field, bound=bound, **fields)
        self.field = field
        self.bound = bound


class InputTooLarge(InvalidInput):
    """A body or value is larger than its bound in bytes (HTTP 413)."""

    code = "input.too-large"
    title = "Too large"


class MalformedInput(Refused):
    """The bytes are not what the content type says: not JSON, not UTF-8, duplicate keys, too deep (HTTP 400)."""

    code = "input.malformed"
    title = "Malformed input"


class UnsupportedMedia(Refused):
    """The body is of a type or encoding that this door does not read (HTTP 415)."""

    code = "input.media-type"
    title = "Unsupported media type"


class ConfigError(Refused):
    """A setting or a definition cannot be used; the process does not start with it."""

    code = "config.options"
    title = "Invalid configuration"


class BudgetInvalid(ConfigError):
    """A token budget that is no whole number of at least 1 (TRN-114)."""

    code = "config.budget"
    title = "Invalid token budget"


class Unauthenticated(Refused):
    code = "auth.missing"
    title = "Authentication required"


class InvalidCredentials(Unauthenticated):
    """Credentials were given and are not valid; which part is wrong is not said."""

    code = "auth.invalid"
    title = "Credentials are not valid"


class SessionMissing(Refused, TurnBeginError):
    """No such session for this owner (another owner's id reads the same)."""

    code = "session.missing"
    title = "Session not found"


class TurnMissing(Refused):
    """No such turn for this owner (another owner's id reads the same)."""

    code = "turn.missing"
    title = "Turn not found"


class ReservedKind(Refused):
    """A record kind that only the framework writes (SES-59, SES-63)."""

    code = "events.reserved"
    title = "Reserved record kind"


class NotResumable(Refused, TurnBeginError):
    """The named turn cannot be resumed; ``reason`` is missing, inbox, superseded or finished (RSM-07)."""

    code = "turn.not-resumable"
    title = "Turn cannot be resumed"


class AttachmentRejected(Refused, TurnBeginError):
    """The host's store of attachments does not take one of the message; ``reason`` says why and nothing was stored."""

    code = "turn.attachment-rejected"
    title = "Attachment rejected"
