"""The session log: one append-only, digest-chained record of a conversation, and the head that guards it.

Invariants (tests cite them by number):
1. ``seq`` is dense from 1; a record never changes; ``tail`` chains every record's session, seq, turn, kind and data.
2. A session has at most one open turn; the head's ``open`` names it with the fence that may write.
3. Every opened turn has one ``turn.started`` first and one ``turn.ended`` last; nothing of it stands after that.

Reading order: :mod:`~shared.sessions.records` (values), :mod:`~shared.sessions.vocabulary` and
:mod:`~shared.sessions.vocabulary_around` (what each kind holds),
:mod:`~shared.sessions.log` (the port), then the adapters.
"""
