"""What durability costs an agent's step: a turn of many tool calls, beside the same requests and tools without it."""
