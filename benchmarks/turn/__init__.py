"""One-step turns end to end: admitted over HTTP, run by one worker, the reply stored, the terminal event received.

``run`` (arms, targets, report), ``clients`` (a client that posts and reads the turn's stream on one request), ``drain`` (the
worker side alone from a filled queue), ``commits`` (the same commits by psycopg alone), ``app`` (what the worker serves).
"""
