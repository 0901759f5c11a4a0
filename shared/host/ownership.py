"""How a host's process holds its turns: by a lease, or for as long as the process runs (SES-83 to 117)."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import psutil

from shared.domain.errors import ConfigError
from shared.domain.ids import WorkerId, new_worker_id
from shared.turns.queue import TurnView

TTL_MS_DEFAULT: Final = 60_000
TTL_MS_MIN: Final = 100
TTL_MS_MAX: Final = 24 * 60 * 60 * 1_000
EVERY_MS_DEFAULT: Final = 20_000
EVERY_MS_MIN: Final = 10

_HOLDER = re.compile(r"[^@]+@(?P<host>.+):(?P<pid>[0-9]+):(?P<started>[0-9]+):[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class EveryMs:
    """A keep-alive renews each so many milliseconds, whatever the turn writes; at most half of the lease."""

    every_ms: int = EVERY_MS_DEFAULT


#: ``none``: the lease is fixed at begin; ``on-commit``: each write extends it (SES-86 to 88).
Renew: TypeAlias = Literal["none", "on-commit"] | EveryMs


@dataclass(frozen=True, slots=True)
class LeaseOwnership:
    """A turn is held until the store's now + ``ttl_ms`` (100 ms to a day), longer by renewals.

    Raises ``ConfigError`` naming the field and its bound: a keep-alive slower than half of the lease is refused, so that
    a late renewal still lands (SES-95, 96).
    """

    ttl_ms: int = TTL_MS_DEFAULT
    renew: Renew = field(default_factory=EveryMs)

    def __post_init__(self) -> None:
        if not _is_integer(self.ttl_ms) or not TTL_MS_MIN <= self.ttl_ms <= TTL_MS_MAX:
            raise _invalid("ttl_ms", f"{TTL_MS_MIN}..{TTL_MS_MAX}")
        match self.renew:
            case "none" | "on-commit":
                pass
            case EveryMs(every_ms):
                if not _is_integer(every_ms) or not EVERY_MS_MIN <= every_ms <= self.ttl_ms / 2:
                    raise _invalid("renew.every_ms", f"{EVERY_MS_MIN}..half of ttl_ms ({self.ttl_ms / 2:g})")
            case _:
                raise _invalid("renew", "none, on-commit or every_ms")

    @property
    def lease_s(self) -> float:
        """The lease in seconds."""
        return self.ttl_ms / 1_000


@dataclass(frozen=True, slots=True)
class ProcessOwnership:
    """A turn is held without expiry while the process that began it runs: for hosts of one machine (SES-102, 103)."""


Ownership: TypeAlias = LeaseOwnership | ProcessOwnership


def read_ownership(options: Mapping[str, Any]) -> Ownership:
    """Return the ownership that options name: ``{mode, ttl_ms, renew}``. Raises ``ConfigError`` (``config.options``)."""
    known = {"mode", "ttl_ms", "renew"} if options.get("mode", "lease") == "lease" else {"mode"}
    if unknown := options.keys() - known:
        raise _invalid(min(unknown), f"one of {', '.join(sorted(known))}")
    match options.get("mode", "lease"):
        case "process":
            return ProcessOwnership()
        case "lease":
            return LeaseOwnership(options.get("ttl_ms", TTL_MS_DEFAULT), _read_renew(options.get("renew")))
        case _:
            raise _invalid("mode", "lease or process")


@dataclass(frozen=True, slots=True)
class HolderProcess:
    """A process as a turn names its holder: host, pid, and start in whole seconds since 1970."""

    host: str
    pid: int
    started: int


class Liveness(Protocol):
    """How a process is named and asked (SES-109). A host that needs a stronger identity brings its own."""

    def me(self) -> HolderProcess:
        """Name this process."""
        ...

    def is_running(self, process: HolderProcess) -> bool | None:
        """Say whether a process runs; None when it cannot be asked, and then it counts as running."""
        ...


class ProcessLiveness:
    """Asks this machine: a pid is looked for as signal 0 does (one that may not be asked runs).

    A reused pid is noticed only when it is this process's own, with another start: another live process that got a
    holder's pid keeps its turn held (SES-110, 111). A process of another host cannot be asked.
    """

    def me(self) -> HolderProcess:
        """See the port."""
        return HolderProcess(socket.gethostname(), os.getpid(), int(psutil.Process().create_time()))

    def is_running(self, process: HolderProcess) -> bool | None:
        """See the port."""
        me = self.me()
        if process.host != me.host:
            return None
        if process.pid == me.pid:
            return process.started == me.started
        return psutil.pid_exists(process.pid)


def holder_id(process: HolderProcess) -> WorkerId:
    """Return a fresh identity of one instance in a process: it names the process and no other instance."""
    return new_worker_id("host", host=process.host, pid=process.pid, started_at=process.started)


def process_of(holder: WorkerId | None) -> HolderProcess | None:
    """Return the process that a holder names, None when it names none (SES-108)."""
    found = None if holder is None else _HOLDER.fullmatch(holder)
    return None if found is None else HolderProcess(found["host"], int(found["pid"]), int(found["started"]))


def is_held(turn: TurnView, liveness: Liveness) -> bool:
    """Say whether somebody holds an open turn, judged as it was taken, whatever the asker's own mode (SES-113 to 117)."""
    if turn.status != "running":
        return False
    if turn.leased:
        return turn.is_open and not turn.recovering
    process = process_of(turn.holder)
    return process is not None and liveness.is_running(process) is not False


def _read_renew(value: Any) -> Renew:
    match value:
        case None:
            return EveryMs()
        case "none" | "on-commit":
            return "none" if value == "none" else "on-commit"
        case {"every_ms": every_ms, **rest} if not rest:
            return EveryMs(every_ms)
        case _:
            raise _invalid("renew", "none, on-commit or {every_ms}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _invalid(field: str, bound: str) -> ConfigError:
    return ConfigError(f"{field} of a turn's ownership must be {bound}", field=field, bound=bound)
