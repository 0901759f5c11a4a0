"""Trouble outside this process."""

from __future__ import annotations

from shared.domain.errors.families import Refused, SessionLogError, TurnBeginError, Unavailable


class StoreUnavailable(Unavailable, TurnBeginError, SessionLogError):
    """The database cannot be reached or dropped the connection; the outcome of the statement may be unknown."""

    code = "store.unavailable"
    title = "Store unavailable"


class ProcessFailed(Unavailable):
    """A program that we start ended or did not become ready in time; the end of its log is in the message (OPS-01)."""

    code = "process.failed"
    title = "A started program failed"


class StoreBusy(Unavailable, TurnBeginError, SessionLogError):
    """A lock or a connection could not be had in time; nothing was stored (SES-29)."""

    code = "store.busy"
    title = "Store is busy"


def is_store_busy(error: BaseException) -> bool:
    """Say whether the store was busy: nothing was stored, and trying again may work (SES-29)."""
    return isinstance(error, StoreBusy)


class SessionContended(Unavailable, TurnBeginError):
    """Others committed first as often as the call may be planned again; nothing was stored (SES-65)."""

    code = "session.contended"
    title = "Session changes too often"


class TurnRefused(Unavailable, TurnBeginError):
    """The host's admission refused the turn; nothing was stored (SES-136). ``session`` and ``reason`` say which and why."""

    code = "turn.refused"
    title = "Turn refused"


class Draining(TurnRefused):
    """This process is going away and admits nothing more (API-15)."""

    title = "Draining"


class KeysUnavailable(Unavailable):
    """The keys that tokens are signed with cannot be had, so that no token can be judged (API-16)."""

    code = "auth.unavailable"
    title = "Tokens cannot be checked"


class BrokerUnavailable(Unavailable):
    """The broker did not take a wake within the publisher's bound (DST-05)."""

    code = "broker.unavailable"
    title = "Broker unavailable"


class FeedUnavailable(Unavailable):
    code = "feed.unavailable"
    title = "Live feed unavailable"


class ModelUnavailable(Unavailable):
    """The model endpoint failed in a way that trying again may mend."""

    code = "model.unavailable"
    title = "Model unavailable"


class ModelRefused(Refused):
    """The model endpoint says that the request itself is wrong."""

    code = "model.refused"
    title = "Model refused the request"


class ModelAuthFailed(Refused):
    code = "model.auth"
    title = "Model credentials were refused"


class ModelStreamBroken(Unavailable):
    """The model's stream ended early or was not what the protocol says."""

    code = "model.stream"
    title = "Model stream broke"


class ModelOutputInvalid(Unavailable):
    """A structured answer cannot be used, nor could its repetitions; ``reason``: cut, empty, not-json or schema."""

    code = "model.output"
    title = "Model output cannot be used"


class EmbeddingInvalid(Refused):
    """A vector does not fit (SEM-32); ``reason``: count, dimensions, not-finite, zero-norm or malformed."""

    code = "model.embedding"
    title = "Embedding cannot be used"
