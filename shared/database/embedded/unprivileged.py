"""Which user PostgreSQL runs as: it refuses root, so root hands it to an ordinary user that exists already."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shared.database.embedded.child import RunAs
from shared.domain.errors import ConfigError

CANDIDATES: Final = ("postgres", "nobody")


def choose_user(home: Path, data: Path, programs: Path) -> RunAs | None:
    """Return the user for the server: None (ourselves) unless we are root.

    Root takes the owner of the data folder, else the owner of the home folder when that is an ordinary user (a
    checkout mounted into a container), else the first of ``CANDIDATES``. Raises ``ConfigError`` when there is none.
    """
    if os.geteuid() != 0:
        return None
    entry = _owner(data) or _owner(home) or _first_known()
    if entry is None:
        raise ConfigError(
            "PostgreSQL does not run as root and this machine has no user named "
            f"{' or '.join(CANDIDATES)}: run as an ordinary user, or name a server in DATABASE_URL",
            field="DATABASE_URL",
        )
    blocked = not all(_may_pass(path, entry) for path in (home.resolve(), programs.resolve()))
    return RunAs(entry.pw_uid, entry.pw_gid, keep_access=blocked)


def _owner(folder: Path) -> pwd.struct_passwd | None:
    try:
        uid = folder.stat().st_uid
        return pwd.getpwuid(uid) if uid != 0 else None
    except (FileNotFoundError, KeyError):
        return None


def _first_known() -> pwd.struct_passwd | None:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next((known[name] for name in CANDIDATES if name in known), None)


def _may_pass(path: Path, user: pwd.struct_passwd) -> bool:
    """Say whether ``user`` may go through every folder down to and including ``path`` and read what is in it."""
    folders: Iterable[Path] = (path, *path.parents)
    return all(_has(folder.stat(), user, stat.S_IXOTH) for folder in folders) and all(
        _has(file.stat(), user, stat.S_IROTH | stat.S_IXOTH)
        for file in path.glob("postgres")
        if file.is_file()
    )


def _has(status: os.stat_result, user: pwd.struct_passwd, bits: int) -> bool:
    """Judge by the owner's, the group's or the others' mode bits, as the kernel does (groups other than the first aside)."""
    if status.st_uid == user.pw_uid:
        bits <<= 6
    elif status.st_gid == user.pw_gid:
        bits <<= 3
    return status.st_mode & bits == bits
