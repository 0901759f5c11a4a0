"""What many would build first: Celery threads, each blocked in the sync client while its stream is read. Loaded by a worker.

A job reads one stream and notes how long it took from the first token's sending to the last one's arrival.
"""

from __future__ import annotations

import time
from typing import Any, Final

import openai
import redis
from celery import Celery

from benchmarks.streams.names import JOB, SPANS
from shared.settings import load_settings

_settings: Final = load_settings()
URL: Final = _settings.broker_url.get_secret_value()

app: Final = Celery("streams", broker=URL)
app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=1)

_client: Final = openai.OpenAI(base_url=_settings.openai_base_url, api_key="benchmark", max_retries=0)
_notes: Final[Any] = redis.Redis.from_url(URL)


@app.task(name=JOB)  # type: ignore[untyped-decorator]  # Celery publishes no types
def read() -> None:
    """Read one stream as the client's documentation says."""
    first_us = 0
    chunks = _client.chat.completions.create(
        model="stub-1", stream=True, messages=[{"role": "user", "content": "Tell me something."}]
    )
    for chunk in chunks:
        if chunk.choices and (text := chunk.choices[0].delta.content):
            first_us = first_us or int(text)
    _notes.rpush(SPANS, f"{time.monotonic()} {time.monotonic() - first_us / 1e6}")
