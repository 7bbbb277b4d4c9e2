"""Agents that a real server runs: woken by messages, one process an agent, answered once, also through kill -9.

`POSTROOM_RUNNER_MESSAGES` messages go to ten agents at once (30 by default, the full test is 100), and the server is
killed `POSTROOM_RUNNER_ROUNDS` times while its agents work (3 by default, the full test is 30).
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Answer, Cut, Line, RunningServer, soon

MESSAGES = int(os.environ.get("POSTROOM_RUNNER_MESSAGES", "30"))
ROUNDS = int(os.environ.get("POSTROOM_RUNNER_ROUNDS", "3"))
SEED = os.environ.get("POSTROOM_RUNNER_SEED", "postroom")
CREW = tuple(f"Mate{number}" for number in range(10))
PATIENCE = 60 + 3 * ROUNDS + MESSAGES
AGENT = """
exec 9>"$LOCKS/$POSTROOM_AGENT"
flock --nonblock 9 || echo "two $POSTROOM_AGENT" >> "$JOURNAL"
cat > /dev/null
echo "begin $POSTROOM_AGENT $$" >> "$JOURNAL"
sleep "$SLOW"
echo "end $POSTROOM_AGENT $$" >> "$JOURNAL"
echo "done by $POSTROOM_AGENT"
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(PATIENCE + 60)]


class Crew:
    """Ten agents with runners, in a project of a real server, and what they wrote down."""

    def __init__(self, server: RunningServer, folder: Path, *, slow: str) -> None:
        self.server = server
        self.folder = folder
        self._journal = folder / "journal"
        (folder / "locks").mkdir(parents=True)
        (folder / "agent.sh").write_text(AGENT)
        environment = {"JOURNAL": str(self._journal), "LOCKS": str(folder / "locks"), "SLOW": slow}
        runner = {"argv": ["sh", str(folder / "agent.sh")], "env": environment}
        with server.line() as line:
            line.crew(str(folder), "Hal", *CREW)
            for name in CREW:
                asked = {"project": str(folder), "agent": name, "runner": runner}
                assert declared(line, asked).status == 200

    def journal(self, word: str) -> list[list[str]]:
        """Return what the agents wrote down with this word."""
        rows = self._journal.read_text().splitlines() if self._journal.exists() else []
        return [row.split()[1:] for row in rows if row.split()[0] == word]

    def call(self, tool: str, **arguments: Any) -> Any:
        with self.server.line() as line:
            return line.tool(tool, project_key=str(self.folder), **arguments)

    def answers(self) -> list[dict[str, Any]]:
        """Return the answer to the sender."""
        return self.call("fetch_inbox", agent_name="Hal", after=0, limit=1000)

    def unread(self) -> list[dict[str, Any]]:
        """Return what some agent has not read."""
        return [
            message
            for name in CREW
            for message in self.call("fetch_inbox", agent_name=name, unread_only=True, limit=1000)
        ]

    def await_answers(self, threads: set[str]) -> None:
        """Wait until each thread has its answer and nothing is unread."""
        missing = lambda: threads - {one["thread_id"] for one in self.answers()}  # noqa: E731
        soon(
            lambda: not missing() and not self.unread(),
            lambda: f"of {len(threads)} threads no answer in {missing()}; unread: {self.unread()[:3]}",
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running
    assert processes_of(tmp_path / "data") == []


def processes_of(data_dir: Path) -> list[str]:
    """Return the programs that this server has left running."""
    mark, found = f"POSTROOM_DATA_DIR={data_dir}\0".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes() + b"\0":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def declared(line: Line, asked: dict[str, Any]) -> Answer:
    return line.order("PUT", "/admin/runners", asked)


def send(line: Line, folder: Path, to: str, key: str) -> str:
    sent = line.tool(
        "send_message",
        project_key=str(folder),
        sender_name="Hal",
        to=[to],
        subject="Work",
        body_md=key,
        idempotency_key=key,
    )
    assert sent["deliveries"][0]["seen"] == ["wake by runner"]
    return str(sent["deliveries"][0]["payload"]["thread_id"])


def test_killed_again_and_again_each_message_is_answered_once_and_no_program_is_left(
    server: RunningServer, tmp_path: Path
) -> None:
    crew, dice = Crew(server, tmp_path / "yard", slow="0.2"), random.Random(SEED)
    threads: set[str] = set()
    keys = iter(f"key-{number}" for number in range(1_000_000))
    for _ in range(ROUNDS):
        killer = threading.Timer(dice.uniform(0.1, 1.0), server.kill)
        killer.start()
        threads |= set(written(server, crew.folder, keys, dice))
        killer.join()
        server.start()
    threads |= set(written(server, crew.folder, keys, dice, most=5))
    crew.await_answers(threads)
    answered = Counter(one["thread_id"] for one in crew.answers())
    assert {thread: times for thread, times in answered.items() if times != 1} == {}
    assert crew.journal("two") == []
    begun = Counter(instance for _, instance in crew.journal("begin"))
    assert max(begun.values()) == 1
    print(f"\n{ROUNDS} kills, {len(answered)} messages answered once each, {len(begun)} programs started")
    assert "Traceback" not in server.log()


def written(
    server: RunningServer, folder: Path, keys: Iterator[str], dice: random.Random, *, most: int = 1_000
) -> Iterator[str]:
    """Write messages until the server is gone; one without an answer may or may not be there."""
    pause = threading.Event()
    try:
        with server.line() as line:
            for _ in range(most):
                yield send(line, folder, dice.choice(CREW), next(keys))
                pause.wait(dice.uniform(0, 0.1))
    except (Cut, OSError):
        return


def test_a_server_that_is_told_to_stop_waits_for_no_program_and_begins_it_again(
    server: RunningServer, tmp_path: Path
) -> None:
    crew = Crew(server, tmp_path / "yard", slow="0.1")
    stubborn = 'trap \'\' TERM\necho "begin stubborn $$" >> "$JOURNAL"\nsleep 60 & wait\nsleep 60'
    (crew.folder / "agent.sh").write_text(stubborn)
    with server.line() as line:
        thread = send(line, crew.folder, CREW[0], "k")
    soon(lambda: crew.journal("begin"))
    assert server.stop() == 0
    assert processes_of(server.data_dir) == []
    (crew.folder / "agent.sh").write_text(AGENT)
    server.start()
    crew.await_answers({thread})
    assert [one["body_md"] for one in crew.answers()] == [f"done by {CREW[0]}"]


def test_agents_of_the_configuration_file_are_run_and_not_when_it_names_them_no_more(tmp_path: Path) -> None:
    settings = tmp_path / "config" / "postroom"
    settings.mkdir(parents=True)
    (tmp_path / "yard").mkdir()
    told = f'[[agents]]\nname = "Bo"\nproject = "{tmp_path / "yard"}"\nargv = ["sh", "-c", "cat >/dev/null; echo hi"]\n'
    (settings / "config.toml").write_text(told)
    with RunningServer(tmp_path / "data") as server:
        with server.line() as line:
            line.tool(
                "register_agent", project_key=str(tmp_path / "yard"), program="p", model="m", name="Hal"
            )
            send(line, tmp_path / "yard", "Bo", "k")
            asked = {"project_key": str(tmp_path / "yard"), "agent_name": "Hal"}
            found = soon(lambda: line.tool("fetch_inbox", **asked))
            assert [one["body_md"] for one in found] == ["hi"]
            [runner] = line.request("GET", "/admin/runners").json()["runners"]
            assert (runner["agent"], runner["declared_by"]) == ("Bo", "file")
        server.stop()
        (settings / "config.toml").write_text("")
        server.start()
        with server.line() as line:
            assert line.request("GET", "/admin/runners").json() == {"runners": []}
        server.stop()
        for name, words in (
            ("B\\u0007o", "name contains control characters"),
            ("M3", "the name 'M3' is reserved"),
        ):
            (settings / "config.toml").write_text(told.replace("Bo", name))
            with pytest.raises(AssertionError, match="ended at once"):
                server.start()
            assert "config.toml [[agents]]" in server.log()
            assert words in server.log()
            assert "Traceback" not in server.log()
