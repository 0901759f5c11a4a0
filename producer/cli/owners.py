"""``turnkeeper owners``: what one owner may: caps, quotas and rates of its own (API-17, DST-14, DST-16)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Annotated, TypeVar

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.domain.bounds import check_identity
from shared.domain.errors import InvalidInput
from shared.domain.ids import OwnerId
from shared.owners.limits import OwnerLimits, Owners
from shared.owners.postgres import PostgresOwners
from shared.settings import Settings, load_settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Limits of single owners.")

T = TypeVar("T")
OwnerArgument = Annotated[str, typer.Argument(metavar="OWNER", help="Whose limits.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.command("set")
def set_limits(
    owner: OwnerArgument,
    running_max: Annotated[int | None, typer.Option("--running-max", help="Turns that run at once.")] = None,
    queued_max: Annotated[int | None, typer.Option("--queued-max", help="Turns that wait.")] = None,
    writes_per_s: Annotated[
        float | None, typer.Option("--writes-per-s", help="Writes a second, in each producer.")
    ] = None,
    writes_burst: Annotated[
        int | None, typer.Option("--writes-burst", help="Writes at once after a pause, in each producer.")
    ] = None,
    body_max_bytes: Annotated[
        int | None,
        typer.Option("--body-max-bytes", help="Largest request body, below each route's own bound."),
    ] = None,
) -> None:
    """Set what is named and keep the rest; running producers and workers follow within ten seconds."""
    change = OwnerLimits(running_max, queued_max, writes_per_s, writes_burst, body_max_bytes)
    if change == OwnerLimits():
        raise InvalidInput("name at least one limit", field="--running-max", bound="one limit or more")
    _print_limits(_run(lambda owners: owners.set_limits(_owner_id(owner), change)))


@app.command()
def show(owner: OwnerArgument, as_json: JsonOption = False) -> None:
    """Show an owner's limits: its own, or the setting that holds for everyone."""
    own = _run(lambda owners: owners.limits(_owner_id(owner)))
    if as_json:
        print(json.dumps(asdict(own)))
    else:
        _print_limits(own)


@app.command("list")
def list_owners(as_json: JsonOption = False) -> None:
    """List the owners that have limits of their own."""
    found = _run(lambda owners: owners.list())
    if as_json:
        print(json.dumps({owner: asdict(own) for owner, own in found}))
        return
    for owner, own in found:
        named = (f"{name}={_shown(value)}" for name, value in asdict(own).items() if value is not None)
        print("\t".join((owner, *named)))


@app.command()
def reset(owner: OwnerArgument) -> None:
    """Take all limits of its own from an owner: the settings hold for it again."""
    if not _run(lambda owners: owners.reset_limits(_owner_id(owner))):
        raise InvalidInput(f"no owner {owner!r}", field="OWNER", bound="an owner that was seen")
    print(f"reset {owner}")


def _owner_id(owner: str) -> OwnerId:
    return OwnerId(check_identity(owner, field="OWNER"))


def _print_limits(own: OwnerLimits) -> None:
    print("\n".join(_lines(own, load_settings())))


def _lines(own: OwnerLimits, settings: Settings) -> Iterable[str]:
    for_everyone = {
        "running_max": _shown(settings.running_turns_per_owner),
        "queued_max": _shown(settings.queued_turns_per_owner),
        "writes_per_s": _shown(settings.writes_per_s),
        "writes_burst": _shown(settings.writes_burst),
        "body_max_bytes": "the route's",
    }
    for name, value in asdict(own).items():
        shown = f"{for_everyone[name]} (for everyone)" if value is None else _shown(value)
        yield f"{name.replace('_', '-'):<16}{shown}"


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _run(act: Callable[[Owners], Awaitable[T]]) -> T:
    async def run() -> T:
        database = Database(find_database_url(load_settings()), connections=1, name="turnkeeper-owners")
        await database.open(wait_s=5.0)
        try:
            return await act(PostgresOwners(database))
        finally:
            await database.close()

    return asyncio.run(run())
