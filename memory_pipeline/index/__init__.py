"""Chunks and embeddings of sources, replaced as a whole by generation; candidates for recall, never truth.

A write of a document owes each active profile a refresh, in its own transaction. A refresh reads the source, cuts and embeds
it, reads it again and swaps all its chunks under its job's fence::

    owed ──claim──▶ read ▸ chunk ▸ embed ▸ read again ──replace──▶ ready      a newer write: owed again
                      └── withdrawn ──▶ tombstone, for good

Reading order: ``profile`` (which vectors these are) · ``chunks`` · ``limits`` · ``port`` (the contract; ``conformance`` is its
kit) · ``postgres``, ``inproc`` · ``refresh`` (the pass) · ``query`` (candidates, and those that still stand).
"""
