"""How clients are told of our server for one run, and what is said of one that fails."""

import json
import os
import stat
from pathlib import Path

import pytest

from executors.room import Room
from postroom.contracts.errors import CommandFailed, CommandNotStarted
from postroom.contracts.run_access import RunAccess
from postroom.contracts.runners import Recipe, Runner
from postroom.executors.processes.connecting import CONNECTING
from postroom.executors.processes.output import without_escapes
from postroom.executors.processes.records import Records, write_private

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
    made = CONNECTING[recipe](ACCESS, {"HOME": str(tmp_path)}, tmp_path / "settings")
    told = " ".join((*made.words, *made.variables.values(), (made.file or b"").decode()))
    assert "http://127.0.0.1:8/mcp/core" in told or made.file is not None
    assert "POSTROOM_TOKEN" in told or "mcp --tools core" in told.replace('", "', " ")
    assert ACCESS.token not in told
    assert ACCESS.token not in repr(ACCESS)


def test_codex_is_told_in_the_form_of_the_entry_that_it_has(tmp_path: Path) -> None:
    environment = {"CODEX_HOME": str(tmp_path)}
    (tmp_path / "config.toml").write_text('[mcp_servers.postroom]\ncommand = "postroom"\nargs = ["mcp"]\n')
    words = " ".join(CONNECTING[Recipe.CODEX](ACCESS, environment, tmp_path).words)
    assert '"--tools", "core"' in words
    assert 'env_vars=["POSTROOM_URL"' in words
    assert ".url=" not in words
    (tmp_path / "config.toml").write_text("this is no TOML [")
    words = " ".join(CONNECTING[Recipe.CODEX](ACCESS, environment, tmp_path).words)
    assert 'mcp_servers.postroom.url="http://127.0.0.1:8/mcp/core"' in words


def test_what_a_user_has_told_a_client_by_the_environment_is_kept(tmp_path: Path) -> None:
    system = tmp_path / "system.json"
    system.write_text('{"admin": {"secure": true}, "mcpServers": {"other": {"command": "x"}}}')
    made = CONNECTING[Recipe.GEMINI](ACCESS, {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(system)}, tmp_path / "f")
    settings = json.loads(made.file or b"")
    assert settings["admin"] == {"secure": True}
    assert set(settings["mcpServers"]) == {"other", "postroom"}
    given = {"OPENCODE_CONFIG_CONTENT": '{"model": "m", "mcp": {"other": {"type": "local"}}}'}
    made = CONNECTING[Recipe.OPENCODE](ACCESS, given, tmp_path / "f")
    settings = json.loads(made.variables["OPENCODE_CONFIG_CONTENT"])
    assert settings["model"] == "m"
    assert set(settings["mcp"]) == {"other", "postroom"}


@recipes
async def test_a_client_that_is_missing_is_named_with_how_to_install_it(
    recipe: Recipe, tmp_path: Path
) -> None:
    runner = Runner(recipe=recipe, cwd=str(tmp_path), env={"PATH": str(tmp_path)})
    with pytest.raises(CommandNotStarted) as caught:
        await Room(tmp_path, runner).run()
    name, title, install = MADE_OF[recipe]
    for words in (f"the command '{name}' was not found", title.removesuffix(" 2.0.1"), install):
        assert words in caught.value.describe()


@recipes
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Not logged in", "expected to be logged in or to have a key"),
        ("error: unknown option '--no-such'", "found: unknown option '--no-such'"),
        ("Not inside a trusted directory", "expected a trusted folder"),
        ("it rained", "]"),
    ],
)
async def test_a_client_that_fails_is_named_with_its_version_and_what_helps(
    recipe: Recipe, words: str, found: str, tmp_path: Path
) -> None:
    room = client(tmp_path, recipe, f'printf "\\033[31m{words}\\033[0m" >&2; exit 1')
    with pytest.raises(CommandFailed) as caught:
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
    with pytest.raises(CommandFailed) as caught:
        await client(tmp_path, recipe, f"echo '{line}'").run()
    told = caught.value.describe()
    for words in (MADE_OF[recipe][1], "expected ", "found `novelty`", MADE_OF[recipe][2]):
        assert words in told


def test_what_is_meant_for_a_terminal_is_taken_out() -> None:
    shown = "\x1b[1;31mred\x1b[0m \x1b]0;a title\x07and \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b(Bend"
    assert without_escapes(shown) == "red and link end"
    assert without_escapes("plain\n\ttext [31m") == "plain\n\ttext [31m"


def test_the_settings_of_a_run_are_private_and_are_taken_away(tmp_path: Path) -> None:
    records = Records(tmp_path / "private")
    records.prepare()
    path = records.settings_file("i")
    write_private(path, b"{}")
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    records.remove("i")
    assert not path.exists()
