"""A chat's message reaches an agent that the server runs; it asks, the server restarts, a button resumes it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from channels.fake_telegram import TOKEN, FakeTelegram, update
from e2e.commands import run_here
from e2e.running import RunningServer, plain_environment, soon
from e2e.test_gateway_server import on_a_loop_of_its_own, secret

pytestmark = pytest.mark.long

AGENT = """
import os, sys
from pathlib import Path
from postroom.cli.client import Server

said = sys.stdin.read()
with Path("journal").open("a") as journal:
    journal.write(said.replace("\\n", " / ") + "\\n")
if "You asked a person" in said:
    print("Deleted." if "The answer is yes" in said else "Left alone.")
else:
    names = {"project_key": "PROJECT", "agent_name": "AGENT", "run_id": "RUN"}
    asked = {name: os.environ["POSTROOM_" + variable] for name, variable in names.items()}
    Server.find().call_tool("ask_person", {**asked, "question": "May I delete the branch?"})
    print("It is merged.")
"""


def agent_of(server: RunningServer, yard: Path) -> None:
    """Make the server run an agent, whose program reaches the server with the token of its run alone."""
    yard.mkdir()
    (yard / "agent.py").write_text(AGENT)
    runner = {"argv": [sys.executable, str(yard / "agent.py")]}
    with server.line() as line:
        line.tool("ensure_project", human_key=str(yard))
        line.tool("register_agent", project_key=str(yard), program="p", model="m", name="Ada")
        body = json.dumps({"project": str(yard), "agent": "Ada", "runner": runner}).encode()
        headers = {"Content-Type": "application/json"}
        assert line.request("PUT", "/admin/runners", body=body, headers=headers).status == 200


def feed(fake: FakeTelegram, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
    loop.call_soon_threadsafe(fake.feed, told)


def test_an_agent_that_asks_goes_on_when_a_button_is_pressed_after_a_restart(tmp_path: Path) -> None:
    data, yard = tmp_path / "data", tmp_path / "yard"
    data.mkdir(mode=0o700)
    secret(data, "bot.token", TOKEN)
    person = {"id": 1, "is_bot": False, "first_name": "Hal"}
    chat = {"id": 1, "type": "private", "first_name": "Hal"}
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, loop):
        (data / "gateway.toml").write_text(
            f'[agent]\nrun = "Ada@{yard}"\n[platforms.telegram]\ntoken_file = "bot.token"\n'
            f'base_url = "{fake.url}"\nallow = {{ "1" = "owner" }}\n'
        )
        server = RunningServer(data)
        with server:
            agent_of(server, yard)
            inbound = {"message_id": 7, "date": 1, "text": "tidy up", "from": person, "chat": chat}
            feed(fake, loop, update(1, message=inbound))
            card = soon(lambda: [one for one in fake.sent("sendMessage") if "reply_markup" in one])[0]
            assert "May I delete the branch?" in card["text"]
            yes = next(
                button["callback_data"]
                for row in card["reply_markup"]["inline_keyboard"]
                for button in row
                if button["callback_data"].startswith("approve")
            )
            assert server.stop() == 0
            server.start()
            pressed = {
                "id": "p1",
                "from": person,
                "chat_instance": "c",
                "data": yes,
                "message": {"message_id": 8, "date": 1, "chat": chat, "text": card["text"]},
            }
            feed(fake, loop, update(2, callback_query=pressed))
            soon(lambda: [one for one in fake.sent("sendMessage") if one["text"] == "Deleted\\."])
            feed(fake, loop, update(3, callback_query={**pressed, "id": "p2"}))
            soon(lambda: len(fake.sent("answerCallbackQuery")) == 2)
            server.stop()
        said = [one["text"] for one in fake.sent("sendMessage")]
        assert said.count("Deleted\\.") == 1
        journal = (yard / "journal").read_text().splitlines()
        assert journal[0] == "tidy up"
        assert journal[1:] == [
            "tidy up /  / You asked a person: May I delete the branch? / The answer is yes. / Continue with this answer."
        ]
        assert "Traceback" not in server.log()


def postroom(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_here(*words, environment={**plain_environment(data.parent), "POSTROOM_DATA_DIR": str(data)})
