"""Transfer files, archives and the check of what is stored."""

from __future__ import annotations

from shared.domain.errors.families import Broken, Conflict, Refused, SessionLogError


class SessionCorrupt(Broken, SessionLogError):
    """A stored log does not verify. ``session``, ``seq`` and ``field`` name the first record that is wrong (THR-104).

    Where the digest chain alone shows that something is wrong, ``after`` is the last seq that is known to be right and
    ``seq`` the first that may be wrong.
    """

    code = "session.corrupt"
    title = "Stored session does not verify"


class TransferInvalid(Refused):
    """A transfer file is not what was written. ``line`` (from 1), ``byte`` (the line's first, from 0) and ``field`` say where."""

    code = "transfer.invalid"
    title = "Transfer file is damaged"


class TransferVersion(Refused):
    """A transfer file of a format that this code does not read; ``format`` and ``reads`` name both (THR-107)."""

    code = "transfer.version"
    title = "Transfer format is not supported"


class TransferUnsettled(Refused):
    """The session still owed or was owed something when it was exported; ``obligations`` counts what."""

    code = "transfer.unsettled"
    title = "Session has open obligations"


class SourceMoved(Conflict):
    """What an export had captured changed under it (a retention pass, a late commit); export anew from the first page."""

    code = "transfer.source-moved"
    title = "Export source changed"


class ArchiveRefused(Conflict):
    """A range cannot be archived now. ``reason``: moved, open or large; nothing was changed (THR-104)."""

    code = "archive.refused"
    title = "Range cannot be archived"
