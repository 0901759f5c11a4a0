"""Directives in user messages: read whole, or refused."""

from __future__ import annotations

import pytest

from producer.dev.offline.directive import Directive, split_directive
from producer.dev.offline.requests import RequestRefused


def test_a_message_without_a_directive_stays_as_it_is() -> None:
    assert split_directive("  hi [[x]]") == ("  hi [[x]]", Directive())


def test_a_directive_is_taken_out_of_its_text_whatever_brackets_it_holds() -> None:
    text, directive = split_directive(
        'before [[offline: {"tool": "f", "args": {"a": [[{"b": "]]"}]]}} ]] after'
    )
    assert text == "before  after"
    assert (directive.tool, directive.args) == ("f", {"a": [[{"b": "]]"}]]})


def test_equal_directives_share_their_counter_unless_they_name_one() -> None:
    assert split_directive('[[offline: {"fail": 500}]]')[1].key == '{"fail": 500}'
    assert split_directive('[[offline: {"fail": 500, "key": "mine"}]]')[1].key == "mine"


def test_a_status_may_be_written_as_a_text() -> None:
    assert split_directive('[[offline: {"fail": "503"}]]')[1].fail == 503


def test_taking_the_faults_out_leaves_the_answer() -> None:
    directive = Directive(reply="x", fail=500, hang=True, cut_after=1, delay_ms=3)
    assert directive.has_fault
    calm = directive.without_faults()
    assert (calm.has_fault, calm.reply, calm.delay_ms) == (False, "x", 3)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        "{} ",
        "[]]]",
        '{"tokens": 0}]]',
        '{"fail": 200}]]',
        '{"unknown": 1}]]',
        '{"reply": 1}]]',
        '{"a":' * 5000,
    ],
)
def test_a_directive_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match="offline directive"):
        split_directive(f"[[offline: {text}")


def test_a_directive_is_for_chats_alone_unless_it_says_otherwise() -> None:
    text = 'a [[offline: {"tokens": 3}]] b [[offline: {"on": "structured", "fail": 500}]]'
    assert split_directive(text)[1].tokens == 3
    said, directive = split_directive(text, "structured")
    assert (said, directive.tokens, directive.fail) == ("a  b", None, 500)
    assert split_directive(text, "embeddings")[1] == Directive()
    assert split_directive('[[offline: {"on": "all", "fail": 500}]]', "embeddings")[1].fail == 500


def test_a_directive_that_cannot_be_used_is_text_like_any_other_outside_a_chat() -> None:
    assert split_directive("a [[offline: {]]", "structured") == ("a [[offline: {]]", Directive())
