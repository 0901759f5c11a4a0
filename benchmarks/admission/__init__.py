"""Admissions over HTTP, each answered 202 once it is durable, beside a plain FastAPI route that commits one row.

``run`` (arms, targets, report; no worker runs, and what was admitted goes after each block), ``route`` (the plain route).
"""
