"""Programs that run agents without any server: those of the page about it, the real client, and a process that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from shared.agents import Agent, TurnCommands, TurnOptions, to_turn_input_hook, tool
from shared.conversations import to_prompt
from shared.domain.errors import HistoryMissing
from shared.domain.ids import SessionId
from shared.models.scripted import ScriptedModel
from shared.settings import Settings
from tests.support.offline_model import offline_model
from workers.in_process import in_memory_sessions

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "in-process.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS: Final = [block for block in BLOCKS if "asyncio.run" in block]
FRAGMENTS: Final = [block for block in BLOCKS if "asyncio.run" not in block]

#: Tells its session once a turn of it has ended and another one is in the midst of its model call; then never ends.
ENDLESS: Final = """
import asyncio
from shared.agents import Agent
from shared.models.scripted import ScriptedModel
from workers.in_process import in_memory_sessions

async def main():
    model, agent = ScriptedModel(["Hi.", "Never."]), Agent("a", "Be brief.")
    async with in_memory_sessions(model=model):
        first = await agent.run("hello")
        model.hold()
        running = asyncio.create_task(agent.run("and?", session_id=first.session_id))
        await model.started(2)
        print(first.session_id, flush=True)
        await running

asyncio.run(main())
"""


def environment(base_url: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    return {**own, "OPENAI_API_KEY": "offline", "OPENAI_BASE_URL": base_url, "PYTHONPATH": str(ROOT)}


@pytest.mark.behaviour("THR-04", "THR-05")
def test_the_first_program_of_the_page_runs_against_an_endpoint(tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(PROGRAMS[0], encoding="utf-8")
    with offline_model("--delay-ms", "0") as offline:
        ran = subprocess.run(
            [sys.executable, str(program)],
            env=environment(offline.base_url),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    answer, name, roles = ran.stdout.splitlines()
    assert "42" in answer
    assert "Ada" in name
    assert roles == str(["user", "assistant", "user", "assistant", "tool", "assistant", "user", "assistant"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.py"], "nothing is left on disk"


def test_the_program_with_a_scripted_model_prints_what_the_model_was_shown() -> None:
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        exec(compile(PROGRAMS[1], "in-process.md", "exec"), {"__name__": "page"})
    assert heard.getvalue() == "Still here. ['Be brief.', 'hello', 'Hi.', 'and?']\n"


async def test_the_fragments_of_the_page_do_what_it_says() -> None:
    assert len(FRAGMENTS) == 2
    model = ScriptedModel(lambda request: f"Answer {len(request.messages)}")
    names: dict[str, Any] = {"agent": Agent("a", "Be brief."), "asyncio": asyncio}
    names |= {"TurnCommands": TurnCommands, "TurnOptions": TurnOptions}
    names |= {"to_turn_input_hook": to_turn_input_hook}
    async with in_memory_sessions(model=model) as sessions:
        for fragment in FRAGMENTS:
            lines = "".join(f"    {line}\n" for line in fragment.splitlines())
            names["sessions"] = sessions
            exec(compile(f"async def run():\n{lines}    return locals()\n", "in-process.md", "exec"), names)
            found = await names["run"]()
        assert found["result"].pending == 0
        told = to_prompt(await sessions.conversation_store.snapshot(found["result"].session_id))
        assert [m.text for m in told if m.role == "user"] == [
            *("Write a report.", "Keep it short."),
            "Now translate it.",
        ]


@pytest.mark.behaviour("THR-12", "THR-90")
async def test_the_official_client_carries_tools_and_steering() -> None:
    commands = TurnCommands()

    @tool
    async def current_time(zone: str) -> str:
        """Tell the time."""
        commands.steer("What did I say?")
        return "noon"

    agent = Agent("a", "Be brief.", tools=[current_time])
    with offline_model("--delay-ms", "0") as offline:
        settings = Settings.model_validate(
            {"openai_base_url": offline.base_url, "openai_api_key": "offline", "model": "offline"}
        )
        async with in_memory_sessions(settings=settings) as sessions:
            options = TurnOptions(input=to_turn_input_hook(commands))
            result = await agent.run("What is the time?", options=options)
            assert result.session_id is not None
            assert result.usage["output_tokens"] > 0
            told = to_prompt(await sessions.conversation_store.snapshot(result.session_id))
            assert [m.role for m in told] == ["user", "assistant", "tool", "user", "assistant"]
            assert (result.reply, commands.waiting) == ("You said: “What is the time?”.", ())
        assert offline.counts(result.session_id)["started"] == 2


@pytest.mark.behaviour("THR-09", "THR-16")
async def test_a_killed_process_loses_history_and_the_turn_that_ran(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ENDLESS,
        env=environment("http://127.0.0.1:9/v1"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None
    async with asyncio.timeout(60):
        session = SessionId((await program.stdout.readline()).decode().strip())
        assert session.startswith("ses_")
        program.send_signal(signal.SIGKILL)
        await program.wait()
    assert os.listdir(tmp_path) == []
    model = ScriptedModel(["Hi."])
    async with in_memory_sessions(model=model) as sessions:
        with pytest.raises(HistoryMissing):
            await sessions.run(Agent("a", "Be brief."), "more", session_id=session)
    assert model.requests == []
