"""Setup's report on a client that is missing, too old, logged out, or in a folder that is not trusted.

The clients here are programs of the test that answer as the real ones do; `tests/real_clients` asks those.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clients_room import Homes
from clients_room import put_program as program
from postroom.cli.main import main
from postroom.executors.processes import asking
from table_rows import each_row

Run = Callable[..., tuple[int, Any]]
LOGGED_OUT = '{"loggedIn": false, "authMethod": "none"}'


@pytest.fixture
def fresh(homes: Homes) -> Callable[[], Path]:
    """Return what makes an empty home, with the project in which set-up is started."""

    def made() -> Path:
        home = homes.new(path=":/usr/bin:/bin")
        homes.monkeypatch.chdir(home / "harbour")
        return home

    return made


@pytest.fixture
def home(fresh: Callable[[], Path]) -> Path:
    return fresh()


@pytest.fixture
def run(homes: Homes) -> Run:
    def run(*words: str) -> tuple[int, Any]:
        code, out, _ = homes.run(*words, "--json")
        return code, json.loads(out)

    return run


def claude(
    home: Path, *, version: str = "2.1.197 (Claude Code)", login: str = LOGGED_OUT, servers: str = ""
) -> None:
    """Put a Claude Code without plugins on the path."""
    answers = {
        "--version": version,
        "auth status --help": "Usage: claude auth status [options]",
        "auth status": login,
        "mcp list": servers,
    }
    cases = "".join(f"'{asked}') echo '{answer}'; exit 0;;\n" for asked, answer in answers.items())
    program(home, "claude", f'case "$*" in {cases} esac; exit 1')


def tree(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


@each_row("words", [(), ("--dry-run",)])
@each_row(
    "client, found",
    [
        (
            "claude",
            ("Claude Code", "`claude` on the PATH", ".claude", "npm install -g @anthropic-ai/claude-code"),
        ),
        ("codex", ("Codex", "`codex` on the PATH", "npm install -g @openai/codex")),
        ("copilot", ("Copilot CLI", "`copilot` on the PATH", "npm install -g @github/copilot")),
        ("claude-desktop", ("Claude Desktop", ".config/Claude", "install Claude Desktop")),
    ],
)
def test_a_client_that_is_missing_is_refused_with_what_was_looked_for(
    client: str, found: tuple[str, ...], words: tuple[str, ...], fresh: Callable[[], Path], run: Run
) -> None:
    home = fresh()
    before = tree(home)
    code, document = run(client, *words)
    assert code == 78
    [told] = document["clients"]
    assert told["error"]["code"] == "client_unfit"
    for one in found:
        assert one in told["error"]["message"] + told["error"]["remedy"]
    assert tree(home) == before


def test_a_project_is_set_up_for_others_too_who_have_the_client(home: Path, run: Run) -> None:
    assert run("claude", "--scope", "project", "--no-verify")[0] == 0


@each_row("words", [(), ("--scope", "project"), ("--dry-run",)])
def test_a_client_that_is_too_old_is_refused_with_its_version(
    words: tuple[str, ...], fresh: Callable[[], Path], run: Run
) -> None:
    home = fresh()
    claude(home, version="2.1.87 (Claude Code)")
    before = tree(home)
    code, document = run("claude", *words)
    assert code == 78
    error = document["clients"][0]["error"]
    for one in ("Claude Code 2.1.87 is too old", "expected 2.1.88 or newer", "background hooks"):
        assert one in error["message"]
    assert "npm install -g @anthropic-ai/claude-code@latest" in error["remedy"]
    assert tree(home) == before
    assert run("claude", *words, "--no-hooks", "--no-verify")[0] == 0


def test_a_client_that_tells_no_version_is_set_up_and_told(home: Path, run: Run) -> None:
    claude(home, version="who knows", login='{"loggedIn": true}')
    code, document = run("claude", "--no-verify")
    assert code == 0
    [told] = document["clients"][0]["to_do"]
    assert told["kind"] == "client_unknown"
    assert "expected a version from `claude --version`, found" in told["detail"]
    assert "who knows" in told["detail"]


@each_row(
    "login, kind, words",
    [
        (LOGGED_OUT, "logged_out", "written, logged out: Claude Code"),
        ("Welcome!", "client_unknown", "expected `loggedIn` in the output of `claude auth status`, found"),
        ('{"loggedIn": "yes"}', "client_unknown", "`loggedIn`"),
    ],
)
def test_a_client_that_is_logged_out_is_set_up_and_told(
    login: str, kind: str, words: str, fresh: Callable[[], Path], run: Run
) -> None:
    home = fresh()
    claude(home, login=login)
    code, document = run("claude", "--no-verify")
    [told] = document["clients"][0]["to_do"]
    assert (code, told["kind"]) == (0, kind)
    assert words in told["detail"]
    code, document = run("status")
    status = next(one for one in document["clients"] if one["client"] == "claude")
    assert (code, [one["drift"] for one in status["findings"]]) == (1, [kind])
    claude(home, login='{"loggedIn": true}')
    assert run("status")[0] == 0


def test_an_old_client_is_not_asked_what_it_would_take_for_a_prompt(home: Path, run: Run) -> None:
    usage = "echo 'Usage: claude [options] [command] [prompt]'"
    program(
        home, "claude", f'[ "$1" = --version ] && echo 2.1.90 && exit\necho "$@" >> {home}/asked\n{usage}'
    )
    assert run("claude", "--no-verify")[1]["clients"][0]["to_do"] == []
    assert "auth status" not in (home / "asked").read_text().splitlines()


@each_row(
    "servers, kinds",
    [
        (
            "postroom: postroom mcp --tools core - ⏸ Pending approval (run claude to approve)",
            ["folder_untrusted"],
        ),
        ("○ postroom: postroom mcp --tools core (stdio) - Disabled", ["folder_untrusted"]),
        ("No MCP servers configured.", ["folder_untrusted"]),
        ("postroom: postroom mcp --tools core - ✘ Failed to connect", []),
    ],
)
def test_a_folder_that_the_client_does_not_trust_is_told(
    servers: str, kinds: list[str], fresh: Callable[[], Path], run: Run
) -> None:
    home = fresh()
    claude(home, login='{"loggedIn": true}', servers=servers)
    code, document = run("claude", "--no-verify", "--scope", "project")
    told = document["clients"][0]["to_do"]
    assert (code, [one["kind"] for one in told]) == (0, kinds)
    for one in told:
        assert "written, folder not trusted" in one["detail"]
        assert "start `claude` in that folder" in one["remedy"]


@each_row("words", [(), ("--dry-run",), ("--scope", "project")])
def test_a_trailing_comma_is_refused_for_gemini_and_a_comment_is_not(
    words: tuple[str, ...], fresh: Callable[[], Path], run: Run
) -> None:
    """Gemini CLI reads comments, and ends with 52 if a file has a comma before a closing bracket."""
    home = fresh()
    path = (Path.cwd() if "project" in words else home) / ".gemini/settings.json"
    path.parent.mkdir(parents=True)
    text = '// mine\n{\n  "ui": {"theme": "x"},\n}\n'
    path.write_text(text)
    code, document = run("gemini", *words)
    message = document["clients"][0]["error"]["message"]
    assert code == 78
    assert f"{path} is unchanged: line 3: found a comma before a closing bracket" in message
    assert "Gemini CLI expects JSON without" in message
    assert path.read_text() == text
    path.write_text(text.replace("},", "}"))
    assert run("gemini", "--no-verify", *words)[0] == 0


def test_a_dry_run_has_a_client_write_into_a_home_that_is_deleted(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients write their own files at every call."""
    writes = 'for at in "$HOME" "$CLAUDE_CONFIG_DIR" "$CODEX_HOME" "$XDG_CONFIG_HOME"; do touch "${at:-.}/new"; done'
    monkeypatch.setenv("CODEX_HOME", str(home / "codex"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "claude"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    for name in ("codex", "claude", "xdg"):
        (home / name).mkdir()
    program(home, "claude", f"{writes}\necho 2.1.197")
    program(home, "codex", f"{writes}\necho 0.169.0")
    before = tree(home)
    code, document = run("claude", "codex", "--dry-run")
    assert (code, tree(home)) == (0, before)
    assert [one["to_do"] for one in document["clients"]] == [[], []]
    [note] = document["notes"]
    assert note.startswith("nothing was written; a dry run does not check the login")
    assert run("remove", "claude", "--dry-run")[1]["notes"] == ["nothing was written"]


def test_removal_lists_no_file_that_was_never_there(home: Path, run: Run) -> None:
    claude(home, login='{"loggedIn": true}')
    run("claude", "--no-verify", "--no-skill")
    for told in (run("remove", "claude", "--dry-run")[1], run("remove", "claude")[1]):
        files = {Path(one["path"]).name for one in told["clients"][0]["files"]}
        assert files == {".claude.json", "settings.json"}


def test_where_the_new_form_cannot_be_written_the_old_one_stays(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin replaces settings only when it is complete."""
    claude(home, login='{"loggedIn": true}')
    run("claude", "--no-verify")
    before = {path: path.read_bytes() for path in home.rglob("*.json") if "machine" not in path.parts}
    program(home, "claude", '[ "$1" = --version ] && echo 2.1.197\necho "[]"\nexit 0')
    real = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".plugin.json.postroom-"):
            raise OSError(28, "no space left", str(self))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    code, document = run("claude", "--no-verify")
    assert (code, document["clients"][0]["form"]) == (78, "plugin")
    assert before == {path: path.read_bytes() for path in home.rglob("*.json") if "machine" not in path.parts}
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home.with_name('bin')}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.chdir(home)
    assert run("remove", "claude")[0] == 0
    assert not (home / ".claude").exists()


@each_row("name", ["claude", "codex", "gemini"])
def test_a_client_that_hangs_is_asked_once_and_ended_with_what_it_started(
    name: str, fresh: Callable[[], Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fresh()
    monkeypatch.setattr(asking, "PATIENCE", timedelta(seconds=1))
    asked, held = home / "asked", home / "held"
    asked.touch()
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    program(home, name, f'exec 3<>{held}\necho "$@" >> {asked}\nsleep 600 &\nwait')
    code, document = run(name, "--no-verify")
    assert code == 0
    assert "no answer within 1 seconds" in json.dumps(document)
    assert len(asked.read_text().splitlines()) <= 1  # on a busy machine it may not even have begun
    asked.write_text("")
    assert "no answer within 1 seconds" in json.dumps(run("status")[1])
    assert len(asked.read_text().splitlines()) <= 1
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # comes when nothing that it started holds the pipe any more
    os.close(reader)


@each_row(
    "name, lines, expected, found",
    [
        (
            "claude",
            "[ $1 = --version ] && echo '2.1.197 (Claude Code)' || echo '<html>'",
            [
                "a JSON list from `claude plugin list",
                "a command to check the login in the output of `claude auth",
            ],
            "'<html>' (0)",
        ),
        ("gemini", "exit 1", ["a version from `gemini --version`"], "'' (1)"),
        ("copilot", "echo what? >&2; exit 3", ["a version from `copilot"], "'what?' (3)"),
        (
            "claude",
            "printf '1.0\\033]0;x\\007\\377'; head -c 3000000 /dev/zero",
            ["a version from `claude --version`", "a JSON list"],
            "\\x1b]0;x\\x07",
        ),
    ],
)
def test_what_a_client_answers_in_place_of_what_was_expected_is_told(
    name: str,
    lines: str,
    expected: list[str],
    found: str,
    fresh: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = fresh()
    program(home, name, lines)
    assert main(["setup", name, "--no-verify"]) == 0
    said = capsys.readouterr().out
    for words in expected:
        assert f"expected {words}" in said
    assert found in said
    assert len(said) < 5000
    assert not set(said) & {"\x1b", "\x07", "\0"}


def claude_status(run: Run, home: Path, installed: str) -> tuple[int, Any]:
    claude(home, version=f"{installed} (Claude Code)", login='{"loggedIn": true}')
    code, document = run("status")
    return code, next(one for one in document["clients"] if one["client"] == "claude")


def test_status_names_the_installed_release_and_warns_if_it_was_not_tried(
    home: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    claude(home, version="2.1.88 (Claude Code)", login='{"loggedIn": true}')
    assert run("claude", "--no-verify")[0] == 0
    _, status = claude_status(run, home, "2.1.88")
    tried, tried_on = status["release"]["tried"], status["release"]["tried_on"]
    for installed, relation in (("2.1.88", "older"), ("99.0.1", "newer")):
        code, status = claude_status(run, home, installed)
        release = status["release"]
        assert (code, status["state"], release["installed"]) == (0, "set up", installed)
        expected = f"{installed} was not tested with this release of postroom: it is {relation} than {tried}"
        assert expected in release["warning"]
        assert tried_on in release["warning"]
        assert f"npm install -g @anthropic-ai/claude-code@{tried}" in release["remedy"]
    code, status = claude_status(run, home, tried)
    assert (code, status["release"]["warning"], status["release"]["remedy"]) == (0, "", "")
    claude(home, version="99.0.1 (Claude Code)", login='{"loggedIn": true}')
    capsys.readouterr()
    assert main(["setup", "status"]) == 0
    shown = capsys.readouterr().out
    assert "claude: warning: Claude Code 99.0.1 was not tested with this release of postroom" in shown
    assert "  remedy: update postroom" in shown


def test_status_names_no_release_of_a_client_that_is_not_installed_or_tells_none(
    home: Path, run: Run
) -> None:
    _, document = run("status")
    assert all(one["release"] is None for one in document["clients"])
    claude(home, version="who knows", login='{"loggedIn": true}')
    _, document = run("status")
    [release] = [one["release"] for one in document["clients"] if one["release"]]
    assert release["installed"] == ""
    assert "expected a version from `claude --version`, found 'who knows'" in release["warning"]
