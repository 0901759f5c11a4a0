"""Items of the background pools (activity, remember, index): owed, claimed under a lease and fence, settled.

States::

    ready ──claim──▶ running ──done──▶ idle (or ready again, when more came meanwhile)
      ▲                │  └──park, or the last try──▶ parked ──retry──▶ ready
      └──retry, release┘

What an item does, and how far it is, stands in its pool's own table; each of its saves calls ``job_hold_v1`` in its own
transaction, so that nothing is saved under a fence that is no longer the row's (law 3).
"""
