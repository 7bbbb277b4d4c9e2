"""`postroom setup`: what it prints, what it writes, and the code it ends with. No server runs here."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_room import Done, Run
from clients_room import Homes
from table_rows import each_row


@pytest.fixture
def fresh(homes: Homes) -> Callable[[], Path]:
    """Return what makes a home with one client in it."""

    def made() -> Path:
        home = homes.new()
        (home / "harbour").rmdir()
        (home / ".cursor").mkdir()
        return home

    return made


@pytest.fixture
def home(fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    home = fresh()
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(home.with_name("data")))
    return home


@pytest.fixture
def run(homes: Homes) -> Run:
    return lambda *words: Done(*homes.run(*words))


def test_without_names_what_is_installed_is_set_up_and_the_word_add_may_be_left_out(
    home: Path, run: Run
) -> None:
    done = run()
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Cursor: set up over stdio (needs neither address nor token")
    for said in (
        *(f"{home}/.cursor/mcp.json: made", "open a new session of each client"),
        "call: not tried: no server is running\n  remedy: start the server with `postroom up`",
        "set POSTROOM_DATA_DIR in the environment in which the client starts",
    ):
        assert said in done.out
    entry = json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]["postroom"]
    assert entry == {"command": "postroom", "args": ["mcp", "--tools", "core"]}
    removed = run("remove")
    assert ("Cursor: removed" in removed.out, "Claude" in removed.out) == (True, False)
    assert run("remove", "cursor").out.startswith("Cursor: setup has written nothing that could be removed")
    for words in (["cursor", "--no-verify"], ["--no-verify", "cursor"], ["add", "cursor", "--no-verify"]):
        assert run(*words, "--json").document["clients"][0]["client"] == "cursor"


def test_a_dry_run_shows_a_diff_and_writes_nothing(home: Path, run: Run) -> None:
    file = home / ".cursor/mcp.json"
    file.write_text('{"mcpServers": {}}')
    before = sorted(home.rglob("*"))
    done = run("cursor", "--dry-run")
    assert done.code == 0
    assert f"--- {file}\n+++ {file}\n" in done.out
    assert '+{"mcpServers": {"postroom": {"command": "postroom", "args": ["mcp", "--tools", ' in done.out
    assert "nothing was written" in done.out
    assert file.read_text() == '{"mcpServers": {}}'
    assert sorted(home.rglob("*")) == before
    assert not (home.parent / "data").exists()
    run("cursor")
    assert '-{"mcpServers": {"postroom"' in run("remove", "cursor", "--dry-run").out
    assert "postroom" in file.read_text()


def test_one_that_fails_does_not_stop_the_others(home: Path, run: Run) -> None:
    (home / ".claude.json").write_text("{broken")
    done = run("claude", "cursor", "--json")
    assert done.code == 78
    claude, cursor = done.document["clients"]
    assert claude["error"]["code"] == "client_file_refused"
    assert "line 1" in claude["error"]["message"]
    assert [one["change"] for one in cursor["files"]] == ["made", "made"]
    assert (home / ".claude.json").read_text() == "{broken"
    told = run("claude", "cursor")
    assert "Claude Code: failed\n" in told.out
    assert "remedy: " in told.out
    assert run("remove", "claude").code == 78
    assert run("remove").code == 0  # it was never set up, and nobody asked for it


def test_status_tells_each_client_and_what_would_mend_it(home: Path, run: Run) -> None:
    assert run("status").code == 0
    run("cursor")
    found = {one["client"]: one for one in run("status", "--json").document["clients"]}
    assert found["cursor"] == {
        **{"client": "cursor", "state": "set up", "way": "stdio", "tools": "core", "hooks": True},
        **{"release": None, "extras": [], "findings": []},
    }
    assert found["codex"]["state"] == "not installed"
    (home / ".cursor/hooks.json").write_text('{"version": 1}')
    done = run("status")
    assert done.code == 1
    assert "cursor: hooks_missing: no postroom hook for sessionStart" in done.out
    assert "remedy: postroom setup cursor" in done.out
    assert run("status", "--json").document["ok"] is False


def test_a_name_of_no_client_or_no_command_on_the_path_is_refused_before_anything(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("cursor", "emacs")
    assert (done.code, "unknown client 'emacs'" in done.err) == (2, True)
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("cursor")
    assert (done.code, "uv tool install" in done.err) == (78, True)
    assert "the command `postroom` is not on the PATH" in done.err
    assert not (home / ".cursor/mcp.json").exists()
    assert run("cursor", "--http", "--no-hooks").code == 0
    assert (home / ".cursor/mcp.json").exists()


def test_http_names_the_address_and_the_variable_of_the_token(home: Path, run: Run) -> None:
    done = run("cursor", "--http", "--no-hooks")
    assert (done.code, "export POSTROOM_TOKEN=" in done.out) == (0, True)
    entry = json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]["postroom"]
    assert entry["url"] == "http://127.0.0.1:8765/mcp/core"
    assert entry["headers"] == {"Authorization": "Bearer ${env:POSTROOM_TOKEN}"}
    assert not (home / ".cursor/hooks.json").exists()
    refused = run("cline", "--http", "--json")
    assert (refused.code, refused.document["clients"][0]["error"]["code"]) == (1, "invalid_argument")
    run("claude", "codex", "gemini", "cursor", "vscode", "omp")
    for path in home.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".toml") and ".local" not in path.parts:
            written = path.read_text()
            assert (str(home) in written, str(Path(sys.prefix)) in written) == (False, False), path


@each_row("way", ["--stdio", "--http"])
def test_the_tools_of_daily_work_are_written_unless_all_are_asked_for(way: str, home: Path, run: Run) -> None:
    for words, tools in (((), "core"), (("--tools", "full"), "full"), ((), "core")):
        [told] = run("cursor", way, *words, "--json").document["clients"]
        assert told["tools"] == tools
        entry = json.loads((home / ".cursor/mcp.json").read_text())["mcpServers"]["postroom"]
        assert entry.get("url", "http://127.0.0.1:8765/mcp/" + tools).endswith(f"8765/mcp/{tools}")
        assert entry.get("args", ["mcp", "--tools", tools]) == ["mcp", "--tools", tools]
        [found] = [one for one in run("status", "--json").document["clients"] if one["client"] == "cursor"]
        assert (found["state"], found["tools"]) == ("set up", tools)
    assert run("cursor", "--tools", "few").code == 2


def test_what_others_wrote_under_our_name_is_taken_out_only_when_somebody_asks(home: Path, run: Run) -> None:
    file = home / ".cursor/mcp.json"
    file.parent.rmdir()
    assert run() == Done(
        0,
        "no installed client was found; install a client, such as Claude Code, and run this command again\n",
        "",
    )
    file.parent.mkdir()
    file.write_text('{"mcpServers": {"postroom": {"command": "postroom", "args": ["mcp"]}}}')
    assert (
        run("remove").out
        == "no installed client was found; install a client, such as Claude Code, and run this command again\n"
    )
    assert "postroom" in file.read_text()
    assert "Cursor: removed" in run("remove", "cursor").out
    assert file.read_text() == '{"mcpServers": {}}'


def _own_loop(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file)


def _long_number(file: Path) -> None:
    name = "n = " if file.suffix == ".toml" else '{"n": '
    file.write_text(f"{name}{'7' * 5000}{'' if file.suffix == '.toml' else '}'}")


@each_row("spoil", [_own_loop, _long_number])
@each_row("already", [False, True])
@each_row(
    "client, name",
    [
        ("gemini", ".gemini/settings.json"),
        ("codex", ".codex/config.toml"),
        ("claude", ".claude/settings.json"),
    ],
)
def test_a_file_that_python_cannot_read_is_named_and_the_others_are_done(
    client: str, name: str, already: bool, spoil: Callable[[Path], None], fresh: Callable[[], Path], run: Run
) -> None:
    file = (home := fresh()) / name
    file.parent.mkdir()
    if client == "gemini":
        file.write_text("{}")  # the folder alone may be of another program
    if already:
        run(client, "cursor", "--no-verify")
    spoil(file)
    for words in ((client, "cursor", "--no-verify"), ("status",), ("remove", client, "cursor")):
        done = run(*words)
        assert str(file) in done.out or (words == ("status",) and not already)
        assert done.code == (78 if words != ("status",) else int(already))
        assert (home / ".cursor/mcp.json").exists() is (words[0] != "remove")


def test_an_inline_table_of_toml_is_told_with_what_to_do(home: Path, run: Run) -> None:
    file = home / ".codex/config.toml"
    file.parent.mkdir()
    text = 'model = "x"\nmcp_servers = { a = { command = "x" } }\n'
    file.write_text(text)
    done = run("codex", "--json")
    assert done.code == 78
    error = done.document["clients"][0]["error"]
    for words in (
        str(file),
        "line 2: found `mcp_servers` as an inline table",
        "expected its entries as tables",
    ):
        assert words in error["message"]
    assert "[mcp_servers.x]" in error["remedy"]
    assert file.read_text() == text
    entry = error["remedy"].partition("by hand: ")[2]
    file.write_text(text.replace("} }", "}, " + entry + " }"))  # what the remedy says
    assert run("codex", "--no-verify").code == 0


@each_row("name", [".claude/settings.json", ".claude.json"])
@each_row("text", ['{\n  // mine\n  "x": 1\n}', '{\n  "x": 1,\n}', '{\n  "x": 1 /* mine */\n}'])
def test_a_file_that_the_client_itself_ignores_is_refused(
    name: str, text: str, fresh: Callable[[], Path], run: Run
) -> None:
    home = fresh()
    (home / ".claude").mkdir()
    (home / name).write_text(text)
    before = sorted(home.rglob("*"))
    done = run("claude", "--json")
    assert done.code == 78
    message = done.document["clients"][0]["error"]["message"]
    for words in (str(home / name), "found a comment", "Claude Code expects JSON without", "ignores"):
        assert words in message
    assert (home / name).read_text() == text
    assert sorted(home.rglob("*")) == before


def test_what_was_written_beside_comments_is_taken_out_of_a_file_that_the_client_ignores(
    home: Path, run: Run
) -> None:
    file = home / ".claude/settings.json"
    file.parent.mkdir()
    assert run("claude", "--no-verify").code == 0
    file.write_text("// mine\n" + file.read_text())
    assert run("remove", "claude").code == 0
    assert file.read_text().strip() == "// mine"
