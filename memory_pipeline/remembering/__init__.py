"""Durable intents, then extraction, merge and conditional write in the background, one saved step at a time."""
