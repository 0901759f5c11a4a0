"""Which turn may be resumed: the pure rule's truth table, and what it reads from a log."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, Final

import pytest

from shared.conformance import HandClock
from shared.domain.errors import NotResumable
from shared.domain.ids import OwnerId, SessionId
from shared.sessions.inproc import InprocSessionLog, InprocStore
from shared.sessions.log import NewSession
from shared.sessions.records import draft
from shared.turns.queue import Outcome
from shared.turns.resume import (
    PastTurn,
    is_turn_number,
    past_turns,
    require_turn_number,
    resume_key,
    resume_refusal,
)

ENDINGS: Final[tuple[Outcome, ...]] = ("completed", "partial", "failed", "cancelled", "interrupted")
#: What a resume may be called with that names no turn (RSM-13, 14).
NO_NUMBERS: Final[tuple[Any, ...]] = (
    0,
    -1,
    1.5,
    math.nan,
    math.inf,
    True,
    False,
    "3",
    b"1",
    [1],
    2**31,
    2**63,
)

#: By how turn 2 ended: what a session with no later turn of a user says.
ALONE: Final = {
    "completed": "finished",
    "partial": "finished",
    "failed": "finished",
    "cancelled": None,
    "interrupted": None,
}
#: By how a later resume of it ended (None: there is none): whether that answers turn 2.
ANSWERS: Final = {
    None: False,
    "completed": True,
    "partial": True,
    "failed": False,
    "cancelled": False,
    "interrupted": False,
}


@pytest.mark.behaviour("RSM-02", "RSM-03", "RSM-04", "RSM-05", "RSM-10", "RSM-11", "RSM-15")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("inbox", [None, *ENDINGS])
@pytest.mark.parametrize("user", [None, *ENDINGS])
@pytest.mark.parametrize("resumed", ANSWERS)
def test_the_truth_table_of_a_resume(
    ending: Outcome, inbox: Outcome | None, user: Outcome | None, resumed: Outcome | None
) -> None:
    later = [
        *([PastTurn(3, "inbox", inbox)] if inbox else []),
        *([PastTurn(4, "user", user)] if user else []),
        *([PastTurn(5, "user", resumed, resumes=2)] if resumed else []),
    ]
    turns = [PastTurn(1, "user", "completed"), PastTurn(2, "user", ending), *later]
    expected = "superseded" if user or ANSWERS[resumed] else ALONE[ending]
    assert resume_refusal(2, turns) == expected
    random.Random(7).shuffle(turns)
    assert resume_refusal(2, iter(turns)) == expected, "in any order"


@pytest.mark.behaviour("RSM-05", "RSM-10", "RSM-45")
def test_of_several_resumes_each_must_have_left_the_turn_as_it_was() -> None:
    cut = [PastTurn(1, "user", "cancelled")]
    for endings in itertools.product(ENDINGS, repeat=3):
        tries = [PastTurn(n, "user", outcome, resumes=1) for n, outcome in enumerate(endings, 2)]
        answered = any(outcome in ("completed", "partial") for outcome in endings)
        assert resume_refusal(1, cut + tries) == ("superseded" if answered else None)


@pytest.mark.behaviour("RSM-45")
def test_a_resume_of_the_resume_goes_on_from_it_and_leaves_the_first_turn_behind() -> None:
    turns = [PastTurn(1, "user", "cancelled"), PastTurn(2, "user", "interrupted", resumes=1)]
    assert (resume_refusal(1, turns), resume_refusal(2, turns)) == (None, None)
    turns.append(PastTurn(3, "user", "failed", resumes=2))
    assert (resume_refusal(1, turns), resume_refusal(2, turns)) == ("superseded", None)
    assert resume_refusal(3, turns) == "finished"


@pytest.mark.behaviour("RSM-08", "RSM-09")
def test_a_turn_that_is_not_there_is_missing_and_one_that_no_user_began_is_the_inboxs() -> None:
    turns = [PastTurn(4, "inbox", "interrupted"), PastTurn(5, "task", "interrupted")]
    assert resume_refusal(1, []) == "missing"
    assert resume_refusal(3, turns) == "missing"
    assert [resume_refusal(n, turns) for n in (4, 5)] == ["inbox", "inbox"]


@pytest.mark.behaviour("RSM-13", "RSM-14")
@pytest.mark.parametrize("value", NO_NUMBERS, ids=[repr(value) for value in NO_NUMBERS])
def test_what_is_no_whole_number_of_at_least_one_names_no_turn(value: Any) -> None:
    # Equal to a turn's number, some of them, and yet none.
    turns = [PastTurn(1, "user", "cancelled"), PastTurn(3, "user", "cancelled")]
    assert not is_turn_number(value)
    assert resume_refusal(value, turns) == "missing"
    with pytest.raises(NotResumable) as refused:
        require_turn_number(value, SessionId("s"))
    assert refused.value.fields == {"session": "s", "turn": str(value), "reason": "missing"}


def test_a_turn_that_resumes_none_is_asked_nothing() -> None:
    require_turn_number(None, SessionId("s"))
    require_turn_number(2**31 - 1, SessionId("s"))


def test_what_is_unfinished_stands_in_the_way_only_as_another_turn_of_a_user() -> None:
    cut, open_inbox = PastTurn(1, "user", "cancelled"), PastTurn(2, "inbox")
    assert resume_refusal(1, [PastTurn(1, "user")]) is None
    assert resume_refusal(1, [cut, open_inbox]) is None
    assert resume_refusal(1, [cut, open_inbox, PastTurn(3, "user", resumes=1)]) is None
    assert resume_refusal(1, [cut, open_inbox, PastTurn(3, "user")]) == "superseded"


@pytest.mark.behaviour("RSM-38")
def test_a_resume_without_a_key_of_its_own_is_keyed_by_the_turn() -> None:
    assert resume_key(17) == "resume:17"


@pytest.mark.behaviour("RSM-15")
async def test_a_host_reads_the_turns_that_the_rule_asks_for_from_the_log() -> None:
    store = InprocStore(HandClock())
    await InprocSessionLog(store).create(NewSession(SessionId("s"), OwnerId("o")))
    session = store.sessions[SessionId("s")]
    for number, started, ended in (
        (1, {"origin": "user"}, {"reason": "cancelled"}),
        (2, {"origin": "inbox"}, {"reason": "completed"}),
        (3, {"origin": "user", "resumes": 1}, {"reason": "interrupted", "code": "turn.lease"}),
        (4, {"origin": "user"}, None),
    ):
        store.append(session, [draft("turn.started", {"v": 1, **started})], turn=number)
        store.append(session, [draft("step.started", {"v": 1})], turn=number)
        if ended:
            store.append(session, [draft("turn.ended", {"v": 1, **ended})], turn=number)
    store.append(session, [draft("turn.ended", {"v": 1, "reason": "a host's own"})], turn=None)
    assert past_turns(session.records) == [
        PastTurn(1, "user", "cancelled"),
        PastTurn(2, "inbox", "completed"),
        PastTurn(3, "user", "interrupted", 1),
        PastTurn(4, "user"),
    ]
