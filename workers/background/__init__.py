"""The background pools in a worker process: claim items, run a pass over each within its time, settle them.

One runtime serves the activity, remember and index pools; each has its own concurrency, lease, deadline and tries, and each
fails alone (law 10). What a pass does is the memory pipeline's.
"""
