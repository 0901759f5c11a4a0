"""Ownership by lease: the fence every owned write carries, the holder's own watchdog, and named leases.

A lease lives on the work's row alone and is judged by the database's clock. Its fence is an epoch that grows at every
acquisition, also for the same owner, and a random token, so that a restored or re-created row never hands out the same
fence twice (core 3). A holder bounds its own trust with local monotonic time: :mod:`shared.leases.watchdog`.
"""
