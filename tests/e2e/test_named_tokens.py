"""Named tokens against a running server: made on the command line, used over MCP and REST, ended at once."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import run_here
from e2e.running import Line, RunningServer, plain_environment
from e2e.test_protocol_revisions import listen

pytestmark = pytest.mark.long
FOLDER, OTHER = "/yard/named", "/yard/other"


def ended(server: RunningServer, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**plain_environment(server.data_dir.parent), "POSTROOM_DATA_DIR": str(server.data_dir)}
    return run_here(*words, environment={**environment, **more})


def postroom(server: RunningServer, *words: str) -> str:
    done = ended(server, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def create(server: RunningServer, name: str, *scopes: str, more: tuple[str, ...] = ()) -> str:
    wanted = [word for scope in scopes for word in ("--scope", scope)]
    return postroom(server, "tokens", "create", name, *wanted, *more)


def line(server: RunningServer, token: str) -> Line:
    return Line(server.address, headers={"Authorization": f"Bearer {token}"})


def tools(server: RunningServer, token: str) -> list[str]:
    with line(server, token) as by_token:
        found = by_token.rpc({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    return [one["name"] for one in found.json()["result"]["tools"]]


@pytest.fixture(scope="module", autouse=True)
def projects(server: RunningServer) -> None:
    with server.line() as operator:
        for folder in (FOLDER, OTHER):
            operator.tool("ensure_project", human_key=folder)
            operator.tool("register_agent", project_key=folder, program="p", model="m", name="Ada")


def test_the_command_line_says_which_scope_its_token_lacks(server: RunningServer) -> None:
    token = create(server, "shell", "mail:read")
    place = ("-p", FOLDER)
    read = ended(server, "mail", "inbox", "-p", OTHER, "--as", "Ada", POSTROOM_TOKEN=token)
    assert (read.returncode, read.stderr) == (0, "No messages.\n")
    for words, missing in (
        (("mail", "send", *place, "--as", "Ada", "--to", "Ada", "--subject", "s", "b"), "mail:send"),
        (("people", "list"), "admin"),
    ):
        refused = ended(server, *words, POSTROOM_TOKEN=token)
        assert refused.returncode == 2, refused
        assert f"the token `shell` lacks the scope `{missing}`" in refused.stderr
    every = create(server, "every", "admin")
    assert ended(server, "people", "list", POSTROOM_TOKEN=every).returncode == 0
    refused = ended(server, "tokens", "list", POSTROOM_TOKEN=every)
    assert (refused.returncode, token in refused.stderr) == (2, False)
    assert "only the operator may use this path" in refused.stderr


def test_a_revoked_token_opens_nothing_at_once_and_a_restart_changes_nothing(
    server: RunningServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    create(server, "ci", "mail:read", more=("--expires", "1d", "--out", str(file)))
    first = file.read_text().strip()
    second = postroom(server, "tokens", "rotate", "ci", "--overlap", "1h")
    for token in (first, second):
        assert "whois" in tools(server, token)
    server.stop()
    server.start()
    told: dict[str, Any] = json.loads(postroom(server, "tokens", "list", "--json"))
    kept = [one for one in told["tokens"] if one["name"] == "ci"]
    assert [one["state"] for one in kept] == ["replaced", "valid"]
    assert all(one["last_used_at"] for one in kept)
    postroom(server, "tokens", "revoke", "ci")
    for token in (first, second):
        with line(server, token) as by_token:
            assert by_token.rpc({"jsonrpc": "2.0", "id": 1, "method": "ping"}).status == 401
    for token in (first, second):
        assert token not in server.log()


def test_a_stream_of_a_revoked_token_is_told_nothing_more(server: RunningServer) -> None:
    """The server's stop ends the stream with its result: no later entry comes before it."""
    inbox = "mail://inbox/yard-named/Ada"
    gone, good = create(server, "gone", "mail:read"), create(server, "good", "mail:read", more=("-p", FOLDER))
    with line(server, gone) as ear, line(server, good) as other, server.line() as operator:
        for one in (ear, other):
            listen(one, inbox)
        message = {"project_key": FOLDER, "sender_name": "Ada", "to": ["Ada"], "subject": "s", "body_md": "b"}
        operator.tool("send_message", **message)
        for one in (ear, other):
            assert one.events(1)[0]["params"]["uri"] == inbox
        postroom(server, "tokens", "revoke", "gone")
        operator.tool("send_message", **message)
        assert other.events(1)[0]["params"]["uri"] == inbox
        server.stop()
        assert "result" in ear.events(1)[0]
    server.start()
