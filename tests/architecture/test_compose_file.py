"""``compose.yaml`` fits the code: services and queues, commands and options, variables, graces, health checks.

OPS-09 also wants an observability profile, which is not there yet: these tests do not prove that row.
"""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import tomllib
from fnmatch import fnmatch
from typing import Any, Final

import flower.options  # noqa: F401 - declares what tornado's options then know
import pytest
import typer
from celery.bin.celery import celery as celery_command
from click import ClickException
from tornado.options import options as flower_options
from typer.exceptions import TyperException

from producer.cli.entry import COMMANDS
from shared.settings import Settings, load_settings, variable_of
from shared.wakes.names import QUEUES
from tests.architecture.tree import HOUSES, ROOT
from tests.support.compose_file import fill, own_services, read_compose, seconds, variables_in

FILE: Final = read_compose()
SERVICES: Final[dict[str, Any]] = FILE["services"]
OURS: Final = own_services(SERVICES)
SERVERS: Final = SERVICES.keys() - OURS.keys()
WORKERS: Final = tuple(name for name, s in OURS.items() if s["command"][:2] == ["turnkeeper", "worker"])
ONE_SHOT: Final = "migrate"

#: What the operator gives in the least; every other variable has a default.
REQUIRED: Final = {"OPENAI_API_KEY": "k"}

#: Variables that the images of others read, by service, from their documentation.
IMAGE_VARIABLES: Final = {
    "postgres": {"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"},
    "rabbitmq": {"RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"},
}

#: Variables of settings that are filled in from outside although no container is told them: published addresses.
PUBLISHED: Final = {"TURNKEEPER_HOST", "TURNKEEPER_PORT", "TURNKEEPER_FLOWER_PORT"}


def setting_variables() -> set[str]:
    return {variable_of(name) for name in Settings.model_fields}


def settings_of(service: dict[str, Any], **given: str) -> Settings:
    return load_settings(fill(service["environment"], REQUIRED | given))


def check_command(words: list[str]) -> None:
    """Raise when a command names a program, a command or an option that there is not."""
    match words:
        case ["turnkeeper", name, *rest]:
            assert name in COMMANDS
            app = typer.Typer()
            app.command()(importlib.import_module(f"producer.cli.{name}").command)
            typer.main.get_command(app).make_context(name, list(rest))
        case ["celery", *rest]:
            check_celery(list(rest))
        case _:
            raise AssertionError(f"no program of ours: {words[0]}")


def check_celery(words: list[str]) -> None:
    before = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    name, *rest = words[len(before) :]
    assert name in celery_command.list_commands(celery_command.make_context("celery", [*before, name]))
    assert before == ["--app=workers"]
    for word in rest:
        assert word.startswith("--")
        assert word.removeprefix("--").partition("=")[0] in flower_options


def test_every_queue_has_a_service_of_its_name_and_every_worker_a_queue() -> None:
    assert tuple(OURS[name]["command"][2] for name in WORKERS) == WORKERS == QUEUES


def test_everything_that_a_deployment_needs_is_there() -> None:
    assert sorted(SERVERS) == ["postgres", "rabbitmq", "redis"]
    assert OURS.keys() == {ONE_SHOT, "producer", *QUEUES, "flower"}


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_one_of_ours_with_options_that_it_takes(name: str) -> None:
    check_command(OURS[name]["command"])


@pytest.mark.parametrize(
    "words",
    [
        "turnkeeper sing",
        "turnkeeper serve --bind x",
        "turnkeeper worker",
        "celery --app=workers flower --sing=1",
        "celery --app=workers sing",
        "celery --sing flower",
        "python -m producer",
    ],
)
def test_a_command_that_would_not_start_is_seen(words: str) -> None:
    with pytest.raises((AssertionError, ClickException, TyperException)):
        check_command(shlex.split(words))


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_is_a_setting_or_one_of_the_image(name: str) -> None:
    known = setting_variables() if name in OURS else IMAGE_VARIABLES.get(name, set())
    assert SERVICES[name].get("environment", {}).keys() <= known


def test_every_variable_that_is_filled_in_is_one_that_a_container_knows_by_the_same_name() -> None:
    told = {variable for service in SERVICES.values() for variable in service.get("environment", {})}
    assert set(variables_in(SERVICES)) - PUBLISHED <= told
    assert setting_variables() >= PUBLISHED
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            assert set(variables_in(value)) <= {variable, "POSTGRES_PASSWORD"}


@pytest.mark.parametrize("name", OURS)
def test_what_a_service_is_told_are_valid_settings_and_the_defaults_of_the_code(name: str) -> None:
    settings = settings_of(OURS[name])
    filled = {
        field
        for field in Settings.model_fields
        if list(variables_in(OURS[name]["environment"].get(variable_of(field), "")))
    }
    places = {"database_url", "broker_url", "feed_url", "openai_api_key"}
    defaults = Settings()
    assert {f: getattr(settings, f) for f in filled - places} == {
        f: getattr(defaults, f) for f in filled - places
    }
    assert (settings.env, settings.loopback_owner) == ("production", "")


def test_every_process_is_told_where_its_servers_are() -> None:
    for name in (*WORKERS, "producer"):
        settings = settings_of(OURS[name])
        assert "@postgres:5432/" in settings.database_url.get_secret_value()
        assert settings.broker_url.get_secret_value() == settings.effective_feed_url == "redis://redis:6379/0"
    assert settings_of(OURS["flower"]).broker_url.get_secret_value() == "redis://redis:6379/0"


def test_the_password_of_the_database_is_the_same_on_both_sides() -> None:
    for given in ({}, {"POSTGRES_PASSWORD": "s3cret"}):
        server = fill(SERVICES["postgres"]["environment"], REQUIRED | given)
        url = settings_of(OURS["producer"], **given).database_url.get_secret_value()
        user, password, name = (server[f"POSTGRES_{part}"] for part in ("USER", "PASSWORD", "DB"))
        assert url == f"postgresql://{user}:{password}@postgres:5432/{name}"


def test_the_key_of_the_model_is_required_and_goes_to_those_who_use_it_alone() -> None:
    holders = {name for name, s in OURS.items() if "OPENAI_API_KEY" in s["environment"]}
    assert holders == {"producer", "turns", "remember", "index"}
    for name in holders:
        with pytest.raises(KeyError, match="OPENAI_API_KEY"):
            fill(OURS[name]["environment"], {})


@pytest.mark.behaviour("SHD-29")
@pytest.mark.parametrize("name", (*WORKERS, "producer"))
def test_a_service_is_given_longer_to_stop_than_it_drains(name: str) -> None:
    assert seconds(OURS[name]["stop_grace_period"]) > settings_of(OURS[name]).drain_s + 5


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_restarted_and_not_root(name: str) -> None:
    service = SERVICES[name]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert service["restart"] == ("no" if name == ONE_SHOT else "unless-stopped")
    assert service["user"] not in ("root", "0")
    assert "stop_grace_period" in service


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {ONE_SHOT}))
def test_every_service_that_stays_says_whether_it_is_well(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert seconds(check["timeout"]) <= seconds(check["interval"])
    for asked in re.findall(r"127\.0\.0\.1:(\d+)/", " ".join(check["test"])):
        listened = [*SERVICES[name]["command"], SERVICES[name]["environment"].get("TURNKEEPER_METRICS_PORT")]
        assert any(str(word).endswith(asked) for word in listened)


def test_another_container_reaches_every_workers_metrics_and_no_other_machine_does() -> None:
    for name in sorted(OURS.keys() - {ONE_SHOT, "producer", "flower"}):
        settings = settings_of(OURS[name])
        assert (settings.metrics_host, settings.metrics_port) == ("0.0.0.0", 9100)
        assert "ports" not in OURS[name]


def test_published_ports_lead_to_the_ports_that_are_listened_at_and_to_this_machine_alone() -> None:
    published = {name: fill(s["ports"], REQUIRED) for name, s in SERVICES.items() if "ports" in s}
    assert published == {"producer": ["127.0.0.1:8000:8000"], "flower": ["127.0.0.1:5555:5555"]}
    for name, (port,) in published.items():
        assert any(word.endswith(port.rpartition(":")[2]) for word in OURS[name]["command"])


def test_nothing_of_ours_starts_before_the_schema_and_the_broker_are_there() -> None:
    assert OURS[ONE_SHOT]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in OURS.keys() - {ONE_SHOT}:
        waits = OURS[name]["depends_on"]
        assert waits[ONE_SHOT] == {"condition": "service_completed_successfully"}
        assert waits["redis"] == {"condition": "service_healthy"}
        assert waits["rabbitmq"] == {"condition": "service_healthy", "required": False}


def test_rabbitmq_is_a_profile_that_one_variable_turns_to_while_the_feed_stays_on_redis() -> None:
    assert {name: s["profiles"] for name, s in SERVICES.items() if "profiles" in s} == {
        "rabbitmq": ["rabbitmq"]
    }
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    (broker,) = re.findall(r"CELERY_BROKER_URL=(amqp\S+)", text)
    server = fill(SERVICES["rabbitmq"]["environment"], REQUIRED)
    user, password = (server[f"RABBITMQ_DEFAULT_{part}"] for part in ("USER", "PASS"))
    assert broker == f"amqp://{user}:{password}@rabbitmq:5672//"
    settings = settings_of(OURS["turns"], CELERY_BROKER_URL=broker)
    assert settings.broker_url.get_secret_value() == broker
    assert settings.effective_feed_url == "redis://redis:6379/0"


def test_the_image_takes_in_what_the_packages_read() -> None:
    (recipe,) = {s["build"]["dockerfile_inline"] for s in OURS.values()}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", recipe, re.MULTILINE)
    sources = {name for line in copied for name in line.split()}
    assert sources >= {*HOUSES, "pyproject.toml", "constraints.txt"}
    assert [name for name in sources if not (ROOT / name).exists()] == []
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    globs = patterns["tool"]["setuptools"]["package-data"]["*"]
    files = [f for house in HOUSES for f in (ROOT / house).rglob("*") if f.is_file()]
    read = [f for f in files if f.suffix not in (".py", ".pyc")]
    assert [str(f) for f in read if not any(fnmatch(f.name, glob) for glob in globs)] == []


def test_the_image_leaves_variables_to_itself() -> None:
    assert "$" not in "".join(s["build"]["dockerfile_inline"] for s in OURS.values())
