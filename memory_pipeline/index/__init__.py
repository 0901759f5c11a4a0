"""Chunks and embeddings of sources, replaced as a whole by generation; candidates for recall, never truth."""
