"""Owners: the API keys by which a caller proves to act for one.

Reading order: :mod:`~shared.owners.keys` (what a key is, and the port), then the adapters.
"""
