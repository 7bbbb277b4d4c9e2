"""One of two real servers is suspended beyond its leases and continued: the other server has taken over its work."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from channels.fake_telegram import TOKEN, message, update
from e2e.running import RunningServer, plain_environment, soon
from e2e.test_gateway_server import (
    EchoingModel,
    chat_page,
    configured,
    is_answer,
    on_a_loop_of_its_own,
    secret,
    shown,
)
from e2e.test_work_across_servers import asked
from soak.peers import Telegram
from store_kinds import refuse_missing

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


class Chat:
    """A chat of Telegram: the messages in it, and the bot's messages with their counts."""

    def __init__(self, telegram: Telegram, loop: Any, said: Counter[str]) -> None:
        self.telegram, self.said, self._loop, self._ids = telegram, said, loop, count(1)

    def say(self, text: str) -> None:
        number = next(self._ids)
        self._loop.call_soon_threadsafe(self.telegram.feed, update(number, message=message(number, text)))

    def await_answer(self, text: str) -> None:
        soon(lambda: any(f"re: {text} " in one for one in self.said), f"{text!r} was answered")

    def asked_by(self, server: int) -> int:
        return self.telegram.pollers[server]


@pytest.fixture
def chat() -> Iterator[tuple[Chat, list[str]]]:
    said: Counter[str] = Counter()

    async def heard(_: int, __: str, text: str) -> None:
        said[text] += 1

    @asynccontextmanager
    async def serving() -> Any:
        telegram = Telegram(heard)
        async with telegram.serving_each(2, ()) as urls:
            yield telegram, urls

    with on_a_loop_of_its_own(serving) as ((telegram, urls), loop):
        yield Chat(telegram, loop, said), urls


@pytest.fixture
def servers(
    postgres_dsn: str, chat: tuple[Chat, list[str]], tmp_path: Path
) -> Iterator[tuple[RunningServer, RunningServer]]:
    refuse_missing("postgres")
    schema = f"stood_still_{os.getpid()}"
    environment = {
        **plain_environment(tmp_path),
        "POSTROOM_DATABASE_URL": postgres_dsn,
        "POSTROOM_DATABASE_SCHEMA": schema,
    }
    with on_a_loop_of_its_own(lambda: EchoingModel().serving()) as (model, _):
        made = []
        for name, url in zip(("one", "two"), chat[1], strict=True):
            table = f'[platforms.telegram]\ntoken_file = "bot.token"\nbase_url = "{url}"\nallow = {{"*" = "owner"}}\n'
            data = configured(tmp_path, model.url, table, name=name)
            secret(data, "bot.token", TOKEN)
            secret(data, "token", "prm_" + "t" * 43)
            made.append(RunningServer(data, environment=environment))
        with made[0], made[1]:
            yield made[0], made[1]
    for server in made:
        assert "Traceback" not in server.log(), server.log()[-6000:]
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")


def write(server: RunningServer, subject: str) -> None:
    with server.line() as line:
        told = {"project_key": "/yard/still", "sender_name": "Ada", "to": ["Ada"], "body_md": "b"}
        line.tool("send_message", **told, subject=subject)


def archived(server: RunningServer) -> str:
    """Return the subjects of the commits of a server's archive."""
    folder = server.repository("yard-still")
    done = subprocess.run(
        ["git", "-C", str(folder), "ls-tree", "-r", "--name-only", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_what_one_did_alone_is_the_others_when_it_stood_still_and_when_it_goes_on(
    servers: tuple[RunningServer, RunningServer], chat: tuple[Chat, list[str]]
) -> None:
    (first, second), (talk, _) = servers, chat
    with first.line() as line:
        line.tool("ensure_project", human_key="/yard/still")
        line.tool("register_agent", project_key="/yard/still", program="p", model="m", name="Ada")
    write(first, "before")
    talk.say("one")
    talk.await_answer("one")
    first.await_archive()
    assert "before" in archived(first)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        talk.telegram.still.add(0)
        asked_before = talk.asked_by(0)
        talk.say("two")
        write(second, "meanwhile")
        talk.await_answer("two")
        second.await_archive()
        assert "meanwhile" in archived(second)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    talk.telegram.still.clear()
    soon(
        lambda: (
            asked(first, "GET", "/health/detailed")["gateway"]["channels"]["telegram"]["state"] == "elsewhere"
        ),
        "the first has let the bot go",
    )
    write(first, "afterwards")
    talk.say("three")
    talk.await_answer("three")
    second.await_archive()
    assert "afterwards" in archived(second)
    assert "afterwards" not in archived(first)
    assert talk.asked_by(0) == asked_before
    assert talk.telegram.two_at_once == []
    assert set(talk.said.values()) == {1}, talk.said
    done_by = {one["work"].split()[0]: one["server"] for one in asked(first, "GET", "/admin/cluster")["work"]}
    [other] = [one["name"] for one in asked(second, "GET", "/admin/cluster")["servers"] if one["is_this"]]
    assert set(done_by.values()) == {other}, done_by


def test_who_reads_a_chat_at_the_other_server_is_let_go_when_its_server_dies_and_comes_back_there(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    first, second = servers
    with chat_page(second) as browser:
        with browser.stream("GET", "/chat/events") as events:
            lines = events.iter_lines()
            assert next(lines)
            first.kill()
            with suppress(httpx2.RequestError):
                list(lines)

        def is_there() -> bool:
            answer = browser.get("/chat")
            assert answer.status_code in (200, 503), answer
            return answer.status_code == 200

        soon(is_there, "the second has the page")
    with chat_page(second) as browser:
        browser.post("/chat/messages", json={"id": "after-the-kill", "text": "still there?"})
        assert shown(browser, is_answer("re: still there? (1)"))["kind"] == "answer"
    with chat_page(first.start()) as browser, browser.stream("GET", "/chat/events") as events:
        assert events.status_code == 200
        assert first.stop() == 0
