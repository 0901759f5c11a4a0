"""Which document an owner's facts go to. Decided by the host when an intent is admitted, never by a model (REM-35)."""

from __future__ import annotations

from typing import Final

from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from memory_pipeline.store.port import MemoryReader
from shared.domain.errors import ProcessingRefused

PROFILES_MAX: Final = 1_024
_BATCH_MAX: Final = 64


def profile_key(namespace: NamespaceAddress, number: int) -> MemoryKey:
    """Return the key of the ``number``-th profile of a namespace, from 1."""
    return MemoryKey(namespace=namespace, id=f"profile-{number}")


async def current_profile_key(reader: MemoryReader, namespace: NamespaceAddress) -> MemoryKey:
    """Return the key of the first profile that is not withdrawn; there may be no document of it yet.

    A withdrawal is final, so the answer only ever moves up. One read as a rule: the first profile, then growing batches
    of the next ones. Raises ``ProcessingRefused`` after ``PROFILES_MAX`` withdrawn profiles.
    """
    number, batch = 1, 1
    while number <= PROFILES_MAX:
        keys = [profile_key(namespace, n) for n in range(number, number + batch)]
        for key, document in zip(keys, await reader.read_many(keys), strict=True):
            if document is None or not document.withdrawn:
                return key
        number, batch = number + batch, min(batch * 8, _BATCH_MAX)
    raise ProcessingRefused("every profile of the namespace is withdrawn", reason="profiles-spent")
