"""What the producer does with a session's inbox: delivering to it, and its wire forms."""
