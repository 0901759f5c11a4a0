"""The inbox's kit proves something: each broken inbox or queue here fails the checks that are about its fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.conformance import ConformanceFailure, inbox_conformance
from shared.inbox.inproc import InprocInbox
from shared.inbox.port import Inbox
from shared.turns.inproc import InprocTurnQueue
from shared.turns.queue import (
    TurnQueue,
)
from tests.conformance.broken_inboxes import (
    BargingQueue,
    BlindInbox,
    BoundlessInbox,
    BusyQueue,
    ContentInbox,
    CountingQueue,
    DoublingInbox,
    ForgetfulInbox,
    ForgivingQueue,
    FreshInbox,
    GreedyQueue,
    HastyInbox,
    HeedlessCancelQueue,
    HoardingInbox,
    HungryQueue,
    IdleQueue,
    KeepingQueue,
    LaxBeginQueue,
    LoopingQueue,
    LosingQueue,
    LossyInbox,
    NosyQueue,
    OpenInbox,
    PatientInbox,
    PlainInbox,
    RacingInbox,
    SilentInbox,
    SternQueue,
    StubbornQueue,
    TrimmingInbox,
    TrustingQueue,
    UnaskedQueue,
    UnfencedRefusalQueue,
)
from tests.conformance.subjects import InprocTurnQueueSubject


class BrokenSubject(InprocTurnQueueSubject):
    """The twin with one part broken."""

    def __init__(
        self, inbox: type[InprocInbox] = InprocInbox, queue: type[InprocTurnQueue] = InprocTurnQueue
    ) -> None:
        super().__init__()
        self._inbox, self._queue = inbox, queue

    async def inbox(self) -> Inbox:
        return self._inbox(self.store)

    async def open(self) -> TurnQueue:
        return self._queue(self.store)


FAULTS: Sequence[tuple[str, type[InprocInbox], type[InprocTurnQueue], Sequence[str]]] = [
    (
        "an inbox that doubles",
        DoublingInbox,
        InprocTurnQueue,
        ["an id is delivered once: again, also after it was done, it adds nothing"],
    ),
    (
        "an inbox that looks first",
        RacingInbox,
        InprocTurnQueue,
        ["twenty at once with one id are one item and one turn"],
    ),
    (
        "an inbox that is silent",
        SilentInbox,
        InprocTurnQueue,
        ["a delivery is an item that waits, a record, and a turn that will answer it"],
    ),
    (
        "an inbox without bounds",
        BoundlessInbox,
        InprocTurnQueue,
        ["so many items wait as may; one more is refused and nothing of it is stored"],
    ),
    (
        "an inbox that evicts",
        LossyInbox,
        InprocTurnQueue,
        ["so many items wait as may; one more is refused and nothing of it is stored"],
    ),
    (
        "an inbox that is open to all",
        OpenInbox,
        InprocTurnQueue,
        ["a session that is another's or nobody's takes no delivery and shows none"],
    ),
    (
        "an inbox that cuts",
        TrimmingInbox,
        InprocTurnQueue,
        ["what cannot be stored is refused with its field, and nothing is"],
    ),
    (
        "an inbox that keeps what was removed",
        HoardingInbox,
        InprocTurnQueue,
        ["a removed session takes its items with it, and its ids may be anew"],
    ),
    (
        "an inbox that forgets whose turn it is",
        PlainInbox,
        InprocTurnQueue,
        ["its turn is as the oldest waiting item says, else as the session's last one"],
    ),
    (
        "an inbox that leaves the dead",
        BlindInbox,
        InprocTurnQueue,
        ["a delivery beside a turn that died reaps it first"],
    ),
    (
        "an inbox that cannot wait",
        HastyInbox,
        InprocTurnQueue,
        ["a refused inbox turn is tried again after a while, at the next delivery or at the next end"],
    ),
    (
        "an inbox that waits for ever",
        PatientInbox,
        InprocTurnQueue,
        [
            "a refused inbox turn is tried again after a while, at the next delivery or at the next end",
            "an item that has no turn, whatever took that from it, is found within an hour",
            "a sweep goes on while there may be more, also after a pass that answers no turn",
        ],
    ),
    (
        "an inbox that is content with little",
        ContentInbox,
        InprocTurnQueue,
        ["a sweep goes on while there may be more, also after a pass that answers no turn"],
    ),
    (
        "an inbox that counts what was claimed",
        ForgetfulInbox,
        InprocTurnQueue,
        ["an operator is told how many items wait in all, and since when the oldest"],
    ),
    (
        "an inbox that is always fresh",
        FreshInbox,
        InprocTurnQueue,
        ["an operator is told how many items wait in all, and since when the oldest"],
    ),
    (
        "a queue that believes what a turn names",
        InprocInbox,
        TrustingQueue,
        [
            "a turn that names other items than the oldest does not open, and nothing changes",
            "a host is asked once for each inbox turn: not for a user's, nor when one is taken over",
        ],
    ),
    (
        "a queue whose user turns claim",
        InprocInbox,
        GreedyQueue,
        [
            "a user's turn claims nothing, and a user's message never enters the inbox",
            "a host's user turn goes before an inbox turn that nobody holds, which then follows it",
        ],
    ),
    (
        "a queue whose inbox turns claim more than they name",
        InprocInbox,
        HungryQueue,
        ["an inbox turn that names the oldest items claims them alone, and the next one follows its end"],
    ),
    (
        "a queue that begins over anything",
        InprocInbox,
        LaxBeginQueue,
        ["a host begins an inbox turn over what waits, in the place of one that nobody holds"],
    ),
    (
        "a queue that barges in",
        InprocInbox,
        BargingQueue,
        [
            "beside an inbox turn that someone holds, or that is open and waits to go on, a host's begin is busy"
        ],
    ),
    (
        "a queue that is always busy",
        InprocInbox,
        BusyQueue,
        ["a host's user turn goes before an inbox turn that nobody holds, which then follows it"],
    ),
    (
        "a queue that gives back what is done",
        InprocInbox,
        KeepingQueue,
        ["items are done when their turn ends completed, partial or cancelled"],
    ),
    (
        "a queue that loses what was interrupted",
        InprocInbox,
        LosingQueue,
        ["items of a turn that failed or was interrupted wait again, and its next turn follows"],
    ),
    (
        "a queue that gives nothing up",
        InprocInbox,
        StubbornQueue,
        [
            "an item is dropped with a record after as many claims as may fail",
            "an inbox turn whose tries are spent before it opens counts for what waits, so none follows for ever",
        ],
    ),
    (
        "a queue that counts every interruption",
        InprocInbox,
        CountingQueue,
        ["an interrupted turn counts an attempt if it wrote anything after it opened"],
    ),
    (
        "a queue that forgives the dead",
        InprocInbox,
        ForgivingQueue,
        [
            "a turn that is reaped for its holder's sake counts an attempt, written or not",
            "an inbox turn held without a lease whose process is gone counts an attempt",
        ],
    ),
    (
        "a queue that counts what made way",
        InprocInbox,
        SternQueue,
        [
            "an interruption goes before an unopened inbox turn, which follows it as a new one",
            "an interruption of an open inbox turn counts no attempt, and its items are answered after",
        ],
    ),
    (
        "a queue that cancels anything",
        InprocInbox,
        HeedlessCancelQueue,
        [
            "cancelling an inbox turn that nobody may go on with reaps it: its items wait again",
            "an inbox turn that was never opened is not cancelled, and its items wait on",
        ],
    ),
    (
        "a queue that looks at no inbox",
        InprocInbox,
        IdleQueue,
        [
            "every end of a turn inserts the inbox turn that is owed, and one delivery inserts one",
            "a turn that never opened inserts it too, whether it is cancelled or its deadline passes",
            "an interruption goes before an unopened inbox turn, which follows it as a new one",
            "an interruption of an open inbox turn counts no attempt, and its items are answered after",
            "an inbox turn claims what it names in its opening commit",
            "another worker's attempt at an inbox turn continues the one claim",
        ],
    ),
    (
        "a queue that asks nobody",
        InprocInbox,
        UnaskedQueue,
        ["an inbox turn is judged as it opens; refused, its items wait on and nothing is counted"],
    ),
    (
        "a queue that loops",
        InprocInbox,
        LoopingQueue,
        ["an inbox turn is judged as it opens; refused, its items wait on and nothing is counted"],
    ),
    (
        "a queue that asks again",
        InprocInbox,
        NosyQueue,
        ["a host is asked once for each inbox turn: not for a user's, nor when one is taken over"],
    ),
    (
        "a queue whose losers refuse",
        InprocInbox,
        UnfencedRefusalQueue,
        ["a refusal of a turn that its holder lost ends nothing"],
    ),
]


@pytest.mark.behaviour("KIT-01", "KIT-03")
@pytest.mark.parametrize(
    ("inbox", "queue", "broken"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
async def test_a_broken_inbox_fails_the_checks_of_its_fault_by_their_names(
    inbox: type[InprocInbox], queue: type[InprocTurnQueue], broken: Sequence[str]
) -> None:
    checks = {check.name: check for check in inbox_conformance(BrokenSubject(inbox, queue))}
    for name in broken:
        with pytest.raises(ConformanceFailure) as failure:
            await checks[name].run()
        assert str(failure.value).startswith(f"{name}: ")


def test_each_check_of_the_kit_is_failed_by_a_broken_adapter() -> None:
    names = {check.name for check in inbox_conformance(BrokenSubject())}
    assert {name for fault in FAULTS for name in fault[3]} == names
