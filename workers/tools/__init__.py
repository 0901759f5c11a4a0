"""Running a step's tool calls: what is checked first, what may be repeated after a crash, what the model reads."""
