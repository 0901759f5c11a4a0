"""What makes two admissions the same: the key's fingerprint (TRN-43, RSM-18)."""

from __future__ import annotations

from shared.domain.canonical import digest_of
from shared.turns.queue import Admission


def fingerprint_of(admission: Admission) -> str:
    """Return the digest over message, command, agent and resumes; never over meta, priority or the ids."""
    return digest_of(
        {
            "agent": admission.agent,
            "command": None if admission.command is None else dict(admission.command),
            "message": dict(admission.message),
            "resumes": admission.resumes,
        }
    )
