"""Definitions, canonical addresses, and what each limit and each wrong address is refused with."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, RootModel, ValidationInfo, field_serializer, field_validator

from memory_pipeline.namespaces.address import MemoryNamespace, Namespace
from memory_pipeline.namespaces.canonical import identity_text, number_text
from shared.domain.errors import InvalidInput, NamespaceInvalid


class Tenant(BaseModel):
    tenant: str
    user: str = "u"


class AnyIdentity(RootModel[Any]):
    """Whatever JSON holds."""


class Number(BaseModel):
    n: float


TENANT = MemoryNamespace.define("profile", 1, Tenant)
ANY = MemoryNamespace.define("x", 1, AnyIdentity)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def reason_of(refusal: pytest.ExceptionInfo[NamespaceInvalid]) -> str:
    return str(refusal.value.fields["reason"])


def nested(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "array" else {"k": value}
    return value


@pytest.mark.behaviour("NSP-01", "NSP-06", "NSP-14", "NSP-15")
def test_an_address_is_compact_json_of_format_name_version_and_identity() -> None:
    made = MemoryNamespace.define("a/b", 7, Tenant).make(user="ada", tenant="acme")
    assert made.address == '[1,"a/b",7,{"tenant":"acme","user":"ada"}]'
    assert (made.name, made.version, made.identity) == ("a/b", 7, Tenant(tenant="acme", user="ada"))
    assert made.key("d").namespace == made.address


@pytest.mark.behaviour("NSP-06")
def test_values_that_do_not_fit_the_schema_are_refused_by_field_and_never_repeated() -> None:
    with pytest.raises(NamespaceInvalid) as refusal:
        TENANT.make(tenant=["secret"])
    assert refusal.value.fields | {"reason": ""} == {
        "field": "identity.tenant",
        "bound": "the identity's schema",
        "reason": "",
    }
    assert "secret" not in str(refusal.value)
    assert refusal.value.__suppress_context__


@pytest.mark.behaviour("NSP-07")
def test_external_input_decodes_or_fails_with_a_typed_error() -> None:
    assert TENANT.decode({"tenant": "t"}) == TENANT.make(tenant="t")
    for unknown in (None, 3, "text", [], {"tenant": 1}, {1: "t"}, {"tenant": b"t"}, object()):
        with pytest.raises(NamespaceInvalid):
            TENANT.decode(unknown)


@pytest.mark.behaviour("NSP-43")
def test_neither_identity_nor_address_is_in_what_a_log_line_would_print() -> None:
    assert "secret" not in repr(TENANT.make(tenant="secret"))


@pytest.mark.behaviour("NSP-16", "NSP-T01")
def test_keys_sort_by_utf16_code_units_at_every_level() -> None:
    keys = ["2", "10", "\ue000", "\U0001f600"]
    value = dict.fromkeys(keys, 0) | {"z": dict.fromkeys(keys, 0)}
    flat = '"10":0,"2":0,"\U0001f600":0,"\ue000":0'
    nested_in_order = '{"10":0,"2":0,"z":{"10":0,"2":0,"\U0001f600":0,"\ue000":0},"\U0001f600":0,"\ue000":0}'
    assert sorted(keys) != ["10", "2", "\U0001f600", "\ue000"], "code point order is another one"
    assert ANY.decode(dict.fromkeys(keys, 0)).address == '[1,"x",1,{' + flat + "}]"
    assert ANY.decode(value).address == f'[1,"x",1,{nested_in_order}]'


@pytest.mark.behaviour("NSP-17")
def test_arrays_keep_their_order() -> None:
    assert ANY.decode([2, 1]).address != ANY.decode([1, 2]).address


#: What Node.js 20 prints for JSON.stringify of each.
GOLDEN_NUMBERS = [
    (-0.0, "0"),
    (1.0, "1"),
    (-1.5, "-1.5"),
    (100.0, "100"),
    (4.35, "4.35"),
    (0.1 + 0.2, "0.30000000000000004"),
    (333333333.33333329, "333333333.3333333"),
    (1e-6, "0.000001"),
    (0.000001234, "0.000001234"),
    (1e-7, "1e-7"),
    (-1e-7, "-1e-7"),
    (9.5e-7, "9.5e-7"),
    (123e-20, "1.23e-18"),
    (5e-324, "5e-324"),
    (1.5e-323, "1.5e-323"),
    (1e20, "100000000000000000000"),
    (999999999999999900000.0, "999999999999999900000"),
    (123456789012345680000.0, "123456789012345680000"),
    (1e21, "1e+21"),
    (1e22, "1e+22"),
    (1e23, "1e+23"),
    (1e300, "1e+300"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (float(2**53), "9007199254740992"),
]


@pytest.mark.behaviour("NSP-19", "NSP-T02")
@pytest.mark.parametrize(("value", "text"), GOLDEN_NUMBERS)
def test_numbers_have_the_form_that_javascript_gives_them(value: float, text: str) -> None:
    definition = MemoryNamespace.define("x", 1, Number)
    made = definition.make(n=value)
    assert made.address == '[1,"x",1,{"n":' + text + "}]"
    assert definition.restore(made.address) == made


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(value: float) -> None:
    assert float(number_text(value)) == value


@pytest.mark.behaviour("NSP-19", "NSP-26", "NSP-T02")
def test_integers_are_safe_ones() -> None:
    for value in (0, 2**53 - 1, -(2**53 - 1)):
        assert identity_text(value) == str(value)
    for value in (2**53, -(2**53), 10**30):
        with pytest.raises(NamespaceInvalid) as refusal:
            ANY.decode(value)
        assert reason_of(refusal) == "value"


@pytest.mark.behaviour("NSP-18", "NSP-T03")
def test_strings_are_escaped_as_json_and_not_normalized() -> None:
    made = ANY.decode('\u2028\x00\x01\b\f\n\r\t\x1f\x7f/\\"\u00e9')
    assert made.address == '[1,"x",1,"\u2028\\u0000\\u0001\\b\\f\\n\\r\\t\\u001f\x7f/\\\\\\"\u00e9"]'
    assert TENANT.make(tenant="\u00e9").address != TENANT.make(tenant="e\u0301").address


@pytest.mark.behaviour("NSP-26", "NSP-T03")
@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["a\ud800b"]])
def test_a_lone_surrogate_is_refused(value: Any) -> None:
    with pytest.raises(NamespaceInvalid) as refusal:
        ANY.decode(value)
    assert reason_of(refusal) == "value"


@pytest.mark.behaviour("NSP-26")
@pytest.mark.parametrize("value", [b"\xff", object(), "\ud800", 2**53])
def test_what_is_no_json_value_is_refused(value: Any) -> None:
    with pytest.raises(NamespaceInvalid) as refusal:
        ANY.of(AnyIdentity(value))
    assert reason_of(refusal) == "value"


@pytest.mark.behaviour("NSP-26")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_at_both_doors(value: float) -> None:
    with pytest.raises(NamespaceInvalid) as made:
        MemoryNamespace.define("x", 1, Number).make(n=value)
    with pytest.raises(NamespaceInvalid) as decoded:
        ANY.decode([value])
    assert (reason_of(made), reason_of(decoded)) == ("value", "value")


@pytest.mark.behaviour("NSP-22", "NSP-26")
def test_a_schema_converts_dates_decimals_and_bytes() -> None:
    class Rich(BaseModel):
        day: date
        share: Decimal
        raw: bytes

    rich = MemoryNamespace.define("rich", 1, Rich)
    made = rich.make(day=date(2030, 1, 2), share=Decimal("1.50"), raw=b"ab")
    assert made.address == '[1,"rich",1,{"day":"2030-01-02","raw":"ab","share":"1.50"}]'
    assert (
        rich.restore(made.address).identity
        == made.identity
        == rich.decode(json.loads(made.address)[3]).identity
    )


@pytest.mark.behaviour("NSP-20", "NSP-T08")
def test_separators_never_make_two_identities_share_an_address() -> None:
    pairs = [
        (["a", "b|c"], ["a|b", "c"]),
        (['a","b'], ["a", "b"]),
        (["[1]"], [[1]]),
        (["1"], [1]),
        ([""], []),
    ]
    for one, other in pairs:
        assert ANY.decode(one).address != ANY.decode(other).address
    assert TENANT.make(tenant='a","user":"b').address != TENANT.make(tenant="a", user="b").address


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.behaviour("NSP-08", "NSP-20")
@given(JSON, JSON)
def test_every_address_restores_to_its_identity_and_only_equal_ones_share_it(one: Any, other: Any) -> None:
    made = ANY.decode(one)
    assert json.dumps(ANY.restore(made.address).identity.root) == json.dumps(made.identity.root)
    if made.address == ANY.decode(other).address:
        assert json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.behaviour("NSP-21", "NSP-24", "NSP-T07")
def test_a_codec_that_another_round_trip_changes_is_refused() -> None:
    class LowerOnDecode(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def lower(cls, value: str, info: ValidationInfo) -> str:
            return value.lower() if info.mode == "json" else value

    class Growing(BaseModel):
        name: str

        @field_serializer("name")
        def grow(self, value: str) -> str:
            return value + "x"

    for schema in (LowerOnDecode, Growing):
        with pytest.raises(NamespaceInvalid) as refusal:
            MemoryNamespace.define("x", 1, schema).make(name="A")
        assert reason_of(refusal) == "unstable"


@pytest.mark.behaviour("NSP-23", "NSP-25")
def test_what_the_schema_normalizes_or_ignores_leads_to_one_address() -> None:
    class Lower(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def lower(cls, value: str) -> str:
            return value.lower()

    lower = MemoryNamespace.define("x", 1, Lower)
    assert lower.make(name="ADA", extra=1) == lower.decode({"name": "ada", "other": [2]})
    assert lower.of(Lower.model_construct(name="ada")).identity.name == "ada"
    with pytest.raises(NamespaceInvalid):
        lower.of(Lower.model_construct(name="ADA"))


@pytest.mark.behaviour("NSP-27", "NSP-T04")
def test_a_name_has_1_to_256_utf16_code_units() -> None:
    for name in ("x", "x" * 256, "\U0001f600" * 128):
        assert MemoryNamespace.define(name, 1, Tenant).name == name
    for name in ("", "x" * 257, "\U0001f600" * 128 + "x", "\U0001f600" * 129, "a\x00", "\ud800"):
        with pytest.raises(NamespaceInvalid) as refusal:
            MemoryNamespace.define(name, 1, Tenant)
        assert (reason_of(refusal), refusal.value.field) == ("name", "name")


@pytest.mark.behaviour("NSP-28", "NSP-T09")
def test_a_version_is_a_positive_safe_integer_and_nothing_that_equals_one() -> None:
    for version in (1, 2**53 - 1):
        assert MemoryNamespace.define("x", version, Tenant).version == version
    wrong: list[Any] = [0, -1, 2**53, True, 1.0, "1", None]
    for version in wrong:
        with pytest.raises(NamespaceInvalid) as refusal:
            MemoryNamespace.define("x", version, Tenant)
        assert (reason_of(refusal), refusal.value.field) == ("version", "version")


def test_an_identity_schema_is_a_model_class() -> None:
    wrong: list[Any] = [dict, Tenant(tenant="t"), None]
    for schema in wrong:
        with pytest.raises(NamespaceInvalid) as refusal:
            MemoryNamespace.define("x", 1, schema)
        assert reason_of(refusal) == "identity"


@pytest.mark.behaviour("NSP-29", "NSP-32", "NSP-T04")
@pytest.mark.parametrize("letter", ["a", "\u00e9", "\u754c", "\U0001f600"])
def test_an_address_has_at_most_4096_bytes(letter: str) -> None:
    room = 4_096 - len('[1,"x",1,""]')
    count, rest = divmod(room, len(letter.encode()))
    largest = letter * count + "." * rest
    made = ANY.decode(largest)
    assert len(made.address.encode()) == 4_096
    assert ANY.restore(made.address) == made
    for larger in (largest + ".", letter * 5_000):
        with pytest.raises(NamespaceInvalid) as refusal:
            ANY.decode(larger)
        assert reason_of(refusal) == "size"
    with pytest.raises(NamespaceInvalid) as refusal:
        ANY.restore(made.address[:-2] + '."]')
    assert reason_of(refusal) == "size"


@pytest.mark.behaviour("NSP-30", "NSP-T05")
@pytest.mark.parametrize("kind", ["array", "object"])
def test_an_identity_has_at_most_16_levels_of_containers(kind: str) -> None:
    assert ANY.restore(ANY.decode(nested(16, kind)).address).identity.root == nested(16, kind)
    for depth in (17, 900):
        with pytest.raises(NamespaceInvalid) as refusal:
            ANY.decode(nested(depth, kind))
        assert reason_of(refusal) == "depth"
    with pytest.raises(NamespaceInvalid) as refusal:
        ANY.restore('[1,"x",1,' + json.dumps(nested(17, kind), separators=(",", ":")) + "]")
    assert reason_of(refusal) == "depth"


@pytest.mark.behaviour("NSP-31", "NSP-T05")
@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: [inner], lambda inner: {"k": inner}])
@pytest.mark.parametrize("make", [lambda n: [0] * n, lambda n: {str(k): 0 for k in range(n)}])
def test_a_container_has_at_most_128_entries(wrap: Any, make: Any) -> None:
    ANY.decode(wrap(make(128)))
    with pytest.raises(NamespaceInvalid) as refusal:
        ANY.decode(wrap(make(129)))
    assert reason_of(refusal) == "entries"


@pytest.mark.behaviour("NSP-08", "NSP-09", "NSP-10", "NSP-T06")
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ('[1,"profile",1, {"tenant":"t","user":"u"}]', "not-canonical"),
        ('[1,"profile",1,{"user":"u","tenant":"t"}]', "not-canonical"),
        ('[1,"profile",1,{"tenant":"\\u0074","user":"u"}]', "not-canonical"),
        ('[1,"profile",1,{"tenant":"t"}]', "not-canonical"),
        ('[1,"profile",1,{"more":1,"tenant":"t","user":"u"}]', "not-canonical"),
        ('[1,"other",1,{"tenant":"t","user":"u"}]', "other-definition"),
        ('[1,"profile",2,{"tenant":"t","user":"u"}]', "other-version"),
        ('[2,"profile",1,{"tenant":"t","user":"u"}]', "format"),
        ('[true,"profile",1,{"tenant":"t","user":"u"}]', "format"),
        ('[1.0,"profile",1,{"tenant":"t","user":"u"}]', "format"),
        ('[1,"profile",true,{"tenant":"t","user":"u"}]', "format"),
        ('[1,"profile",1]', "format"),
        ('{"a":1}', "format"),
        ("1", "format"),
        ("", "malformed"),
        ('[1,"profile",1,{"tenant":NaN}]', "malformed"),
        ("profile/t", "malformed"),
        ("[" * 4_000, "malformed"),
        ('[1,"profile",1,{"tenant":"t","tenant":"t","user":"u"}]', "duplicate-keys"),
        ('[1,"profile",1,{"tenant":7,"user":"u"}]', "identity"),
        ('[1,"profile",1,{"tenant":"\\ud800","user":"u"}]', "identity"),
        ("[1," + '"p"' * 2_000, "size"),
    ],
)
def test_each_wrong_address_is_refused_with_its_own_reason(address: str, reason: str) -> None:
    with pytest.raises(NamespaceInvalid) as refusal:
        TENANT.restore(address)
    assert reason_of(refusal) == reason
    assert isinstance(refusal.value, InvalidInput)


@pytest.mark.behaviour("NSP-33", "NSP-34")
def test_another_version_is_another_namespace_and_restores_nothing_of_the_older() -> None:
    first = MemoryNamespace.define("profile", 1, Tenant).make(tenant="t")
    second = MemoryNamespace.define("profile", 2, Tenant)
    assert second.make(tenant="t").address != first.address
    with pytest.raises(NamespaceInvalid) as refusal:
        second.restore(first.address)
    assert reason_of(refusal) == "other-version"


@pytest.mark.behaviour("NSP-02", "NSP-22")
def test_strict_and_aliased_schemas_keep_their_types() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True, populate_by_name=True)
        number: Annotated[int, "a user's number"]

    strict = MemoryNamespace.define("x", 1, Strict)
    made: Namespace[Strict] = strict.make(number=3)
    assert type(made.identity.number) is int
    for wrong in (True, "3", 3.5):
        with pytest.raises(NamespaceInvalid):
            strict.make(number=wrong)
