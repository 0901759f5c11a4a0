"""Turns itself into another program that dies with its parent; run as a script, standard library only.

Reads one JSON order from the file descriptor named by its only argument (an argument list would show secrets to every
user of the machine), becomes the unprivileged user if one is named, and executes the program. Its process id is the
program's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
EXEC_FAILED = 127


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def main() -> int:
    """Obey the order; return only when the program could not be executed."""
    with os.fdopen(int(sys.argv[1])) as pipe:
        order = json.load(pipe)
    if order["user"] is not None:
        _become(order["user"]["uid"], order["user"]["gid"], keep_access=order["user"]["keep_access"])
    if sys.platform == "linux":
        # After the change of user: the kernel forgets the signal when credentials change.
        _prctl(PR_SET_PDEATHSIG, order["death_signal"])
    if os.getppid() != order["parent"]:
        return EXEC_FAILED  # the parent died before the signal was armed
    for name, value in order["env"].items():
        if value is None:
            os.unsetenv(name)
        else:
            os.putenv(name, value)
    try:
        os.execvp(order["argv"][0], order["argv"])
    except OSError as error:
        sys.stderr.write(f"cannot execute {order['argv'][0]}: {error.strerror}\n")
        return EXEC_FAILED


def _become(uid: int, gid: int, *, keep_access: bool) -> None:
    """Drop root. With ``keep_access`` closed folders on the way (a checkout under /root) stay passable."""
    if keep_access:
        _prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o077)
    if keep_access:
        bit = 1 << CAP_DAC_OVERRIDE
        header = _Header(CAPABILITY_VERSION_3, 0)
        sets = (_Sets * 2)(_Sets(bit, bit, bit), _Sets(0, 0, 0))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def _prctl(option: int, first: int, second: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    values = (ctypes.c_ulong(v) for v in (first, second, 0, 0))
    if libc.prctl(option, *values) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    sys.exit(main())
