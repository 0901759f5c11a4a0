"""The turn queue: admission, order, claims, the writes of a holder, and what ends a turn.

States::

    queued ──▶ ready ──▶ running ──▶ ended          an opened turn always ends `ended`; why is in outcome and code
                 ▲          │  ▲
                 │          ▼  │
                 ├──── released│   (drain, busy)
                 └─── waiting ─┘   (approvals)
    queued, ready, running without a number ──▶ cancelled | refused | expired

Invariants (tests cite them by number):
1. A session with any unfinished row has exactly one live row (ready, running, waiting): the first by position.
2. A head's ``open`` never names a finished row.
3. A write made under ownership is stored only under the row's own fence, within its lease, by the database's clock.
4. Same key, same content: the first receipt. Same key, other content: a conflict.

Reading order: :mod:`~shared.turns.queue` (the port), :mod:`~shared.turns.admission` (what is checked before it),
:mod:`~shared.turns.next_action` (what an attempt does), then the adapters.
"""
