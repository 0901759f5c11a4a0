"""What a command works against: the settings, else what a running ``turnkeeper dev`` wrote about itself."""

from __future__ import annotations

from pathlib import Path

from producer.dev.run_file import read_run_file
from shared.domain.errors import ConfigError
from shared.settings import Settings


def find_database_url(settings: Settings) -> str:
    """Return ``DATABASE_URL`` or the database of the running ``dev``; raise ``ConfigError`` for neither."""
    url = settings.database_url.get_secret_value()
    if url:
        return url
    running = read_run_file(Path(settings.home))
    if running is None:
        raise ConfigError("DATABASE_URL is not set, and no `turnkeeper dev` runs here", field="DATABASE_URL")
    return running.database_url


def find_producer_url(settings: Settings) -> str:
    """Return the address of the running ``dev``'s producer, else the one that the settings would serve at."""
    running = read_run_file(Path(settings.home))
    return f"http://{settings.host}:{settings.port}" if running is None else running.producer_url
