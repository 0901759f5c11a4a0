"""What the agent remembers: namespaces, store, recall, remembering, activity and index."""
