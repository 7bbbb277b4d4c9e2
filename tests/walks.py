"""The path of a call: every function of postroom that is called, and the important ones among them.

These open a transaction, run within one as its change or look, or write a row. They are known by whom they call
and by whom they are called, so that none can be forgotten in a list.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import postroom

HOME = Path(postroom.__file__).resolve().parent
_OPENS = {"stores.store.SqlStore.read", "stores.store.SqlStore.write"}
_PASS_ON = {  # a call through these counts as its caller's
    "dispatch.metrics.MailboxMetrics.observed",
    "stores.mail.store.MailStore.read",
    "stores.mail.store.MailStore.read.<locals>.<lambda>",
    "stores.mail.store.MailStore.write",
    "stores.mail.store.MailStore.write.<locals>.<lambda>",
}
_WRITES = {
    "stores.sqlite.sql_transaction.SqliteTransaction.run",
    "stores.sqlite.sql_transaction.SqliteTransaction.run_many",
}
_RUNS = {"stores.store.SqlStore.read.<locals>.<lambda>", "stores.store.SqlStore.write.<locals>.run"}


def name_of(frame: FrameType) -> str:
    code = frame.f_code
    module = Path(code.co_filename).relative_to(HOME).with_suffix("").as_posix().replace("/", ".")
    return f"{module}.{code.co_qualname}"


def readable(name: str) -> str:
    """Return a function's name as a page writes it."""
    return name.replace(".<locals>", "")


@dataclass
class Walk:
    """The calls of one traced stretch."""

    calls: dict[int, list[str]] = field(default_factory=dict)
    """By thread, in their order."""
    important: set[str] = field(default_factory=set)
    is_on: bool = False

    def called(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_on or event != "call" or not _is_ours(frame):
            return
        name = name_of(frame)
        self.calls.setdefault(threading.get_ident(), []).append(readable(name))
        if name in _PASS_ON:
            return
        above = _caller(frame)
        if name in _OPENS | _WRITES:
            self.important.add(readable(above))
        elif above in _RUNS and not name.startswith(("stores.store.", "stores.transaction.")):
            self.important.add(readable(name))

    def out_of_order(self, names: list[str]) -> list[str]:
        """Return which of the names are not called, on their thread after those before them."""
        missing = [name for name in names if not any(name in calls for calls in self.calls.values())]
        for calls in self.calls.values():
            rest = iter(calls)
            missing += [name for name in names if name in calls and name not in rest]
        return missing


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(str(HOME))


def _caller(frame: FrameType) -> str:
    """Return the nearest function of postroom above, without those that only pass a call on."""
    above = frame.f_back
    while above is not None and (not _is_ours(above) or name_of(above) in _PASS_ON):
        above = above.f_back
    return "" if above is None else name_of(above)


@contextmanager
def traced() -> Iterator[Walk]:
    """Trace the threads that begin from here on, and this one; calls are noted while `is_on`."""
    walk, before = Walk(), sys.getprofile()
    threading.setprofile(walk.called)
    sys.setprofile(walk.called)
    try:
        yield walk
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
