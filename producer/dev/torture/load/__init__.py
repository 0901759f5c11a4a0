"""The load: clients over HTTP that admit, deliver, start tasks, repeat, cancel and follow; and notes of what they were told."""
