"""Owners: who calls for one, the API keys that prove it, and what each may.

Reading order: :mod:`~shared.owners.authenticator` (the port that tells who calls), :mod:`~shared.owners.keys` (what a key
is, and the port), :mod:`~shared.owners.limits` (caps, quotas and rates of one owner), then the adapters.
"""
