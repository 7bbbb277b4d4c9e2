"""Two real servers on one PostgreSQL: reading, listening, logging in, deciding and ending work at the server that does not
do it.
"""

import json
import os
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import run_here
from e2e.running import Line, RunningServer, plain_environment, soon
from e2e.test_any_server_answers import Pair, answers, pair, run_by, send
from e2e.test_protocol_revisions import listen

__all__ = ["pair"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]
AGENT = Path(__file__).parents[1] / "executors" / "fake_acp_agent.py"
WORDS = """
import re
note = Path(OPTIONS['memory'], session + '.mark')
if found := re.findall('MARK[0-9]', prompt): note.write_text(found[-1])
call = {'toolCallId': f'c{os.getpid()}', 'title': 'Remove', 'rawInput': {'path': 'old'}}
allowed = may(call) if note.read_text() == 'MARK0' else 'unasked'
say(f'{allowed}: {note.read_text()}')
"""
WORKS = """
cat > /dev/null
echo $$ > pid
echo "a first line"
while [ ! -e more ]; do sleep 0.05; done
echo "a second line"
sleep 300
"""


def asked(server: RunningServer, method: str, target: str, document: Any = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    with server.line() as line:
        answer = line.request(method, target, body=body, headers={"Content-Type": "application/json"})
        assert answer.status == 200, answer
        return answer.json()


def at_work(server: RunningServer) -> str | None:
    found = asked(server, "GET", "/admin/runs")["runs"]
    return next((one["run_id"] for one in found if one["state"] == "at work"), None)


def test_a_run_is_followed_and_ended_at_the_server_that_does_not_execute_it(pair: Pair) -> None:
    run_by(pair, "Bo", {"argv": ["sh", "-c", WORKS], "cwd": str(pair.yard)})
    send(pair.has, pair.yard, "long work")
    run = soon(lambda: at_work(pair.other), "it is at work")

    def shows(words: str) -> bool:
        return words in asked(pair.other, "GET", f"/admin/runs/one?run={run}")["output"]

    soon(lambda: shows("a first line"), "its output is told")
    (pair.yard / "more").touch()
    soon(lambda: shows("a second line"), "what it says next is told")
    program = Path(f"/proc/{(pair.yard / 'pid').read_text().strip()}")
    assert program.exists()
    asked(pair.other, "POST", "/admin/runs/cancel", {"run": run})
    soon(lambda: not program.exists(), "its program has ended")
    soon(lambda: asked(pair.has, "GET", f"/admin/runs/one?run={run}")["state"] == "cancelled", "it has ended")


def test_a_question_is_answered_at_the_server_that_did_not_ask_it(pair: Pair) -> None:
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(AGENT),
        WORDS,
        json.dumps({"loads": True, "memory": str(pair.yard)}),
    ]
    run_by(pair, "Cy", {"kind": "acp", "argv": argv})
    send(pair.has, pair.yard, "MARK0", "Cy", "MARK0")
    [question] = soon(
        lambda: asked(pair.other, "GET", "/admin/questions")["questions"], "the other knows the question"
    )
    asked(pair.other, "POST", "/admin/questions", {"number": question["number"], "answer": "yes"})
    soon(lambda: "yes: MARK0" in answers(pair.has, pair.yard), "the agent was told")
    assert asked(pair.has, "GET", "/admin/questions")["questions"] == []


def test_who_listens_at_one_server_hears_of_what_is_done_at_the_other(pair: Pair) -> None:
    slug = asked(pair.has, "GET", "/admin/projects")["projects"][0]["slug"]
    stream = {"Accept": "text/event-stream"}
    with pair.other.line() as ear, pair.other.line() as log:
        uri = f"mail://inbox/{slug}/Ada"
        listen(ear, uri)
        newest = log.request("GET", f"/v1/events?project_key={pair.yard}&after=0&limit=1").json()
        begun = log.request("GET", f"/v1/events?project_key={pair.yard}", headers=stream)
        assert (begun.is_stream, newest["events"][0]["seq"]) == (True, 1)
        send(pair.has, pair.yard, "news", "Ada")
        [heard] = ear.events(1)
        assert heard["params"]["uri"] == uri
        [event] = log.events(1)
        assert event["kind"] == "message.sent"


def test_what_is_stored_at_one_server_is_found_at_the_other(pair: Pair) -> None:
    picture = os.urandom(200_000)
    with pair.has.line() as line:
        sent = line.tool(
            "send_message",
            project_key=str(pair.yard),
            sender_name="Ada",
            to=["Ada"],
            subject="A lighthouse",
            body_md="The lantern is polished.",
            attachments=[{"name": "light.bin", "content_base64": b64encode(picture).decode()}],
        )
    [delivery] = sent["deliveries"]
    with pair.other.line() as line:
        found = line.tool("search_messages", project_key=str(pair.yard), query="polished lantern")
        assert [one["id"] for one in found["hits"]] == [delivery["payload"]["id"]]
        [one] = delivery["payload"]["attachments"]
        got = line.request("GET", f"/attachments/{one['sha256']}?message={delivery['payload']['id']}")
        assert got.body == picture, (one, got.body[-900:])


def test_a_token_that_one_server_made_is_good_at_the_other_until_that_revokes_it(pair: Pair) -> None:
    here = {**plain_environment(pair.yard), "POSTROOM_DATA_DIR": str(pair.has.data_dir)}
    done = run_here("tokens", "create", "ci", "--scope", "mail:read", environment=here)
    assert done.returncode == 0, done.stderr
    made = done.stdout.strip()

    def opens(server: RunningServer) -> bool:
        with Line(server.address, headers={"Authorization": f"Bearer {made}"}) as line:
            return line.rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).status == 200

    assert [opens(server) for server in (pair.has, pair.other)] == [True, True]
    asked(pair.other, "DELETE", "/admin/tokens", {"name": "ci"})
    assert [opens(server) for server in (pair.has, pair.other)] == [False, False]
