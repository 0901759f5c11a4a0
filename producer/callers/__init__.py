"""Who calls and how often: API keys, tokens of an identity provider, and the rate of each owner's writes.

Reading order: :mod:`~producer.callers.authentication` (API keys, and none on this machine),
:mod:`~producer.callers.keyset` and :mod:`~producer.callers.tokens` (JWTs that one JWKS vouches for),
:mod:`~producer.callers.rates`.
"""
