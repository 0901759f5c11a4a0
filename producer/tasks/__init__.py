"""What the producer does with background tasks: starting, reading, cancelling and reconciling them, and their wire forms."""
