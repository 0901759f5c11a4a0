"""What a parent is told of a task that ended: the notice that frames the task's words as data (TSK-21).

A task's reply is a model's text (law 9): whatever it holds, it neither ends its frame nor looks like another notice.
"""

from __future__ import annotations

import re
from typing import Final

from shared.domain.bounds import clean_text
from shared.tasks.port import TaskResult

#: How much of a reply a notice carries, in characters; the whole reply stays in the child (default and bounds).
NOTICE_CHARS: Final = 12_000
NOTICE_MIN_CHARS: Final = 100
NOTICE_MAX_CHARS: Final = 100_000

OPENING: Final = "<task-output>"
CLOSING: Final = "</task-output>"

#: Characters that a reader passes over: blanks, zero-width and formatting ones, soft hyphens, variation selectors.
_UNSEEN: Final = "[\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]*"
_DASH: Final = "[-_\u2010-\u2015\u2212\ufe58\ufe63\uff0d]?"


def _loose(word: str) -> str:
    return _UNSEEN.join(re.escape(letter) for letter in word)


_TAG: Final = re.compile(
    f"[<\uff1c\ufe64\u2039\u276e\u27e8](?={_UNSEEN}[/\uff0f\u2044\u2215]?{_UNSEEN}{_loose('task')}{_UNSEEN}{_DASH}{_UNSEEN}{_loose('output')})",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    f"[\\[\uff3b\ufe5d\u27e6](?={_UNSEEN}{_loose('background')}{_UNSEEN}{_loose('task')})", re.IGNORECASE
)


def notice_of(task_id: str, result: TaskResult, *, max_chars: int = NOTICE_CHARS) -> str:
    """Return the notice of a task that ended: its id and how it ended, then its words in their frame.

    A task without a reply is told by its code, and by its failure's words, which are framed like a reply's.
    """
    code = "" if result.code is None else f"\n({_inert(result.code)})"
    words = result.text if result.text is not None else result.failure
    if words is None:
        return f"[Background task {task_id} {result.status}]{code}"
    shown = clean_text(words)[0]
    cut = ""
    if len(shown) > max_chars:
        cut = f"\n(the first {max_chars} of {len(shown)} characters)"
        shown = shown[:max_chars]
    return f"[Background task {task_id} {result.status}]{code}{cut}\n{OPENING}\n{framed(shown)}\n{CLOSING}"


def framed(text: str) -> str:
    """Return a text that neither opens nor closes the frame and holds no notice's first line, however it is spelled.

    Only what could be taken for one is changed: its first character becomes an HTML entity.
    """
    return _HEADER.sub(_entity, _TAG.sub(_entity, text))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def _inert(code: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:-]", "?", code)[:100]
