"""A server killed under load: each answered call is stored exactly once, and each repeated call once.

Eight writers send over connections that are kept alive, half of them under keys. At a random moment the server
is killed; it is started again on the same data, and every keyed message without an answer is sent again with its
key. Four rounds by default, on one data folder; `POSTROOM_KILL_ROUNDS=50` asks more.
"""

import os
import random
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Cut, Line, Refused, RunningServer

ROUNDS = int(os.environ.get("POSTROOM_KILL_ROUNDS", "4"))
SEED = os.environ.get("POSTROOM_KILL_SEED", "postroom")
WRITERS = 8
SHORTEST, LONGEST = 0.2, 1.5
"""Seconds between the first message of a round and the end of the process."""
FOLDER = "/yard/cuts"
SLUG = "yard-cuts"
CREW = tuple(f"Mate{number}" for number in range(WRITERS))
pytestmark = [pytest.mark.long, pytest.mark.timeout(60 + 20 * ROUNDS)]


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a writer sent; its body is unlike any other."""

    sender: str
    to: tuple[str, ...]
    body: str
    key: str | None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call, the same each time it is made."""
        message = {"sender_name": self.sender, "to": list(self.to), "subject": "Cut", "body_md": self.body}
        return {"project_key": FOLDER, **message, **({"idempotency_key": self.key} if self.key else {})}


@dataclass(slots=True)
class Ledger:
    """The knowledge of all writers: which messages were answered, with which id, and which were not."""

    answered: dict[str, tuple[Message, int]] = field(default_factory=dict)
    unanswered: list[Message] = field(default_factory=list)
    retried: int = 0


@dataclass(slots=True)
class Writer:
    """One sender with a separate connection; its messages are the same for the same seed."""

    number: int
    dice: random.Random
    sent: int = 0

    def write(self, server: RunningServer, stop: threading.Event, ledger: Ledger) -> None:
        """Send until the server is gone; leave the unanswered calls open."""
        with server.line() as line:
            while not stop.is_set():
                message = self.message()
                try:
                    ledger.answered[message.body] = (message, send(line, message))
                except (Cut, OSError):
                    ledger.unanswered.append(message)
                    return

    def message(self) -> Message:
        """Make the next message: to one or two others, every second one under a key."""
        self.sent += 1
        body = f"writer {self.number} message {self.sent} {self.dice.random()}"
        sender = CREW[self.number]
        others = self.dice.sample([name for name in CREW if name != sender], k=self.dice.choice((1, 1, 2)))
        return Message(sender, tuple(others), body, f"key-{body}" if self.sent % 2 else None)


def send(line: Line, message: Message) -> int:
    sent = line.tool("send_message", **message.arguments)
    assert sent["count"] == len(message.to)
    return int(sent["deliveries"][0]["payload"]["id"])


@pytest.fixture
def cut_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server on separate data, which the test kills and starts again."""
    with RunningServer(tmp_path / "data") as running:
        with running.line() as line:
            line.tool("ensure_project", human_key=FOLDER)
            for name in CREW:
                line.tool("register_agent", project_key=FOLDER, program="p", model="m", name=name)
        yield running


def test_what_was_answered_before_a_kill_is_there_exactly_once(cut_server: RunningServer) -> None:
    dice = random.Random(SEED)
    writers = [Writer(number, random.Random(f"{SEED} {number}")) for number in range(WRITERS)]
    ledger = Ledger()
    began = time.monotonic()
    for _ in range(ROUNDS):
        cut(cut_server, writers, ledger, after=dice.uniform(SHORTEST, LONGEST))
        cut_server.start()
        ask_again(cut_server, ledger)
        check_messages(cut_server, ledger)
        check_cursors(cut_server)
        check_log(cut_server)
    cut_server.await_archive(patience=60 + ROUNDS)
    check_archive(cut_server)
    took = time.monotonic() - began
    print(
        f"\n{ROUNDS} kills, {len(ledger.answered)} messages answered, {ledger.retried} asked again under their key, "
        f"{len(ledger.unanswered)} never answered; none lost, none twice; {took:.0f} s"
    )
    assert "Traceback" not in cut_server.log()


def cut(server: RunningServer, writers: list[Writer], ledger: Ledger, *, after: float) -> None:
    """Make all writers write, and kill the server during it."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(writers)) as pool:
        working = [pool.submit(writer.write, server, stop, ledger) for writer in writers]
        stop.wait(after)
        server.kill()
        stop.set()
        for one in working:
            one.result()


def ask_again(server: RunningServer, ledger: Ledger) -> None:
    """Send every keyed message without an answer again; messages without a key may not be."""
    keyed = [message for message in ledger.unanswered if message.key is not None]
    with server.line() as line:
        for message in keyed:
            ledger.answered[message.body] = (message, send(line, message))
    ledger.unanswered = [message for message in ledger.unanswered if message.key is None]
    ledger.retried += len(keyed)


def check_messages(server: RunningServer, ledger: Ledger) -> None:
    """Compare the database with what the writers know."""
    with closing(sqlite3.connect(f"file:{server.database}?mode=ro", uri=True)) as database:
        stored = database.execute("SELECT id, body_md FROM messages").fetchall()
        recipients = database.execute("SELECT message_id, agent_id, seq FROM recipients").fetchall()
    twice = [body for body, count in Counter(body for _, body in stored).items() if count > 1]
    assert not twice, f"{len(twice)} messages are there twice: {twice[:3]}"
    by_body = {body: number for number, body in stored}
    lost = [body for body, (_, number) in ledger.answered.items() if by_body.get(body) != number]
    assert not lost, f"{len(lost)} answered messages are lost: {lost[:3]}"
    unknown = by_body.keys() - ledger.answered.keys() - {message.body for message in ledger.unanswered}
    assert not unknown, f"{len(unknown)} messages were never sent: {list(unknown)[:3]}"
    readers = Counter(message_id for message_id, _, _ in recipients)
    assert readers.keys() == set(by_body.values())
    assert all(readers[number] == len(message.to) for message, number in ledger.answered.values())
    for agent in {whom for _, whom, _ in recipients}:
        places = sorted(seq for _, whom, seq in recipients if whom == agent)
        assert places == list(range(1, len(places) + 1))


def check_cursors(server: RunningServer) -> None:
    """See through the tools what the tables say: every inbox can be followed from its beginning, gap-free."""
    with server.line() as line:
        for name in CREW:
            cursor, seen = 0, 0
            while True:
                asked = {"project_key": FOLDER, "agent_name": name, "after": cursor, "limit": 1000}
                page = line.tool("fetch_inbox_events", **asked)
                if not page["events"]:
                    break
                seqs = [event["seq"] for event in page["events"]]
                assert seqs == list(range(cursor + 1, cursor + 1 + len(seqs)))
                cursor, seen = page["next"], seen + len(seqs)
            assert seen == page["newest"]
            with pytest.raises(Refused, match="cursor_ahead"):
                line.tool("fetch_inbox_events", project_key=FOLDER, agent_name=name, after=seen + 1)


def check_log(server: RunningServer) -> None:
    """The project's log has no gap, and names every stored message once, and no other."""
    told: list[int] = []
    cursor = 0
    with server.line() as line:
        while True:
            page = line.tool("fetch_events", project_key=FOLDER, after=cursor, limit=1000)
            seqs = [event["seq"] for event in page["events"]]
            assert seqs == list(range(cursor + 1, page["next"] + 1))
            told += [event["message_id"] for event in page["events"] if event["kind"] == "message.sent"]
            cursor = page["next"]
            if cursor == page["newest"]:
                break
    with closing(sqlite3.connect(f"file:{server.database}?mode=ro", uri=True)) as database:
        assert told == [number for (number,) in database.execute("SELECT id FROM messages ORDER BY id")]


def check_archive(server: RunningServer) -> None:
    """Git finds no fault, and every message of the database is in one file of the archive, and no other."""
    paths = git(server, "ls-tree", "-r", "--name-only", "main", "messages/").splitlines()
    numbers = [int(path.rsplit("/", 1)[1].split("-", 1)[0]) for path in paths]
    with closing(sqlite3.connect(f"file:{server.database}?mode=ro", uri=True)) as database:
        stored = [number for (number,) in database.execute("SELECT id FROM messages ORDER BY id")]
    assert sorted(numbers) == stored
    assert git(server, "fsck", "--strict", "--no-dangling") == ""


def git(server: RunningServer, *words: str) -> str:
    done = subprocess.run(
        ["git", "--git-dir", str(server.repository(SLUG)), *words],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode() + done.stderr.decode()
