"""The foreground: HTTP routes, SSE, authentication and the command line. Never imports ``workers``."""
