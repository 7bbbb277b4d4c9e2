"""An agent writes to a person, the message is shown in their chat, and their reply comes back as mail."""

import json
from pathlib import Path
from typing import Any

import pytest

from channels.fake_telegram import TOKEN, FakeTelegram, update
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
