"""What a test and the worker process it starts agree on."""

from __future__ import annotations

from typing import Final

#: The variable that tells the worker where the test's ``PoolWorld`` listens.
WORLD_VARIABLE: Final = "POOL_WORLD"
