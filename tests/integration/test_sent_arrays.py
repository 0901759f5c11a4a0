"""Arrays that are written by hand reach the database as the driver would have sent them."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.database.arrays import array_text
from shared.database.pool import Database
from shared.database.statements import Statement

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
LISTS = (
    st.tuples(
        st.just("text"),
        st.lists(st.none() | TEXT | st.sampled_from(["", "NULL", "null", '"', "\\", "{}", ","])),
    )
    | st.tuples(st.just("bytea"), st.lists(st.none() | st.binary(max_size=8)))
    | st.tuples(st.just("uuid"), st.lists(st.uuids()))
    | st.tuples(st.just("bigint"), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
)


def test_lists_of_text_bytes_ids_and_integers_come_back_as_they_were_sent(database_url: str) -> None:
    with asyncio.Runner() as runner:
        database = Database(database_url, connections=1)
        runner.run(database.open())

        @settings(max_examples=150)
        @given(LISTS)
        def check(drawn: tuple[str, list[Any]]) -> None:
            kind, values = drawn
            assert isinstance(array_text(values), str)
            statement = Statement("echo", f"SELECT %(values)s::{kind}[] AS values")
            [row] = runner.run(database.read("echo", statement, {"values": values}))
            assert row["values"] == values

        check()
        runner.run(database.close())


@pytest.mark.parametrize("values", [[1.5], [True], [[1], [2]], ["a", UUID(int=1), object()]])
def test_a_list_of_anything_else_is_left_to_the_driver(values: list[Any]) -> None:
    assert array_text(values) is values
