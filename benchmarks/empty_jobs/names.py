"""What the harness, the publisher and the worker of empty jobs agree on."""

from __future__ import annotations

from typing import Final

#: The queue of the jobs.
QUEUE: Final = "empty"
#: Lists of the broker's database: what the publisher is to do, and that it has done it.
ORDERS: Final = "orders"
DONE: Final = "published"
