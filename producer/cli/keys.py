"""``turnkeeper keys``: create, list and revoke API keys (API-16)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from producer.dev.running import find_database_url
from shared.database.pool import Database
from shared.domain.bounds import check_identity, check_text
from shared.domain.errors import InvalidInput
from shared.domain.ids import OwnerId
from shared.owners.keys import NAME_MAX_CHARS, ApiKeys, KeyId, new_key
from shared.owners.postgres import PostgresApiKeys
from shared.settings import load_settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="API keys of owners.")

T = TypeVar("T")
OwnerOption = Annotated[str, typer.Option("--owner", help="Whom the key acts for.")]


@app.command()
def create(
    owner: OwnerOption, name: Annotated[str, typer.Option("--name", help="What the key is for.")] = ""
) -> None:
    """Create a key and print it; it is shown this once and stored as a digest."""
    owner_id = OwnerId(check_identity(owner, field="--owner"))
    if len(check_text(name, field="--name")) > NAME_MAX_CHARS:
        bound = f"<= {NAME_MAX_CHARS} characters"
        raise InvalidInput("the name is too long", field="--name", bound=bound)
    key = new_key()
    _run(lambda keys: keys.add(key, owner_id, name))
    print(key.text)


@app.command("list")
def list_keys(
    owner: Annotated[str | None, typer.Option("--owner", help="Only this owner's keys.")] = None,
) -> None:
    """List keys, oldest first: id, owner, name, since when, revoked when."""
    for key in _run(lambda keys: keys.list(None if owner is None else OwnerId(owner))):
        revoked = "" if key.revoked_at is None else f"revoked {key.revoked_at:%Y-%m-%d %H:%M}"
        print("\t".join((key.id, key.owner, key.name, f"{key.created_at:%Y-%m-%d %H:%M}", revoked)).rstrip())


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The part of a key between tk_ and _.")],
) -> None:
    """Revoke a key; running producers stop taking it within ten seconds."""
    if not _run(lambda keys: keys.revoke(KeyId(key_id))):
        raise InvalidInput(f"no key {key_id!r}", field="ID", bound="the id of a key")
    print(f"revoked {key_id}")


def _run(act: Callable[[ApiKeys], Awaitable[T]]) -> T:
    async def run() -> T:
        database = Database(find_database_url(load_settings()), connections=1, name="turnkeeper-keys")
        await database.open()
        try:
            return await act(PostgresApiKeys(database))
        finally:
            await database.close()

    return asyncio.run(run())
