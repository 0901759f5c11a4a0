"""The far side of a worker process under test: it owes works, hands them out, and sees what the process does.

The worker side is ``tests.support.pool_compose``; both speak lines of JSON over a Unix socket.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

Note = dict[str, Any]


class PoolWorld:
    """Works owed by queue, and everything the worker told, in order."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "world.sock"
        self.owed: dict[str, list[str]] = {"turns": [], "remember": []}
        self.notes: list[Note] = []
        self.start_failure = ""
        self._changed = threading.Condition()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._worker: socket.socket | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def owe(self, *ids: str, queue: str = "turns") -> None:
        with self._changed:
            self.owed[queue].extend(ids)

    def release(self, *ids: str) -> None:
        """Let held works end."""
        for one in ids:
            self.tell({"op": "release", "id": one})

    def tell(self, note: Note) -> None:
        assert self._worker is not None
        self._worker.sendall(json.dumps(note).encode() + b"\n")

    def seen(self, **fields: Any) -> list[Note]:
        """Return the notes that have these fields."""
        with self._changed:
            return [note for note in self.notes if fields.items() <= note.items()]

    def await_note(self, within_s: float = 15.0, *, times: int = 1, **fields: Any) -> Note:
        """Return the last of the first ``times`` notes with these fields; fail if they do not come."""
        return self.await_that(
            lambda note: fields.items() <= note.items(), within_s, times=times, what=str(fields)
        )

    def await_that(
        self, fits: Callable[[Note], bool], within_s: float = 15.0, *, times: int = 1, what: str = "a note"
    ) -> Note:
        deadline = monotonic() + within_s
        with self._changed:
            while len(found := [note for note in self.notes if fits(note)]) < times:
                left = deadline - monotonic()
                if left <= 0:
                    raise AssertionError(f"no {what} x{times} within {within_s:g} s; seen {self.notes}")
                self._changed.wait(left)
            return found[times - 1]

    def close(self) -> None:
        self._listening.close()
        if self._worker is not None:
            self._worker.close()

    def _accept(self) -> None:
        while True:
            try:
                self._worker, _ = self._listening.accept()
            except OSError:
                return
            worker = self._worker
            threading.Thread(target=self._hear, args=(worker,), daemon=True).start()

    def _hear(self, worker: socket.socket) -> None:
        self.tell({"op": "hello", "start_failure": self.start_failure})
        with worker.makefile("rb") as lines:
            for line in lines:
                note = json.loads(line)
                with self._changed:
                    if note["op"] == "claim":
                        note["ids"] = self._take(note)
                        self.tell({"op": "claimed", "call": note["call"], "ids": note["ids"]})
                    self.notes.append(note)
                    self._changed.notify_all()

    def _take(self, note: Note) -> list[str]:
        owed = self.owed[note["queue"]]
        taken, owed[:] = owed[: note["n"]], owed[note["n"] :]
        return taken
