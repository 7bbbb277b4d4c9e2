"""How fast messages reach the archive, against Git's usual way and against the fastest it has.

One run measures all on the same machine state: batches of 50 and of 200 messages through the archive's
repository, `git add` and `git commit` of one message, and one `git fast-import` that shows its messages
only at its end. Each starts from its own copy of a repository that holds 10,000 messages in a tree sharded
by day. Trust the ratios, not the numbers. Takes about half a minute; needs nothing but Git.
"""

import hashlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import size
from postroom.mail.archive.repository import ArchiveRepository, commit_stream, file_changes

HELD = size(10_000, 1000)
NOW = 1_760_000_000_000
SECONDS_EACH = size(5.0, 0.2)
"""How long each way is measured."""
TIDY_EVERY = 50
"""Batches between two looks at the packs; the time it takes counts."""
IMPORTED = size(2_000, 50)
MESSAGE_BYTES = 1_200
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Bench",
    "GIT_AUTHOR_EMAIL": "bench@example.invalid",
    "GIT_COMMITTER_NAME": "Bench",
    "GIT_COMMITTER_EMAIL": "bench@example.invalid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way of writing: messages a second, and milliseconds for each time it made messages visible."""

    name: str
    messages: int
    seconds: float
    steps: list[float]

    @property
    def rate(self) -> float:
        """Return messages a second."""
        return self.messages / self.seconds

    def line(self, base: float) -> str:
        """Render one row, with the ratio to `base` messages a second."""
        ordered = sorted(self.steps)
        last = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        middle = statistics.median(ordered)
        times = f"{middle:9.1f} {last:9.1f}"
        return f"{self.name:44} {self.rate:9,.0f} {self.rate / base:8.1f} {times} {self.messages:8,}"


def messages(first: int, count: int) -> dict[str, bytes]:
    """Return messages that compress about as text does; 100 a day, so that ids name their folder."""
    return {_path(number): _content(number) for number in range(first, first + count)}


def _path(number: int) -> str:
    day = number // 100
    return f"messages/2026/{day // 28 + 1:02}/{day % 28 + 1:02}/{number:07}-message.md"


def _content(number: int) -> bytes:
    return hashlib.shake_256(str(number).encode()).hexdigest(MESSAGE_BYTES // 2).encode()


def opened(folder: Path) -> ArchiveRepository:
    return ArchiveRepository.open(folder, author_name="Bench", author_email="bench@example.invalid")


def git(*arguments: str, folder: Path, stdin: bytes = b"") -> None:
    subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, env=ENVIRONMENT, check=True, capture_output=True
    )


def batched(folder: Path, size: int) -> Measured:
    """Measure the archive's repository with `size` messages a batch, its tidying included."""
    repository = opened(folder)

    def step(number: int) -> None:
        repository.write(messages(HELD + number * size, size), subject=f"{size} messages", now=NOW)
        if number % TIDY_EVERY == TIDY_EVERY - 1:
            repository.tidy(NOW)

    steps = list(_timed(step))
    return Measured(
        name=f"archive repository, batches of {size}",
        messages=size * len(steps),
        seconds=sum(steps) / 1000,
        steps=steps,
    )


def porcelain(bare: Path, work: Path) -> Measured:
    """Measure `git add` and `git commit` of one message in a work tree."""
    git("clone", "--quiet", str(bare), str(work), folder=bare)
    git("config", "gc.auto", "0", folder=work)

    def step(number: int) -> None:
        for path, content in messages(HELD + number, 1).items():
            place = work / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            git("add", "--", path, folder=work)
            git("commit", "--quiet", "-m", "one message", folder=work)

    steps = list(_timed(step))
    return Measured(
        name="git add && git commit, one message", messages=len(steps), seconds=sum(steps) / 1000, steps=steps
    )


def imported(folder: Path) -> Measured:
    """Measure one `git fast-import`, a commit a message, nothing visible before its end."""
    parent: str | None = opened(folder).tip()
    parts: list[bytes] = []
    for number in range(HELD, HELD + IMPORTED):
        stream = commit_stream(
            ref="refs/heads/main",
            identity="Bench <bench@example.invalid>",
            now=NOW,
            text="one message\n",
            changes=file_changes(messages(number, 1)),
            parent=parent,
        )
        parts.append(stream.partition(b"\nget-mark")[0] + b"\n")
        parent = None  # the branch goes on from its own last commit
    started = time.perf_counter()
    git(
        "-c", "fastimport.unpackLimit=1", "fast-import", "--quiet", "--date-format=raw",
        folder=folder, stdin=b"".join(parts),
    )  # fmt: skip
    taken = (time.perf_counter() - started) * 1000
    return Measured(
        name="git fast-import, one checkpoint at the end",
        messages=IMPORTED,
        seconds=taken / 1000,
        steps=[taken],
    )


def _timed(step: Callable[[int], None]) -> Iterator[float]:
    """Repeat a step until its time is over and yield the milliseconds of each."""
    spent = 0.0
    number = 0
    while spent < SECONDS_EACH:
        started = time.perf_counter()
        step(number)
        taken = time.perf_counter() - started
        yield taken * 1000
        spent += taken
        number += 1


def _checked(measured: Measured, folder: Path) -> Measured:
    """Refuse a number that was reached by losing messages."""
    held = len(opened(folder).paths())
    if held != HELD + measured.messages:
        raise SystemExit(
            f"{measured.name}: {held} messages are there, {HELD + measured.messages} were written"
        )
    return measured


def main() -> None:
    """Measure all ways and print them."""
    with tempfile.TemporaryDirectory(prefix="archive-benchmark-") as place:
        root = Path(place)
        base = root / "base.git"
        for first in range(0, HELD, 1000):
            opened(base).write(messages(first, 1000), subject="held", now=NOW)
        copies = {name: shutil.copytree(base, root / f"{name}.git") for name in ("50", "200", "import")}
        one = porcelain(base, root / "work")
        rows = [
            _checked(batched(copies["50"], 50), copies["50"]),
            _checked(batched(copies["200"], 200), copies["200"]),
            one,
            _checked(imported(copies["import"]), copies["import"]),
        ]
    print(f"one file of {MESSAGE_BYTES} bytes a message, onto {HELD:,} files")
    print(f"{'way':44} {'messages/s':>9} {'ratio':>8} {'p50 ms':>9} {'p99 ms':>9} {'messages':>8}")
    for row in rows:
        print(row.line(one.rate))


if __name__ == "__main__":
    main()
