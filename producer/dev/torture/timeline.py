"""The timeline: one file that says what was done and seen when, to be read beside the processes' logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

NAME: Final = "timeline.log"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Appends lines with their time, in the form of the processes' logs, so that all can be sorted together."""

    path: Path

    def note(self, what: str) -> None:
        """Append one line."""
        with self.path.open("a") as file:
            file.write(f"{datetime.now(UTC).isoformat().replace('+00:00', 'Z')} {what}\n")
