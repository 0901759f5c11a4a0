"""The routes, by what they are about: sessions, turns, streams of both, and what an operator asks."""
