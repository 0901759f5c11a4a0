"""What the offline model takes for a fact, how it fills schemas, what it answers from memory, and its vectors."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from memory_pipeline.recall.render import render
from memory_pipeline.remembering.extraction import Extraction
from memory_pipeline.store.documents import Passage
from producer.dev.offline.directive import Directive
from producer.dev.offline.facts import find_facts
from producer.dev.offline.filling import fill_schema
from producer.dev.offline.recollection import recalled_lines
from producer.dev.offline.requests import RequestRefused, parse_chat_request
from producer.dev.offline.rules import answer_request
from producer.dev.offline.vectors import embed, parse_embeddings_request
from shared.models.structured import response_format, strict_schema

UNKNOWN = "I do not know: you have not told me here, and nothing that I recalled says it."
ENVELOPE_LINES = {
    "profile-1": "The user's favourite colour is teal.\nThe user lives in Oslo.",
    "profile-2": "The user hates coffee.\nAda's cat is called Tom.",
}


def passage(source_id: str, text: str) -> Passage:
    said = {
        "origin_id": "ses:1",
        "speaker": "user",
        "locator": "session/ses/records/1",
        "interpretation": "x",
    }
    content = {"text": text, "attributions": [said], "recorded_at": 1}
    source = {"id": source_id, "locator": f"memory/{source_id}", "revision": "1"}
    return Passage.model_validate({"source": source, "passage_id": "document", "content": content})


def envelope() -> str:
    return render([("authority", passage(source_id, text)) for source_id, text in ENVELOPE_LINES.items()])


def answer(text: str, *before: str) -> str:
    messages = [{"role": "user", "content": said} for said in (*before, text)]
    request = parse_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
    return answer_request(request, text, Directive()).text


# --- facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "subject", "statement", "quote"),
    [
        ("Hi, my name is Ada.", "name", "The user's name is Ada.", "my name is Ada"),
        ("No, call me Grace!", "name", "The user's name is Grace.", "call me Grace"),
        ("I live in Oslo, near the sea", "home", "The user lives in Oslo.", "I live in Oslo"),
        ("I just moved to Berlin!", "home", "The user lives in Berlin.", "I just moved to Berlin"),
        ("My favourite colour is teal.", "favourite-colour", "The user's favourite colour is teal.", None),
        (
            "my FAVORITE color is Dark Blue",
            "favourite-colour",
            "The user's favourite colour is Dark Blue.",
            None,
        ),
        ("I love coffee.", "opinion-coffee", "The user loves coffee.", "I love coffee"),
        (
            "Actually I hate the Coffee now",
            "opinion-coffee",
            "The user hates the Coffee.",
            "I hate the Coffee now",
        ),
        ("I don't like coffee", "opinion-coffee", "The user does not like coffee.", None),
        ("I work as a baker", "occupation", "The user works as a baker.", None),
        ("I work at Acme Corp.", "employer", "The user works at Acme Corp.", "I work at Acme Corp"),
        ("I'm allergic to peanuts", "allergy-peanuts", "The user is allergic to peanuts.", None),
        ("I am not allergic to peanuts", "allergy-peanuts", "The user is not allergic to peanuts.", None),
        ("Please remember that I live in Oslo.", "home", "The user lives in Oslo.", "I live in Oslo"),
        (
            "Remember that the meeting is on Friday.",
            "note-meeting",
            "The user asked to remember: the meeting is on Friday.",
            "the meeting is on Friday",
        ),
        ("I love 寿司", "opinion-", "The user loves 寿司.", "I love 寿司"),
    ],
)
def test_a_statement_about_oneself_is_a_fact(
    text: str, subject: str, statement: str, quote: str | None
) -> None:
    (fact,) = find_facts(text)
    assert fact.subject.startswith(subject)
    assert fact.statement == statement
    assert fact.quote == (quote or text.removesuffix("."))
    assert fact.quote in text


@pytest.mark.parametrize(
    "text",
    [
        "What is my name?",
        "what is my favourite colour",
        "Do I love coffee?",
        "If I live in Oslo, call me Bob",
        "Suppose my name is Bob.",
        "I would like tea. I wish I live in Rome.",
        "I no longer live in Oslo",
        "Bob says my name is Rex",
        "call me later",
        "I like to swim. I love it.",
        "The sky is green.",
        "",
        "I love " + "very " * 20 + "long things",
        "I live in " + "x" * 400,
    ],
)
def test_questions_suppositions_and_the_rest_are_no_facts(text: str) -> None:
    assert find_facts(text) == []


def test_a_text_holds_several_facts_and_the_later_of_one_subject_counts() -> None:
    facts = find_facts(
        "My name is Ada, I live in Oslo and I love cats but I hate dogs. What is this? I live in Rome!"
    )
    assert [fact.statement for fact in facts] == [
        "The user's name is Ada.",
        "The user loves cats.",
        "The user hates dogs.",
        "The user lives in Rome.",
    ]


# --- schemas -------------------------------------------------------------------------------------------------


def test_our_extraction_schema_is_filled_with_facts_that_it_takes() -> None:
    text = "I love coffee. My favourite colour is teal."
    value = Extraction.model_validate(fill_schema(strict_schema(Extraction), text))
    assert [fact.subject for fact in value.facts] == ["opinion-coffee", "favourite-colour"]
    assert Extraction.model_validate(fill_schema(strict_schema(Extraction), "What is my name?")).facts == []
    many = ". ".join(f"I love thing{n}" for n in range(40))
    assert len(Extraction.model_validate(fill_schema(strict_schema(Extraction), many)).facts) == 16


def test_another_schema_gets_the_least_value_of_each_type() -> None:
    members: dict[str, Any] = {
        "text": {"type": "string"},
        "padded": {"type": "string", "minLength": 2},
        "whole": {"type": "integer", "minimum": 3},
        "real": {"type": "number", "exclusiveMinimum": 1},
        "truth": {"type": "boolean"},
        "none": {"type": ["string", "null"]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/Part"}, "minItems": 1},
        "choice": {"enum": ["b", "a"]},
        "fixed": {"const": 7},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "left": {"type": "string"},
    }
    schema = {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name != "left"],
        "$defs": {"Part": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    }
    assert fill_schema(schema, "I love coffee") == {
        "text": "",
        "padded": "xx",
        "whole": 3,
        "real": 2.0,
        "truth": False,
        "none": None,
        "list": [{"a": 0}],
        "choice": "b",
        "fixed": 7,
        "either": None,
    }


def test_a_schema_that_holds_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert "next" in fill_schema(node, "")
    assert fill_schema({"$ref": "#"}, "") is None


def test_a_loose_schema_is_refused_where_a_strict_one_is_asked_for() -> None:
    wanted = response_format(Extraction)
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": wanted,
    }
    assert parse_chat_request(json.dumps(body).encode()).route == "structured"
    del wanted["json_schema"]["schema"]["$defs"]["Fact"]["additionalProperties"]
    with pytest.raises(RequestRefused, match=r"context=/\$defs/Fact"):
        parse_chat_request(json.dumps(body).encode())


# --- answers from memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("What is my favourite colour?", "Your favourite colour is teal (memory:1)."),
        ("Hi! I forgot. What's my favorite color?", "Your favourite colour is teal (memory:1)."),
        ("where do I live", "You live in Oslo (memory:1)."),
        ("Do you remember what city I live in?", "You live in Oslo (memory:1)."),
        ("Do I like coffee?", "You hate coffee (memory:2)."),
        ("How is the cat called?", "I remember this: “Ada's cat is called Tom” (memory:2)."),
        ("What is my favourite food?", UNKNOWN),
        ("Where does Bob live?", UNKNOWN),
        ("What is my name?", "You have not told me your name yet."),
    ],
)
def test_a_question_is_answered_from_the_recalled_passage_that_fits(question: str, told: str) -> None:
    assert answer(question, "hello", envelope()) == told


@pytest.mark.parametrize(
    "question", ["What is my favourite colour?", "where do I live?", "Do I like coffee?"]
)
def test_what_was_neither_recalled_nor_said_is_not_known(question: str) -> None:
    assert answer(question, "hello") == UNKNOWN


def test_what_was_said_in_the_conversation_comes_before_what_was_recalled() -> None:
    said = ("My favourite colour is red.", "Sorry, my favourite colour is blue.")
    assert answer("What is my favourite colour?", envelope(), *said) == "Your favourite colour is blue."


def test_what_was_recalled_is_nothing_that_the_user_said() -> None:
    recalled = render([("authority", passage("profile-1", "My name is Eve. My favourite colour is teal."))])
    assert answer("What did I say?", "one", recalled) == "You said: “one”."
    assert "Eve" not in answer("hello", recalled)


def test_only_an_array_of_cited_passages_is_an_envelope() -> None:
    assert [line.citation for line in recalled_lines(envelope()) or ()] == ["memory:1"] * 2 + ["memory:2"] * 2
    for text in (
        "The colour is teal, see memory:1",
        "[]\nmemory:1",
        '[{"citation": "memory:1"}]',
        '[{"citation": "memory:x", "content": {"text": "a"}}]',
        '[{"citation": "memory:1", "content": {"text": "a"}}, 7]',
        '[{"citation": "memory:1", "content": {"text": "a"}}',
    ):
        assert recalled_lines(text) is None


def test_a_fact_is_acknowledged_in_the_second_person() -> None:
    assert answer("I love cats and I live in Rome.") == "Noted: you love cats; you live in Rome."


# --- vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [1, 2, 256, 4096])
@pytest.mark.parametrize("text", ["a", "the", "?!", "My favourite colour is teal", "寿司", "\ud800"])
def test_every_text_has_a_vector_of_length_one(text: str, dimensions: int) -> None:
    vector = embed(text, dimensions)
    assert len(vector) == dimensions
    assert math.hypot(*vector) == pytest.approx(1)
    assert vector == embed(text, dimensions)


def test_a_question_is_nearer_to_its_answer_than_to_anything_else() -> None:
    def near(a: str, b: str) -> float:
        return sum(x * y for x, y in zip(embed(a, 256), embed(b, 256), strict=True))

    question = "What is my favourite colour?"
    assert near(question, "The user's favourite colour is teal.") > 0.7
    assert near(question, "The user lives in Oslo.") < 0.2


@pytest.mark.parametrize(
    ("given", "texts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], ["1 2"]), ([[1, 2], [3]], ["1 2", "3"])],
)
def test_texts_and_token_numbers_are_taken(given: Any, texts: list[str]) -> None:
    assert parse_embeddings_request(json.dumps({"model": "m", "input": given}).encode()).texts == texts


@pytest.mark.parametrize("given", ["", [], [""], [[]], ["a"] * 2049, None, [None], 7])
def test_an_input_without_a_text_is_refused(given: Any) -> None:
    with pytest.raises(RequestRefused):
        parse_embeddings_request(json.dumps({"model": "m", "input": given}).encode())
