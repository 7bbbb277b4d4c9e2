"""What a benchmark prints: one line a figure, with the limit it is held against and the ratio of the two."""

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

TINY = "BENCH_TINY"
"""With this in the environment every benchmark has sizes that end in seconds and say nothing.

Its name is none of the server's settings, which refuses those that it does not know.
"""
_TICKS = os.sysconf("SC_CLK_TCK")
Number = TypeVar("Number", int, float)


def size(usual: Number, tiny: Number) -> Number:
    """Return how much a benchmark does: the usual, or as little as shows that it still runs."""
    return tiny if os.environ.get(TINY) else usual


@dataclass(slots=True)
class Table:
    """Figures under one heading, printed as they come."""

    title: str
    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"\n### {self.title}\n")
        print("| what | ours | against | ratio | aim |")
        print("|---|---|---|---|---|", flush=True)

    def add(self, what: str, ours: str, against: str = "", ratio: float | None = None, aim: str = "") -> None:
        """Print one figure."""
        shown = "" if ratio is None else f"{ratio:.2f}"
        self.rows.append((what, ours, against, shown, aim))
        print(f"| {what} | {ours} | {against} | {shown} | {aim} |", flush=True)


def ms(seconds: float) -> str:
    """Render seconds as milliseconds."""
    return f"{seconds * 1000:.3f} ms"


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]


async def timed(count: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    """Return how long each of `count` calls took, in seconds."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return taken


def cpu_of(pid: int) -> float:
    """Return the seconds of a processor that a process has used, as Linux tells them."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS
