"""Models: the ports of chat, structured and embedding models, their adapters, and scripted twins of all three.

Reading order: ``types`` (what passes through), ``port`` (the contract of chat models), ``scripted`` (the smallest models
that keep the contracts), then the chat adapter in the order a call runs through it: ``openai_chat`` (requests, retries,
timeouts) · ``endpoint`` (the client of one endpoint) · ``chat_request`` (the body out) · ``sse`` (bytes to events) ·
``chat_chunks`` (events to an answer) · ``chat_errors`` (what went wrong, in our words). Only ``endpoint`` and
``chat_errors`` know the ``openai`` client.

Values of a type: ``structured`` (the port, schemas out, values in) · ``openai_structured``. Vectors: ``embeddings`` (the
port, profiles, checks) · ``openai_embeddings`` · ``wordllama_embeddings`` (local, loaded when first used).
"""
