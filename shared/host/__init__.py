"""What a host calls in its own process: sessions, the writer of an open turn, ownership, and what is in flight."""
