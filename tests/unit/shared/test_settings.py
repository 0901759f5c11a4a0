"""Settings: what is read, and that every wrong one is named by its variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from shared.domain.errors import ConfigError
from shared.settings import Settings, load_settings, variable_of


def refused(environ: dict[str, str] | None, **overrides: object) -> ConfigError:
    with pytest.raises(ConfigError) as refusal:
        load_settings(environ, **overrides)
    return refusal.value


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty working directory, and a process environment without any setting in it."""
    before = dict(os.environ)
    names = {variable_of(field) for field in Settings.model_fields}
    for name in before:
        if name in names or name.startswith("TURNKEEPER_"):
            del os.environ[name]
    with chdir(tmp_path):
        yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings({})
    assert (settings.port, settings.turn_lease_s, settings.env) == (8000, 15.0, "production")
    assert settings.database_url.get_secret_value() == ""


@pytest.mark.behaviour("OPS-07")
def test_standard_names_and_our_own_are_read() -> None:
    settings = load_settings(
        {
            "DATABASE_URL": "postgresql://db",
            "CELERY_BROKER_URL": "redis://b",
            "OPENAI_API_KEY": "sk-1",
            "TURNKEEPER_PORT": "81",
            "TURNKEEPER_PREPARED_STATEMENTS": "off",
            "PATH": "/bin",
        }
    )
    assert settings.database_url.get_secret_value() == "postgresql://db"
    assert (settings.port, settings.prepared_statements) == (81, False)
    assert settings.effective_feed_url == "redis://b"


def test_a_given_environment_is_all_that_is_looked_at(folder: Path) -> None:
    (folder / ".env").write_text("TURNKEEPER_PORT=2\n", encoding="utf-8")
    os.environ["TURNKEEPER_PORT"] = "3"
    assert load_settings({}).port == 8000
    assert load_settings({"TURNKEEPER_PORT": "4"}).port == 4


@pytest.mark.behaviour("OPS-07")
def test_a_file_of_the_working_directory_lies_under_the_process_environment(folder: Path) -> None:
    assert load_settings().port == 8000
    (folder / ".env").write_text(
        "# ours\nTURNKEEPER_PORT=2\nexport TURNKEEPER_HOST='::1'\nDATABASE_URL=\"postgresql://u:${P}@db\"\nOTHER=x\n",
        encoding="utf-8",
    )
    settings = load_settings()
    assert (settings.port, settings.host) == (2, "::1")
    assert settings.database_url.get_secret_value() == "postgresql://u:${P}@db"
    os.environ["TURNKEEPER_PORT"] = "3"
    assert load_settings().port == 3
    assert load_settings(port=4).port == 4


@pytest.mark.behaviour("OPS-07")
def test_an_unknown_setting_is_refused_by_name_wherever_it_stands(folder: Path) -> None:
    assert refused({"TURNKEEPER_PROT": "1"}).fields["field"] == "TURNKEEPER_PROT"
    assert refused({"TURNKEEPER_DATABASE_URL": "x"}).fields["field"] == "TURNKEEPER_DATABASE_URL"
    (folder / ".env").write_text("TURNKEEPER_FROM_FILE=1\n", encoding="utf-8")
    assert refused(None).fields["field"] == "TURNKEEPER_FROM_FILE"
    (folder / ".env").write_text("", encoding="utf-8")
    os.environ["TURNKEEPER_FROM_PROCESS"] = "1"
    assert refused(None).fields["field"] == "TURNKEEPER_FROM_PROCESS"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TURNKEEPER_PORT": "http"}, "TURNKEEPER_PORT"),
        ({"TURNKEEPER_PORT": "65536"}, "TURNKEEPER_PORT"),
        ({"TURNKEEPER_ENV": "prod"}, "TURNKEEPER_ENV"),
        ({"TURNKEEPER_TURN_LEASE_S": "nan"}, "TURNKEEPER_TURN_LEASE_S"),
        ({"TURNKEEPER_TURN_LEASE_S": "0"}, "TURNKEEPER_TURN_LEASE_S"),
        ({"TURNKEEPER_TURN_LEASE_S": "3"}, "TURNKEEPER_TURN_RENEW_S"),
        ({"TURNKEEPER_TURN_RENEW_S": "5.1"}, "TURNKEEPER_TURN_RENEW_S"),
        ({"TURNKEEPER_FAILPOINTS": "turn.opened=kill"}, "TURNKEEPER_FAILPOINTS"),
        ({"TURNKEEPER_FAILPOINTS": "x=kill", "TURNKEEPER_ENV": "test"}, "TURNKEEPER_FAILPOINTS"),
        ({"TURNKEEPER_PREPARED_STATEMENTS": "maybe"}, "TURNKEEPER_PREPARED_STATEMENTS"),
    ],
)
@pytest.mark.behaviour("OPS-07")
def test_an_invalid_value_is_refused_and_its_variable_named(environ: dict[str, str], name: str) -> None:
    error = refused(environ)
    assert error.fields["field"] == name
    assert name in str(error)


def test_a_refusal_holds_no_value_of_a_setting() -> None:
    error = refused({}, database_url=["postgresql://u:geheim@db"])
    assert error.fields["field"] == "DATABASE_URL"
    assert "geheim" not in f"{error} {error.fields} {error.__cause__}"


def test_an_unknown_override_is_refused() -> None:
    refused({}, prot=1)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_settings({"TURNKEEPER_PORT": "", "DATABASE_URL": ""}).port == 8000


def test_a_renewal_may_take_exactly_a_third_of_the_lease() -> None:
    environ = {"TURNKEEPER_TURN_LEASE_S": "0.3", "TURNKEEPER_TURN_RENEW_S": "0.1"}
    assert load_settings(environ).turn_renew_s == 0.1


def test_failpoints_are_read_in_tests_only() -> None:
    environ = {"TURNKEEPER_FAILPOINTS": "turn.opened=kill@2", "TURNKEEPER_ENV": "test"}
    assert load_settings(environ).failpoints == "turn.opened=kill@2"


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / ".env").write_bytes(b"TURNKEEPER_HOST=\xff\n")
    assert refused(None).fields["field"] == ".env"


def test_secrets_do_not_show_and_settings_do_not_change() -> None:
    settings = load_settings({"OPENAI_API_KEY": "sk-geheim", "DATABASE_URL": "postgresql://u:geheim@db"})
    assert "geheim" not in repr(settings) + settings.model_dump_json()
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]  # that it cannot be set is what is tested


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"CELERY_BROKER_URL": "amqp://b"}, ""),
        ({"CELERY_BROKER_URL": "amqp://b", "FEED_URL": "redis://f"}, "redis://f"),
        ({"CELERY_BROKER_URL": "rediss://b"}, "rediss://b"),
        ({}, ""),
    ],
)
def test_the_feed_uses_the_broker_only_when_that_is_a_redis(environ: dict[str, str], url: str) -> None:
    assert load_settings(environ).effective_feed_url == url
