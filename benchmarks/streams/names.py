"""What the baseline of threads, its worker and whoever measures it call things."""

from __future__ import annotations

from typing import Final

QUEUE: Final = "streams"
JOB: Final = "streams.read"
#: A list of what jobs note: when they ended, and how long theirs took.
SPANS: Final = "streams:spans"
