"""Whose memory it is: typed identities defined by the application and their one canonical address."""
