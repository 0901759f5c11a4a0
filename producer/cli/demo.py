"""``turnkeeper demo``: a fact told in one session and recalled in another, through every pool."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from producer.dev.demo import running_demo
from producer.dev.story import Findings, Story, owners_of
from shared.domain.errors import TurnkeeperError
from shared.settings import load_settings

FAILED_STATUS = 1
RUNS_MAX = 1_000


def command(
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one line of JSON: what was seen, and medians.")
    ] = False,
    runs: Annotated[
        int,
        typer.Option("--runs", min=1, max=RUNS_MAX, help="Tell and recall so often, for the median."),
    ] = 1,
) -> None:
    """Show the whole promise on servers of its own, which are gone afterwards; exit status 1 when it was not kept.

    An offline model answers, or with OPENAI_API_KEY or OPENAI_BASE_URL that endpoint.
    """
    findings = _run(runs)
    if as_json:
        print(json.dumps(findings.report()), flush=True)
    if not findings.ok:
        raise typer.Exit(FAILED_STATUS)


def _run(runs: int) -> Findings:
    began = time.monotonic()
    findings = Findings()
    _say("Starting PostgreSQL, Valkey, the service, a worker for every pool, and Flower, for this run only …")
    try:
        with running_demo(load_settings(), owners_of(runs), say=_say) as system:
            places = system.places
            model = "an offline model, by simple rules" if places.offline_port else "your model"
            _say(
                f"Ready after {time.monotonic() - began:.1f} s: {places.producer_url}, Flower {places.flower_url}."
            )
            _say(f"The assistant is {model}.")
            story = Story(places.producer_url, system.keys, say=_say)
            findings = story.findings
            story.tell(runs)
            system.keep_logs = not findings.ok
            _say("\n" + _verdict(findings))
    except TurnkeeperError as error:
        _say(f"\nIt went wrong: {error.message} [{error.code}]")
    return findings


def _verdict(findings: Findings) -> str:
    seen = {
        "recalled in another session": findings.recalled,
        "kept from another owner": findings.isolated,
        "gone once withdrawn": findings.withdrawn,
    }
    return "\n".join(f"{'yes' if is_so else 'NO':<4} {what}" for what, is_so in seen.items())


def _say(line: str) -> None:
    print(line, flush=True)
