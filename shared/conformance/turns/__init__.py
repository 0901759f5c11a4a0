"""Checks of the turn queue by what a host or client asks of it: begins, hooks, interruptions."""
