"""What a worker process loads before it is ready: what it needs, and no client or model that nothing asks yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.producer_process import ROOT, clean_environment

LOADED = """
import sys
import workers.celery, workers.compose, shared.assistant
heavy = {"openai", "aiohttp", "httpx2", "wordllama", "alembic", "sqlalchemy", "fastapi", "starlette", "uvicorn", "flower",
         "producer"}
print(sorted(heavy & set(sys.modules)))
"""

OPENED = """
import asyncio, sys
from contextlib import AsyncExitStack
from shared.agents import Agent, App
from shared.models.scripted import ScriptedModel
from shared.settings import load_settings
from memory_pipeline.index.embedding import open_embedder
from workers.turns.building import open_model

async def main():
    app = App([Agent("a", "Answer.")], model=ScriptedModel([])) if sys.argv[1] == "own" else None
    async with AsyncExitStack() as stack:
        open_embedder(load_settings({}), stack)
        await open_model(load_settings({"OPENAI_API_KEY": "k"}), app, stack)
asyncio.run(main())
print(sorted({"openai", "wordllama"} & set(sys.modules)))
"""


def modules_after(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_worker_loads_no_model_client_and_nothing_of_the_producer_to_begin_with() -> None:
    assert modules_after(LOADED) == "[]"


@pytest.mark.parametrize(("model", "loaded"), [("own", "[]"), ("the endpoint's", "['openai']")])
def test_model_client_is_loaded_for_an_endpoint_and_the_local_embedder_for_neither(
    model: str, loaded: str
) -> None:
    assert modules_after(OPENED, model) == loaded
