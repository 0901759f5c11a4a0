"""The error tree: codes are stable, unique, and each stands in one family."""

from __future__ import annotations

import asyncio

import pytest

from shared.domain import errors
from shared.domain.errors import (
    Broken,
    Conflict,
    Draining,
    Exhausted,
    Refused,
    SessionHistoryError,
    TurnClosed,
    TurnkeeperError,
    TurnTimeout,
    Unavailable,
    code_of,
    describe_error,
)

FAMILIES = (Refused, Conflict, Unavailable, Exhausted, Broken)

#: Stored in logs and read by clients: a code is never changed and never taken away.
CODES = {
    "AttachmentRejected": "turn.attachment-rejected",
    "Broken": "defect",
    "BrokerUnavailable": "broker.unavailable",
    "BudgetInvalid": "config.budget",
    "CallAbandoned": "call.abandoned",
    "CommandsFull": "turn.commands-full",
    "CommitTooLate": "session.late",
    "ConfigError": "config.options",
    "Conflict": "request.conflict",
    "CorruptRecord": "session.decode",
    "Defect": "turn.defect",
    "Draining": "turn.refused",
    "Exhausted": "exhausted",
    "FeedUnavailable": "feed.unavailable",
    "FenceLost": "turn.fence-lost",
    "HistoryConflict": "history.conflict",
    "HistoryEncoding": "history.encoding",
    "HistoryFenced": "history.fenced",
    "HistoryFull": "history.limit",
    "HistoryIncompatible": "history.incompatible",
    "HistoryMissing": "history.not-found",
    "HistoryModeConflict": "history.mode",
    "HistoryStorage": "history.storage",
    "HomeInUse": "home.in-use",
    "InMemoryScopeError": "history.scope",
    "InputTooLarge": "input.too-large",
    "InvalidCredentials": "auth.invalid",
    "InvalidInput": "input.invalid",
    "KeyConflict": "turn.key-conflict",
    "LeaseHeld": "lease.held",
    "MalformedInput": "input.malformed",
    "ModelAuthFailed": "model.auth",
    "ModelRefused": "model.refused",
    "ModelStreamBroken": "model.stream",
    "ModelUnavailable": "model.unavailable",
    "NotResumable": "turn.not-resumable",
    "ProcessFailed": "process.failed",
    "QueueFull": "turn.queue-full",
    "Refused": "request.refused",
    "ReservedKind": "events.reserved",
    "RevisionConflict": "session.revision",
    "RunCut": "turn.run-cut",
    "RunIdReused": "turn.run-reused",
    "RunOpen": "turn.run-open",
    "SchemaOutOfRange": "schema.range",
    "SessionBusy": "session.busy",
    "SessionContended": "session.contended",
    "SessionDefect": "session.defect",
    "SessionExists": "session.exists",
    "SessionHistoryDiverged": "history.diverged",
    "SessionMissing": "session.missing",
    "StoreBusy": "store.busy",
    "StoreDefect": "store.defect",
    "StoreUnavailable": "store.unavailable",
    "TurnClosed": "turn.closed",
    "TurnDuplicate": "turn.duplicate",
    "TurnMissing": "turn.missing",
    "TurnRefused": "turn.refused",
    "TurnTimeout": "turn.timeout",
    "TurnUnstarted": "turn.unstarted",
    "TurnkeeperError": "internal",
    "Unauthenticated": "auth.missing",
    "Unavailable": "unavailable",
    "UnsupportedMedia": "input.media-type",
}


def classes() -> list[type[TurnkeeperError]]:
    return [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, TurnkeeperError)
    ]


def test_no_code_that_was_given_is_ever_changed_or_dropped() -> None:
    now = {found.__name__: found.code for found in classes()}
    assert {name: now.get(name) for name in CODES} == CODES


def test_every_class_says_its_own_code_and_no_two_share_one() -> None:
    # A process that drains refuses turns as a host's admission may: to a client it is the same answer.
    own = [found.__dict__.get("code") for found in classes() if found is not Draining]
    assert None not in own
    assert len(set(own)) == len(own)


def test_every_error_belongs_to_exactly_one_family_and_has_a_title() -> None:
    for found in classes():
        if found is not TurnkeeperError:
            assert sum(issubclass(found, family) for family in FAMILIES) == 1, found
            assert found.title != TurnkeeperError.title, found


@pytest.mark.behaviour("TRN-31")
def test_an_error_keeps_what_it_is_about_as_fields() -> None:
    error = TurnClosed("closed", turn="t", reason="cancelled")
    assert (str(error), error.fields) == ("closed", {"turn": "t", "reason": "cancelled"})


@pytest.mark.behaviour("THR-74")
def test_one_class_catches_every_failure_of_a_history_and_its_reason_tells_them_apart() -> None:
    found = [kind for kind in classes() if issubclass(kind, SessionHistoryError)]
    assert {kind.reason for kind in found} == {
        "limit",
        "conflict",
        "fenced",
        "incompatible",
        "not-found",
        "encoding",
        "storage",
    }
    assert [kind.__name__ for kind in found if kind.reason == "conflict"] == [
        "HistoryConflict",
        "SessionHistoryDiverged",
    ]


@pytest.mark.behaviour("TRN-49", "TRN-52", "SES-80")
def test_a_typed_error_stores_its_code_and_any_other_a_general_one() -> None:
    class Coded(Exception):
        code = "mine"

    assert code_of(TurnClosed("x")) == "turn.closed"
    assert code_of(Coded()) == "turn.failed"


@pytest.mark.behaviour("TRN-53", "TRN-59")
def test_a_failure_is_described_by_its_message_or_its_class_and_cut() -> None:
    assert describe_error(TurnTimeout("it took too long")) == "it took too long"
    assert describe_error(KeyError("k")) == "KeyError: 'k'"
    assert describe_error(asyncio.CancelledError()) == "CancelledError"
    assert len(describe_error(ValueError("é" * 501))) == len(describe_error(TurnClosed("é" * 501))) == 500
