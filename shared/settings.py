"""Settings: the only place that reads the environment (OPS-07).

Standard names where a standard has one (``DATABASE_URL``, ``CELERY_BROKER_URL``, ``FEED_URL``, ``OPENAI_*``), else
``TURNKEEPER_*``. An unknown ``TURNKEEPER_*`` variable or an invalid value is an error at start that names it. Durations
are seconds unless the name says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.domain.errors import ConfigError
from shared.domain.failpoints import Failpoints

PREFIX = "TURNKEEPER_"
DEFAULT_APP = "shared.assistant:app"

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _standard(name: str) -> AliasChoices:
    return AliasChoices(name)


class Settings(BaseSettings):
    """Everything a process can be told from outside; immutable once read."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=None, extra="ignore", frozen=True, populate_by_name=True
    )

    # Where things are.
    database_url: SecretStr = Field(SecretStr(""), validation_alias=_standard("DATABASE_URL"))
    broker_url: SecretStr = Field(SecretStr(""), validation_alias=_standard("CELERY_BROKER_URL"))
    feed_url: SecretStr = Field(SecretStr(""), validation_alias=_standard("FEED_URL"))
    openai_api_key: SecretStr = Field(SecretStr(""), validation_alias=_standard("OPENAI_API_KEY"))
    openai_base_url: str = Field("", validation_alias=_standard("OPENAI_BASE_URL"))

    # Who we are.
    env: Literal["dev", "test", "production"] = "production"
    app: str = DEFAULT_APP
    failpoints: str = ""
    home: str = ".turnkeeper"
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    # The producer.
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535)
    flower_port: int = Field(5555, ge=0, le=65_535)
    metrics_port: int = Field(0, ge=0, le=65_535, description="A worker's own metrics; 0 = off.")
    loopback_owner: str = Field(
        "", description="Owner of requests without a key on loopback; empty = keys only."
    )

    # Database.
    prepared_statements: bool = Field(True, description="Off behind a pooler that cannot keep them.")
    producer_connections: int = Field(10, ge=1, le=200)
    worker_connections: int = Field(10, ge=2, le=200)
    upkeep_connections: int = Field(4, ge=1, le=200)
    connection_wait_s: Seconds = 2.0

    # Turns.
    turn_lease_s: Seconds = 15.0
    turn_renew_s: Seconds = 5.0
    turns_capacity: int = Field(400, ge=1, le=10_000)
    attempts_max: int = Field(3, ge=1, le=100)
    suspects_max: int = Field(8, ge=1, le=1000)
    queued_turns_per_session: int = Field(100, ge=1, le=100_000)
    queued_turns_per_owner: int = Field(1_000, ge=1, le=1_000_000)
    running_turns_per_owner: int = Field(256, ge=1, le=100_000)
    revisions: str = Field("1", description="Agent revisions that a worker serves, comma-separated.")
    executor_threads: int = Field(16, ge=1, le=512)
    lost_threads_max: int = Field(8, ge=1, le=512)

    # Rhythm.
    unasked_claim_s: Seconds = 1.5
    cancel_poll_s: Seconds = 1.0
    worker_seen_s: Seconds = 5.0
    sweep_s: Seconds = 5.0
    sweep_lease_s: Seconds = 15.0
    drain_s: Seconds = 25.0
    publish_bound_s: Seconds = 0.25
    follower_poll_s: Seconds = 0.5
    keep_alive_s: Seconds = 15.0
    delta_interval_s: Seconds = 0.03
    feed_max_bytes: int = Field(4 * 1024 * 1024, ge=65_536)
    feed_ttl_s: Seconds = 3_600.0

    # The model.
    model: str = "gpt-4o-mini"
    model_timeout_s: Seconds = 120.0
    model_retries: int = Field(4, ge=0, le=20)

    @model_validator(mode="after")
    def _judge(self) -> Self:
        if self.turn_renew_s > self.turn_lease_s / 3 + 1e-9:
            raise ValueError("turn_renew_s must be at most a third of turn_lease_s")
        if self.failpoints and self.env != "test":
            raise ValueError("failpoints are read only when TURNKEEPER_ENV=test")
        if self.failpoints:
            Failpoints.parse(self.failpoints)
        return self

    @property
    def served_revisions(self) -> tuple[str, ...]:
        """The agent revisions this worker serves."""
        return tuple(r.strip() for r in self.revisions.split(",") if r.strip())

    @property
    def effective_feed_url(self) -> str:
        """The live feed's Redis: ``FEED_URL``, else the broker when that is one, else empty (no deltas)."""
        url = self.feed_url.get_secret_value()
        broker = self.broker_url.get_secret_value()
        return url or (
            broker if broker.startswith(("redis://", "rediss://", "redis+socket://", "unix://")) else ""
        )


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Read the settings from ``environ`` (the process's by default); raise ``ConfigError`` that names the bad one."""
    env = os.environ if environ is None else environ
    known = {
        f"{PREFIX}{name.upper()}" for name, f in Settings.model_fields.items() if f.validation_alias is None
    }
    for name in env:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(f"unknown setting {name}", field=name)
    values: dict[str, object] = {}
    for field, info in Settings.model_fields.items():
        alias = info.validation_alias
        name = str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{PREFIX}{field.upper()}"
        if name in env and env[name] != "":
            values[field] = env[name]
    values.update(overrides)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "settings"
        raise ConfigError(f"setting {where}: {first['msg']}", field=where) from error
