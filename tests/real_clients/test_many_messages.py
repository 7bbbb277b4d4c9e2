"""Many messages to one woken Claude Code and one woken Codex, over many threads, while the server is killed.

`POSTROOM_CLIENT_MESSAGES=200` sends 200 messages, half of them to each client; the default is 12.
"""

import os
import re
import threading
import time
from collections import Counter
from typing import Any, Final

import pytest

from real_clients.asked import Asked, Said, Say, Step
from real_clients.clients import CLIENTS
from real_clients.home import PROXIES, Home
from real_clients.model_server import ModelServer

MESSAGES: Final = int(os.environ.get("POSTROOM_CLIENT_MESSAGES", "12"))
THREADS: Final = min(20, MESSAGES // 2)
KILLS: Final = 3
PATIENCE: Final = 120.0 + 30.0 * MESSAGES
WORKERS: Final = {"Bo": "claude", "Cy": "codex"}
WORD: Final = re.compile(r"The word is (\w+)\.")
WOKEN: Final = "Mail has come for you"
pytestmark = [pytest.mark.long, pytest.mark.timeout(PATIENCE + 120)]


def says_its_word(asked: Asked) -> Step:
    """Return the word of the newest message with which the run was started."""
    woken = [turn.text for turn in asked.turns if isinstance(turn, Said) and WOKEN in turn.text]
    return Say(f"You said {WORD.findall(woken[-1])[-1]}.")


class Correspondence:
    """Ada writes on each thread, and writes the next message of a thread when the last message was answered."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._seq = 0
        self.sent: dict[int, tuple[str, str]] = {}
        """The thread and the word of each message, by its id."""
        self.answers: dict[int, list[tuple[str, str]]] = {}
        """The thread and the text of each answer, by the id of the message that it answers."""
        self._words = iter(range(MESSAGES))
        self.kills = 0

    def open(self) -> None:
        self._home.must("postroom", "agents", "register", "Ada")
        for name, program in WORKERS.items():
            client = CLIENTS[program]
            passed = [word for one in (*client.pass_env, *PROXIES) for word in ("--pass-env", one)]
            self._home.must("postroom", "agents", "register", name)
            self._home.must("postroom", "agents", "set-runner", name, *client.runner, "--resume", *passed)
        for number in range(THREADS):
            self._write(f"t{number}")

    def _write(self, thread: str) -> None:
        """Write the next message on a thread; even threads are with Claude Code, odd threads with Codex."""
        number = next(self._words, None)
        if number is None:
            return
        to = list(WORKERS)[int(thread[1:]) % len(WORKERS)]
        words = {"sender_name": "Ada", "to": [to], "subject": thread, "body_md": f"The word is w{number}."}
        with self._home.server.line() as line:
            told = line.tool("send_message", project_key=self._project, thread_id=thread, **words)
        self.sent[told["deliveries"][0]["payload"]["id"]] = (thread, f"w{number}")

    @property
    def _project(self) -> str:
        return str(self._home.project)

    def read(self) -> None:
        """Read what came, and write on where an answer came."""
        for message in self._news():
            self._seq = max(self._seq, message["seq"])
            answered = self.answers.setdefault(message["reply_to"], [])
            answered.append((message["thread_id"], message["body_md"]))
            if len(answered) == 1:
                self._write(message["thread_id"])

    def _news(self) -> list[Any]:
        with self._home.server.line() as line:
            asked = {"project_key": self._project, "agent_name": "Ada", "after": self._seq, "limit": 50}
            return list(line.tool("fetch_inbox", **asked))

    def kill_if_due(self) -> None:
        """Kill the server with runs in progress when a quarter, a half and three quarters are answered."""
        if self.kills < KILLS and len(self.answers) * (KILLS + 1) >= MESSAGES * (self.kills + 1):
            self.kills += 1
            self._home.server.kill()
            self._home.server.start()


def test_each_message_gets_its_right_answer_once_though_the_server_is_killed(
    home: Home, model: ModelServer
) -> None:
    for program in WORKERS.values():
        CLIENTS[program].prepare(home)
    model.script = says_its_word
    work = Correspondence(home)
    begun = time.monotonic()
    with home.server:
        work.open()
        while len(work.answers) < MESSAGES:
            assert time.monotonic() < begun + PATIENCE, (
                f"{len(work.answers)} of {MESSAGES}: {home.postroom('runs', 'list')}\n{home.server.log()[-3000:]}"
            )
            threading.Event().wait(0.5)
            work.read()
            work.kill_if_due()
        while any(not run["finished_at"] for run in home.postroom("runs", "list")["runs"]):
            assert time.monotonic() < begun + PATIENCE, home.server.log()[-3000:]
            threading.Event().wait(0.5)
        work.read()  # a second answer to a message would be here by now
    right = {number: [(thread, f"You said {word}.")] for number, (thread, word) in work.sent.items()}
    wrong = {number: found for number, found in work.answers.items() if found != right.get(number)}
    spent = time.monotonic() - begun
    print(f"{len(work.sent)} messages, {THREADS} threads, {work.kills} kills, {spent:.0f} s")
    assert (len(work.sent), work.kills, wrong) == (MESSAGES, KILLS, {})
    assert work.answers.keys() == right.keys()
    assert Counter(thread for thread, _ in work.sent.values()).keys() == {f"t{n}" for n in range(THREADS)}
