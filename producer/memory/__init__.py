"""What the producer does with memory: its parts, their wire forms, and an owner's own corrections."""
