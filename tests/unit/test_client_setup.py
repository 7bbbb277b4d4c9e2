"""Clients set up in a separate home: their entries, refusals, and their later state."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from clients_room import ADDRESS, BY_NAME, Room, Rooms
from postroom.app.clients.config_paths import SetupScope, chosen, is_installed, servers_file
from postroom.app.clients.table import CLIENTS, Client, Way
from postroom.contracts.errors import ClientFileRefused, ConfigError, InvalidArgument
from table_rows import each_row

SETTINGS = ".claude/settings.json"
SERVERS = ".claude.json"


@each_row("client", CLIENTS)
def test_every_client_is_set_up_stands_well_and_is_taken_out(client: Client, rooms: Rooms) -> None:
    room = rooms()
    room.set_up(client.name)
    found = room.status_of(client.name)
    assert (found.state, found.way, found.findings) == ("set up", "stdio", ())
    assert found.hooks == (client.hooks is not None or any(one.is_hook for one in client.own_files))
    room.take_out(client.name)
    assert room.tree() == {}
    assert room.status_of(client.name).state in ("not installed", "not set up")
    if client.http is None:  # no token is ever written into a file
        with pytest.raises(InvalidArgument, match="cannot use HTTP"):
            room.set_up(client.name, "http")
        assert room.tree() == {}


@each_row("client", CLIENTS)
def test_a_project_is_set_up_in_its_own_folder(client: Client, rooms: Rooms) -> None:
    room = rooms()
    room.scope = "project"
    (room.home / "harbour").mkdir()
    if not client.project:
        with pytest.raises(InvalidArgument, match="has no configuration for a single project"):
            room.set_up(client.name)
        return
    room.set_up(client.name)
    assert {name.partition("/")[0] for name in room.tree()} == {"harbour"}
    room.take_out(client.name)
    assert room.tree() == {"harbour": None}


@each_row(
    "name, file, grant",
    [
        ("codex", ".codex/config.toml", 'default_tools_approval_mode = "approve"'),
        ("gemini", ".gemini/settings.json", '"trust": true'),
    ],
)
def test_only_a_person_s_own_file_lets_the_tools_run_unasked(
    name: str, file: str, grant: str, rooms: Rooms
) -> None:
    room = rooms()
    room.set_up(name)
    assert grant in room.read(file)
    room.scope = "project"
    (room.home / "harbour").mkdir()
    room.set_up(name)
    assert grant not in room.read(f"harbour/{file}")
    assert room.drifts(name) == []


@each_row("name, file, text", [("claude", SERVERS, '{"a": 1}'), ("codex", ".codex/config.toml", "a = 1")])
def test_both_ways_after_one_another_leave_what_was_there(
    name: str, file: str, text: str, rooms: Rooms
) -> None:
    room = rooms()
    room.write(file, text)
    for way in ("http", "stdio", "http"):
        room.set_up(name, way)  # type: ignore[arg-type]  # it is a way
        assert room.status_of(name).way == way
    room.take_out(name)
    assert room.read(file) == text


def test_what_stood_there_before_setup_stays_when_it_is_taken_out(room: Room) -> None:
    entry = '{"type": "stdio", "command": "postroom", "args": ["mcp", "--tools", "core"], "alwaysLoad": true}'
    by_hand = f'{{"mcpServers": {{"postroom": {entry}}}}}'
    room.write(SERVERS, by_hand)
    assert room.status_of("claude").state == "set up"
    room.set_up("claude", hooks=False)
    assert room.tree() == {SERVERS: by_hand.encode()}
    room.take_out("claude")
    assert room.read(SERVERS) == by_hand
    room.take_out("claude")  # nobody knows of a setup any more: what bears our name goes
    assert json.loads(room.read(SERVERS)) == {"mcpServers": {}}


def test_without_a_record_what_bears_our_name_is_taken_out(room: Room) -> None:
    room.write(".cursor/hooks.json", '{"version": 1, "hooks": {"stop": [{"command": "done"}]}}')
    room.set_up("cursor")
    room.set_up("vscode", "http")
    for file in (room.home.with_name("home-data")).rglob("setup.json"):
        file.unlink()
    room.take_out("cursor")
    room.take_out("vscode")
    hooks = json.loads(room.read(".cursor/hooks.json"))["hooks"]
    assert hooks.pop("stop") == [{"command": "done"}]
    assert set(map(str, hooks.values())) == {"[]"}
    assert json.loads(room.read(".config/Code/User/mcp.json")) == {"servers": {}, "inputs": []}


@each_row("name", [one.name for one in CLIENTS if one.hooks or one.own_files])
def test_a_set_up_without_hooks_takes_out_the_hooks_of_an_earlier_one(name: str, rooms: Rooms) -> None:
    room = rooms()
    before = room.tree()
    room.set_up(name, hooks=False)
    without = room.tree()
    room.take_out(name)
    room.set_up(name)
    assert room.tree() != without
    room.set_up(name, hooks=False)
    assert room.tree() == without
    assert not room.status_of(name).hooks
    room.take_out(name)
    assert room.tree() == before


def test_a_set_up_over_stdio_takes_out_what_one_over_http_asked_for(room: Room) -> None:
    room.set_up("vscode", "stdio")
    over_stdio = room.tree()
    room.take_out("vscode")
    room.set_up("vscode", "http")
    assert "inputs" in room.read(".config/Code/User/mcp.json")
    room.set_up("vscode", "stdio")
    assert room.tree() == over_stdio


def test_a_folder_goes_with_its_last_client_unless_a_client_wrote_in_it(room: Room) -> None:
    for first, second in (("gemini", "antigravity"), ("antigravity", "gemini")):
        room.set_up("gemini")
        room.set_up("antigravity")
        room.take_out(first)
        assert ".gemini" in room.tree()
        room.take_out(second)
        assert room.tree() == {}
    room.set_up("codex")
    room.write(".codex/auth.json", "{}")
    room.take_out("codex")
    assert room.tree() == {".codex": None, ".codex/auth.json": b"{}"}


def test_opencode_is_written_in_the_form_of_its_version(room: Room) -> None:
    path = ".config/opencode/opencode.jsonc"
    room.write(path, '{"mcp": {"servers": {}}}')
    assert [one.name for one in chosen([], room.target)] == ["opencode2"]
    with pytest.raises(ClientFileRefused, match="another version of opencode"):
        room.set_up("opencode")
    room.write(path, '{"mcp": {}}')
    assert [one.name for one in chosen([], room.target)] == ["opencode"]


def test_clients_are_found_by_their_folder_or_their_program(room: Room) -> None:
    assert chosen([], room.target) == []
    room.write(".cursor/other", "")
    program = room.write("bin/codex", "#!/bin/sh\n")
    program.chmod(0o755)
    room.more["PATH"] = str(program.parent)
    assert [one.name for one in chosen([], room.target)] == ["codex", "cursor"]
    assert [one.name for one in chosen(["cline", "cline"], room.target)] == ["cline"]
    with pytest.raises(InvalidArgument, match="unknown client 'emacs'"):
        chosen(["emacs"], room.target)


@each_row(
    "name, platform, path",
    [
        ("vscode", "linux", ".config/Code/User/mcp.json"),
        ("vscode", "darwin", "Library/Application Support/Code/User/mcp.json"),
        ("claude-desktop", "darwin", "Library/Application Support/Claude/claude_desktop_config.json"),
        ("opencode", "darwin", ".config/opencode/opencode.json"),
        ("claude", "darwin", ".claude.json"),
    ],
)
def test_each_system_has_its_own_folders(name: str, platform: str, path: str, rooms: Rooms) -> None:
    room = rooms()
    target = SetupScope(environment=room.environment, platform=platform)
    assert servers_file(BY_NAME[name], target).path == room.home / path
    assert not is_installed(BY_NAME[name], target)


def test_a_variable_of_the_client_names_its_folder(room: Room, tmp_path: Path) -> None:
    room.more = {"CODEX_HOME": str(tmp_path / "codex"), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    for name in ("codex", "claude"):
        room.set_up(name)
    assert room.tree() == {}
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("c*/*")}
    assert written == {"codex/config.toml", "codex/hooks.json", "claude/.claude.json", "claude/settings.json"}
    for name in ("codex", "claude"):
        room.take_out(name)
    assert not (tmp_path / "codex").exists()


def test_a_link_within_the_home_is_followed_and_stays_a_link(room: Room) -> None:
    kept = room.write("dotfiles/claude.json", "{}\n")
    (room.home / SERVERS).symlink_to(kept)
    room.set_up("claude", hooks=False)
    assert (room.home / SERVERS).is_symlink()
    assert "postroom" in kept.read_text()
    room.take_out("claude")
    assert kept.read_text() == "{}\n"
    assert [path.name for path in kept.parent.iterdir()] == ["claude.json"]


def refused(room: Room, words: str) -> None:
    before = room.tree()
    with pytest.raises(ClientFileRefused, match=words) as told:
        room.set_up("claude")
    assert told.value.remedy
    assert room.tree() == before
    assert not room.records.get((room.home / SERVERS).resolve()).clients


def test_a_link_that_leads_out_of_the_home_is_refused(rooms: Rooms, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    for name, target in ((SERVERS, "elsewhere.json"), (".claude", "elsewhere")):
        room = rooms()
        (room.home / name).symlink_to(tmp_path / target)
        refused(room, "the file is a link to")
    assert (tmp_path / "elsewhere.json").read_text() == "{}"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@each_row(
    "content, words",
    [
        *((None, "not a regular file"), ("ring", ""), (b"\xff\xfe{\x00}\x00", "not UTF-8 text")),
        *((b'{"a": "\xe9"}', "not UTF-8 text"), (b"{}", "read-only"), ("second", "line 1")),
    ],
)
def test_a_file_that_cannot_be_changed_is_refused(
    content: bytes | str | None, words: str, rooms: Rooms
) -> None:
    room = rooms()
    file = room.home / SERVERS
    if content is None:
        file.mkdir()
    elif content == "ring":
        file.symlink_to(room.home / "b")
        (room.home / "b").symlink_to(file)
        with pytest.raises(ClientFileRefused):
            room.set_up("claude")
        return
    elif isinstance(content, str):  # when the second file cannot be read, the first is not written
        room.write(SETTINGS, '{"hooks": ')
    else:
        file.write_bytes(content)
        file.chmod(0o444 if words == "read-only" else 0o600)
    refused(room, words)


@each_row("mode", [None, 0o600, 0o640, 0o644])
def test_the_mode_is_kept_and_new_files_and_backups_are_private(mode: int | None, rooms: Rooms) -> None:
    room = rooms()
    if mode is not None:
        room.write(SERVERS, '{"token": "secret"}').chmod(mode)
    [change] = room.set_up("claude", hooks=False)
    assert stat.S_IMODE((room.home / SERVERS).stat().st_mode) == (mode or 0o600)
    if mode is None:
        return
    assert change.backup is not None
    assert change.backup.name.startswith(".claude.json.postroom-backup-2026")
    assert change.backup.read_text() == '{"token": "secret"}'
    assert stat.S_IMODE(change.backup.stat().st_mode) == 0o600
    room.take_out("claude")
    assert stat.S_IMODE((room.home / SERVERS).stat().st_mode) == mode
    assert set(room.tree()) == {SERVERS}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_is_kept(room: Room) -> None:
    os.chown(room.write(SERVERS, "{}"), 65_534, 65_534)
    [change] = room.set_up("claude", hooks=False)
    assert change.backup is not None
    for path in (room.home / SERVERS, change.backup):
        assert (path.stat().st_uid, path.stat().st_gid) == (65_534, 65_534)


def test_a_backup_that_differs_from_what_is_left_is_kept(room: Room) -> None:
    room.write(SERVERS, '{"a": 1}')
    room.set_up("claude", hooks=False)
    room.write(SERVERS, room.read(SERVERS).replace('"a": 1', '"a": 2'))
    room.take_out("claude")
    assert json.loads(room.read(SERVERS)) == {"a": 2}
    assert [content for name, content in room.tree().items() if "backup" in name] == [b'{"a": 1}']


def test_drift_is_told_apart(room: Room) -> None:
    room.set_up("claude")
    good = {name: room.read(name) for name in (SERVERS, SETTINGS)}
    for drift, name, former, latter in (
        ("missing", SERVERS, '"postroom": {', '"other": {'),
        ("changed", SERVERS, '"command": "postroom"', '"command": "/opt/x"'),
        ("duplicate", SERVERS, '"postroom": {', '"postroom": {}, "postroom": {'),
        ("unreadable", SERVERS, good[SERVERS][-3:], ""),
        ("hooks_missing", SETTINGS, "hook claude Stop", "hook else Stop"),
        ("hooks_changed", SETTINGS, "|MultiEdit", ""),
    ):
        room.write(name, good[name].replace(former, latter))
        assert room.read(name) != good[name]
        found = room.status_of("claude")
        assert (found.state, [one.drift for one in found.findings]) == ("drifted", [drift])
        assert all(one.remedy for one in found.findings)
        room.write(name, good[name])
    assert room.drifts("claude") == []
    room.set_up("cursor")
    room.write(".cursor/hooks.json", '{"version": 1}')
    assert room.drifts("cursor") == ["hooks_missing"]
    room.set_up("cursor")
    hooks = json.loads(room.read(".cursor/hooks.json"))
    hooks["hooks"]["stop"] *= 2
    room.write(".cursor/hooks.json", json.dumps(hooks))
    assert room.drifts("cursor") == ["duplicate"]
    room.take_out("cursor")
    room.set_up("cursor")
    assert room.drifts("cursor") == []


@each_row("client", CLIENTS)
def test_both_choices_of_tools_are_known_again_and_so_is_the_form_of_earlier_versions(
    client: Client, rooms: Rooms
) -> None:
    room = rooms()
    ways: list[Way] = ["stdio", "http"] if client.http else ["stdio"]
    for way in ways:
        for tools in ("full", "core"):
            room.set_up(client.name, way, tools=tools)  # type: ignore[arg-type]  # one of both
            found = room.status_of(client.name)
            assert (found.state, found.way, found.tools, found.findings) == ("set up", way, tools, ())
        for path, content in room.tree(backups=False).items():
            if content is not None:
                earlier = re.sub(rb',\s*"--tools",\s*"core"', b"", content).replace(b"/mcp/core", b"/mcp")
                (room.home / path).write_bytes(earlier)
        found = room.status_of(client.name)
        assert (found.state, found.way, found.tools, found.findings) == ("set up", way, None, ())


def test_what_mends_a_client_keeps_its_choice_of_tools(room: Room) -> None:
    room.set_up("cursor", tools="full")
    room.write(".cursor/hooks.json", '{"version": 1}')
    [finding] = room.status_of("cursor").findings
    assert finding.remedy == "postroom setup cursor --tools full"
    room.set_up("cursor", "http", tools="full", address="http://127.0.0.1:9999/mcp")
    [finding] = room.status_of("cursor").findings
    assert finding.remedy == "postroom setup cursor --tools full --http"


@each_row("name", [one.name for one in CLIENTS if one.http])
def test_an_old_address_is_told_and_mended(name: str, rooms: Rooms) -> None:
    room = rooms()
    room.set_up(name, "http", address="http://127.0.0.1:9999/mcp")
    assert room.drifts(name) == ["old_address"]
    room.set_up(name, "http")
    assert room.drifts(name) == []
    assert ADDRESS in "".join(
        room.read(path) for path, content in room.tree(backups=False).items() if content
    )
    room.take_out(name)
    assert room.tree(backups=False) == {}


def test_what_a_person_took_out_by_hand_is_no_trouble(room: Room) -> None:
    room.write(SERVERS, '{"a": 1}')
    room.set_up("claude", hooks=False)
    room.write(SERVERS, '{"a": 3}')
    room.take_out("claude")
    assert room.read(SERVERS) == '{"a": 3}'


def test_with_the_last_client_our_own_record_goes(room: Room) -> None:
    data = room.home.with_name("home-data")
    room.set_up("claude")
    room.set_up("cursor")
    room.take_out("claude")
    assert len(list(data.rglob("setup.json"))) == 1
    room.take_out("cursor")
    assert list(data.rglob("setup.json")) == []


def test_records_that_cannot_be_read_are_told_and_stay(room: Room) -> None:
    room.set_up("claude")
    [file] = room.home.with_name("home-data").rglob("setup.json")
    file.write_text('{"files-9": {}}')
    with pytest.raises(ConfigError, match="is not valid"):
        room.take_out("claude")
    assert file.read_text() == '{"files-9": {}}'


def test_a_file_that_cannot_be_read_is_no_drift_of_a_client_that_was_never_set_up(room: Room) -> None:
    room.write(SERVERS, "{broken")
    found = room.status_of("claude")
    assert found.state == "not installed"
    assert [one.drift for one in found.findings] == ["unreadable"]


def test_a_plugin_that_was_changed_is_told_and_written_anew(room: Room) -> None:
    plugin = ".config/opencode/plugin/postroom.js"
    room.set_up("opencode")
    (room.home / plugin).write_text("// nothing\n")
    assert room.drifts("opencode") == ["hooks_changed"]
    room.set_up("opencode")
    assert room.drifts("opencode") == []
    (room.home / plugin).unlink()
    assert room.drifts("opencode") == ["hooks_missing"]
    room.take_out("opencode")
    assert room.tree() == {}
