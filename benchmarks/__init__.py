"""Benchmarks of Turnkeeper, each beside its baseline in one run: ``./turnkeeper bench NAME`` (docs/performance.md).

A benchmark is one folder whose ``run.py`` holds ``run(wish, say) -> Report``, and one line of ``catalogue.py``. It starts
servers and processes of its own through ``harness``, interleaves the subject with its baselines, and reports medians,
exact counts and ratios. No part of the product imports anything from here.
"""
