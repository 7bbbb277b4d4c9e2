"""How clients learn of our server for one run, and the report on a client that fails."""

import errno
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from executors.acp_room import AcpRoom
from executors.room import Room
from postroom.app.clients.table import CLIENTS as SET_UP
from postroom.app.clients.table import Client
from postroom.cli.hook_files import READ_TOOLS, SHELL_TOOLS, WHOLE_TOOLS
from postroom.cli.hook_input import EDIT_TOOLS
from postroom.cli.runners import set_runner
from postroom.contracts import errors
from postroom.contracts.activation import RunActivation
from postroom.contracts.clients import EVENTS, WAKING
from postroom.contracts.executor import RunAccess
from postroom.contracts.quoting import without_escapes
from postroom.contracts.runners import STEERED, WITHOUT_SESSIONS, PromptWay, Recipe, Runner, RunnerKind
from postroom.executors.clients import CLIENTS
from postroom.executors.clients.client import NO_CONNECTION, CodingClient, Connection
from real_clients.clients import CLIENTS as REAL_OVER_ACP
from real_clients.clients import PROGRAMS as REAL
from table_rows import each_row

ACCESS = RunAccess(url="http://127.0.0.1:8", mcp_path="/mcp", data_dir="/data", token="prr_secret")
MADE_OF = {
    Recipe.CLAUDE: ("claude", "Claude Code 2.0.1", "npm install -g @anthropic-ai/claude-code@latest"),
    Recipe.CODEX: ("codex", "Codex 2.0.1", "npm install -g @openai/codex@latest"),
    Recipe.GEMINI: ("gemini", "Gemini CLI 2.0.1", "npm install -g @google/gemini-cli@latest"),
    Recipe.OPENCODE: ("opencode", "opencode 2.0.1", "npm install -g opencode-ai@latest"),
    Recipe.CLINE: ("cline", "Cline 2.0.1", "npm install -g cline@latest"),
    Recipe.COPILOT: ("copilot", "Copilot CLI 2.0.1", "npm install -g @github/copilot@latest"),
}
recipes = pytest.mark.parametrize("recipe", list(MADE_OF))
HOOK_TOOLS = {
    "claude": ("Bash", "Read", "Write"),
    "codex": ("exec_command", None, None),
    "gemini": ("run_shell_command", "read_file", "write_file"),
    "cursor": ("Shell", "Read", "Write"),
    "copilot": ("bash", "view", "create"),
    "opencode": ("bash", "read", "write"),
    "cline": ("run_commands", "read_files", None),
}
"""The tools of each client with hooks: for commands, for reading a file, and for writing a whole file.

None stands for a tool that the client lacks. The editor of Cline writes whole files under an argument of its own.
"""
TESTS = Path(__file__).resolve().parents[1]


def connection(recipe: Recipe, environment: Mapping[str, str], folder: Path) -> Connection:
    connect = CLIENTS[recipe].connect
    assert connect is not None
    return connect(ACCESS, environment, folder)


def test_a_coding_client_stands_in_every_table() -> None:
    """`docs/internals/new-client.md` names this test to authors of a new client."""
    clients = {recipe: client for recipe, client in CLIENTS.items() if recipe is not Recipe.SHELL}
    assert set(CLIENTS) == set(Recipe)
    assert set(MADE_OF) == set(clients)
    steered = {recipe for recipe, client in clients.items() if client.steering is not None}
    assert steered == set(STEERED)
    without_sessions = {recipe for recipe, client in CLIENTS.items() if not client.resume}
    assert without_sessions == set(WITHOUT_SESSIONS)
    assert set(clients) <= {client.name for client in SET_UP}
    assert set(clients) <= set(EVENTS)
    assert set(EDIT_TOOLS) == {name for name, events in EVENTS.items() if "edit" in events.values()}
    for recipe, client in clients.items():
        assert client.reader is not None, recipe
        assert client.connect is not None, recipe
        assert client.expects, recipe
        assert bool(client.expects_steered) == (client.steering is not None), recipe
        assert bool(client.refusals) == bool(client.resume), recipe


def test_a_client_with_hooks_stands_in_every_table_of_hooks() -> None:
    assert set(EVENTS) - {"git"} == set(EDIT_TOOLS) == set(HOOK_TOOLS)
    assert set(WAKING) <= set(EDIT_TOOLS)
    assert set(EDIT_TOOLS) == {
        client.name
        for client in SET_UP
        if client.hooks is not None or any(own.is_hook for own in client.own_files)
    }
    for name, (shell, read, whole) in HOOK_TOOLS.items():
        assert shell in SHELL_TOOLS, name
        assert read is None or read in READ_TOOLS, name
        assert whole is None or (whole in WHOLE_TOOLS and whole in EDIT_TOOLS[name]), name
    for client in SET_UP:
        assert client.hooks is None or set(client.hooks.events) <= set(EVENTS[client.name]), client.name


@each_row("record", [Client, CodingClient])
def test_the_page_for_authors_of_a_client_names_each_field(record: type[Client | CodingClient]) -> None:
    page = (TESTS.parent / "docs/internals/new-client.md").read_text(encoding="utf-8")
    table = re.search(rf"^ *\| field of a `{record.__name__}` \|.*\n.*\n((?: *\|.*\n)+)", page, re.MULTILINE)
    assert table
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table[1].splitlines()]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row[0])) == sorted(
        one.name for one in fields(record)
    )
    if record is Client:
        required = {one.name for one in fields(record) if one.default is one.default_factory is MISSING}
        assert {row[0].strip("`") for row in rows if row[1] == "required"} == required


def test_a_client_stands_in_every_table_of_tests_and_of_help() -> None:
    """A change of these tables is a step of `docs/internals/new-client.md`."""
    assert {path.name for path in (TESTS / "clients/cases").iterdir()} == {client.name for client in SET_UP}
    assert set(REAL) == set(MADE_OF)
    told = get_type_hints(set_runner, include_extras=True)["recipe"].__metadata__[0].help
    page = (TESTS.parent / "docs/runners.md").read_text(encoding="utf-8")
    packages = json.loads((TESTS / "real_clients/package.json").read_text())["dependencies"]
    for recipe, client in CLIENTS.items():
        assert recipe in told, recipe
        if recipe is Recipe.SHELL:
            continue
        program = client.program
        assert program is not None, recipe
        assert page.count(f"\n| `{recipe}` |") >= 2, recipe
        assert REAL[recipe].package == program.package, recipe
        assert program.package in packages, recipe
        runner = partial(Runner, kind=RunnerKind.ACP, recipe=recipe, cwd="/")
        if client.acp.command:
            assert runner().kind is RunnerKind.ACP
        else:
            with pytest.raises(errors.InvalidRunner, match="no command that supports ACP"):
                runner()
    over_acp = {one.runner[-1] for one in REAL_OVER_ACP.values() if "acp" in one.runner}
    assert over_acp <= {recipe for recipe, client in CLIENTS.items() if client.acp.command}


def client(folder: Path, recipe: Recipe, script: str) -> Room:
    """Return a room whose client of this recipe is a program that tells version 2.0.1 and runs a script."""
    name = MADE_OF[recipe][0]
    path = folder / "bin" / name
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} 2.0.1" && exit\n{script}\n')
    path.chmod(0o755)
    environment = {"PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}"}
    return Room(folder, Runner(recipe=recipe, cwd=str(folder), env=environment))


@recipes
def test_no_argument_and_no_file_holds_the_token(recipe: Recipe, tmp_path: Path) -> None:
    made = connection(recipe, {"HOME": str(tmp_path)}, tmp_path / "settings")
    told = " ".join((*made.words, *made.variables.values(), b"".join(made.files.values()).decode()))
    assert "http://127.0.0.1:8/mcp/core" in told or made.files
    assert "POSTROOM_TOKEN" in told or "mcp --tools core" in told.replace('", "', " ")
    assert ACCESS.token not in told
    assert ACCESS.token not in repr(ACCESS)


def test_codex_is_told_in_the_form_of_the_entry_that_it_has(tmp_path: Path) -> None:
    environment = {"CODEX_HOME": str(tmp_path)}
    (tmp_path / "config.toml").write_text('[mcp_servers.postroom]\ncommand = "postroom"\nargs = ["mcp"]\n')
    words = " ".join(connection(Recipe.CODEX, environment, tmp_path).words)
    assert '"--tools", "core"' in words
    assert 'env_vars=["POSTROOM_URL"' in words
    assert ".url=" not in words
    (tmp_path / "config.toml").write_text("this is no TOML [")
    words = " ".join(connection(Recipe.CODEX, environment, tmp_path).words)
    assert 'mcp_servers.postroom.url="http://127.0.0.1:8/mcp/core"' in words


def test_what_a_user_has_told_a_client_by_the_environment_is_kept(tmp_path: Path) -> None:
    given = {"OPENCODE_CONFIG_CONTENT": '{"model": "m", "mcp": {"other": {"type": "local"}}}'}
    made = connection(Recipe.OPENCODE, given, tmp_path / "f")
    settings = json.loads(made.variables["OPENCODE_CONFIG_CONTENT"])
    assert settings["model"] == "m"
    assert set(settings["mcp"]) == {"other", "postroom"}


def test_gemini_has_a_home_whose_settings_alone_are_the_runs(tmp_path: Path) -> None:
    own = tmp_path / "home" / ".gemini"
    own.mkdir(parents=True)
    text = """{ // mine
      "security": {"auth": {"selectedType": "oauth-personal"}}, /* "x": 1 */
      "mcpServers": {"other": {"httpUrl": "http://x//y"}}}"""
    (own / "settings.json").write_text(text)
    (own / "trustedFolders.json").write_text("{}")
    folder = tmp_path / "settings"
    made = connection(Recipe.GEMINI, {"HOME": str(own.parent)}, folder)
    made.write(folder)
    assert made.variables == {"GEMINI_CLI_HOME": str(folder)}
    settings = json.loads((folder / ".gemini" / "settings.json").read_text())
    assert settings["security"] == {"auth": {"selectedType": "oauth-personal"}}
    assert settings["mcpServers"]["other"] == {"httpUrl": "http://x//y"}
    assert settings["mcpServers"]["postroom"]["trust"] is True
    assert (own / "settings.json").read_text() == text
    for name in ("tmp/session", "oauth_creds.json", "trustedFolders.json"):
        (folder / ".gemini" / name).write_text("anew")
    shutil.rmtree(folder)
    assert [
        (own / name).read_text() for name in ("tmp/session", "oauth_creds.json", "trustedFolders.json")
    ] == ["anew"] * 3
    (own / "settings.json").write_text("No settings.")  # Gemini CLI says what is wrong with them
    assert connection(Recipe.GEMINI, {"HOME": str(own.parent)}, folder) == NO_CONNECTION


@recipes
async def test_a_client_that_is_missing_is_named_with_how_to_install_it(
    recipe: Recipe, tmp_path: Path
) -> None:
    runner = Runner(recipe=recipe, cwd=str(tmp_path), env={"PATH": str(tmp_path)})
    with pytest.raises(errors.CommandNotStarted) as caught:
        await Room(tmp_path, runner).run()
    name, title, install = MADE_OF[recipe]
    for words in (f"the command '{name}' was not found", title.removesuffix(" 2.0.1"), install):
        assert words in caught.value.describe()


@recipes
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Not logged in", "expected a login or a valid key"),
        ("error: unknown option '--no-such'", "found: unknown option '--no-such'"),
        ("Not inside a trusted directory", "expected a trusted folder"),
        ("it rained", "]"),
    ],
)
async def test_a_client_that_fails_is_named_with_its_version_and_what_helps(
    recipe: Recipe, words: str, found: str, tmp_path: Path
) -> None:
    room = client(tmp_path, recipe, f'printf "\\033[31m{words}\\033[0m" >&2; exit 1')
    with pytest.raises(errors.CommandFailed) as caught:
        await room.run()
    told = caught.value.describe()
    assert MADE_OF[recipe][1] in told
    assert f": {words} [" in told
    assert found in told
    assert "\x1b" not in told


@recipes
async def test_a_client_whose_format_has_changed_fails_and_says_what_came(
    recipe: Recipe, tmp_path: Path
) -> None:
    line = json.dumps({"type": "novelty", "words": "hello"})
    with pytest.raises(errors.CommandFailed) as caught:
        await client(tmp_path, recipe, f"echo '{line}'").run()
    told = caught.value.describe()
    for words in (MADE_OF[recipe][1], "expected ", "found `novelty`", MADE_OF[recipe][2]):
        assert words in told


async def test_a_codex_that_is_steered_is_expected_to_end_its_turn(tmp_path: Path) -> None:
    room = client(tmp_path, Recipe.CODEX, """read line; echo '{"type": "novelty"}'""")
    assert room.runners.runner is not None
    room.runners.runner = replace(room.runners.runner, prompt=PromptWay.STDIN)
    with pytest.raises(
        errors.CommandFailed, match="expected a `turn/completed` of its app-server, found `novelty`"
    ):
        await room.run()


OVER_ACP = {
    Recipe.CLAUDE: ("claude-agent-acp", "Claude Code over ACP", "@agentclientprotocol/claude-agent-acp"),
    Recipe.CODEX: ("codex-acp", "Codex over ACP", "@zed-industries/codex-acp"),
    Recipe.GEMINI: ("gemini", "Gemini CLI", "@google/gemini-cli"),
    Recipe.OPENCODE: ("opencode", "opencode", "opencode-ai"),
}
over_acp = pytest.mark.parametrize("recipe", list(OVER_ACP))


def acp_client(folder: Path, recipe: Recipe, answer: str = "") -> AcpRoom:
    """Return a room whose agent of this recipe answers its first question with a line, if the recipe exists."""
    if answer:
        path = folder / OVER_ACP[recipe][0]
        path.write_text(f"#!/bin/sh\nread line\necho '{answer}'\nread line\n")
        path.chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{'' if not answer else os.environ['PATH']}"}
    return AcpRoom(folder, Runner(kind=RunnerKind.ACP, recipe=recipe, cwd=str(folder), env=environment))


@over_acp
async def test_an_acp_agent_that_is_missing_is_named_with_how_to_install_it(
    recipe: Recipe, tmp_path: Path
) -> None:
    program, title, package = OVER_ACP[recipe]
    with pytest.raises(errors.CommandNotStarted) as caught:
        await acp_client(tmp_path, recipe).run()
    told = caught.value.describe()
    for words in (f"the command '{program}' was not found", title, f"npm install -g {package}@latest"):
        assert words in told


@over_acp
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            '{"id": 0, "error": {"code": -32000, "message": "who are you?"}}',
            ("requires a login first", "run `"),
        ),
        ('{"id": 0, "result": {"protocolVersion": 9}}', ("expected version 1 of the Agent", "npm install")),
    ],
)
async def test_an_acp_agent_that_fails_is_named_with_what_helps(
    recipe: Recipe, answer: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(errors.CommandError) as caught:
        await acp_client(tmp_path, recipe, answer).run()
    for one in (OVER_ACP[recipe][1], *words):
        assert one in caught.value.describe()


async def test_the_version_of_an_acp_agent_is_what_it_says_when_it_is_greeted(tmp_path: Path) -> None:
    answer = '{"id": 0, "result": {"protocolVersion": 9, "agentInfo": {"name": "x", "version": "0.49.0"}}}'
    with pytest.raises(errors.AgentProtocolBroken, match=r"Claude Code over ACP 0\.49\.0: expected"):
        await acp_client(tmp_path, Recipe.CLAUDE, answer).run()


async def test_a_folder_that_is_missing_is_not_taken_for_a_client_that_is(tmp_path: Path) -> None:
    runner = Runner(recipe=Recipe.CLAUDE, cwd=str(tmp_path / "gone"))
    with pytest.raises(errors.CommandNotStarted) as caught:
        await Room(tmp_path, runner).run()
    assert "npm install" not in caught.value.describe()


async def test_without_room_for_its_settings_a_client_is_not_started_and_the_run_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has no room for its settings: it never runs without its connection."""

    @asynccontextmanager
    async def opened(_: RunActivation) -> AsyncIterator[RunAccess | None]:
        yield ACCESS

    room = client(tmp_path, Recipe.GEMINI, f"touch {tmp_path}/started")
    room.executor._access_of = opened
    real = os.open

    def full(path: os.PathLike[str], flags: int, *how: Any, **more: Any) -> int:
        if "/settings/" in str(path) and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, flags, *how, **more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(
        errors.CommandBusy, match="private folder for programs cannot be written: No space left"
    ) as caught:
        await room.run()
    assert caught.value.retryable
    assert not (tmp_path / "started").exists()
    assert room.files() == []


def test_what_is_meant_for_a_terminal_is_taken_out() -> None:
    shown = "\x1b[1;31mred\x1b[0m \x1b]0;a title\x07and \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b(Bend"
    assert without_escapes(shown) == "red and link end"
    assert without_escapes("\x9b31mred\x9b0m \x9d0;a title\x9cand\x00 \x08\u202eend\r\n") == "red and end\n"
    assert without_escapes("plain\n\ttext [31m") == "plain\n\ttext [31m"


@pytest.mark.parametrize(
    ("shown", "mailed"),
    [
        ("\x9b31mred\x9b0m \x9d0;a title\x9cand \x9d8;;http://x\x07link", "red and link"),
        ("\x1b]0;a title\x9cand \x90q#0\x1b\\\x9fkey\x9cend", "and end"),
        ("b\x07e\x08l\0l\x7f \x85\x9b\x0b\x0cend\x1b", "bell end"),
        ("10%\r20%\r\ndone\r", "10%\n20%\ndone\n"),
        ("\u202egpj.exe\u202c \u2066a\u2067b\u2068c\u2069\u202a\u202b\u202d", "gpj.exe abc"),
        (
            "ünï \u200d\u00a0\U0001f469\u200d\U0001f4bb \u05d0\u200f",
            "ünï \u200d\u00a0\U0001f469\u200d\U0001f4bb \u05d0\u200f",
        ),
        ("\x1b]no end, and text\n\x1b[ü", "no end, and text\nü"),
    ],
)
def test_no_control_character_stays_but_tabs_and_line_ends(shown: str, mailed: str) -> None:
    assert without_escapes(shown) == mailed


@pytest.mark.parametrize("begun", ["\x1b]", "\x9d", "\x1b[", "\x9b0 ", "\x1bP;", "\x1b "])
def test_a_mebibyte_of_what_is_only_begun_is_read_at_once(begun: str) -> None:
    assert "\x1b" not in without_escapes(begun * (1 << 19))


async def test_the_settings_of_a_run_are_private_and_are_taken_away(tmp_path: Path) -> None:
    script = 'stat -c %a "$GEMINI_CLI_HOME" "$GEMINI_CLI_HOME/.gemini/settings.json"; readlink "$GEMINI_CLI_HOME/.env"'
    room = client(tmp_path, Recipe.GEMINI, script)
    (tmp_path / ".env").touch()
    room.runners.runner = replace(room.runners.runner, env={**room.runners.runner.env, "HOME": str(tmp_path)})

    @asynccontextmanager
    async def access_of(activation: RunActivation) -> AsyncIterator[RunAccess]:
        yield ACCESS

    room.executor._access_of = access_of
    assert await room.run() == f"700\n600\n{tmp_path}/.env\n"
    assert room.files() == []
    assert (tmp_path / ".env").exists()
