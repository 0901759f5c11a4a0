"""The kit of the sessions of a host: what any implementation of :class:`shared.host.port.Sessions` must show.

Its subject opens several instances over one store, lets their time pass, and says which of their processes stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.conformance.check import ConformanceCheck
from shared.conformance.sessions import begins, doors, holders, inboxes, resumes, writers
from shared.conformance.sessions.stage import SessionsSubject

CHECKS: Final = (
    *begins.CHECKS,
    *resumes.CHECKS,
    *writers.CHECKS,
    *doors.CHECKS,
    *holders.CHECKS,
    *inboxes.CHECKS,
)


def sessions_conformance(subject: SessionsSubject) -> Sequence[ConformanceCheck]:
    """Return the checks of this subject's sessions (KIT-41 to 50). Each uses owners and instances of its own."""
    return [each.on(subject) for each in CHECKS]
