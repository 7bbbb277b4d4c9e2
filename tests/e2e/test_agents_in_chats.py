"""A chat's message reaches an agent that the server runs; it asks, the server is started anew, a button lets it go on."""

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
from postroom.mail.projects import slug_of

pytestmark = pytest.mark.long

PATIENCE = 20.0
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
    """Have an agent run by the server."""
    yard.mkdir()
    (yard / "agent.py").write_text(AGENT)
    runner = {
        "argv": [sys.executable, str(yard / "agent.py")],
        "env": {"POSTROOM_DATA_DIR": str(server.data_dir)},
    }
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


def test_a_question_is_listed_and_answered_from_the_command_line_once(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        agent_of(server, tmp_path / "yard")
        with server.line() as line:
            line.tool(
                "register_agent", project_key=str(tmp_path / "yard"), program="p", model="m", name="Hal"
            )
            message = {"sender_name": "Hal", "to": ["Ada"], "subject": "s", "body_md": "tidy up"}
            line.tool("send_message", project_key=str(tmp_path / "yard"), **message)
            [asked] = soon(lambda: line.request("GET", "/admin/questions").json()["questions"])
            assert asked["question"] == "May I delete the branch?"
            headers = {"Content-Type": "application/json"}
            answers = [
                line.request(
                    "POST",
                    "/admin/questions",
                    body=json.dumps({"number": asked["number"], "answer": word}).encode(),
                    headers=headers,
                )
                for word in ("no", "yes")
            ]
            assert [one.status for one in answers] == [200, 409]

            def told() -> list[str]:
                found = line.tool(
                    "fetch_inbox", project_key=str(tmp_path / "yard"), agent_name="Hal", after=0
                )
                return [one["body_md"] for one in found]

            assert soon(lambda: told() if len(told()) == 2 else None)[1] == "Left alone."
            assert told()[0].startswith("It is merged.\n\nAda has a question:")


def test_two_agents_of_one_group_answer_each_to_its_name_and_whoever_is_not_there_is_told_of(
    tmp_path: Path,
) -> None:
    data, yard = tmp_path / "data", tmp_path / "yard"
    data.mkdir(mode=0o700)
    yard.mkdir()
    secret(data, "bot.token", TOKEN)
    person = {"id": 1, "is_bot": False, "first_name": "Hal"}
    chat = {"id": -100, "type": "supergroup", "title": "Harbour"}
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, loop):

        def told(routes: str) -> None:
            (data / "gateway.toml").write_text(
                f'[agent]\nrun = "Ada@{yard}"\n[platforms.telegram]\ntoken_file = "bot.token"\n'
                f'base_url = "{fake.url}"\nallow = {{ "1" = "owner" }}\n{routes}'
            )

        told("")
        server = RunningServer(data)
        with server, server.line() as line:
            line.crew(str(yard), "Ada", "Bo")
            for name in ("Ada", "Bo"):
                runner = {"argv": ["sh", "-c", "cat > /dev/null; echo I am $POSTROOM_AGENT"]}
                body = json.dumps({"project": str(yard), "agent": name, "runner": runner}).encode()
                headers = {"Content-Type": "application/json"}
                assert line.request("PUT", "/admin/runners", body=body, headers=headers).status == 200
        told(f'[[routes]]\nagent = "Bo@{yard}"\nmention = "bo"\n')
        server.start()
        for number, text in enumerate(("@bo who are you?", "/queue and you?"), 1):
            inbound = {"message_id": number, "date": 1, "text": text, "from": person, "chat": chat}
            feed(fake, loop, update(number, message=inbound))
        soon(lambda: len(fake.sent("sendMessage")) == 2)
        assert server.stop() == 0
        said = {one["text"].replace("\\", "") for one in fake.sent("sendMessage")}
        assert said == {"Bo: I am Bo", "I am Ada"}
        told('[[routes]]\nagent = "bo@elsewhere"\nmention = "bo"\n')
        server.start()
        refused = postroom(data, "gateway", "config", "check")
        lost = "rule 1 names bo@elsewhere, but there is no such agent"
        assert (refused.returncode, lost in refused.stderr) == (78, True)
        others = f"use one of the agents named bo: Bo@{slug_of(str(yard))}"
        assert others in refused.stderr
        assert others in postroom(data, "gateway", "status").stdout
        assert server.stop() == 0
        told(
            f'[[routes]]\nagent = "Cy@{yard}"\nmention = "cy"\n[[routes]]\nagent = "human:eve"\nmention = "eve"\n'
        )
        unchecked = postroom(data, "gateway", "config", "check")
        assert (unchecked.returncode, "no server is running" in unchecked.stdout) == (0, True)
        server.start()
        for number, text in enumerate(("@cy who are you?", "@eve and you?", "/queue and the others?"), 3):
            inbound = {"message_id": number, "date": 1, "text": text, "from": person, "chat": chat}
            feed(fake, loop, update(number, message=inbound))
        soon(lambda: len(fake.sent("sendMessage")) == 5)
        said = {one["text"].replace("\\", "") for one in fake.sent("sendMessage")[2:]}
        assert {one.partition(":")[0] for one in said} >= {"I am Ada", "Not sent to eve"}
        assert f"Nobody answers: there is no agent 'Cy@{yard}'; tell who runs this server" in "".join(said)
        whole = (f"rule 1 names Cy@{yard}, but there is no such agent", "rule 2 names human:eve")
        told_of = postroom(data, "gateway", "status").stdout
        assert all(one in told_of for one in whole)
        refused = postroom(data, "gateway", "config", "check")
        assert (refused.returncode, all(one in refused.stderr for one in whole)) == (78, True)
        with server.line() as line:
            line.tool("register_agent", project_key=str(yard), program="p", model="m", name="Cy")
        without = f"rule 1 names Cy@{yard}, but this agent has no runner"
        told_of = [postroom(data, *words).stdout for words in (("gateway", "status"), ("doctor",))]
        assert all(without in " ".join(one.split()) for one in told_of), told_of
        assert without in postroom(data, "gateway", "config", "check").stderr
        inbound = {"message_id": 8, "date": 1, "text": "@cy who are you?", "from": person, "chat": chat}
        feed(fake, loop, update(8, message=inbound))
        soon(lambda: len(fake.sent("sendMessage")) == 6)
        answer = fake.sent("sendMessage")[-1]["text"].replace("\\", "")
        assert f"Nobody answers: agent 'Cy@{yard}' has no runner; tell who runs this server" in answer
        told("")
        assert postroom(data, "gateway", "config", "check").returncode == 0
        told('[[routes]]\nagent = "human:eve"\n')
        assert whole[1].replace("2", "1") in postroom(data, "gateway", "config", "check").stderr
        assert postroom(data, "people", "add", "eve").returncode == 0
        assert postroom(data, "gateway", "config", "check").returncode == 0
        inbound = {"message_id": 9, "date": 1, "text": "@eve once more", "from": person, "chat": chat}
        feed(fake, loop, update(9, message=inbound))
        soon(lambda: "eve has your message" in fake.sent("sendMessage")[-1]["text"])
        gone = postroom(data, "people", "remove", "eve").stdout
        assert "still routes chats to this person" in gone
        server.stop()


def postroom(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_here(*words, environment={**plain_environment(data.parent), "POSTROOM_DATA_DIR": str(data)})
