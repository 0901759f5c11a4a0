"""Rows of a system that has run for long, made in bulk: finished turns with their logs, keys and digest chains."""
