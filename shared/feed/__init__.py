"""The live feed: a turn's text while it streams, news that a session changed, and following both.

Records are the truth and come from the session log; the feed is a hint and may be lost, late or away (core 10)::

    worker ── push ──▶ outgoing ── entries ──▶ Redis stream ──▶ LiveText (one a turn and process)
                                                                   │ cursors
    session log ── one read a change ──▶ SessionTail ──▶ merge ◀───┘ ──▶ Events, one iterator a follower

Invariants (tests cite them by number):
1. A follower yields every record after its cursor once, in ``seq`` order; kinds filter what is shown, never ids.
2. Per turn: what a reader holds after the last ``reset`` (a snapshot replaces it, a delta adds to it) equals the stored
   reply when its ``turn.reply`` comes, whatever the feed lost, doubled or delayed.
3. No text of a turn comes before its ``turn.started`` or after its ``turn.reply``.
4. The stream of a turn ends with one ``EndEvent``, whether or not the turn ever opened and whether or not Redis lives.
5. A follower writes nothing, and holds one page and one text at most, however slow its reader is.
6. Nothing here makes a worker wait or fail: pushes are kept in memory, bounded, and counted when they are given up.

Reading order: :mod:`~shared.feed.entries` (values), :mod:`~shared.feed.port`, :mod:`~shared.feed.live_text` (entries
become text), :mod:`~shared.feed.merge` (text and records become events), :mod:`~shared.feed.watcher`,
:mod:`~shared.feed.follow`; for the way through Redis :mod:`~shared.feed.outgoing`, :mod:`~shared.feed.redis`.
"""
