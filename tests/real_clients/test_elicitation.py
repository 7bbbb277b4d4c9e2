"""A person is asked in the window of the client: real clients of the protocol, in both of its forms."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fastmcp
import httpx2
import mcp
import pytest
from fastmcp.client.elicitation import ElicitResult as Filled
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from e2e.running import RunningServer
from machine import Bound
from mail_room import HARBOR
from real_clients.asked import CallTool, Say
from real_clients.bench import Bench
from real_clients.home import PROGRAMS, are_installed, beside_packages
from real_clients.terminal import at_a_terminal

pytestmark = pytest.mark.long

NODE = PROGRAMS.parent / "node" / "bin" / "node"
needs_npm = pytest.mark.skipif(
    not are_installed(("@modelcontextprotocol/sdk", "node")),
    reason="the clients are not installed in their pinned versions: `make clients`",
)
PATIENCE = 60
ASKED = {"project_key": HARBOR, "agent_name": "Ada", "question": "EUR or USD?", "choices": ["EUR", "USD"]}
PRICE = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1},
        "currency": {"type": "string", "enum": ["EUR", "USD"]},
    },
    "required": ["amount"],
}
Answer = dict[str, Any] | None
"""The values that the person enters; None if they decline."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("elicitation") / "data") as running:
        with running.line() as line:
            line.tool("ensure_project", human_key=HARBOR)
            line.tool("register_agent", project_key=HARBOR, program="p", model="m", name="Ada")
        yield running


def _python(mode: str, before: Callable[[], None] = lambda: None) -> Callable[..., tuple[Any, list[Any]]]:
    def ask(server: RunningServer, asked: dict[str, Any], *answers: Answer) -> tuple[Any, list[Any]]:
        shown, left = list[Any](), list(answers)

        async def window(_: Any, params: Any) -> ElicitResult:
            await asyncio.to_thread(before)
            shown.append(params.model_dump(by_alias=True))
            answer = left.pop(0)
            return (
                ElicitResult(action="decline")
                if answer is None
                else ElicitResult(action="accept", content=answer)
            )

        async def run() -> Any:
            headers = {"Authorization": f"Bearer {server.token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
                transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
                async with mcp.Client(transport, mode=mode, elicitation_callback=window) as client:
                    return await client.call_tool("ask_person", asked)

        return asyncio.run(run()).model_dump(by_alias=True), shown

    return ask


def _by_pipe(server: RunningServer, asked: dict[str, Any], *answers: Answer) -> tuple[Any, list[Any]]:
    shown, left = list[Any](), list(answers)

    async def window(_: Any, params: Any) -> ElicitResult:
        shown.append(params.model_dump(by_alias=True))
        answer = left.pop(0)
        return (
            ElicitResult(action="decline")
            if answer is None
            else ElicitResult(action="accept", content=answer)
        )

    async def run() -> Any:
        words = ["-m", "postroom", "mcp", "--data-dir", str(server.data_dir)]
        pipe = stdio_client(StdioServerParameters(command=sys.executable, args=words))
        async with mcp.Client(pipe, mode="legacy", elicitation_callback=window) as client:
            return await client.call_tool("ask_person", asked)

    return asyncio.run(run()).model_dump(by_alias=True), shown


def _fastmcp(server: RunningServer, asked: dict[str, Any], *answers: Answer) -> tuple[Any, list[Any]]:
    shown, left = list[Any](), list(answers)

    async def window(message: str, _type: Any, params: Any, _context: Any) -> Any:
        shown.append({"message": message, "requestedSchema": params.requested_schema})
        answer = left.pop(0)
        return Filled(action="decline") if answer is None else Filled(action="accept", content=answer)

    async def run() -> Any:
        transport = StreamableHttpTransport(
            f"{server.url}/mcp", headers={"Authorization": f"Bearer {server.token}"}
        )
        async with fastmcp.Client(transport, elicitation_handler=window) as client:
            return await client.call_tool_mcp("ask_person", asked)

    return asyncio.run(run()).model_dump(by_alias=True), shown


def _typescript(server: RunningServer, asked: dict[str, Any], *answers: Answer) -> tuple[Any, list[Any]]:
    with beside_packages("elicited.mjs") as script:
        words = [str(NODE), str(script), f"{server.url}/mcp", server.token, json.dumps(list(answers))]
        ended = subprocess.run(
            words, input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    return said["result"], said["shown"]


CLIENTS = [
    pytest.param(_python("auto"), id="python-2026"),
    pytest.param(_python("legacy"), id="python-2025"),
    pytest.param(_by_pipe, id="pipe"),
    pytest.param(_fastmcp, id="fastmcp"),
    pytest.param(_typescript, id="typescript", marks=needs_npm),
]


def open_questions(server: RunningServer) -> list[Any]:
    found = httpx2.get(f"{server.url}/admin/questions", headers={"Authorization": f"Bearer {server.token}"})
    return list(found.json()["questions"])


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_person_answers_in_the_window_of_the_client(server: RunningServer, ask) -> None:
    result, [shown] = ask(server, ASKED, {"answer": "USD"})
    assert not result["isError"], result
    assert result["structuredContent"]["answer"] == "USD"
    assert shown["message"] == "Ada asks: EUR or USD?"
    assert shown["requestedSchema"]["properties"]["answer"]["enum"] == ["EUR", "USD"]
    assert open_questions(server) == []


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_form_that_does_not_fit_is_shown_again_and_tells_why(server: RunningServer, ask) -> None:
    asked = {**ASKED, "question": "Which price?", "choices": [], "form": PRICE}
    result, shown = ask(server, asked, {"amount": 0}, {"amount": 5, "currency": "EUR"})
    assert result["structuredContent"]["answer"] == '{"amount": 5, "currency": "EUR"}'
    assert "amount must be at least 1" in shown[1]["message"]


@pytest.mark.parametrize("ask", CLIENTS)
def test_after_three_answers_that_are_not_valid_the_window_stays_closed_and_the_question_open(
    server: RunningServer, ask
) -> None:
    asked = {**ASKED, "question": "Drop it?", "choices": [], "action": "DROP TABLE payments_old"}
    result, shown = ask(server, asked, *[{"answer": "BANANA"}] * 3)
    assert len(shown) == 3
    assert not result["isError"]
    assert "answer" not in result["structuredContent"]
    assert "stays closed after 3 answers that are not valid. No answer yet." in result["content"][0]["text"]
    [still_open] = open_questions(server)
    assert still_open["number"] == result["structuredContent"]["question_id"]
    answered(server, still_open["number"], "no")


@pytest.mark.parametrize("ask", CLIENTS)
def test_a_declined_window_is_neither_yes_nor_no_and_the_question_stays_open(
    server: RunningServer, ask
) -> None:
    asked = {**ASKED, "question": f"May I, {ask}?", "choices": []}
    result, _ = ask(server, asked, None)
    assert not result["isError"]
    assert "answer" not in result["structuredContent"]
    [still_open] = open_questions(server)
    assert still_open["number"] == result["structuredContent"]["question_id"]
    answered(server, still_open["number"], "no")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_window_is_told_if_somebody_answered_elsewhere_first(server: RunningServer, mode) -> None:
    def first() -> None:
        [asked] = open_questions(server)
        answered(server, asked["number"], "EUR")

    result, _ = _python(mode, first)(server, ASKED, {"answer": "USD"})
    assert result["structuredContent"]["answer"] == "EUR"
    assert "before the window" in result["content"][0]["text"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("asks", "answer", "told"),
    [
        (
            {"choices": ["a", "b"], "default": "b"},
            "b (no answer came in time)",
            "the default of the question",
        ),
        ({}, "no: no answer came in time", "Nobody answered in time, so the answer is no."),
        ({"choices": ["a", "b"]}, None, "no answer came in time, so the question was closed"),
    ],
    ids=["default", "no", "cancel"],
)
def test_a_window_that_is_answered_after_the_deadline_says_that_nobody_answered(
    server: RunningServer, mode, asks, answer, told
) -> None:
    end = "default" if "default" in asks else "cancel" if asks else "no"
    asked = {"project_key": HARBOR, "agent_name": "Ada", "question": f"{mode} {end}?"}
    result, _ = _python(mode, partial(until_closed, server))(
        server, {**asked, **asks, "timeout_seconds": 1, "on_timeout": end}, {"answer": "a"}
    )
    assert result["structuredContent"]["state"] == ("closed" if answer is None else "answered")
    assert result["structuredContent"].get("answer") == answer
    text = result["content"][0]["text"]
    assert told in text
    assert "A person answered" not in text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_window_is_told_how_its_question_ended_meanwhile(server: RunningServer, mode) -> None:
    def cancel() -> None:
        [open_one] = open_questions(server)
        ended = httpx2.post(
            f"{server.url}/admin/runs/cancel", headers=server.headers, json={"run": open_one["run_id"]}
        )
        assert ended.status_code == 200, ended.text

    asked = {"project_key": HARBOR, "agent_name": "Ada", "question": f"May I, {mode}?", "action": "A"}
    result, _ = _python(mode, cancel)(server, asked, {"answer": "yes"})
    assert "The question is closed: the run was cancelled by an operator." in result["content"][0]["text"]
    news = list[str]()

    def ask_again() -> None:
        with server.line() as line:
            news.append(line.tool("ask_person", **{**asked, "action": "B"})["question_id"])

    result, _ = _python(mode, ask_again)(server, asked, {"answer": "yes"})
    assert result["structuredContent"]["state"] == "closed"
    assert f"Ada has asked this again as question {news[0]}." in result["content"][0]["text"]
    answered(server, news[0], "no")


def until_closed(server: RunningServer) -> None:
    """Wait until no question is open."""
    bound = Bound(PATIENCE)
    while open_questions(server):
        assert not bound.has_passed()


def test_a_question_for_somebody_named_is_not_shown_in_a_window(server: RunningServer) -> None:
    result, shown = _python("auto")(server, {**ASKED, "to": ["operator"]}, {"answer": "USD"})
    assert shown == []
    assert "answer" not in result["structuredContent"]
    answered(server, result["structuredContent"]["question_id"], "EUR")


def answered(server: RunningServer, number: str, answer: str) -> None:
    body, headers = (
        {"number": number, "answer": answer, "by": "ana"},
        {"Authorization": f"Bearer {server.token}"},
    )
    assert httpx2.post(f"{server.url}/admin/questions", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_headless_client_is_asked_and_declines_so_that_the_question_stays_open(
    client, bench, tmp_path
) -> None:
    bench.set_up("--tools", "full")
    bench.team()
    sent = tmp_path / "sent"
    line = f"tee {sent} | postroom mcp --tools full"
    asked = {**ASKED, "project_key": str(bench.home.project)}
    tool, flags = "ask_person", ("-c", 'mcp_servers.postroom.command="sh"')
    if client == "claude":
        tool = "mcp__piped__ask_person"
        servers = {"mcpServers": {"piped": {"command": "sh", "args": ["-c", line]}}}
        flags = ("--mcp-config", json.dumps(servers), "--allowedTools", "mcp__piped")
    else:
        flags = (*flags, "-c", f'mcp_servers.postroom.args=["-c", "{line}"]')
    bench.turn(
        "Ask.",
        script=lambda seen: Say("Done.") if seen.returned else CallTool(tool, asked),
        flags=(*bench.trusted, *flags),
    )
    replies = [json.loads(one) for one in sent.read_text().splitlines() if one.strip()]
    told = [one.get("result") or one.get("params", {}).get("inputResponses") for one in replies]
    [reply] = [one for one in told if one]
    assert "decline" in json.dumps(reply) or "cancel" in json.dumps(reply), reply
    [question] = bench.home.postroom("questions", "list")["questions"]
    assert question["question"] == "EUR or USD?"


ARROW_DOWN, ARROW_RIGHT, ESCAPE = "\x1b[B", "\x1b[C", "\x1b"
ANSWERS = {
    "claude": "EUR",  # it draws the choices only when the field is opened, with the first one marked
    "codex": "USD",
    "copilot": "USD",
}
"""The choice that each client's window is answered with."""


@pytest.mark.parametrize("client", list(ANSWERS))
@pytest.mark.parametrize("does", ["answer", "cancel"])
def test_a_person_sees_and_answers_the_question_in_the_client_s_own_window(
    client: str, bench: Bench, does: str
) -> None:
    bench.set_up("--tools", "full")
    bench.team()
    asked = {**ASKED, "project_key": str(bench.home.project)}
    words, call = [*bench.client.person(bench.home)], CallTool("ask_person", asked)
    if client == "codex":  # it calls tools from JavaScript, which its model writes
        call = CallTool(
            "exec", {"input": f"text(await tools.mcp__postroom__ask_person({json.dumps(asked)}));"}
        )
    else:
        words += bench.client.allowing
    bench.model.script = lambda seen: Say("Done.") if seen.returned else call
    with at_a_terminal(bench.home, words) as terminal:
        terminal.type("Ask.", behind=bench.client.drawn)
        for shown in ("asks:", "EUR", "USD"):  # Claude Code moves the cursor between two words
            terminal.await_drawn(shown)
        [question] = bench.home.postroom("questions", "list")["questions"]
        if does == "cancel":
            terminal.press(ESCAPE)
        elif client == "claude":
            for keys, drawn in ((ARROW_RIGHT, "◯"), ("\r", "✔"), ("\r", "Done.")):
                terminal.press_until(keys, drawn)
        else:
            terminal.press(f"{ARROW_DOWN}\r")
        answered = bench.model.wait_for(lambda one: bool(one.returned))
    told = answered.returned[-1]
    record = bench.home.postroom("questions", "show", question["number"])
    answer = ANSWERS[client]
    if does == "cancel":
        assert (record["state"], answer in told) == ("open", False), told
    else:
        assert (record["state"], record["answer"], answer in told) == ("answered", answer, True), told
        assert record["where"] == "in the window of the client"
