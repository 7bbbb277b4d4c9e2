"""Two real servers on one PostgreSQL: the work of one of them can be requested and read at the other."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from e2e.running import Answer, Line, RunningServer, plain_environment, soon
from e2e.test_gateway_server import (
    HOOK_SECRET,
    EchoingModel,
    ask,
    chat_page,
    configured,
    is_answer,
    on_a_loop_of_its_own,
    secret,
    shown,
    told,
)
from e2e.test_http_agents import SECRET, FakeRemote, give
from postroom.contracts.signing import signature
from store_kinds import refuse_missing

HOOK = '[platforms.webhook.routes.ci]\nsecret_file = "ci.secret"\n'
pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


class Pair(NamedTuple):
    """Two servers: the holder of the chat channels, and the other."""

    has: RunningServer
    other: RunningServer
    yard: Path


@pytest.fixture(scope="module")
def pair(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    refuse_missing("postgres")
    folder, schema = tmp_path_factory.mktemp("pair"), f"any_server_{os.getpid()}"
    yard = folder / "yard"
    yard.mkdir()
    environment = {
        **plain_environment(folder),
        "POSTROOM_DATABASE_URL": postgres_dsn,
        "POSTROOM_DATABASE_SCHEMA": schema,
    }
    with on_a_loop_of_its_own(lambda: EchoingModel().serving()) as (model, _):
        servers = []
        for name in ("one", "two"):
            data = configured(folder, model.url, HOOK, name=name)
            secret(data, "ci.secret", HOOK_SECRET)
            secret(data, "token", "prm_" + "t" * 43)
            servers.append(RunningServer(data, environment=environment))
        with servers[0], servers[1]:
            with servers[0].line() as line:
                line.tool("ensure_project", human_key=str(yard))
                for agent in ("Ada", "Bo", "Cy"):
                    line.tool("register_agent", project_key=str(yard), program="p", model="m", name=agent)
            yield Pair(*servers, yard)
    for server in servers:
        assert "Traceback" not in server.log()
    with psycopg.connect(postgres_dsn, autocommit=True) as session:
        session.execute(f"DROP SCHEMA {schema} CASCADE")


def signed(body: bytes, delivery: str) -> dict[str, str]:
    now = str(int(time.time()))
    return {
        "Content-Type": "application/json",
        "X-Postroom-Timestamp": now,
        "X-Postroom-Signature": signature(HOOK_SECRET, now, body),
        "X-Postroom-Delivery": delivery,
    }


def test_a_webhook_is_taken_and_its_answer_fetched_at_any_server(pair: Pair) -> None:
    body = json.dumps({"text": "the build ended"}).encode()
    headers = signed(body, "delivery-1")
    with pair.other.line() as other, pair.has.line() as has:
        assert other.request("POST", "/channels/webhook/ci", body=body, headers=headers).status == 202
        again = {**headers, "X-Postroom-Delivery": "delivery-2"}
        for line in (has, other):
            replayed = line.request("POST", "/channels/webhook/ci", body=body, headers=again)
            assert (replayed.status, replayed.json()["error"]["code"]) == (401, "replayed")
            wrong = line.request("POST", "/channels/webhook/ci", body=body + b" ", headers=headers)
            assert wrong.status == 401
        path = "/webhook/ci/answers/delivery-1"
        for line in (other, has):
            soon(
                lambda line=line: (
                    line.request(  # type: ignore[misc]
                        "GET", f"/channels{path}", headers=signed(path.encode(), "none")
                    ).status
                    == 200
                ),
                "the answer is there",
            )


def test_each_server_answers_in_the_openai_protocol(pair: Pair) -> None:
    assert ask(pair.other, "first", "both") == "re: first (1)"
    assert ask(pair.has, "second", "both") == "re: second (3)"


def test_what_is_said_in_the_home_chat_may_be_asked_of_any_server(pair: Pair) -> None:
    with chat_page(pair.has) as browser:
        browser.post("/chat/messages", json={"id": "make-it-home", "text": "/sethome"})
        shown(browser, is_answer("This chat is now the home channel."))
        told(pair.other.data_dir, "send", "web", "home", "The lights go out at ten.")
        shown(browser, is_answer("The lights go out at ten."))
        assert told(pair.other.data_dir, "reconnect", "web")["state"] == "connected"


ACTS = """
cat > /dev/null
printf '%s' "$POSTROOM_TOKEN" > token.new && mv token.new token
while [ ! -e go ]; do sleep 0.1; done
echo "It is done."
"""


def run_by(pair: Pair, agent: str, runner: dict[str, Any]) -> None:
    asked = {"project": str(pair.yard), "agent": agent, "runner": runner}
    with pair.has.line() as line:
        answer = line.order("PUT", "/admin/runners", asked)
        assert answer.status == 200, answer


def send(server: RunningServer, yard: Path, subject: str, to: str = "Bo", body: str = "Are they on?") -> None:
    with server.line() as line:
        line.tool(
            "send_message",
            project_key=str(yard),
            sender_name="Ada",
            to=[to],
            subject=subject,
            body_md=body,
        )


def answers(server: RunningServer, yard: Path) -> list[str]:
    with server.line() as line:
        found = line.tool("fetch_inbox", project_key=str(yard), agent_name="Ada", include_bodies=True)
    return [one["body_md"] for one in found]


def await_answer(server: RunningServer, yard: Path, number: int) -> list[str]:
    return soon(
        lambda: len(found := [one for one in answers(server, yard) if "They" in one]) >= number and found,
        "it answered",
    )


def test_a_program_reaches_every_server_with_the_token_of_its_run_until_that_has_ended(pair: Pair) -> None:
    run_by(pair, "Bo", {"argv": ["sh", "-c", ACTS], "cwd": str(pair.yard)})
    send(pair.has, pair.yard, "token")
    token = soon(
        lambda: (pair.yard / "token").exists() and (pair.yard / "token").read_text(), "the program began"
    )
    for server in (pair.has, pair.other):
        with Line(server.address, headers={"Authorization": f"Bearer {token}"}) as line:
            found = line.tool("fetch_inbox", project_key=str(pair.yard), agent_name="Bo")
            assert [one["subject"] for one in found] == ["token"]
            refused = line.request("GET", f"/v1/inbox?project_key={pair.yard}&agent_name=Ada")
            assert refused.status in (403, 404), refused
            assert line.request("GET", "/admin/tokens").status == 403
    (pair.yard / "go").touch()
    soon(lambda: "It is done." in answers(pair.other, pair.yard), "it answered")

    def opens(server: RunningServer) -> bool:
        with Line(server.address, headers={"Authorization": f"Bearer {token}"}) as line:
            return line.rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).status != 401

    soon(lambda: not any(map(opens, (pair.has, pair.other))), "the token opens nothing")


def test_another_programs_result_is_taken_at_any_server(pair: Pair) -> None:
    secret(pair.yard, "secret", SECRET)
    with FakeRemote() as remote:
        run_by(pair, "Cy", {"kind": "http", "url": remote.url, "secret_file": str(pair.yard / "secret")})
        for number, server in enumerate((pair.has, pair.other), 1):
            send(server, pair.yard, "remote", "Cy")
            run = remote.run(number)
            for there in (pair.has, pair.other):
                path = run["callback"][run["callback"].index("/callbacks") :]
                taken: Answer = give(
                    there, {**run, "callback": f"{there.url}{path}"}, text=f"They are on: {number}."
                )
                assert (taken.status, taken.json()) == (200, {"taken": True}), taken
            assert f"They are on: {number}." in await_answer(server, pair.yard, number)
        remote.shutdown()
