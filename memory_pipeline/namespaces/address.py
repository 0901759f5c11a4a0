"""Definitions of memory namespaces, and the typed namespaces that they make, decode and restore (NSP)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from memory_pipeline.namespaces.canonical import (
    ADDRESS_MAX_BYTES,
    SAFE_INTEGER_MAX,
    Reason,
    identity_text,
    invalid,
    utf16_length,
)
from memory_pipeline.store.documents import MemoryKey, NamespaceAddress
from shared.domain.bounds import check_text
from shared.domain.errors import InvalidInput, NamespaceInvalid

ADDRESS_FORMAT = 1
NAME_MAX_UNITS = 256

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Namespace(Generic[M]):
    """One partition of memory, made by its :class:`MemoryNamespace` only.

    Identity and address may be sensitive: they are in no ``repr``, so that no log line gets them by itself (NSP-43).
    """

    name: str
    version: int
    identity: M = field(repr=False)
    address: NamespaceAddress = field(repr=False)

    def key(self, document_id: str) -> MemoryKey:
        """Return the key of a document in this namespace."""
        return MemoryKey(namespace=self.address, id=document_id)


@dataclass(frozen=True, slots=True)
class MemoryNamespace(Generic[M]):
    """A definition: a name, a version and the application's identity schema. Made by :meth:`define`.

    The schema is the codec: values are what its pydantic model validates and dumps as JSON; what it coerces or ignores
    leads deliberately to one address (NSP-25). Another version is another namespace (NSP-33). It authenticates nobody:
    whose memory it is, the host has settled before (NSP-11, 12).
    """

    name: str
    version: int
    identity: type[M]

    @classmethod
    def define(cls, name: str, version: int, identity: type[M]) -> MemoryNamespace[M]:
        """Return a definition. Raises ``NamespaceInvalid`` with reason ``name``, ``version`` or ``identity``.

        Names have 1 to 256 UTF-16 code units; versions are 1 to 2^53 - 1 and nothing that merely equals an int.
        """
        _check_name(name)
        _check_version(version)
        if not (isinstance(identity, type) and issubclass(identity, BaseModel)):
            raise invalid(
                "identity",
                "an identity schema must be a model class",
                field="identity",
                bound="a model class",
            )
        return cls(name, version, identity)

    def make(self, /, **identity: Any) -> Namespace[M]:
        """Return the namespace of decoded identity values. Raises ``NamespaceInvalid`` for invalid ones (NSP-06)."""
        try:
            value = self.identity.model_validate(identity)
        except ValidationError as error:
            self._refuse(error)
        return self.of(value)

    def of(self, identity: M) -> Namespace[M]:
        """Return the namespace of an identity; like :meth:`make`, typed, and for schemas that are no struct.

        The value is normalized by encoding and decoding it; a codec that another round trip changes is refused with
        reason ``unstable`` (NSP-23, 24).
        """
        text = self._encode(identity)
        normal = self._decode(text)
        if self._encode(normal) != text:
            raise invalid(
                "unstable",
                "another round trip changes the identity",
                field="identity",
                bound="a stable codec",
            )
        return Namespace(self.name, self.version, normal, self._address(text))

    def decode(self, unknown: object) -> Namespace[M]:
        """Return the namespace of external identity input, JSON as Python reads it. Raises ``NamespaceInvalid``."""
        return self.of(self._decode(identity_text(unknown)))

    def restore(self, address: str) -> Namespace[M]:
        """Return the namespace of a stored address, if exactly this definition made it (NSP-08 to 10).

        Raises ``NamespaceInvalid`` with reason ``size``, ``malformed``, ``duplicate-keys``, ``format``,
        ``other-definition``, ``other-version`` or ``not-canonical``, or with one of :meth:`make`'s.
        """
        name, version, encoded = _read_address(address)
        if name != self.name:
            raise _refused_address("other-definition", "the address is of another definition")
        if version != self.version:
            raise _refused_address("other-version", "the address is of another version of the definition")
        namespace = self.of(self._decode(json.dumps(encoded)))
        if namespace.address != address:
            raise _refused_address("not-canonical", "the address is not in canonical form")
        return namespace

    def _encode(self, identity: M) -> str:
        try:
            encoded = identity.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
        except (ValueError, TypeError, RecursionError):
            # The cause is left out here and below: its text repeats the identity.
            raise invalid(
                "value", "the identity cannot be encoded as JSON", field="identity", bound="JSON"
            ) from None
        return identity_text(encoded)

    def _decode(self, text: str) -> M:
        try:
            return self.identity.model_validate_json(text)
        except ValidationError as error:
            self._refuse(error)

    def _refuse(self, error: ValidationError) -> NoReturn:
        """Name the field of the schema that does not fit, never the value or a key that came with it."""
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]["loc"][:1]
        known = {n for name, described in self.identity.model_fields.items() for n in (name, described.alias)}
        where = ".".join(["identity", *(str(part) for part in first if part in known)])
        raise invalid(
            "identity", f"{where} does not fit its schema", field=where, bound="the identity's schema"
        ) from None

    def _address(self, encoded: str) -> NamespaceAddress:
        text = f"[{ADDRESS_FORMAT},{identity_text(self.name)},{self.version},{encoded}]"
        if len(text.encode()) > ADDRESS_MAX_BYTES:
            raise _refused_address("size", f"an address has at most {ADDRESS_MAX_BYTES} bytes")
        return NamespaceAddress(text)


def _check_name(name: str) -> None:
    bound = f"1..{NAME_MAX_UNITS} UTF-16 code units"
    if not isinstance(name, str) or not 1 <= utf16_length(name) <= NAME_MAX_UNITS:
        raise invalid("name", f"a namespace's name has {bound}", field="name", bound=bound)
    try:
        check_text(name, field="name")
    except InvalidInput as error:
        raise invalid("name", error.message, field="name", bound=error.bound) from error


def _check_version(version: int) -> None:
    if type(version) is not int or not 1 <= version <= SAFE_INTEGER_MAX:
        raise invalid(
            "version",
            "a namespace's version is a positive safe integer",
            field="version",
            bound="1..2^53 - 1",
        )


def _read_address(address: str) -> tuple[str, int, Any]:
    """Return name, version and encoded identity of an address of our format."""
    if not isinstance(address, str) or len(address.encode("utf-8", "surrogatepass")) > ADDRESS_MAX_BYTES:
        raise _refused_address("size", f"an address is a text of at most {ADDRESS_MAX_BYTES} bytes")
    try:
        value = json.loads(address, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _refused_address("malformed", "the address is not JSON") from None
    match value:
        case [int() as form, str() as name, int() as version, encoded] if type(form) is type(version) is int:
            if form == ADDRESS_FORMAT:
                return name, version, encoded
    raise _refused_address("format", "the address is of a format that is not supported")


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    listed = list(pairs)
    if len(found := dict(listed)) != len(listed):
        raise _refused_address("duplicate-keys", "the address has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refused_address(reason: Reason, message: str) -> NamespaceInvalid:
    return invalid(reason, message, field="address", bound="a canonical address of this definition")
