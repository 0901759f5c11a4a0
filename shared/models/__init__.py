"""Models: the port of chat models, the adapter for OpenAI-compatible endpoints and a scripted twin.

Reading order: ``types`` (what passes through), ``port`` (the contract), ``scripted`` (the smallest model that keeps
it), then the adapter in the order a call runs through it: ``openai_chat`` (requests, retries, timeouts) ·
``chat_request`` (the body out) · ``sse`` (bytes to events) · ``chat_chunks`` (events to an answer) · ``chat_errors``
(what went wrong, in our words). Only ``openai_chat`` and ``chat_errors`` know the ``openai`` client.
"""
