"""`postroom hook`: each client's own JSON in and out, and silence whatever goes wrong."""

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
from postroom.app import places
from postroom.cli import hook, hook_wire
from postroom.cli.client import locate
from postroom.cli.hook_input import EDIT_TOOLS, call_of, read_input
from postroom.cli.main import main
from postroom.contracts.clients import EVENTS

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

GOLDEN: list[tuple[str, str, dict[str, Any], dict[str, Any], str, object]] = [
    # client, event, what it sends, what the server is asked, the server's outcome, what the client is answered
    ("claude", "SessionStart", SESSION, {}, "tell", context("SessionStart")),
    ("claude", "UserPromptSubmit", {**SESSION, "prompt": "p"}, {}, "tell", context("UserPromptSubmit")),
    (
        "claude",
        "PreToolUse",
        {**SESSION, "tool_name": "Edit", "tool_input": {"file_path": "/w/a", "old_string": "SECRET"}},
        {"paths": ["/w/a"]},
        "deny",
        DENIED,
    ),
    (
        "claude",
        "PreToolUse",
        {**SESSION, "tool_name": "NotebookEdit", "tool_input": {"notebook_path": "/w/a.ipynb"}},
        {"paths": ["/w/a.ipynb"]},
        "deny",
        DENIED,
    ),
    ("claude", "PostToolUse", {**SESSION, "tool_name": "Bash"}, {}, "tell", context("PostToolUse")),
    ("claude", "Stop", {**SESSION, "stop_hook_active": False}, {"stop_active": False}, "hold", HELD),
    ("claude", "Stop", {**SESSION, "stop_hook_active": True}, {"stop_active": True}, "silent", None),
    ("claude", "SessionEnd", SESSION, {}, "silent", None),
    ("codex", "SessionStart", SESSION, {}, "tell", context("SessionStart")),
    ("codex", "UserPromptSubmit", SESSION, {}, "tell", context("UserPromptSubmit")),
    (
        "codex",
        "PreToolUse",
        {**SESSION, "tool_name": "apply_patch", "tool_input": {"command": PATCH}},
        {"paths": ["a b.py", "c.py", "d.py", "/w/e.py"]},
        "deny",
        DENIED,
    ),
    (
        "codex",
        "PreToolUse",
        {**SESSION, "tool_name": "apply_patch", "tool_input": {"command": ["apply_patch", PATCH]}},
        {"paths": ["a b.py", "c.py", "d.py", "/w/e.py"]},
        "deny",
        DENIED,
    ),
    ("codex", "PostToolUse", {**SESSION, "tool_name": "shell"}, {}, "tell", context("PostToolUse")),
    ("codex", "Stop", SESSION, {"stop_active": False}, "hold", HELD),
    ("codex", "SessionEnd", SESSION, {}, "silent", None),
    ("gemini", "SessionStart", SESSION, {}, "tell", context("SessionStart")),
    ("gemini", "BeforeAgent", SESSION, {}, "tell", context("BeforeAgent")),
    (
        "gemini",
        "BeforeTool",
        {**SESSION, "tool_name": "write_file", "tool_input": {"file_path": "/w/a", "content": "SECRET"}},
        {"paths": ["/w/a"]},
        "deny",
        REFUSED,
    ),
    (
        "gemini",
        "BeforeTool",
        {**SESSION, "tool_name": "replace", "tool_input": {"file_path": "/w/a"}},
        {"paths": ["/w/a"]},
        "deny",
        REFUSED,
    ),
    ("gemini", "AfterTool", {**SESSION, "tool_name": "read_file"}, {}, "tell", context("AfterTool")),
    ("gemini", "AfterAgent", {**SESSION, "prompt": "p"}, {"stop_active": False}, "hold", REFUSED),
    ("gemini", "SessionEnd", SESSION, {}, "silent", None),
    ("cursor", "sessionStart", CURSOR, {}, "tell", {"additional_context": LINE}),
    (
        "cursor",
        "beforeSubmitPrompt",
        {**CURSOR, "prompt": "p"},
        {},
        "tell",
        {"continue": True, "user_message": LINE, "additional_context": LINE},
    ),
    (
        "cursor",
        "preToolUse",
        {**CURSOR, "tool_name": "Write", "tool_input": {"file_path": "/w/a"}},
        {"paths": ["/w/a"]},
        "deny",
        {"permission": "deny", "user_message": LINE, "agent_message": LINE},
    ),
    (
        "cursor",
        "preToolUse",
        {**CURSOR, "tool_name": "Delete", "tool_input": '{"path": "/w/a"}'},
        {"paths": ["/w/a"]},
        "deny",
        {"permission": "deny", "user_message": LINE, "agent_message": LINE},
    ),
    ("cursor", "postToolUse", {**CURSOR, "tool_name": "Shell"}, {}, "tell", {"additional_context": LINE}),
    (
        "cursor",
        "stop",
        {**CURSOR, "status": "completed", "loop_count": 0},
        {"stop_active": False},
        "hold",
        {"followup_message": LINE},
    ),
    ("cursor", "stop", {**CURSOR, "loop_count": 1}, {"stop_active": True}, "silent", None),
    ("cursor", "sessionEnd", CURSOR, {}, "silent", None),
    ("copilot", "sessionStart", COPILOT, {}, "tell", {"additionalContext": LINE}),
    ("copilot", "userPromptSubmitted", {**COPILOT, "prompt": "p"}, {}, "tell", {"additionalContext": LINE}),
    (
        "copilot",
        "preToolUse",
        {**COPILOT, "toolName": "create", "toolArgs": {"path": "/w/a", "file_text": "SECRET"}},
        {"paths": ["/w/a"]},
        "deny",
        FLAT,
    ),
    (
        "copilot",
        "preToolUse",
        {**COPILOT, "toolName": "apply_patch", "toolArgs": PATCH},
        {"paths": ["a b.py", "c.py", "d.py", "/w/e.py"]},
        "deny",
        FLAT,
    ),
    ("copilot", "postToolUse", {**COPILOT, "toolName": "bash"}, {}, "tell", {"additionalContext": LINE}),
    ("copilot", "agentStop", {**COPILOT, "stop_hook_active": False}, {"stop_active": False}, "hold", HELD),
    ("copilot", "agentStop", {**COPILOT, "stop_hook_active": True}, {"stop_active": True}, "silent", None),
    ("copilot", "sessionEnd", {**COPILOT, "reason": "complete"}, {}, "silent", None),
    ("opencode", "session.created", SESSION, {}, "tell", {"additionalContext": LINE}),
    ("opencode", "chat.message", SESSION, {}, "tell", {"additionalContext": LINE}),
    (
        "opencode",
        "tool.execute.before",
        {**SESSION, "tool_name": "write", "tool_input": {"filePath": "/w/a", "content": "SECRET"}},
        {"paths": ["/w/a"]},
        "deny",
        FLAT,
    ),
    (
        "opencode",
        "tool.execute.before",
        {**SESSION, "tool_name": "apply_patch", "tool_input": {"patchText": PATCH}},
        {"paths": ["a b.py", "c.py", "d.py", "/w/e.py"]},
        "deny",
        FLAT,
    ),
    (
        "opencode",
        "tool.execute.after",
        {**SESSION, "tool_name": "bash"},
        {},
        "tell",
        {"additionalContext": LINE},
    ),
    ("opencode", "session.deleted", SESSION, {}, "silent", None),
    ("cline", "run-started", SESSION, {}, "tell", {"additionalContext": LINE}),
    ("cline", "beforeRun", SESSION, {}, "tell", {"additionalContext": LINE}),
    (
        "cline",
        "beforeTool",
        {**SESSION, "tool_name": "editor", "tool_input": {"path": "/w/a", "new_text": "SECRET"}},
        {"paths": ["/w/a"]},
        "deny",
        FLAT,
    ),
    (
        "cline",
        "beforeTool",
        {**SESSION, "tool_name": "apply_patch", "tool_input": {"input": PATCH}},
        {"paths": ["a b.py", "c.py", "d.py", "/w/e.py"]},
        "deny",
        FLAT,
    ),
    ("cline", "afterTool", {**SESSION, "tool_name": "run_commands"}, {}, "tell", {"additionalContext": LINE}),
]


def environment(port: int, tmp_path: Path, **more: str) -> dict[str, str]:
    """Return an environment that leads to a port of this machine."""
    return {
        "POSTROOM_URL": f"http://127.0.0.1:{port}",
        "POSTROOM_TOKEN": "t",
        "HOME": str(tmp_path),
        **more,
    }


def answer(fake: FakePostroom, tmp_path: Path, client: str, event: str, sent: object, **more: str) -> object:
    found = hook.answered(client, event, json.dumps(sent).encode(), environment(fake.port, tmp_path, **more))
    return json.loads(found) if found else None


def says(outcome: str, text: str = LINE, mode: str = "warn") -> Callable[[object], object]:
    return lambda _: {"outcome": outcome, "text": text if outcome != "silent" else "", "mode": mode}


@pytest.mark.parametrize(("client", "event", "sent", "asked", "outcome", "expected"), GOLDEN)
def test_a_client_is_asked_and_answered_in_its_own_words(
    tmp_path: Path,
    client: str,
    event: str,
    sent: dict[str, Any],
    asked: dict[str, Any],
    outcome: str,
    expected: object,
) -> None:
    path = f"/hooks/{client}/{event}"
    with FakePostroom(admin={("POST", path): says(outcome)}) as fake:
        assert answer(fake, tmp_path, client, event, sent, POSTROOM_AGENT="Ben") == expected
    body = {"session_id": "s", "cwd": "/w", "agent": "Ben", "guard": "", **asked}
    assert [(one.path, one.body) for one in fake.seen] == [(path, body)]
    assert fake.seen[0].headers["Authorization"] == "Bearer t"


def test_the_agent_s_token_goes_along(tmp_path: Path) -> None:
    with FakePostroom(admin={("POST", "/hooks/claude/Stop"): says("silent")}) as fake:
        answer(fake, tmp_path, "claude", "Stop", SESSION, POSTROOM_AGENT_TOKEN="at")
        answer(fake, tmp_path, "claude", "Stop", SESSION)
        assert answer(fake, tmp_path, "claude", "Stop", SESSION, POSTROOM_AGENT_TOKEN="a\r\nX: y") is None
    assert [one.headers.get("Postroom-Agent-Token") for one in fake.seen] == ["at", None]


def test_every_event_has_a_golden_case() -> None:
    wanted = {(client, event) for client, events in EVENTS.items() if client != "git" for event in events}
    assert {case[:2] for case in GOLDEN} == wanted


@pytest.mark.parametrize(
    ("client", "event", "sent"),
    [
        ("claude", "PreToolUse", {**SESSION, "tool_name": "Bash", "tool_input": {"command": "rm x"}}),
        ("claude", "PreToolUse", {**SESSION, "tool_name": "Edit", "tool_input": {}}),
        ("claude", "PreToolUse", {**SESSION, "tool_name": "Edit", "tool_input": {"file_path": 3}}),
        ("claude", "PreToolUse", {**SESSION, "tool_name": None}),
        ("cursor", "stop", {**CURSOR, "status": "aborted"}),
        ("claude", "Notification", SESSION),
        ("git", "pre-commit", SESSION),
        ("emacs", "Stop", SESSION),
        ("claude", "Stop", []),
        ("claude", "Stop", "text"),
        ("claude", "Stop", None),
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


def test_the_agent_of_a_call_is_seen(subtests: pytest.Subtests) -> None:
    for tool, given, response, name in [
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
    ]:
        with subtests.test(tool=tool, given=given, response=response, name=name):
            sent = {**SESSION, "tool_name": tool, "tool_input": given, "tool_response": response}
            call = call_of("claude", "tool", sent)
            expected = {} if name is None else {"acts_as": name, "acts_in": ""}
            assert call == {"session_id": "s", "cwd": "/w", **expected}


@pytest.mark.parametrize(
    "answer",
    [
        {"structuredContent": {"result": [{"id": 4, "subject": "s"}, {"id": 9, "subject": "t"}]}},
        [{"type": "text", "text": '[{"id": 4, "subject": "s"}, {"id": 9, "subject": "t"}]'}],
        {"content": [{"type": "text", "text": '{"messages": [{"id": 4}, {"id": 9}]}'}]},
        '{"result": [{"id": 4}, {"id": 9}]}',
    ],
)
def test_the_ids_of_fetched_messages_are_read_from_the_answer(answer: object) -> None:
    sent = {
        "tool_name": "mcp__postroom__fetch_inbox",
        "tool_input": {"project_key": "/p", "agent_name": "Ben"},
        "tool_response": answer,
    }
    call = call_of("claude", "tool", sent)
    assert call is not None
    assert call["fetched"] == [4, 9]


def test_what_a_session_reserved_is_read_from_an_answer_that_gemini_has_put_between_marks() -> None:
    granted = json.dumps({"granted": [{"id": 7}], "conflicts": []})
    told = {
        "llmContent": [{"text": f"<untrusted_context>\n{granted}\n</untrusted_context>"}],
        "returnDisplay": granted,
    }
    tool = {"tool_name": "mcp_postroom_file_reservation_paths", "tool_input": {"agent_name": "Ada"}}
    call = call_of("gemini", "tool", {**SESSION, **tool, "tool_response": told})
    assert call is not None
    assert call["reserved"] == [7]


def test_a_deep_answer_of_a_tool_is_not_followed_for_ever() -> None:
    deep: object = REGISTERED
    for _ in range(50):
        deep = {"content": deep}
    sent = {**SESSION, "tool_name": "x__register_agent", "tool_response": deep}
    assert call_of("claude", "tool", sent) == {"session_id": "s", "cwd": "/w"}


def test_a_subagent_is_a_session_of_its_own() -> None:
    call = call_of("claude", "start", {**SESSION, "agent_id": "inner"})
    assert call is not None
    assert call["session_id"] == "s/inner"


def edited(client: str, cwd: str, given: object, tool: str = "") -> object:
    """Return the files about which a hook asks."""
    tool = tool or EDIT_TOOLS[client][0]
    call = call_of(client, "edit", {"cwd": cwd, "tool_name": tool, "tool_input": given})
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
        ("src/app.py", []),
        (app, []),
        ("link/app.py", [app]),
        (f"{here}/link/app.py", [app]),
        ("link/new/file.py", [f"{here}/src/new/file.py"]),
        ("file", [app]),
        (f"{alias}/link/app.py", [app]),
        *([("/proc/self/cwd/src/app.py", [app])] if Path("/proc/self/cwd").exists() else []),
    ):
        with subtests.test(written=written):
            assert edited("claude", here, {"file_path": written}) == [written, *said]
    with subtests.test("a project that is known by a link"):
        asked = edited("claude", str(alias), {"file_path": "link/app.py"})
        assert asked == ["link/app.py", app, f"{alias}/src/app.py"]


@pytest.mark.parametrize("lead", [" ", "\t", "   "])
def test_a_patch_names_its_files_behind_blanks_too(lead: str) -> None:
    patch = f"{lead}*** Begin Patch\n{lead}*** Update File: a.py\n@@\n-x\n+y\n*** End Patch"
    assert edited("codex", "/w", {"command": patch}) == ["a.py"]
    assert edited("codex", "/w", patch) == ["a.py"]


def test_a_patch_that_codex_applies_from_its_shell_names_its_files() -> None:
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch\nEOF\n"
    assert edited("codex", "/w", {"command": patch}, "Bash") == ["a.py"]
    assert edited("codex", "/w", {"cmd": ["bash", "-lc", f"cd src && {patch}"]}, "exec_command") == [
        "a.py",
        "src/a.py",
    ]
    assert edited("codex", "/w", {"cmd": patch, "workdir": "/w/src"}, "exec_command") == [
        "a.py",
        "/w/src/a.py",
    ]
    assert edited("codex", "/w", {"command": "cat apply_patch.txt"}, "Bash") is None
    assert edited("claude", "/w", {"command": patch}, "Bash") is None


def test_every_file_of_a_patch_is_asked_about() -> None:
    files = [f"{number}.py" for number in range(2_000)]
    patch = "\n".join(["*** Begin Patch", *(f"*** Add File: {one}" for one in files), "*** End Patch"])
    assert edited("codex", "/w", {"command": patch}) == files


EDIT = {**SESSION, "tool_name": "Write", "tool_input": {"file_path": "/w/a"}}
PRE = ("POST", "/hooks/claude/PreToolUse")


@pytest.mark.parametrize(
    ("guard", "mode", "expected"),
    [
        ("", "warn", {"systemMessage": LINE}),
        ("", "block", DENIED),
        ("", "off", None),
        ("", "nonsense", None),
    ],
)
def test_an_error_that_the_server_tells_means_what_is_set(
    tmp_path: Path, guard: str, mode: str, expected: object
) -> None:
    with FakePostroom(admin={PRE: says("error", mode=mode)}) as fake:
        found = answer(fake, tmp_path, "claude", "PreToolUse", EDIT, POSTROOM_GUARD=guard)
    assert found == expected


PROBLEM = Raw(503, b'{"code": "store_unavailable", "detail": "SECRET"}', "application/problem+json")


@pytest.mark.parametrize(("guard", "verb"), [("", "note"), ("warn", "note"), ("BLOCK", "deny"), ("off", "")])
def test_a_refusal_of_the_server_means_what_the_environment_says(
    tmp_path: Path, guard: str, verb: str
) -> None:
    with FakePostroom(admin={PRE: lambda _: PROBLEM}) as fake:
        found = answer(fake, tmp_path, "claude", "PreToolUse", EDIT, POSTROOM_GUARD=guard)
        quiet = answer(fake, tmp_path, "claude", "Stop", SESSION, POSTROOM_GUARD=guard)
    assert quiet is None
    text = json.dumps(found)
    assert ("systemMessage" in text, '"deny"' in text) == (verb == "note", verb == "deny")
    assert ("store_unavailable" in text) == bool(verb)
    assert "SECRET" not in text
    assert "POSTROOM_GUARD" not in text


@pytest.mark.parametrize("guard", ["", "warn", "off"])
def test_a_server_that_is_down_refuses_nothing(tmp_path: Path, guard: str) -> None:
    surroundings = environment(free_port(), tmp_path, POSTROOM_GUARD=guard)
    assert hook.answered("claude", "PreToolUse", json.dumps(EDIT).encode(), surroundings) == b""
    nothing = {"HOME": str(tmp_path), "POSTROOM_GUARD": guard}
    assert hook.answered("claude", "PreToolUse", json.dumps(EDIT).encode(), nothing) == b""


def test_a_server_that_is_down_refuses_edits_when_the_environment_asks_for_it(tmp_path: Path) -> None:
    for surroundings in (environment(free_port(), tmp_path), {"HOME": str(tmp_path)}):
        asked = {**surroundings, "POSTROOM_GUARD": "block"}
        found = json.loads(hook.answered("claude", "PreToolUse", json.dumps(EDIT).encode(), asked))
        assert "does not answer" in found["hookSpecificOutput"]["permissionDecisionReason"]
        assert hook.answered("claude", "Stop", json.dumps(SESSION).encode(), asked) == b""


GARBAGE = [
    Raw(200, b"", "application/json"),
    Raw(200, b"<html>", "text/html"),
    Raw(200, b"[]"),
    Raw(200, b"null"),
    Raw(200, b'{"outcome": "deny"}'),
    Raw(200, b'{"outcome": 1, "text": 2}'),
    Raw(200, b'{"outcome": "explode", "text": "x", "mode": "warn"}'),
    Raw(200, b'{"outcome": "hold", "text": "x", "mode": "warn"}'),
    Raw(200, b"\xff\xfe"),
    Raw(200, b"x" * 100_000),
    Raw(404, b"not found", "text/plain"),
    Raw(500, b'{"error": "x"}'),
    Raw(500, b'{"code": "\\u202e evil"}'),
    Short(200, b'{"outcome": "deny", "text": "x"'),
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_answer_that_makes_no_sense_is_none(tmp_path: Path, garbage: Raw) -> None:
    with FakePostroom(admin={PRE: lambda _: garbage}) as fake:
        assert silent(environment(fake.port, tmp_path), json.dumps(EDIT).encode())


@pytest.mark.parametrize("garbage", GARBAGE[:6] + GARBAGE[8:])
def test_an_answer_that_makes_no_sense_refuses_edits_when_the_environment_asks_for_it(
    tmp_path: Path, garbage: Raw
) -> None:
    with FakePostroom(admin={PRE: lambda _: garbage}) as fake:
        found = answer(fake, tmp_path, "claude", "PreToolUse", EDIT, POSTROOM_GUARD="block")
    assert "does not answer" in json.dumps(found)
    assert '"deny"' in json.dumps(found)


def silent(surroundings: Mapping[str, str], raw: bytes) -> bool:
    """Whether nothing is answered; what is raised becomes nothing in `run`."""
    try:
        return hook.answered("claude", "PreToolUse", raw, surroundings) == b""
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


@pytest.mark.parametrize(
    "behave",
    [
        lambda line: line.recv(1),  # closes with a reset
        lambda line: (line.recv(65_536), line.recv(65_536)),  # never answers
        lambda line: (line.recv(65_536), line.sendall(b"SSH-2.0-x\r\n\r\n")),
        lambda line: (line.recv(65_536), line.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}")),
        lambda line: (line.recv(65_536), line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}")),
        drip,
    ],
    ids=["reset", "hangs", "ssh", "no length", "bad length", "drips"],
)
def test_a_server_that_misbehaves_costs_the_budget_at_most(
    tmp_path: Path, behave: Callable[[socket.socket], None]
) -> None:
    with listening(behave) as port:
        began = time.monotonic()
        assert silent(environment(port, tmp_path), json.dumps(EDIT).encode())
        assert time.monotonic() - began < hook_wire.BUDGET + 10  # none that goes on ends by itself so soon


def test_only_this_machine_is_asked_and_only_in_plain_http(subtests: pytest.Subtests) -> None:
    for url in [
        "http://192.0.2.1:80",
        "https://127.0.0.1:1",
        "ftp://127.0.0.1",
        "127.0.0.1:80",
        "http://[::1",
        "x",
    ]:
        with subtests.test(url=url), suppress(ValueError):  # as good as none: `run` says nothing
            assert hook_wire.endpoint_of({"POSTROOM_URL": url, "POSTROOM_TOKEN": "t", "HOME": "/h"}) is None


def test_an_address_is_read(subtests: pytest.Subtests) -> None:
    for url, host, port, prefix in [
        ("http://127.0.0.1:8765", "127.0.0.1", 8765, ""),
        ("http://127.0.0.1:8765/", "127.0.0.1", 8765, ""),
        ("http://localhost:8765/mcp", "127.0.0.1", 8765, ""),
        ("http://LOCALHOST/below/mcp/", "127.0.0.1", 80, "/below"),
        ("http://[::1]:8765", "::1", 8765, ""),
        ("http://[::1]", "::1", 80, ""),
        ("http://0.0.0.0:1", "127.0.0.1", 1, ""),
    ]:
        with subtests.test(url=url, host=host, port=port, prefix=prefix):
            found = hook_wire.endpoint_of({"POSTROOM_URL": url, "POSTROOM_TOKEN": "t", "HOME": "/h"})
            assert found is not None
            assert (found.host, found.port, found.prefix) == (host, port, prefix)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"POSTROOM_DATA_DIR": "{home}/elsewhere"},
        {"POSTROOM_DATA_DIR": "~/there"},
        {"XDG_DATA_HOME": "{home}/xdg"},
        {"XDG_DATA_HOME": "relative"},
        {"LOCALAPPDATA": "{home}/local"},
    ],
)
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_data_folder_is_the_one_of_every_command(
    tmp_path: Path, more: dict[str, str], platform: str
) -> None:
    surroundings = {"HOME": str(tmp_path)}
    surroundings |= {name: value.format(home=tmp_path) for name, value in more.items()}
    assert Path(hook_wire.data_dir(surroundings, platform=platform)) == places.data_dir(
        surroundings, platform=platform
    )


def test_note_and_token_are_those_of_every_command(tmp_path: Path) -> None:
    surroundings = {"HOME": str(tmp_path)}
    folder = places.data_dir(surroundings)
    note = places.ServerNote(url="http://127.0.0.1:1234", pid=1, version="1", started_at=1)
    places.write_server_note(folder, note)
    places.write_private(places.token_file(folder), "secret\n")
    found, known = hook_wire.endpoint_of(surroundings), locate(surroundings)
    assert found is not None
    assert (f"http://{found.host}:{found.port}", found.token) == (known.url, known.token)


def process(
    surroundings: Mapping[str, str], raw: bytes, *words: str, close: bool = True
) -> tuple[int, bytes, bytes]:
    """Run the command in a process of its own, as clients do."""
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
            out, err = child.communicate(raw, timeout=20)
        else:
            child.stdin.write(raw)
            child.stdin.flush()
            child.wait(20)
            assert child.stdout is not None
            assert child.stderr is not None
            out, err = child.stdout.read(), child.stderr.read()
    return child.returncode, out, err


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 200_000,
        b"null",
        b'{"session_id": "\\ud800", "cwd": "\\u0000"}',
        b'{"tool_name": "Write", "tool_input": {"file_path": "\\ud800"}}',
        b"x" * 10_000_000,
    ],
    ids=["nothing", "broken", "binary", "deep", "null", "surrogate", "path", "large"],
)
def test_bad_input_is_met_with_silence(tmp_path: Path, raw: bytes) -> None:
    with FakePostroom() as fake:
        assert process(environment(fake.port, tmp_path), raw, "claude", "PreToolUse") == (0, b"", b"")


def test_a_file_of_ten_megabytes_is_written_and_only_its_name_goes_on(tmp_path: Path) -> None:
    tool = {"file_path": "/w/a", "content": "é\n" * 5_000_000}
    raw = json.dumps({**SESSION, "tool_name": "Write", "tool_input": tool}, ensure_ascii=False).encode()
    with FakePostroom(admin={PRE: says("deny")}) as fake:
        code, out, err = process(environment(fake.port, tmp_path), raw, "claude", "PreToolUse")
    assert (code, json.loads(out), err) == (0, DENIED, b"")
    assert len(json.dumps(fake.seen[0].body)) < 200


@pytest.mark.parametrize(
    "words",
    [
        ("claude", "NoSuch"),
        ("emacs", "Stop"),
        ("", ""),
        ("claude", "stop"),
        ("claude",),
        (),
        tuple("abc"),
        ("-x",),
    ],
)
def test_an_unknown_event_is_met_with_silence(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert process({"HOME": str(tmp_path)}, b"{}", *words) == (0, b"", b"")


def test_broken_notes_and_tokens_are_met_with_silence(tmp_path: Path) -> None:
    folder = places.data_dir({"HOME": str(tmp_path)})
    folder.mkdir(parents=True)
    raw = json.dumps(EDIT).encode()
    for note in (
        "{",
        "[]",
        '{"url": 3}',
        '{"url": "http://127.0.0.1:1"}',
        '{"url": "http://127.0.0.1:99999"}',
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


@pytest.mark.parametrize("state", ["away", "answers"])
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
    assert ours == {
        "postroom",
        "postroom.cli",
        "postroom.cli.hook",
        "postroom.cli.hook_input",
        "postroom.cli.hook_wire",
        "postroom.cli.main",
        "postroom.contracts",
        "postroom.contracts.clients",
        "postroom.version",
    }


DOCUMENTS = [
    {"a": [True, False, 'é\u2028\x00"\\', {"b": ["c"]}], "": {}},
    [],
    "text",
    {"number": 1, "half": 0.5, "nothing": None, "many": [[[]]]},
]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("parts", [True, False])
def test_json_is_read_and_written_as_json(
    document: object, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not parts:
        monkeypatch.setitem(sys.modules, "_json", None)
    assert hook_wire.read(f" {json.dumps(document)}\n".encode()) == document
    assert hook_wire.read(json.dumps(document, ensure_ascii=False).encode()) == document
    if document in DOCUMENTS[:3]:
        assert json.loads(hook_wire.written(document)) == document
        assert hook_wire.written(document).isascii()
    else:
        with pytest.raises(TypeError):
            hook_wire.written(document)


def test_what_is_no_json_is_refused(subtests: pytest.Subtests) -> None:
    for raw in [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"{} {}",
        b"nul",
        b'{"a" 1}',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"'a'",
        b"[" * 100,
    ]:
        with subtests.test(raw=raw), pytest.raises(ValueError):  # noqa: PT011 - of any of its kinds
            hook_wire.read(raw)


def test_the_hook_has_a_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "--help"]) == 0
    assert "claude, codex, gemini, cursor" in capsys.readouterr().out


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
