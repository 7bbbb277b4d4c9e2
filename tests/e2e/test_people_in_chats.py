"""An agent writes to a person, the message is said in their chat, and what they say there comes back as mail."""

import contextlib
import json
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from channels.fake_telegram import TOKEN, FakeTelegram, shown_text, update
from e2e.running import RunningServer, soon
from e2e.test_agents_in_chats import feed
from e2e.test_gateway_server import on_a_loop_of_its_own, secret

pytestmark = pytest.mark.long

HAL = {"id": 1, "is_bot": False, "first_name": "Hal"}
CHAT = {"id": 1, "type": "private", "first_name": "Hal"}


def asked(line: Any, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"}
    told = line.request(
        method, path, body=None if body is None else json.dumps(body).encode(), headers=headers
    )
    assert told.status == 200, told.text
    return told.json()


def test_a_person_reads_a_message_in_a_chat_and_answers_it_after_a_restart(tmp_path: Path) -> None:
    data, yard = tmp_path / "data", str(tmp_path / "yard")
    data.mkdir(mode=0o700)
    secret(data, "bot.token", TOKEN)
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, loop):
        (data / "gateway.toml").write_text(
            '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
            f'[platforms.telegram]\ntoken_file = "bot.token"\nbase_url = "{fake.url}"\nallow = {{ "1" = "owner" }}\n'
        )
        server = RunningServer(data)
        with server:
            with server.line() as line:
                line.tool("ensure_project", human_key=yard)
                line.tool("register_agent", project_key=yard, program="p", model="m", name="Ada")
                added = asked(line, "PUT", "/admin/people", {"name": "hal", "chat": "telegram/1"})
                assert (added["address"], added["reached"]) == ("human:hal", True)
                message = {
                    "sender_name": "Ada",
                    "to": ["human:hal"],
                    "subject": "Push",
                    "body_md": "May I push?",
                }
                sent = line.tool("send_message", project_key=yard, **message)
                assert sent["deliveries"][0]["seen"] == ["message in a chat"]
                number = sent["deliveries"][0]["payload"]["id"]
                [said] = soon(
                    lambda: [one for one in fake.sent("sendMessage") if "May I push?" in one["text"]]
                )
                assert said["chat_id"] in (1, "1")
                mine = {"project_key": yard, "agent_name": "Ada", "message_id": number}
                told = soon(lambda: _announced(line.tool("delivery_status", **mine)))
                assert told["announced_by"] == "chat:telegram/1"
            assert server.stop() == 0
            server.start()
            reply = {"message_id": 7, "date": 1, "text": f"/reply {number} Yes.", "from": HAL, "chat": CHAT}
            feed(fake, loop, update(1, message=reply))
            with server.line() as line:
                inbox = soon(lambda: line.tool("fetch_inbox", project_key=yard, agent_name="Ada", after=0))
                assert [(one["from"], one["subject"], one["body_md"]) for one in inbox] == [
                    ("human:hal", "Re: Push", "Yes.")
                ]
                [person] = asked(line, "GET", "/admin/people")["people"]
                assert (person["chat"], person["unread"]) == ("telegram/1", 0)
            server.stop()
        assert len([one for one in fake.sent("sendMessage") if "May I push?" in one["text"]]) == 1
        assert "Traceback" not in server.log()


def _announced(told: dict[str, Any]) -> dict[str, Any] | None:
    [one] = told["recipients"]
    return one if one["state"] == "announced" else None


def test_a_server_that_is_killed_passes_each_message_on_to_the_person_once_and_in_order(
    tmp_path: Path,
) -> None:
    """`kill -9` of a real server while a visitor writes, and while the person's answers go back."""
    chance, data = random.Random(5), tmp_path / "data"
    data.mkdir(mode=0o700)
    secret(data, "bot.token", TOKEN)
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, loop):
        channels = (
            '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
            f'[platforms.telegram]\ntoken_file = "bot.token"\nbase_url = "{fake.url}"\n'
            'allow = { "1" = "owner", "2" = "member" }\n'
        )
        (data / "gateway.toml").write_text(channels)
        with RunningServer(data) as server:
            with server.line() as line:
                asked(line, "PUT", "/admin/people", {"name": "hal", "chat": "telegram/1"})
            server.stop()
            rule = '[[routes]]\nagent = "human:hal"\nplatform = "telegram"\nchat = "2"\n'
            (data / "gateway.toml").write_text(channels + rule)
            server.start()
            said = [f"word {number}" for number in range(10)]  # a chat is told one a second
            for number, text in enumerate(said):
                feed(fake, loop, update(number + 1, message=_of(2, number + 1, text)))
                if number in (2, 5, 9):
                    _killed(server, chance)
            soon(lambda: all(any(text in one.splitlines() for one in _said(fake, 1)) for text in said))
            server.stop()
            inbox = _messages(server.database)
            assert [body for _, body in inbox] == said
            server.start()
            for number, (message_id, _) in enumerate(inbox[:4]):
                text = f"/reply {message_id} answer {number}"
                feed(fake, loop, update(100 + number, message=_of(1, 100 + number, text)))
                if number in (1, 3):
                    _killed(server, chance)
            answers = [f"hal: answer {number}" for number in range(4)]
            soon(lambda: all(any(one.endswith(text) for one in _said(fake, 2)) for text in answers))
            assert server.stop() == 0
        passed_on = [one for one in _said(fake, 1) if one.startswith("Message ")]
        told = [one for one in _said(fake, 2) if one.startswith("hal: ")]
        assert len(passed_on) == len(set(passed_on))  # what comes again is marked
        assert len(told) == len(set(told))
        with contextlib.closing(sqlite3.connect(server.database)) as connection:
            letters = connection.execute("SELECT dedupe_key FROM outbox WHERE dedupe_key LIKE 'letter/%'")
            keys = [key for (key,) in letters]
        assert len(keys) == len(set(keys)) == len(said) + len(answers)  # and is the same effect, tried again
        assert "Traceback" not in server.log()


def _killed(server: RunningServer, chance: random.Random) -> None:
    """Kill a server after a moment, and start it again."""
    threading.Event().wait(chance.uniform(0.0, 0.3))
    server.kill()
    server.start()


def _of(chat: int, message_id: int, text: str) -> dict[str, Any]:
    who = {"id": chat, "is_bot": False, "first_name": f"P{chat}"}
    return {"message_id": message_id, "date": 1, "text": text, "from": who, "chat": {**CHAT, "id": chat}}


def _messages(database: Path) -> list[tuple[int, str]]:
    """Return what was written, oldest first, by a server that has ended."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT id, body_md FROM messages ORDER BY id").fetchall()


def _said(fake: FakeTelegram, chat: int) -> list[str]:
    """Return what was said in a chat."""
    return [shown_text(one["text"]) for one in fake.sent("sendMessage") if str(one["chat_id"]) == str(chat)]
