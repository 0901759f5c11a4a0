"""How passages are shown to a model: a fixed preamble and a JSON array that no text can break out of (RCL-39 to 50)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from memory_pipeline.store.documents import Passage
from shared.domain.canonical import canonical_json

PREAMBLE: Final = Path(__file__).with_name("preamble.txt").read_text(encoding="utf-8").strip()


def render(passages: Sequence[tuple[str, Passage]]) -> str:
    """Return the envelope of (authority, passage) pairs in order; empty for none.

    Authorities become labels numbered by first appearance: their values, and with them namespaces, never show.
    """
    if not passages:
        return ""
    labels: dict[str, str] = {}
    for authority, _ in passages:
        labels.setdefault(authority, f"memory-authority:{len(labels) + 1}")
    items = [_item(n, labels[authority], passage) for n, (authority, passage) in enumerate(passages, start=1)]
    return f"{PREAMBLE}\n{canonical_json(items)}"


def _item(n: int, label: str, passage: Passage) -> dict[str, Any]:
    shown = passage.model_dump(mode="json", exclude={"authority", "version"})
    return {"citation": f"memory:{n}", "authority": label, **shown}
