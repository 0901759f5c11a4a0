"""What a host must not do: a coroutine function registered as a task with the workers' app."""

from __future__ import annotations

from workers.celery import app


@app.task(name="host.send_mail")  # type: ignore[untyped-decorator]  # Celery publishes no types
async def send_mail() -> str:
    return "sent"
