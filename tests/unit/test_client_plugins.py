"""Claude Code as a plugin: a folder and two entries; settings if the client accepts no plugin."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients_room import Homes
from clients_room import put_program as program
from table_rows import each_row

SETTINGS = '{\n    "permissions": {"allow": ["Read"]}\n}\n\n'
Run = Callable[..., Any]
TELLS_ITS_VERSION = """[ "$1" = --version ] && echo "2.1.197 (Claude Code)" && exit
[ "$*" = "auth status --help" ] && echo "Usage: claude auth status [options]" && exit
[ "$1" = auth ] && echo '{"loggedIn": true}' && exit"""
TAKES_PLUGINS = '[ "$2" = list ] && echo "[]"; exit 0'


@pytest.fixture
def home(homes: Homes) -> Path:
    """Return a home with Claude Code's settings in it."""
    home = homes.new()
    homes.monkeypatch.chdir(home.parent)
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").write_text(SETTINGS)
    return home


@pytest.fixture
def run(homes: Homes) -> Run:
    return lambda *words: json.loads(homes.run(*words, "--json")[1])


def claude(home: Path, lines: str = TAKES_PLUGINS) -> None:
    """Put a program of the client's name on the path, which notes with what it was started."""
    program(home, "claude", f'echo "$@" >> {home}/started\n{TELLS_ITS_VERSION}\n{lines}')


def set_up(run: Run, *words: str) -> Any:
    [told] = run("claude", "--no-verify", *words)["clients"]
    return told


def settings(home: Path) -> Any:
    return json.loads((home / ".claude/settings.json").read_text())


def test_a_client_that_takes_plugins_is_set_up_as_one_and_taken_out_in_one_step(home: Path, run: Run) -> None:
    claude(home)
    told = set_up(run)
    assert (told["form"], told["refusal"]) == ("plugin", "")
    found = settings(home)
    assert found["enabledPlugins"] == {"postroom@postroom": True}
    market = Path(found["extraKnownMarketplaces"]["postroom"]["source"]["path"])
    listed = json.loads((market / ".claude-plugin/marketplace.json").read_text())
    plugin = market / listed["plugins"][0]["source"]
    assert json.loads((plugin / ".mcp.json").read_text())["mcpServers"]["postroom"]["command"] == "postroom"
    assert set(json.loads((plugin / "hooks/hooks.json").read_text())["hooks"]) >= {"PreToolUse", "Stop"}
    assert {one.name for one in (plugin / "commands").iterdir()} == {"inbox.md", "send.md"}
    assert not (home / ".claude.json").exists()
    [status] = [one for one in run("status")["clients"] if one["client"] == "claude"]
    assert (status["state"], status["hooks"], status["findings"]) == ("set up", True, [])
    run("remove", "claude")
    assert (home / ".claude/settings.json").read_text() == SETTINGS
    assert not market.exists()
    started = (home / "started").read_text().splitlines()
    assert [one for one in started if one.startswith("plugin")] == [
        "plugin list --json",
        f"plugin marketplace add --scope local {market}",
        "plugin marketplace remove postroom",
    ]


@each_row("lines, words", [(None, "not on the PATH"), ("echo no such command; exit 1", "no such command")])
def test_a_client_that_takes_no_plugin_gets_settings_and_it_is_said_why(
    home: Path, run: Run, lines: str | None, words: str
) -> None:
    if lines:
        claude(home, lines)
    told = set_up(run)
    assert told["form"] == "settings"
    assert words in told["refusal"]
    assert "hooks" in settings(home)
    assert (home / ".claude.json").exists()
    run("remove", "claude")
    assert (home / ".claude/settings.json").read_text() == SETTINGS


def test_one_form_takes_the_place_of_the_other(home: Path, run: Run) -> None:
    claude(home)
    for words, form in [(("--no-plugin",), "settings"), ((), "plugin"), (("--no-plugin",), "settings")]:
        assert set_up(run, *words)["form"] == form
        assert ("hooks" in settings(home)) is (form == "settings")
        assert ("enabledPlugins" in settings(home)) is (form == "plugin")
        assert (home / ".claude.json").exists() is (form == "settings")
    run("remove", "claude")
    assert (home / ".claude/settings.json").read_text() == SETTINGS


def test_a_file_that_cannot_be_read_leaves_everything_as_it_was(home: Path, run: Run) -> None:
    claude(home)
    set_up(run, "--no-plugin")
    servers = (home / ".claude.json").read_text()
    (home / ".claude/settings.json").write_text("{ not json")
    assert "settings.json is unchanged" in set_up(run)["error"]["message"]
    assert (home / ".claude/settings.json").read_text() == "{ not json"
    assert (home / ".claude.json").read_text() == servers
    assert not list(home.rglob("marketplace.json"))


def test_a_plugin_that_was_switched_off_or_changed_is_told(home: Path, run: Run) -> None:
    claude(home)
    set_up(run)
    found = settings(home)
    found["enabledPlugins"]["postroom@postroom"] = False
    (home / ".claude/settings.json").write_text(json.dumps(found))
    next(home.rglob("inbox.md")).write_text("mine")
    [status] = [one for one in run("status")["clients"] if one["client"] == "claude"]
    assert {one["drift"] for one in status["findings"]} == {"missing", "hooks_changed"}


def test_a_dry_run_writes_nothing_and_tells_the_client_nothing(home: Path, run: Run) -> None:
    claude(home)
    told = set_up(run, "--dry-run")
    assert told["form"] == "plugin"
    assert (home / ".claude/settings.json").read_text() == SETTINGS
    assert not list(home.rglob("marketplace.json"))
    questions = {"plugin list --json", "--version"}
    assert set((home / "started").read_text().splitlines()) == questions


def test_a_marketplace_and_a_plugin_of_the_user_under_our_name_come_back_byte_for_byte(
    home: Path, run: Run
) -> None:
    file = home / ".claude/settings.json"
    claude(
        home, f'[ "$3" = remove ] && echo "{{}}" > {file}\n{TAKES_PLUGINS}'
    )  # as Claude drops what bears the name
    for theirs in (
        '{"extraKnownMarketplaces":{"postroom":{"source":{"source":"github","repo":"x/y"}}},'
        '"enabledPlugins":{"postroom@postroom":false},"x":1}',
        '{"enabledPlugins":{"postroom@postroom":false},"x":1}',
    ):
        file.write_text(theirs)
        assert set_up(run)["form"] == "plugin"
        assert settings(home)["enabledPlugins"] == {"postroom@postroom": True}
        run("remove", "claude")
        assert file.read_text() == theirs
