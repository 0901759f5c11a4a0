"""What the model sees: the transcript folded from the log, and the request built over it."""
