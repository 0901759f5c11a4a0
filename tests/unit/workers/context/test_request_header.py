"""The request of a step and the header that is stored before it."""

from __future__ import annotations

import pytest

from shared.agents import Agent, tool
from shared.models.types import AssistantMessage, SystemMessage
from shared.sessions.vocabulary import draft_of
from workers.context.request import PreparedRequest, prepare_request
from workers.context.transcript import Transcript


@tool
def look(place: str, times: int = 1) -> str:
    """Look somewhere."""
    return place


AGENT = Agent(name="one", instructions="Be brief.", tools=[look])
TRANSCRIPT = Transcript().with_user("run:0", "hi")


def prepared(agent: Agent = AGENT, transcript: Transcript = TRANSCRIPT, step: int = 0) -> PreparedRequest:
    return prepare_request(agent, transcript, model="m-1", run_id="run", session_id="ses_1", run=0, step=step)


@pytest.mark.behaviour("REQ-02", "REQ-03", "REQ-04", "REQ-05", "REQ-07", "REQ-10")
def test_a_header_says_everything_but_the_messages() -> None:
    header = prepared(step=4).header
    assert (header.system, header.run_id, header.run, header.step) == ("Be brief.", "run", 0, 4)
    assert [(t.name, t.description, t.parameters) for t in header.tools] == [
        ("look", "Look somewhere.", look.parameters)
    ]
    assert (header.tool_choice, header.model, header.cache_key) == ("auto", {"name": "m-1"}, "ses_1")
    assert header.recipe == {"name": "window", "version": 1, "since": "run:0"}
    assert header.through == "run:0"


@pytest.mark.behaviour("REQ-06")
def test_no_message_is_copied_into_the_header() -> None:
    header = prepared(transcript=Transcript().with_user("run:0", "a very personal message")).header
    assert "personal" not in draft_of(header).text


@pytest.mark.behaviour("REQ-02", "REQ-22", "KIT-15")
def test_the_request_is_what_its_header_says_over_the_transcript() -> None:
    made = prepared()
    assert made.request.messages == (SystemMessage("Be brief."), *TRANSCRIPT.messages)
    assert [(t.name, t.description, dict(t.parameters)) for t in made.request.tools] == [
        (t.name, t.description, t.parameters) for t in made.header.tools
    ]
    assert (made.request.model, made.request.tool_choice) == ("m-1", made.header.tool_choice)
    assert made.request.cache_key == made.header.cache_key


@pytest.mark.behaviour("RSM-20")
def test_the_same_transcript_gives_the_same_bytes() -> None:
    again = Agent(name="one", instructions="Be brief.", tools=[look])
    first, second = prepared(), prepared(agent=again, transcript=Transcript().with_user("run:0", "hi"))
    assert first.request == second.request
    assert draft_of(first.header) == draft_of(second.header)


@pytest.mark.behaviour("TLS-12")
def test_a_later_request_begins_with_the_earlier_one() -> None:
    later = Transcript((*TRANSCRIPT.messages, AssistantMessage("yes")), "run:1").with_user("run2:0", "more")
    first, second = prepared().request, prepared(transcript=later).request
    assert second.messages[: len(first.messages)] == first.messages
    assert second.tools == first.tools
