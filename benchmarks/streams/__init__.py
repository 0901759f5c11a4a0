"""Streaming turns of one worker process, each followed by a reader through the producer, beside plain readers of the same streams.

``model`` sends the streams, ``readers`` follow the turns, ``plain`` and ``threads`` are the baselines, ``programs`` starts
each of them as a process of its own, ``run`` measures.
"""
