"""Settings: the only place that reads the environment (OPS-07).

Standard names where a standard has one (``DATABASE_URL``, ``CELERY_BROKER_URL``, ``FEED_URL``, ``OPENAI_*``), else
``TURNKEEPER_*``. A ``.env`` file of the working directory lies under the process's environment. An unknown
``TURNKEEPER_*`` variable or an invalid value is an error at start that names it; an empty one counts as not set.
Durations are seconds unless the name says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator

from shared.domain.errors import ConfigError
from shared.domain.failpoints import Failpoints

PREFIX = "TURNKEEPER_"
DEFAULT_APP = "shared.assistant:app"
ENV_FILE = ".env"
DEFAULT_OPENAI_BASE_URL = "https://api.openai.com/v1"

Seconds = Annotated[float, Field(gt=0, le=86_400)]


#: Fields whose variable is a name that others use too; every other one is ``TURNKEEPER_`` and the field.
STANDARD_NAMES: Final = {
    "database_url": "DATABASE_URL",
    "broker_url": "CELERY_BROKER_URL",
    "feed_url": "FEED_URL",
    "openai_api_key": "OPENAI_API_KEY",
    "openai_base_url": "OPENAI_BASE_URL",
}


#: Ways to sign a token that need a private key; with a shared secret whoever verifies could also sign.
JWT_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


def variable_of(field: str) -> str:
    """Return the name of the variable that sets this field."""
    return STANDARD_NAMES.get(field, f"{PREFIX}{field.upper()}")


class Settings(BaseModel):
    """Everything a process can be told from outside; immutable once read. Made by :func:`load_settings`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True, protected_namespaces=()
    )

    # Where things are.
    database_url: SecretStr = SecretStr("")
    broker_url: SecretStr = SecretStr("")
    feed_url: SecretStr = SecretStr("")
    openai_api_key: SecretStr = SecretStr("")
    openai_base_url: str = ""

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
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(0, ge=0, le=65_535, description="A worker's own metrics; 0 = off.")
    loopback_owner: str = Field(
        "", description="Owner of requests without a key on loopback; empty = keys only."
    )
    jwt_issuer: str = Field("", description="`iss` that tokens must have.")
    jwt_audience: str = Field("", description="`aud` that tokens must have.")
    jwt_owner_claim: str = Field("sub", min_length=1)
    jwt_algorithms: str = Field("RS256,ES256", description="Comma-separated; only with a public key.")
    jwt_jwks_url: str = Field("", description="Public keys of tokens; empty = no tokens.")
    writes_per_s: float = Field(50.0, ge=0.001, le=100_000, description="Of one owner, in one producer.")
    writes_burst: int = Field(200, ge=1, le=1_000_000)

    # Database.
    prepared_statements: bool = Field(True, description="Off behind a pooler that cannot keep them.")
    producer_connections: int = Field(10, ge=1, le=200)
    worker_connections: int = Field(10, ge=2, le=200)
    background_connections: int = Field(5, ge=1, le=200)
    upkeep_connections: int = Field(4, ge=1, le=200)
    connection_wait_s: Seconds = 2.0
    group_members: int = Field(16, ge=1, le=64, description="Units of work that share a commit; 1 = none do.")
    group_wait_s: Seconds = Field(0.002, description="How long one waits for others, at most.")

    # Turns.
    turn_lease_s: Seconds = 15.0
    turn_renew_s: Seconds = 5.0
    turns_capacity: int = Field(200, ge=1, le=10_000)
    attempts_max: int = Field(3, ge=1, le=100)
    suspects_max: int = Field(8, ge=1, le=1000)
    queued_turns_per_session: int = Field(100, ge=1, le=100_000)
    queued_turns_per_owner: int = Field(1_000, ge=1, le=1_000_000)
    queued_turns_max: int = Field(100_000, ge=1, le=10_000_000)
    inbox_max_pending: int = Field(20, ge=1, le=50)
    inbox_attempts: int = Field(2, ge=1, le=100)
    inbox_retry_s: Seconds = 30.0
    tasks_max_running: int = Field(2, ge=1, le=20, description="Background tasks of one session at once.")
    running_turns_per_owner: int = Field(256, ge=1, le=100_000)
    revisions: str = Field(
        "", description="Agent revisions a worker serves, comma-separated; empty = all of its app."
    )
    histories_max_mib: int = Field(
        32, ge=0, le=65_536, description="Of conversations that a worker remembers; 0 = none."
    )
    executor_threads: int = Field(16, ge=1, le=512)
    lost_threads_max: int = Field(8, ge=1, le=512)

    # Memory.
    activity_capacity: int = Field(16, ge=1, le=1_000)
    remember_capacity: int = Field(8, ge=1, le=1_000)
    index_capacity: int = Field(8, ge=1, le=1_000)
    activity_deadline_s: Seconds = 30.0
    remember_deadline_s: Seconds = 120.0
    index_deadline_s: Seconds = 60.0
    memory_lease_s: Seconds = 15.0
    pending_intents_per_owner: int = Field(1_000, ge=1, le=1_000_000)
    embedding_model: str = Field("", description="A model of the endpoint; empty = the local WordLlama.")
    embedding_revision: str = Field("1", description="Another revision builds the index anew.")
    embedding_dimensions: int = Field(1_536, ge=1, le=4_096, description="Of the endpoint's model.")

    # Rhythm.
    unasked_claim_s: Seconds = 1.5
    cancel_poll_s: Seconds = 1.0
    worker_seen_s: Seconds = 5.0
    sweep_s: Seconds = 5.0
    sweep_lease_s: Seconds = 15.0
    drain_s: Seconds = 25.0
    liveness_s: Seconds = 60.0
    loop_lag_max_s: Seconds = 0.25
    publish_bound_s: Seconds = 0.25
    follower_poll_s: Seconds = 0.5
    keep_alive_s: Seconds = 15.0
    delta_interval_s: Seconds = 0.03
    feed_max_bytes: int = Field(4 * 1024 * 1024, ge=65_536)
    feed_ttl_s: Seconds = 3_600.0

    # Retention.
    key_window_days: float = Field(
        90.0, ge=0, le=36_500, description="How long a repeat finds its first answer; 0 = for ever."
    )
    sessions_keep_days: float = Field(
        0.0, ge=0, le=36_500, description="Idle sessions are removed after it; 0 = never."
    )
    retention_s: Seconds = Field(3_600.0, description="Between two passes of the retention sweep.")

    # The model.
    model: str = "gpt-4o-mini"
    model_timeout_s: Seconds = 120.0
    model_retries: int = Field(4, ge=0, le=20)

    @field_validator("turn_renew_s")
    @classmethod
    def _renew_in_time(cls, value: float, info: ValidationInfo) -> float:
        lease_s = info.data.get("turn_lease_s")
        if lease_s is not None and value > lease_s / 3 + 1e-9:
            raise ValueError(f"must be at most a third of {variable_of('turn_lease_s')} ({lease_s:g} s)")
        return value

    @field_validator("failpoints")
    @classmethod
    def _only_in_tests(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("env") != "test":
            raise ValueError(f"is read only when {variable_of('env')}=test")
        Failpoints.parse(value)
        return value

    @field_validator("jwt_algorithms")
    @classmethod
    def _public_keys_only(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",")]
        unknown = sorted(set(names) - JWT_ALGORITHMS)
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(JWT_ALGORITHMS))}")
        return ",".join(names)

    @field_validator("jwt_jwks_url")
    @classmethod
    def _vouched_for(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return value
        for field in ("jwt_issuer", "jwt_audience"):
            if not info.data.get(field):
                raise ValueError(f"needs {variable_of(field)}")
        url = urlsplit(value)
        if url.scheme != "https" and (url.scheme, url.hostname in LOOPBACK_HOSTS) != ("http", True):
            raise ValueError("must begin with https://; http:// only on loopback")
        return value

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
    """Read the settings; raise ``ConfigError`` whose ``field`` is the variable that is wrong.

    ``environ`` is all that is looked at; by default it is the process's environment over the ``.env`` file of the working
    directory. ``overrides`` are fields, and win.
    """
    env = {**_read_env_file(Path(ENV_FILE)), **os.environ} if environ is None else environ
    variables = {variable_of(field): field for field in Settings.model_fields}
    for name in env:
        if name.startswith(PREFIX) and name not in variables:
            raise ConfigError(f"unknown setting {name}", field=name)
    given: dict[str, object] = {field: env[name] for name, field in variables.items() if env.get(name)}
    try:
        return Settings.model_validate(given | overrides)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        name = variable_of(str(first["loc"][0]))
        raise ConfigError(f"setting {name}: {first['msg']}", field=name) from error


def _read_env_file(path: Path) -> dict[str, str]:
    """Return what a ``.env`` file sets, as written (nothing is expanded); nothing when there is no such file."""
    try:
        found = dotenv_values(path, interpolate=False, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {type(error).__name__}", field=str(path)) from error
    return {name: value for name, value in found.items() if value is not None}
