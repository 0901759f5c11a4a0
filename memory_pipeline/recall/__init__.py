"""Readable sources become one bounded, attributed, untrusted piece of context; revalidated, never stored."""
