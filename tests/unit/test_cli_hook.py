"""`postroom hook`: each client's own JSON in and out, and silence whatever goes wrong."""

import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fake_postroom import FakePostroom, Raw, Short
from machine import PATIENCE
from postroom.app import places
from postroom.cli import hook, hook_wire
from postroom.cli.client import locate
from postroom.cli.hook_input import EDIT_TOOLS, build_event_request, read_input
from postroom.cli.main import main
from postroom.contracts.clients import EVENTS
from table_rows import each_row

LINE = "postroom: 1 unread message"
SESSION = {"session_id": "s", "cwd": "/w"}
COPILOT = {"sessionId": "s", "cwd": "/w"}
CURSOR = {"conversation_id": "s", "workspace_roots": ["/w"]}


def context(event: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": LINE}}


DENIED = {
    "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": LINE,
    }
}
FLAT = {"permissionDecision": "deny", "permissionDecisionReason": LINE}
HELD = {"decision": "block", "reason": LINE}
REFUSED = {"decision": "deny", "reason": LINE}
PATCH = "*** Begin Patch\n*** Update File: a b.py\n*** Move to: c.py\n@@\n-x\n*** Add File: d.py\n+*** Add File: no\n*** Delete File: /w/e.py\n*** End Patch"

TOLD = {"prompt": "p", "tool_name": "any", "toolName": "any"}
FILES = ["a b.py", "c.py", "d.py", "/w/e.py"]
MORE, CONTEXT = {"additionalContext": LINE}, {"additional_context": LINE}
SHUT = {"permission": "deny", "user_message": LINE, "agent_message": LINE}
Case = tuple[str, str, dict[str, Any], dict[str, Any], str, object]


def told(client: str, events: str, answer: Any = MORE, sent: dict[str, Any] = SESSION) -> list[Case]:
    """Return cases in which the server has something to tell."""
    return [
        (client, event, {**sent, **TOLD}, {}, "tell", answer(event) if callable(answer) else answer)
        for event in events.split()
    ]


def edit(client: str, event: str, tool: str, given: object, paths: list[str], answer: object) -> Case:
    """Return the case of an edit that the server denies; output is discarded."""
    if isinstance(given, dict) and paths != FILES:
        given = {**given, "content": "SECRET"}
    if client == "copilot":
        return (
            *(client, event, {**COPILOT, "toolName": tool, "toolArgs": given}, {"paths": paths}, "deny"),
            answer,
        )
    sent = {**(CURSOR if client == "cursor" else SESSION), "tool_name": tool, "tool_input": given}
    return (client, event, sent, {"paths": paths}, "deny", answer)


ACTIVE, FIRST = {"stop_active": True}, {"stop_active": False}
GOLDEN: list[Case] = [
    # client, event, what it sends, what the server is asked, the server's outcome, what the client is answered
    *told("claude", "SessionStart UserPromptSubmit PostToolUse", context),
    edit("claude", "PreToolUse", "Edit", {"file_path": "/w/a"}, ["/w/a"], DENIED),
    edit("claude", "PreToolUse", "NotebookEdit", {"notebook_path": "/w/a.ipynb"}, ["/w/a.ipynb"], DENIED),
    ("claude", "Stop", {**SESSION, "stop_hook_active": False}, FIRST, "hold", HELD),
    ("claude", "Stop", {**SESSION, "stop_hook_active": True}, ACTIVE, "silent", None),
    *told("codex", "SessionStart UserPromptSubmit PostToolUse", context),
    edit("codex", "PreToolUse", "apply_patch", {"command": PATCH}, FILES, DENIED),
    edit("codex", "PreToolUse", "apply_patch", {"command": ["apply_patch", PATCH]}, FILES, DENIED),
    ("codex", "Stop", SESSION, FIRST, "hold", HELD),
    *told("gemini", "SessionStart BeforeAgent AfterTool", context),
    edit("gemini", "BeforeTool", "write_file", {"file_path": "/w/a"}, ["/w/a"], REFUSED),
    edit("gemini", "BeforeTool", "replace", {"file_path": "/w/a"}, ["/w/a"], REFUSED),
    ("gemini", "AfterAgent", {**SESSION, "prompt": "p"}, FIRST, "hold", REFUSED),
    *told("cursor", "sessionStart postToolUse", CONTEXT, CURSOR),
    *told("cursor", "beforeSubmitPrompt", {"continue": True, "user_message": LINE, **CONTEXT}, CURSOR),
    edit("cursor", "preToolUse", "Write", {"file_path": "/w/a"}, ["/w/a"], SHUT),
    edit("cursor", "preToolUse", "Delete", '{"path": "/w/a"}', ["/w/a"], SHUT),
    (
        *("cursor", "stop", {**CURSOR, "status": "completed", "loop_count": 0}, FIRST, "hold"),
        {"followup_message": LINE},
    ),
    ("cursor", "stop", {**CURSOR, "loop_count": 1}, ACTIVE, "silent", None),
    *told("copilot", "sessionStart userPromptSubmitted postToolUse", MORE, COPILOT),
    edit("copilot", "preToolUse", "create", {"path": "/w/a"}, ["/w/a"], FLAT),
    edit("copilot", "preToolUse", "apply_patch", PATCH, FILES, FLAT),
    ("copilot", "agentStop", {**COPILOT, "stop_hook_active": False}, FIRST, "hold", HELD),
    ("copilot", "agentStop", {**COPILOT, "stop_hook_active": True}, ACTIVE, "silent", None),
    *told("opencode", "session.created chat.message tool.execute.after"),
    edit("opencode", "tool.execute.before", "write", {"filePath": "/w/a"}, ["/w/a"], FLAT),
    edit("opencode", "tool.execute.before", "apply_patch", {"patchText": PATCH}, FILES, FLAT),
    *told("cline", "run-started beforeRun afterTool"),
    edit("cline", "beforeTool", "editor", {"path": "/w/a"}, ["/w/a"], FLAT),
    edit("cline", "beforeTool", "apply_patch", {"input": PATCH}, FILES, FLAT),
    *((client, "SessionEnd", SESSION, {}, "silent", None) for client in ("claude", "codex", "gemini")),
    ("cursor", "sessionEnd", CURSOR, {}, "silent", None),
    ("copilot", "sessionEnd", {**COPILOT, "reason": "complete"}, {}, "silent", None),
    ("opencode", "session.deleted", SESSION, {}, "silent", None),
]


def environment(port: int, tmp_path: Path, **more: str) -> dict[str, str]:
    """Return an environment that leads to a port of this machine."""
    return {"POSTROOM_URL": f"http://127.0.0.1:{port}", "POSTROOM_TOKEN": "t", "HOME": str(tmp_path), **more}


def answer(fake: FakePostroom, tmp_path: Path, client: str, event: str, sent: object, **more: str) -> object:
    found = hook.answer_event(
        client, event, json.dumps(sent).encode(), environment(fake.port, tmp_path, **more)
    )
    return json.loads(found) if found else None


def says(outcome: str, text: str = LINE, mode: str = "warn") -> Callable[[object], object]:
    return lambda _: {"outcome": outcome, "text": text if outcome != "silent" else "", "mode": mode}


def test_each_client_is_asked_and_answered_in_its_own_words(tmp_path: Path) -> None:
    wrong = []
    with FakePostroom() as fake:
        for client, event, sent, asked, outcome, expected in GOLDEN:
            fake.admin["POST", path := f"/hooks/{client}/{event}"] = says(outcome)
            told = answer(fake, tmp_path, client, event, sent, POSTROOM_AGENT="Ben")
            body = {"session_id": "s", "cwd": "/w", "agent": "Ben", "guard": "", **asked}
            seen = fake.seen.pop()
            seen.body.pop("files", None)  # tests/unit/test_no_edit_lost.py
            if (told, seen.path, seen.body) != (expected, path, body):
                wrong.append((client, event, expected, told, body, seen))
            assert seen.headers["Authorization"] == "Bearer t"
    assert wrong == []
    wanted = {(client, event) for client, events in EVENTS.items() if client != "git" for event in events}
    assert {case[:2] for case in GOLDEN} == wanted


def test_the_agent_s_token_goes_along(tmp_path: Path) -> None:
    with FakePostroom(admin={("POST", "/hooks/claude/Stop"): says("silent")}) as fake:
        answer(fake, tmp_path, "claude", "Stop", SESSION, POSTROOM_AGENT_TOKEN="at")
        answer(fake, tmp_path, "claude", "Stop", SESSION)
        assert answer(fake, tmp_path, "claude", "Stop", SESSION, POSTROOM_AGENT_TOKEN="a\r\nX: y") is None
    assert [one.headers.get("Postroom-Agent-Token") for one in fake.seen] == ["at", None]


@each_row(
    "client, event, sent",
    [
        ("claude", "PreToolUse", {**SESSION, "tool_name": "Bash", "tool_input": {"command": "rm x"}}),
        ("claude", "PreToolUse", {**SESSION, "tool_name": "Edit", "tool_input": {}}),
        ("claude", "PreToolUse", {**SESSION, "tool_name": "Edit", "tool_input": {"file_path": 3}}),
        ("claude", "PreToolUse", {**SESSION, "tool_name": None}),
        *(("cursor", "stop", {**CURSOR, "status": "aborted"}), ("claude", "Notification", SESSION)),
        *(("git", "pre-commit", SESSION), ("emacs", "Stop", SESSION), ("claude", "Stop", [])),
        *(("claude", "Stop", "text"), ("claude", "Stop", None)),
    ],
)
def test_what_is_no_matter_of_ours_is_not_asked(
    tmp_path: Path, client: str, event: str, sent: object
) -> None:
    with FakePostroom() as fake:
        assert answer(fake, tmp_path, client, event, sent) is None
    assert fake.seen == []


STARTED = {"project": {"name": "No"}, "agent": {"name": "GreenLake", "program": "x"}}
REGISTERED = {"id": 1, "name": "GreenLake", "program": "x"}
DEEP = functools.reduce(lambda inner, _: {"content": inner}, range(50), REGISTERED)


@each_row(
    "tool, given, response, name",
    [
        ("mcp__postroom__send_message", {"sender_name": "Ben", "body_md": "SECRET"}, None, "Ben"),
        ("mcp__mail__fetch_inbox", {"agent_name": "Ben"}, None, "Ben"),
        ("mcp_postroom_reply_message", {"sender_name": "Ben"}, None, "Ben"),
        ("postroom-send_message", {"sender_name": "Ben"}, None, "Ben"),
        ("MCP:acknowledge_message", '{"agent_name": "Ben"}', None, "Ben"),
        ("mcp__postroom__register_agent", {"name": "Ben"}, None, "Ben"),
        ("mcp__postroom__start_session", {}, STARTED, "GreenLake"),
        ("mcp__postroom__start_session", {}, {"structuredContent": STARTED}, "GreenLake"),
        ("mcp__postroom__start_session", {}, [{"type": "text", "text": json.dumps(STARTED)}], "GreenLake"),
        (
            "mcp__postroom__start_session",
            {},
            json.dumps({"content": [{"text": json.dumps(STARTED)}]}),
            "GreenLake",
        ),
        ("mcp__postroom__start_session", {}, {"textResultForLlm": json.dumps(STARTED)}, "GreenLake"),
        ("mcp__postroom__create_agent_identity", {"name": "No"}, REGISTERED, "GreenLake"),
        ("mcp__postroom__whois", {"agent_name": "Ada"}, None, None),
        ("mcp__postroom__list_file_reservations", {"agent_name": "Ada"}, None, None),
        ("Bash", {"sender_name": "Ada"}, None, None),
        ("mcp__postroom__start_session", {}, {"error": "x"}, None),
        ("mcp__postroom__send_message", {"sender_name": 3}, None, None),
        ("x__register_agent", {}, DEEP, None),  # not followed for ever
    ],
)
def test_the_agent_of_a_call_is_seen(tool: str, given: object, response: object, name: str | None) -> None:
    sent = {**SESSION, "tool_name": tool, "tool_input": given, "tool_response": response}
    expected = {} if name is None else {"acts_as": name, "acts_in": ""}
    assert build_event_request("claude", "tool", sent) == {"session_id": "s", "cwd": "/w", **expected}


def test_ids_of_messages_and_reservations_are_read_from_answers_and_a_subagent_is_a_session() -> None:
    for answer in (
        {"structuredContent": {"result": [{"id": 4, "subject": "s"}, {"id": 9, "subject": "t"}]}},
        [{"type": "text", "text": '[{"id": 4, "subject": "s"}, {"id": 9, "subject": "t"}]'}],
        {"content": [{"type": "text", "text": '{"messages": [{"id": 4}, {"id": 9}]}'}]},
        '{"result": [{"id": 4}, {"id": 9}]}',
    ):
        tool = {"tool_name": "mcp__postroom__fetch_inbox", "tool_response": answer}
        given = {"tool_input": {"project_key": "/p", "agent_name": "Ben"}}
        assert (build_event_request("claude", "tool", {**tool, **given}) or {})["fetched"] == [4, 9]
    granted = json.dumps({"granted": [{"id": 7}], "conflicts": []})
    marked = {"text": f"<untrusted_context>\n{granted}\n</untrusted_context>"}  # as Gemini puts it
    tool = {"tool_name": "mcp_postroom_file_reservation_paths", "tool_input": {"agent_name": "Ada"}}
    told = {"tool_response": {"llmContent": [marked], "returnDisplay": granted}}
    assert (build_event_request("gemini", "tool", {**SESSION, **tool, **told}) or {})["reserved"] == [7]
    assert (build_event_request("claude", "start", {**SESSION, "agent_id": "inner"}) or {})[
        "session_id"
    ] == "s/inner"


def test_a_start_after_a_compaction_says_so() -> None:
    starts = [
        build_event_request("claude", "start", {**SESSION, "source": one}) for one in ("startup", "compact")
    ]
    assert [one and one.get("compacted") for one in starts] == [None, True]


def edited(client: str, cwd: str, given: object, tool: str = "") -> object:
    """Return the files about which a hook asks."""
    tool = tool or EDIT_TOOLS[client][0]
    call = build_event_request(client, "edit", {"cwd": cwd, "tool_name": tool, "tool_input": given})
    return call and call["paths"]


def test_a_file_is_named_as_it_is_written_and_as_what_its_links_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    project = (tmp_path / "project").resolve()
    (project / "src").mkdir(parents=True)
    (project / "src/app.py").touch()
    (project / "link").symlink_to("src")
    (project / "file").symlink_to("src/app.py")
    alias = tmp_path / "alias"
    alias.symlink_to(project)
    monkeypatch.chdir(project)
    here, app = str(project), f"{project}/src/app.py"
    for written, said in (
        *(("src/app.py", []), (app, []), ("link/app.py", [app]), (f"{here}/link/app.py", [app])),
        *(("link/new/file.py", [f"{here}/src/new/file.py"]), ("file", [app])),
        (f"{alias}/link/app.py", [app]),
        *([("/proc/self/cwd/src/app.py", [app])] if Path("/proc/self/cwd").exists() else []),
    ):
        with subtests.test(written=written):
            assert edited("claude", here, {"file_path": written}) == [written, *said]
    with subtests.test("a project that is known by a link"):
        asked = edited("claude", str(alias), {"file_path": "link/app.py"})
        assert asked == ["link/app.py", app, f"{alias}/src/app.py"]


def test_each_file_of_a_patch_is_named_also_behind_blanks_or_from_a_shell() -> None:
    for lead in ("", " ", "\t", "   "):
        patch = f"{lead}*** Begin Patch\n{lead}*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"
        for given in ({"command": patch}, patch):
            assert edited("codex", "/w", given) == ["a.py"]
    shell = "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch\nEOF\n"
    for client, tool, given, files in (
        ("codex", "Bash", {"command": shell}, ["a.py"]),
        ("codex", "exec_command", {"cmd": ["bash", "-lc", f"cd src && {shell}"]}, ["a.py", "src/a.py"]),
        ("codex", "exec_command", {"cmd": shell, "workdir": "/w/src"}, ["a.py", "/w/src/a.py"]),
        ("codex", "Bash", {"command": "cat apply_patch.txt"}, None),
        ("claude", "Bash", {"command": shell}, None),
    ):
        assert edited(client, "/w", given, tool) == files
    many = [f"{number}.py" for number in range(2_000)]
    patch = "\n".join(["*** Begin Patch", *(f"*** Add File: {one}" for one in many), "*** End Patch"])
    assert edited("codex", "/w", {"command": patch}) == many


EDIT = {**SESSION, "tool_name": "Write", "tool_input": {"file_path": "/w/a"}}
PRE = ("POST", "/hooks/claude/PreToolUse")


def test_what_fails_at_the_server_means_what_is_set_there_or_in_the_environment(tmp_path: Path) -> None:
    with FakePostroom() as fake:
        for mode, expected in (
            *(("warn", {"systemMessage": LINE}), ("block", DENIED), ("off", None), ("nonsense", None)),
        ):
            fake.admin[PRE] = says("error", mode=mode)
            assert answer(fake, tmp_path, "claude", "PreToolUse", EDIT, POSTROOM_GUARD="") == expected
        fake.admin[PRE] = lambda _: PROBLEM
        for guard, verb in (("", "note"), ("warn", "note"), ("BLOCK", "deny"), ("off", "")):
            text = json.dumps(answer(fake, tmp_path, "claude", "PreToolUse", EDIT, POSTROOM_GUARD=guard))
            assert ("systemMessage" in text, '"deny"' in text) == (verb == "note", verb == "deny")
            assert ("store_unavailable" in text) == bool(verb)
            assert ("SECRET" in text, "POSTROOM_GUARD" in text) == (False, False)
            assert answer(fake, tmp_path, "claude", "Stop", SESSION, POSTROOM_GUARD=guard) is None


PROBLEM = Raw(503, b'{"code": "store_unavailable", "detail": "SECRET"}', "application/problem+json")


def test_a_server_that_is_down_refuses_edits_only_when_the_environment_asks_for_it(tmp_path: Path) -> None:
    raw, stop = json.dumps(EDIT).encode(), json.dumps(SESSION).encode()
    for surroundings in (environment(free_port(), tmp_path), {"HOME": str(tmp_path)}):
        for guard in ("", "warn", "off"):
            assert (
                hook.answer_event("claude", "PreToolUse", raw, {**surroundings, "POSTROOM_GUARD": guard})
                == b""
            )
        asked = {**surroundings, "POSTROOM_GUARD": "block"}
        found = json.loads(hook.answer_event("claude", "PreToolUse", raw, asked))
        assert "does not answer" in found["hookSpecificOutput"]["permissionDecisionReason"]
        assert hook.answer_event("claude", "Stop", stop, asked) == b""


GARBAGE = [
    *(Raw(200, b"", "application/json"), Raw(200, b"<html>", "text/html"), Raw(200, b"[]")),
    *(Raw(200, b"null"), Raw(200, b'{"outcome": "deny"}'), Raw(200, b'{"outcome": 1, "text": 2}')),
    Raw(200, b'{"outcome": "explode", "text": "x", "mode": "warn"}'),
    Raw(200, b'{"outcome": "hold", "text": "x", "mode": "warn"}'),
    *(Raw(200, b"\xff\xfe"), Raw(200, b"x" * 100_000), Raw(404, b"not found", "text/plain")),
    *(Raw(500, b'{"error": "x"}'), Raw(500, b'{"code": "\\u202e evil"}')),
    Short(200, b'{"outcome": "deny", "text": "x"'),
]


@each_row("garbage", GARBAGE)
def test_an_answer_that_makes_no_sense_is_none_or_refuses_edits_when_the_environment_asks_for_it(
    tmp_path: Path, garbage: Raw
) -> None:
    with FakePostroom(admin={PRE: lambda _: garbage}) as fake:
        assert silent(environment(fake.port, tmp_path), json.dumps(EDIT).encode())
        if garbage not in GARBAGE[6:8]:  # what these say is known, but not of an edit
            found = json.dumps(answer(fake, tmp_path, "claude", "PreToolUse", EDIT, POSTROOM_GUARD="block"))
            assert ("does not answer" in found, '"deny"' in found) == (True, True)


def silent(surroundings: Mapping[str, str], raw: bytes) -> bool:
    """Whether the answer is empty; an exception becomes an empty answer in `run`."""
    try:
        return hook.answer_event("claude", "PreToolUse", raw, surroundings) == b""
    except Exception:
        return True


@contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen, and do something to the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                behave(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def drip(line: socket.socket) -> None:
    """Send a byte now and then: each read of the client ends in time, all of them together do not."""
    pause = threading.Event()
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n" + b"x" * 4_000:
        try:
            line.sendall(bytes([byte]))
        except OSError:
            return
        pause.wait(0.02)


@each_row(
    "behave",
    [
        lambda line: line.recv(1),  # closes with a reset
        lambda line: (line.recv(65_536), line.recv(65_536)),  # never answers
        lambda line: (line.recv(65_536), line.sendall(b"SSH-2.0-x\r\n\r\n")),
        lambda line: (line.recv(65_536), line.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}")),
        lambda line: (line.recv(65_536), line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}")),
        drip,
    ],
)
def test_a_server_that_misbehaves_costs_the_budget_at_most(
    tmp_path: Path, behave: Callable[[socket.socket], None]
) -> None:
    with listening(behave) as port:
        began = time.monotonic()
        assert silent(environment(port, tmp_path), json.dumps(EDIT).encode())
        assert time.monotonic() - began < hook_wire.BUDGET + 10  # none that goes on ends by itself so soon


@each_row(
    "url, host, port, prefix",
    [
        ("http://127.0.0.1:8765", "127.0.0.1", 8765, ""),
        ("http://127.0.0.1:8765/", "127.0.0.1", 8765, ""),
        ("http://localhost:8765/mcp", "127.0.0.1", 8765, ""),
        ("http://LOCALHOST/below/mcp/", "127.0.0.1", 80, "/below"),
        ("http://[::1]:8765", "::1", 8765, ""),
        ("http://[::1]", "::1", 80, ""),
        ("http://0.0.0.0:1", "127.0.0.1", 1, ""),
        *((url, "", 0, "") for url in ("http://192.0.2.1:80", "https://127.0.0.1:1", "ftp://127.0.0.1")),
        *((url, "", 0, "") for url in ("127.0.0.1:80", "http://[::1", "x")),
    ],
)
def test_only_this_machine_is_asked_and_only_in_plain_http(
    url: str, host: str, port: int, prefix: str
) -> None:
    found = None
    with suppress(ValueError):  # as good as none: `run` says nothing
        found = hook_wire.read_endpoint({"POSTROOM_URL": url, "POSTROOM_TOKEN": "t", "HOME": "/h"})
    assert ((found.host, found.port, found.prefix) if found else ("", 0, "")) == (host, port, prefix)


def test_data_folder_note_and_token_are_those_of_every_command(tmp_path: Path) -> None:
    home = str(tmp_path)
    for more in (
        *({}, {"POSTROOM_DATA_DIR": f"{home}/elsewhere"}, {"POSTROOM_DATA_DIR": "~/there"}),
        *({"XDG_DATA_HOME": f"{home}/xdg"}, {"XDG_DATA_HOME": "relative"}),
    ):
        for platform in ("linux", "darwin"):
            surroundings = {"HOME": home, **more}
            expected = places.data_dir(surroundings, platform=platform)
            assert Path(hook_wire.data_dir(surroundings, platform=platform)) == expected
    folder = places.data_dir({"HOME": home})
    note = places.ServerNote(url="http://127.0.0.1:1234", pid=1, version="1", started_at=1)
    places.write_server_note(folder, note)
    places.write_private(places.token_file(folder), "secret\n")
    found, known = hook_wire.read_endpoint({"HOME": home}), locate({"HOME": home})
    assert found is not None
    assert (f"http://{found.host}:{found.port}", found.token) == (known.url, known.token)


def process(
    surroundings: Mapping[str, str], raw: bytes, *words: str, close: bool = True
) -> tuple[int, bytes, bytes]:
    """Run the command in a separate process, as clients do."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    with subprocess.Popen(
        [sys.executable, "-m", "postroom", "hook", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**kept, **surroundings},
    ) as child:
        assert child.stdin is not None
        if close:
            out, err = child.communicate(raw, timeout=PATIENCE)
        else:
            child.stdin.write(raw)
            child.stdin.flush()
            child.wait(PATIENCE)
            assert child.stdout is not None
            assert child.stderr is not None
            out, err = child.stdout.read(), child.stderr.read()
    return child.returncode, out, err


def test_an_edit_of_a_client_without_a_row_of_tools_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(EDIT_TOOLS, "claude")
    call = build_event_request(
        "claude", "edit", {"tool_name": "Anything", "tool_input": {"file_path": "a.py"}, "cwd": "/w"}
    )
    assert call is not None
    assert call["paths"] == ["a.py"]
    assert (
        build_event_request("claude", "edit", {"tool_name": "Bash", "tool_input": {"command": "ls"}}) is None
    )


def test_bad_input_and_unknown_events_are_met_with_silence(tmp_path: Path) -> None:
    with FakePostroom() as fake:
        for raw in (
            *(b"", b"{", b"\xff\xfe\x00", b"[" * 200_000, b"null", b"x" * 10_000_000),
            b'{"session_id": "\\ud800", "cwd": "\\u0000"}',
            b'{"tool_name": "Write", "tool_input": {"file_path": "\\ud800"}}',
        ):
            told = process(environment(fake.port, tmp_path), raw, "claude", "PreToolUse")
            assert told == (0, b"", b""), raw[:80]
    for words in ("claude NoSuch", "emacs Stop", "claude stop", "claude", "", "a b c", "-x"):
        assert process({"HOME": str(tmp_path)}, b"{}", *words.split()) == (0, b"", b""), words
    assert process({"HOME": str(tmp_path)}, b"{}", "", "") == (0, b"", b"")


def test_a_file_of_ten_megabytes_is_written_and_only_its_name_goes_on(tmp_path: Path) -> None:
    tool = {"file_path": "/w/a", "content": "é\n" * 5_000_000}
    raw = json.dumps({**SESSION, "tool_name": "Write", "tool_input": tool}, ensure_ascii=False).encode()
    with FakePostroom(admin={PRE: says("deny")}) as fake:
        code, out, err = process(environment(fake.port, tmp_path), raw, "claude", "PreToolUse")
    assert (code, json.loads(out), err) == (0, DENIED, b"")
    assert len(json.dumps(fake.seen[0].body)) < 200


def test_broken_notes_and_tokens_are_met_with_silence(tmp_path: Path) -> None:
    folder = places.data_dir({"HOME": str(tmp_path)})
    folder.mkdir(parents=True)
    raw = json.dumps(EDIT).encode()
    for note in (
        *("{", "[]", '{"url": 3}', '{"url": "http://127.0.0.1:1"}', '{"url": "http://127.0.0.1:99999"}'),
    ):
        (folder / "server.json").write_text(note)
        (folder / "token").write_bytes(b"\xff\n")
        assert process({"HOME": str(tmp_path)}, raw, "claude", "PreToolUse") == (0, b"", b"")


def test_a_pipe_that_stays_open_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with FakePostroom(admin={PRE: says("deny")}) as fake:
        raw = json.dumps(EDIT).encode()
        code, out, err = process(environment(fake.port, tmp_path), raw, "claude", "PreToolUse", close=False)
    assert (code, json.loads(out), err) == (0, DENIED, b"")


def test_a_closed_output_is_met_with_silence(tmp_path: Path) -> None:
    with FakePostroom(admin={PRE: says("deny")}) as fake:
        command = [sys.executable, "-m", "postroom", "hook", "claude", "PreToolUse"]
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            command,
            input=json.dumps(EDIT).encode(),
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment(fake.port, tmp_path)},
            timeout=20,
            check=False,
        )
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_endless_input_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.cli.hook_input.LARGEST_INPUT", 100)
    reader, writer = os.pipe()
    os.write(writer, b"x" * 200)
    os.close(writer)
    with pytest.raises(ValueError, match="too large"):
        read_input(reader)
    os.close(reader)


SCRIPT = """
import os, sys
before = set(sys.modules)
reader, writer = os.pipe()
os.write(writer, %r)
os.close(writer)
os.dup2(reader, 0)
from postroom.cli.main import main
code = main(["hook", "claude", "PreToolUse"])
print("", code, *sorted(set(sys.modules) - before))
"""


@each_row("state", ["away", "answers"])
def test_the_hook_loads_hardly_anything(tmp_path: Path, state: str) -> None:
    raw = json.dumps({**EDIT, "tool_input": {"file_path": "/w/ä", "content": "x"}}).encode()
    with FakePostroom(admin={PRE: says("deny")}) as fake:
        surroundings = environment(fake.port, tmp_path) if state == "answers" else {"HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT % raw],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], **surroundings},
            timeout=20,
            check=True,
        )
    said, _, loaded = done.stdout.partition(" 0 ")
    assert (state == "answers") == ('"deny"' in said)
    names = set(loaded.split())
    heavy = {"asyncio", "dataclasses", "http.client", "json", "pathlib", "re", "socket", "typer", "typing"}
    assert heavy & names == set()
    ours = {name for name in names if name.startswith("postroom")}
    assert ours - {"postroom.cli.hook_files"} == {
        *("postroom", "postroom.cli", "postroom.cli.hook", "postroom.cli.hook_input"),
        *("postroom.cli.hook_wire", "postroom.cli.main", "postroom.contracts", "postroom.contracts.clients"),
        "postroom.version",
    }


DOCUMENTS = [
    {"a": [True, False, 'é\u2028\x00"\\', {"b": ["c"]}], "": {}},
    [],
    "text",
    {"number": 1, "half": 0.5, "nothing": None, "many": [[[]]]},
]


def test_json_is_read_and_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for parts in (True, False):
        if not parts:
            monkeypatch.setitem(sys.modules, "_json", None)
        for document in DOCUMENTS:
            assert hook_wire.read(f" {json.dumps(document)}\n".encode()) == document
            assert hook_wire.read(json.dumps(document, ensure_ascii=False).encode()) == document
        for document in DOCUMENTS[:3]:
            assert json.loads(hook_wire.written(document)) == document
            assert hook_wire.written(document).isascii()
        with pytest.raises(TypeError):
            hook_wire.written(DOCUMENTS[3])
        for raw in (
            *(b"", b" ", b"{", b"[1,]", b"{} {}", b"nul", b'{"a" 1}', b"\xff", b"\xef\xbb\xbf{}", b"'a'"),
            b"[" * 100,
        ):
            with pytest.raises(ValueError):  # noqa: PT011 - of any of its kinds
                hook_wire.read(raw)


def test_the_hook_has_a_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "--help"]) == 0
    assert "claude, codex, gemini, cursor" in capsys.readouterr().out


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
