"""What an app remembers of its users, and how much of it a turn recalls."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shared.domain.bounds import check_identity, check_text
from shared.domain.errors import ConfigError, InvalidInput

#: The default text: what is worth remembering. How evidence is quoted is the extraction's own prompt, not the host's.
DEFAULT_EXTRACTION_INSTRUCTIONS: Final = (
    Path(__file__).with_name("extraction_instructions.md").read_text(encoding="utf-8").strip()
)
EXTRACTION_INSTRUCTIONS_MAX_BYTES = 65_536
NAMESPACE_NAME_MAX_UNITS = 256

#: Number fields: kind, lowest and highest value.
_NUMBERS: Final = (
    ("version", int, 1, 2**53 - 1),
    ("recall_items", int, 1, 128),
    ("recall_bytes", int, 1, 4_194_304),
    ("recall_tokens", int, 1, 1_048_576),
    ("recall_timeout_s", int | float, 0.01, 60),
)


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """How an app remembers. Raises ``ConfigError`` that names the field for a value out of bounds.

    Each owner has one namespace: ``namespace`` and ``version`` define it (1 to 256 UTF-16 code units; 1 to 2^53 - 1);
    another version starts with an empty memory. Documents are written for ``scope`` and recalled for it; the name
    grants nothing by itself (NSP-13). ``processor`` and ``processor_version`` name the pass that extracts: another
    version extracts a session anew from its beginning once a turn of it ends. A turn recalls at most ``recall_items`` passages (1 to 128) whose rendered text
    has at most ``recall_bytes`` (to 4 MiB) and ``recall_tokens`` (to 1,048,576), within ``recall_timeout_s`` seconds
    (0.01 to 60). ``semantic`` says whether documents are also found by meaning. ``extraction_instructions``, at most
    64 KiB, tell the model what is worth remembering.
    """

    namespace: str = "profile"
    version: int = 1
    scope: str = "private"
    processor: str = "user-statements"
    processor_version: str = "1"
    recall_items: int = 8
    recall_bytes: int = 16_384
    recall_tokens: int = 4_096
    recall_timeout_s: float = 1.0
    semantic: bool = True
    extraction_instructions: str = field(default=DEFAULT_EXTRACTION_INSTRUCTIONS, repr=False)

    def __post_init__(self) -> None:
        self._check_texts()
        for name, kind, low, high in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise ConfigError(f"memory {name} must be {low}..{high}", field=f"memory.{name}")
        if not isinstance(self.semantic, bool):
            raise ConfigError("memory semantic must be true or false", field="memory.semantic")

    def _check_texts(self) -> None:
        try:
            check_text(self.namespace, field="memory.namespace")
            for name in ("scope", "processor", "processor_version"):
                check_identity(getattr(self, name), field=f"memory.{name}")
            check_text(
                self.extraction_instructions,
                field="memory.extraction_instructions",
                max_bytes=EXTRACTION_INSTRUCTIONS_MAX_BYTES,
            )
        except InvalidInput as error:
            raise ConfigError(error.message, field=error.field) from error
        if not 1 <= len(self.namespace.encode("utf-16-le")) // 2 <= NAMESPACE_NAME_MAX_UNITS:
            raise ConfigError(
                f"memory namespace must have 1..{NAMESPACE_NAME_MAX_UNITS} UTF-16 code units",
                field="memory.namespace",
            )
        if not self.extraction_instructions.strip():
            raise ConfigError(
                "memory extraction_instructions must say what is worth remembering",
                field="memory.extraction_instructions",
            )
