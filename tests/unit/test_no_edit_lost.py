"""No edit is lost in silence: hooks of two agents that read and write the same files, as clients call them.

Each hook is the real one, with the JSON of its client. It asks the real service over HTTP.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fake_postroom import FakePostroom, Seen
from machine import PATIENCE
from mail_room import Room, a_room
from postroom.cli import hook, hook_wire
from postroom.cli.hook_files import LARGEST_COPY, LARGEST_FILE, Look
from postroom.contracts.clients import EVENTS
from postroom.contracts.waking import FileView, agent_of_viewer, viewer
from postroom.mail.context import Rules
from postroom.services.hooks import VIEWS_KEPT, Hooks
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from table_rows import each_row

LONG_AGO = 1_700_000_000
"""Time of the first version of each file, in seconds; each later version is a minute younger."""
TOOLS = {
    "claude": {"read": "Read", "whole": "Write", "part": "Edit", "shell": "Bash", "path": "file_path"},
    "gemini": {
        "read": "read_file",
        "whole": "write_file",
        "part": "replace",
        "shell": "run_shell_command",
        "path": "file_path",
    },
    "opencode": {"read": "read", "whole": "write", "part": "edit", "shell": "bash", "path": "filePath"},
    "copilot": {"read": "view", "whole": "create", "part": "edit", "shell": "bash", "path": "path"},
}
"""The tools of clients, and the argument that names the file. Codex has patches and a shell only."""


class Team:
    """Two agents, each with a session of a client, in one folder."""

    def __init__(self, room: Room, fake: FakePostroom, home: Path, folder: Path) -> None:
        self.room, self.fake, self.home, self.folder = room, fake, home, folder
        self._age = 0

    def put(self, name: str, text: str | bytes) -> Path:
        """Write a version of a file that is older than any read of it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        self._age += 60
        os.utime(path, (LONG_AGO + self._age,) * 2)
        return path

    async def tell(
        self,
        agent: str,
        kind: str,
        tool: str = "",
        given: Any = None,
        *,
        client: str = "claude",
        call: str = "",
        shown: str = "additionalContext",
        **env: str,
    ) -> str:
        """Run one hook of an agent's client and return the text for the model; `held: ` precedes a refusal.

        `shown` names another field of the answer, such as the text for the person.
        """
        event = next(name for name, one in EVENTS[client].items() if one == kind)
        cwd, number = env.pop("cwd", str(self.folder)), f"s-{env.pop('session', agent)}"
        session = {"sessionId" if client == "copilot" else "session_id": number}
        names = ("toolName", "toolArgs") if client == "copilot" else ("tool_name", "tool_input")
        sent = {
            **session,
            "cwd": cwd,
            "tool_use_id": call,
            **dict(zip(names, (tool, given or {}), strict=True)),
        }
        surroundings = {
            "POSTROOM_URL": self.fake.url,
            "POSTROOM_TOKEN": "t",
            "POSTROOM_DATA_DIR": str(self.home),
            "POSTROOM_AGENT": agent,
            **env,
        }
        raw = await asyncio.to_thread(
            hook.answer_event, client, event, json.dumps(sent).encode(), surroundings
        )
        found = json.loads(raw) if raw else {}
        found = found.get("hookSpecificOutput", found)
        refusal = found.get("permissionDecisionReason") or found.get("reason")
        return f"held: {refusal}" if refusal else str(found.get(shown, ""))

    async def use(
        self,
        agent: str,
        tool: str,
        given: Any,
        act: Callable[[], object] = lambda: None,
        *,
        client: str = "claude",
        **env: str,
    ) -> str:
        """Use a tool between its two hooks, unless it is held; return the text that the model gets."""
        told = await self.tell(agent, "edit", tool, given, client=client, **env)
        if told.startswith("held: "):
            return told
        act()
        return await self.tell(agent, "tool", tool, given, client=client, **env)

    async def read(self, agent: str, name: str = "a.py", **env: str) -> str:
        return await self.use(agent, "Read", {"file_path": str(self.folder / name)}, **env)

    async def write(self, agent: str, text: str | bytes, name: str = "a.py", **env: str) -> str:
        path = {"file_path": str(self.folder / name), **({"content": text} if isinstance(text, str) else {})}
        return await self.use(agent, "Write", path, lambda: self.put(name, text), **env)

    async def run(
        self, agent: str, command: str, act: Callable[[], object] = lambda: None, **env: str
    ) -> str:
        return await self.use(agent, "Bash", {"command": command}, act, **env)

    def wait(self, seconds: float) -> None:
        self.room.clock.advance(timedelta(seconds=seconds))


Make = Callable[..., Awaitable[Team]]


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Give what makes a team, once, in a repository or in a folder of it; its hooks wait as long as it takes."""
    monkeypatch.setitem(hook_wire.ask.__kwdefaults__, "budget", PATIENCE)
    store = SqliteStore.in_memory(clock)
    with FakePostroom() as fake:

        async def made(*, rules: Rules | None = None, folder: str = "", client: str = "claude") -> Team:
            room = a_room(store, clock, rules)
            hooks, loop = Hooks(room.mail), asyncio.get_running_loop()

            def ask(seen: Seen) -> object:
                _, _, client, event = seen.path.split("/")
                return asyncio.run_coroutine_threadsafe(hooks.answer(client, event, seen.body), loop).result(
                    20
                )

            for one, events in EVENTS.items():
                fake.admin |= {("POST", f"/hooks/{one}/{event}"): ask for event in events}
            top = tmp_path / "harbor"
            top.mkdir(exist_ok=True)
            await asyncio.to_thread(git, top, "init", "-q")
            await room.open(project=str(top))
            team = Team(room, fake, tmp_path / "home", top / folder)
            team.put("a.py", "one\ntwo\nthree\n")
            return team

        yield made
    store.close()


def git(folder: Path, *words: str) -> None:
    named = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(
        ["git", "-C", str(folder), *named, *words], check=True, capture_output=True, timeout=PATIENCE
    )


async def test_a_whole_file_write_onto_a_change_of_another_agent_is_held_until_the_file_is_read(
    make: Make,
) -> None:
    team = await make()
    assert [await team.read(one) for one in ("Ada", "Ben")] == ["", ""]
    assert await team.write("Ada", "one\ntwo and a half\nthree\n") == ""
    team.wait(5)
    for _ in range(2):
        held = await team.write("Ben", "one\ntwo\nfour\n")
        assert held.startswith("held: postroom: this write is held")
        assert '"a.py" was changed by "Ada" 5 s ago, after you last read it.' in held
        assert "Changed lines of a.py (data):\n@@ line 2 @@\n-two\n+two and a half" in held
    assert "two and a half" in (team.folder / "a.py").read_text()
    await team.read("Ben")
    assert "held" not in await team.write("Ben", "one\ntwo and a half\nfour\n")
    assert "held" in await team.write("Ada", "one\n")


async def test_no_content_of_a_file_reaches_the_server(make: Make) -> None:
    team = await make()
    team.put("a.py", "SECRET one\n")
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "SECRET two\n")
    assert "SECRET two" in await team.write("Ben", "SECRET three\n")
    await team.run("Ben", "echo SECRET >> a.py")
    assert "SECRET" not in json.dumps([one.body for one in team.fake.seen])
    sent = [one.body["files"] for one in team.fake.seen if one.body.get("files")]
    blob = hashlib.sha1(b"blob 11\0SECRET one\n", usedforsecurity=False).hexdigest()
    assert sent[0] == [[str(team.folder / "a.py"), blob, "read"]]
    found = [team.home / "hook-files", *(team.home / "hook-files").rglob("*")]
    assert {one.stat().st_mode & 0o077 for one in found} == {0}


@each_row("client", [*TOOLS])
async def test_each_client_s_reads_writes_edits_and_shell_commands_are_seen(make: Make, client: str) -> None:
    team, tools = await make(), TOOLS[client]
    path = {tools["path"]: str(team.folder / "a.py")}

    async def use(agent: str, kind: str, act: Callable[[], object] = lambda: None, **given: str) -> str:
        return await team.use(agent, tools[kind], {**path, **given}, act, client=client)

    for agent in ("Ada", "Ben"):
        await use(agent, "read")
    await use("Ada", "part", lambda: team.put("a.py", "one\ntwo\n3\n"))
    assert '"Ada"' in await use("Ben", "whole")
    await use("Ben", "read")
    assert "held" not in await use("Ben", "whole", lambda: team.put("a.py", "zero\n"))
    command = {"command": "echo end >> a.py"}
    told = await team.use(
        "Ada", tools["shell"], command, lambda: team.put("a.py", "zero\nend\n"), client=client
    )
    assert '"a.py" was changed by "Ben"' in told
    assert "-one\n-two\n-3\n+zero" in told, "what the shell wrote onto"
    assert '"Ada"' in await use("Ben", "whole"), "what the shell wrote is known as Ada's"


async def test_codex_reads_by_its_shell_and_writes_by_patches(make: Make) -> None:
    team = await make()
    patch = "*** Begin Patch\n*** {} File: a.py\n+x\n*** End Patch\n"

    async def use(agent: str, tool: str, command: str, act: Callable[[], object] = lambda: None) -> str:
        return await team.use(agent, tool, {"command": command}, act, client="codex")

    for agent in ("Ada", "Ben"):
        assert await use(agent, "Bash", "sed -n '1,20p' a.py") == ""
    await use("Ada", "apply_patch", patch.format("Update"), lambda: team.put("a.py", "1\n"))
    for tool in ("apply_patch", "Bash"):
        assert '"Ada"' in await use("Ben", tool, patch.format("Add"))
    updated = await use("Ben", "apply_patch", patch.format("Update"), lambda: team.put("a.py", "1\n2\n"))
    assert "held" not in updated, "a patch names the lines that it replaces"
    assert '"Ada"' in await use("Ben", "apply_patch", patch.format("Add")), "it still has not read all lines"
    await use("Ben", "Bash", "cd . && cat a.py")
    assert await use("Ben", "apply_patch", patch.format("Add"), lambda: team.put("a.py", "3\n")) == ""


async def test_cline_reads_lists_of_files_and_runs_lists_of_commands(make: Make) -> None:
    team = await make()
    read = {"files": [{"path": str(team.folder / "a.py")}]}
    patch = {"input": "*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch\n"}
    for agent in ("Ada", "Ben"):
        assert await team.use(agent, "read_files", read, client="cline") == ""
    commands = {"commands": ["ls", "echo end >> a.py"]}
    await team.use("Ada", "run_commands", commands, lambda: team.put("a.py", "end\n"), client="cline")
    assert '"Ada"' in await team.use("Ben", "apply_patch", patch, client="cline")
    await team.use("Ben", "run_commands", {"commands": ["cat a.py"]}, client="cline")
    assert "held" not in await team.use("Ben", "apply_patch", patch, client="cline")


async def test_a_reader_of_a_file_that_changes_is_told_at_its_next_step_once(make: Make) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "one\n")
    told = await team.tell("Ben", "prompt")
    assert '"a.py" was changed by "Ada" 0 s ago, after you last read it.' in told
    assert "-two\n-three" in told
    await team.write("Ada", "two\n")
    for kind in ("prompt", "tool"):
        assert await team.tell("Ben", kind) == ""
    await team.read("Ben")
    await team.write("Ada", "three\n")
    assert '"Ada"' in await team.run("Ben", "true")
    assert await team.run("Ben", "true") == ""
    assert await team.tell("Ada", "prompt") == "", "its own change"


async def test_two_agents_that_edit_one_file_within_a_minute_are_told_both(make: Make) -> None:
    team = await make()
    both = "edit this file at the same time"
    for pause, is_told in ((30, True), (70, False)):
        for agent in ("Ada", "Ben"):
            await team.read(agent)
        await team.write("Ada", f"ada {pause}\n")
        await team.read("Ben")
        team.wait(pause)
        told = await team.write("Ben", f"ben {pause}\n")
        assert (f'"Ada" wrote "a.py" {pause} s ago, too. You and "Ada" {both}' in told) == is_told
        told = await team.tell("Ada", "prompt")
        assert ('was changed by "Ben"' in told, f'You and "Ben" {both}' in told) == (True, is_told)
        team.wait(1_000)


async def test_a_notice_says_only_once_that_two_agents_edit_one_file(make: Make) -> None:
    team = await make()
    edit = {"file_path": str(team.folder / "a.py")}
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.use("Ada", "Edit", edit, lambda: team.put("a.py", "1\ntwo\nthree\n"))
    team.wait(5)
    await team.read("Ben")
    await team.use("Ben", "Edit", edit, lambda: team.put("a.py", "1\n2\nthree\n"))
    told = await team.use("Ada", "Edit", edit, lambda: team.put("a.py", "1\n2\n3\n"))
    assert 'was changed by "Ben"' in told
    assert told.count("edit this file at the same time") == 1


async def test_a_change_that_was_reverted_is_not_told(make: Make) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    before = (team.folder / "a.py").read_text()
    await team.write("Ada", "ada\n")
    await team.write("Ada", before)
    assert await team.tell("Ben", "prompt") == ""
    await team.write("Ada", "ada\n")
    assert 'was changed by "Ada"' in await team.tell("Ben", "prompt")
    await team.run("Ada", "git checkout a.py", lambda: team.put("a.py", before))
    assert "held" not in await team.write("Ben", "ben\n")


async def test_two_sessions_of_one_agent_have_each_read_what_they_have_read(make: Make) -> None:
    team = await make()
    other = {"session": "other"}
    assert [await team.read("Ada"), await team.read("Ada", **other)] == ["", ""]
    assert await team.write("Ada", "one\ntwo and a half\nthree\n") == ""
    await team.read("Ada")
    team.wait(5)
    told = await team.tell("Ada", "prompt", **other)
    assert 'was changed by another session of "Ada" 5 s ago, after you last read it.' in told
    assert await team.tell("Ada", "prompt", **other) == "", "told once"
    held = await team.write("Ada", "one\ntwo\nfour\n", **other)
    assert held.startswith("held: ")
    assert "+two and a half" in held
    await team.read("Ada", **other)
    told = await team.write("Ada", "one\ntwo and a half\nfour\n", **other)
    assert 'Another session of "Ada" wrote "a.py" 5 s ago, too.' in told
    assert "start_session" in told
    assert (await team.write("Ada", "five\n")).startswith("held: ")
    assert "another session" not in await team.tell("Ben", "prompt")


async def test_sessions_of_two_clients_with_the_same_id_share_nothing(make: Make) -> None:
    team = await make()
    await team.read("Ada")
    path = {"filePath": str(team.folder / "a.py")}
    await team.use("Ada", "read", path, client="opencode")
    await team.write("Ada", "ada\n")
    assert (await team.use("Ada", "write", path, client="opencode")).startswith("held: ")


async def test_a_revert_that_no_hook_reported_is_judged_by_the_file_as_it_is(make: Make) -> None:
    team = await make()
    before = (team.folder / "a.py").read_text()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "ada\n")
    team.put("a.py", before)  # as `git checkout` of a person does
    assert await team.tell("Ben", "prompt") == ""
    assert await team.run("Ben", "true") == ""
    assert "held" not in await team.write("Ben", "ben\n")
    await team.read("Ada")
    team.put("a.py", "by a person\n")
    assert (await team.write("Ada", "more\n")).startswith("held: "), (
        "Ben's version is not the file's any more"
    )
    assert "no hook reported by whom" in await team.tell("Ben", "prompt")


async def test_a_change_that_was_told_and_then_reverted_is_told_when_it_comes_again(make: Make) -> None:
    team = await make()
    before = (team.folder / "a.py").read_text()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    for _ in range(2):
        await team.write("Ada", "ada\n")
        assert 'changed by "Ada"' in await team.tell("Ben", "prompt")
        team.put("a.py", before)
        assert await team.tell("Ben", "prompt") == ""
        await team.read("Ada")


async def test_a_change_that_keeps_the_time_and_the_size_of_a_file_is_seen(make: Make) -> None:
    team = await make()
    path = team.folder / "a.py"
    await team.read("Ben")
    times = path.stat().st_mtime_ns
    path.write_text("ONE\ntwo\nthree\n")
    os.utime(path, ns=(times, times))
    assert "no hook reported by whom" in await team.tell("Ben", "prompt")
    assert (await team.write("Ben", "mine\n")).startswith("held: ")


async def test_a_read_of_the_new_version_ends_the_news_of_it(make: Make) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "ada\n")
    assert await team.read("Ben") == ""
    assert await team.tell("Ben", "prompt") == ""


async def test_a_script_on_an_unread_change_does_not_hide_who_made_the_change(make: Make) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "one\ntwo\nADA\n")
    told = await team.run("Ben", "./format", lambda: team.put("a.py", "ONE\ntwo\nADA\n"))
    assert '"a.py" was changed by "Ada"' in told
    assert "It has changed since then, too; no hook reported by whom." in told
    assert "+ADA" in told


async def test_a_script_that_deletes_an_unread_change_is_not_taken_for_its_author(make: Make) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "ada\n")
    told = await team.run("Ben", "./clean", (team.folder / "a.py").unlink)
    assert '"a.py" was deleted after you last read it; no hook reported by whom' in told


@pytest.mark.parametrize("command", ["git apply", "patch -p1", "cd . && git apply --index -"])
@pytest.mark.parametrize("mode", ["warn", "block"])
async def test_a_patch_in_a_shell_command_is_a_write_of_its_files(
    make: Make, command: str, mode: Any
) -> None:
    patch = f"{command} <<'EOF'\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+ONE\nEOF"
    team = await make(rules=Rules(stale_edit_mode=mode))
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "one\ntwo\nADA\n")
    found = await team.run("Ben", patch, lambda: team.put("a.py", "ONE\ntwo\nADA\n"))
    assert found.startswith("held: ") == (mode == "block")
    assert '"a.py" was changed by "Ada"' in found
    assert "+ADA" in found
    assert "no hook reported" not in found
    if mode == "warn":
        assert '"a.py" was changed by "Ben"' in await team.tell("Ada", "prompt")


async def test_a_change_that_no_hook_reported_is_told_as_such(make: Make) -> None:
    team = await make()
    await team.read("Ben")
    team.put("a.py", "by a person\n")
    told = await team.run("Ben", "true")
    assert '"a.py" was changed after you last read it; no hook reported by whom' in told
    assert "+by a person" in told
    assert await team.run("Ben", "true") == ""
    held = await team.write("Ben", "mine\n")
    assert held.startswith("held: ")
    assert "no hook reported by whom" in held
    await team.read("Ben")
    assert "held" not in await team.write("Ben", "mine\n")
    team.put("a.py", "again\n")
    assert (await team.write("Ben", "mine\n")).startswith("held: "), "without a step between"


@each_row("mode", ["block", "warn", "off"])
async def test_a_setting_or_the_environment_says_what_happens(make: Make, mode: Any) -> None:
    team = await make(rules=Rules(stale_write_mode=mode, stale_edit_mode=mode))

    async def collide(act: Callable[[], Awaitable[str]]) -> tuple[bool, bool]:
        for agent in ("Ada", "Ben"):
            await team.read(agent)
        await team.write("Ada", f"ada {team._age}\n")
        told = await act()
        return told.startswith("held: "), '"Ada"' in told

    def shell(**env: str) -> Callable[[], Awaitable[str]]:
        return lambda: team.run("Ben", "sort b > a.py", lambda: team.put("a.py", "sorted\n"), **env)

    for act in (shell(), lambda: team.write("Ben", f"ben {team._age}\n")):
        assert await collide(act) == (mode == "block", True)
    for value, is_held in (("block", True), ("WARN", False), ("nonsense", mode == "block")):
        assert await collide(shell(POSTROOM_STALE=value)) == (is_held, True)
    assert await collide(shell(POSTROOM_GUARD="off")) == (False, True), "nothing is checked, and all is told"


async def test_a_server_that_is_away_holds_nothing_and_gets_the_reports_when_it_is_back(make: Make) -> None:
    team = await make()
    away = {"POSTROOM_URL": "http://127.0.0.1:9"}
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    assert await team.write("Ada", "ada\n", **away) == ""
    assert await team.write("Ben", "ben\n", **away) == "", "hooks fail open: ADR 21"
    assert (await team.write("Ada", "more\n")).startswith("held: ")
    assert await team.tell("Ben", "prompt") == ""
    assert '"a.py" was changed by "Ben"' in await team.write("Ada", "more\n"), "now it is known"
    team.put("b.py", "one\n")
    for agent in ("Ada", "Ben"):
        await team.tell(agent, "tool", "Read", {"file_path": str(team.folder / "b.py")}, **away)
    await team.write("Ada", "two\n", "b.py")
    held = await team.write("Ben", "three\n", "b.py")
    assert '"b.py" was changed by "Ada"' in held or '"b.py" was written by "Ada"' in held
    await team.tell("Ben", "prompt")
    held = await team.write("Ben", "three\n", "b.py")
    assert '"b.py" was changed by "Ada" 0 s ago, after you last read it.' in held


@pytest.mark.parametrize("is_check_lost", [False, True])
async def test_a_read_that_is_reported_late_does_not_hide_a_later_change(
    make: Make, is_check_lost: bool
) -> None:
    team = await make()
    away = {"POSTROOM_URL": "http://127.0.0.1:9"}
    await team.read("Ada")
    await team.read("Ben", **away)
    await team.write("Ada", "one\ntwo\nADA\n")
    given = {"command": "sort b.py > a.py"}
    await team.tell("Ben", "edit", "Bash", given, **(away if is_check_lost else {}))
    team.put("a.py", "ben\n")
    told = await team.tell("Ben", "tool", "Bash", given)
    assert '"a.py" was changed by "Ada" 0 s ago, after you last read it.' in told
    assert "+ADA" in told
    assert await team.tell("Ben", "prompt") == ""


async def test_a_late_report_of_a_read_of_the_newest_version_tells_nothing(make: Make) -> None:
    team = await make()
    away = {"POSTROOM_URL": "http://127.0.0.1:9"}
    await team.read("Ada")
    await team.write("Ada", "ada\n")
    await team.read("Ben", **away)
    assert await team.run("Ben", "true") == ""
    assert "held" not in await team.write("Ben", "ben\n")


async def test_files_that_cannot_be_compared_get_a_warning_and_no_guess(make: Make) -> None:
    team = await make()
    for name, before, after in (
        ("binary", b"\0one", b"\0two"),
        ("large", b"x" * (LARGEST_COPY + 1), b"y" * (LARGEST_COPY + 2)),
    ):
        team.put(name, before)
        for agent in ("Ada", "Ben"):
            await team.read(agent, name)
        await team.write("Ada", after, name)
        held = await team.write("Ben", b"z", name)
        assert f'"{name}" was changed by "Ada"' in held
        assert (
            "The changed lines are not shown, because the file is binary, is large, or was not stored before the change."
            in held
        )
    for name, size in (("huge", LARGEST_FILE + 1), ("grown", 1)):
        team.put(name, b"x" * size)
        for agent in ("Ada", "Ben"):
            await team.read(agent, name)
        await team.write("Ada", b"y" * (LARGEST_FILE + 2), name)
        told = await team.write("Ben", b"z" * (LARGEST_FILE + 3), name)
        assert f'"{name}" is too large to compare (the limit is 4 MiB)' in told
        assert not told.startswith("held: ")
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.run("Ada", "rm a.py", (team.folder / "a.py").unlink)
    told = await team.write("Ben", "again\n")
    assert '"a.py" was deleted by "Ada"' in told
    assert not told.startswith("held: ")
    assert '"Ben"' in await team.tell("Ada", "prompt")
    os.mkfifo(team.folder / "pipe")
    for agent in ("Ada", "Ben"):
        assert await team.use(agent, "Read", {"file_path": str(team.folder / "pipe")}) == ""
        assert await team.read(agent, ".") == ""


async def test_long_changes_and_control_characters_are_shown_in_short(make: Make) -> None:
    team = await make()
    rows = [f"row {number}\n" for number in range(1_000)]
    for before, after, shown in (
        ("x\n", "\x1b[2J" + "y" * 500 + "\n", "+?[2J" + "y" * 155),
        ("".join(rows), "".join(f"+{row}" for row in rows), "lines 1 to 1000 are now lines 1 to 1000"),
        ("".join(rows), "".join(rows[:10] + rows[60:]), "-row 28\nand 31 more lines"),
        ("".join(rows), "".join([*rows[:5], "new\n", *rows[5:9], *rows[10:]]), "+new\n@@ line 11 @@\n-row 9"),
    ):
        team.put("a.py", before)
        for agent in ("Ada", "Ben"):
            await team.read(agent)
        await team.write("Ada", after)
        assert (await team.write("Ben", "z\n")).endswith(shown)


async def test_a_link_is_the_file_that_it_leads_to(make: Make) -> None:
    team = await make()
    (team.folder / "link.py").symlink_to("a.py")
    await team.read("Ada")
    await team.read("Ben", "link.py")
    await team.write("Ada", "ada\n")
    for name in ("link.py", "a.py"):
        assert 'a.py" was changed by "Ada"' in await team.write("Ben", "ben\n", name)


async def test_a_read_at_the_moment_of_a_change_does_not_count(make: Make) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "ada\n")
    given = {"file_path": str(team.folder / "a.py")}
    os.utime(team.folder / "a.py", (2**32, 2**32))  # it changed just now, whenever the hook runs
    assert '"a.py" may have changed while you read it.' in await team.tell("Ben", "tool", "Read", given)
    assert (await team.write("Ben", "ben\n")).startswith("held: ")
    os.utime(team.folder / "a.py", (LONG_AGO, LONG_AGO))
    await team.read("Ben")
    assert "held" not in await team.write("Ben", "ben\n")
    os.utime(team.folder / "a.py", (2**32, 2**32))
    assert "while you read" not in await team.tell("Ben", "tool", "Read", given), "it wrote this itself"


PARTS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("Bash", {"command": command})
        for command in (
            *("head -1 a.py", "head -n 2 a.py", "sed -n 1p a.py", "sed -n '2,3p' a.py", "tail -n 1 a.py"),
            *("cat a.py | head -1", "cat a.py | grep two", "nl a.py | sed -n 1,2p", "head --lines=-1 a.py"),
            *("awk 'NR==1' a.py", "head -c 3 a.py", "tail -n +2 a.py", "sed 1q a.py"),
        )
    ),
    *(
        ("Read", asked)
        for asked in ({"offset": 2}, {"limit": 1}, {"offset": 1, "limit": 2}, {"view_range": [1, 2]})
    ),
]
WHOLES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("Bash", {"command": command})
        for command in (
            *("head -3 a.py", "head a.py", "sed -n '1,200p' a.py", "sed -n '1,$p' a.py", "tail -n +1 a.py"),
            *(
                "cat a.py | head -n 200",
                "nl -ba a.py | sed -n 1,200p",
                "head -1 a.py; cat a.py",
                "cat a.py || true",
            ),
        )
    ),
    *(("Read", asked) for asked in ({}, {"limit": 2000}, {"offset": 1, "limit": 3}, {"view_range": [1, -1]})),
]


@each_row("tool, asked", PARTS)
async def test_a_read_of_a_part_frees_no_write_of_the_whole_file(
    make: Make, tool: str, asked: dict[str, Any]
) -> None:
    team = await make(folder=f"row{PARTS.index((tool, asked))}")
    await team.read("Ada")
    for number, before in enumerate(("one\ntwo\n3\n", "one\n2\n3\n")):
        await team.write("Ada", before)
        team.wait(5)
        for _ in range(2):
            given = {**asked, **({"file_path": str(team.folder / "a.py")} if tool == "Read" else {})}
            await team.use("Ben", tool, given)
            held = await team.write("Ben", "ben\n")
            assert held.startswith("held: ")
            known = "after you last read it" if number else "and you have read only a part of it"
            assert f'a.py" was changed by "Ada" 5 s ago, {known}.' in held
        await team.read("Ben")
    assert "held" not in await team.write("Ben", "ben\n")


@each_row("tool, asked", WHOLES)
async def test_a_read_of_all_lines_frees_a_write_of_the_whole_file(
    make: Make, tool: str, asked: dict[str, Any]
) -> None:
    team = await make(folder=f"row{WHOLES.index((tool, asked))}")
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ada", "one\ntwo\n3\n")
    given = {**asked, **({"file_path": str(team.folder / "a.py")} if tool == "Read" else {})}
    await team.use("Ben", tool, given)
    assert "held" not in await team.write("Ben", "ben\n")


async def test_an_agent_that_has_read_a_part_is_told_of_changes_and_may_write_if_no_other_agent_has_written(
    make: Make,
) -> None:
    team = await make()
    await team.run("Ben", "head -1 a.py")
    assert await team.write("Ben", "ben\n") == ""
    team.put("b.py", "one\ntwo\n")
    await team.run("Ben", "head -1 b.py")
    edit = {"file_path": str(team.folder / "b.py")}
    assert await team.use("Ben", "Edit", edit, lambda: team.put("b.py", "1\ntwo\n")) == ""
    await team.read("Ada", "b.py")
    await team.write("Ada", "1\n2\n", "b.py")
    told = await team.tell("Ben", "prompt")
    assert '"b.py" was changed by "Ada" 0 s ago, after you last read it.' in told
    assert "-two\n+2" in told


WHOLE_CONTENTS = {"claude": "content", "gemini": "content", "opencode": "content", "copilot": "file_text"}


@each_row("client", [*TOOLS])
@each_row("first", ["Ada", "Ben"])
@each_row("is_new", [False, True])
async def test_of_two_writes_at_once_the_replaced_one_is_told_to_both_and_the_next_write_is_held(
    make: Make, client: str, first: str, is_new: bool
) -> None:
    team = await make(folder=f"{client}-{first}-{is_new}")
    path, tools = team.folder / "a.py", TOOLS[client]
    if is_new:
        path.unlink()
    wrote = {"Ada": "one\nada\nthree\n", "Ben": "one\nben\nthree\n"}
    given = {agent: {tools["path"]: str(path), WHOLE_CONTENTS[client]: text} for agent, text in wrote.items()}
    for agent in () if is_new else wrote:
        await team.use(agent, tools["read"], {tools["path"]: str(path)}, client=client)
    for agent in wrote:
        assert await team.tell(agent, "edit", tools["whole"], given[agent], client=client) == ""
    for text in wrote.values():
        team.put("a.py", text)
    told = dict[str, str]()
    for agent in sorted(wrote, key=lambda one: one != first):
        told[agent] = await team.tell(agent, "tool", tools["whole"], given[agent], client=client)
    for agent in wrote:
        told[agent] += await team.tell(agent, "prompt", client=client)
    assert 'a.py" was changed ' in told["Ada"]
    assert "-ada\n+ben" in told["Ada"]
    assert '"Ada"' in told["Ben"]
    held = await team.use("Ada", tools["whole"], given["Ada"], client=client)
    assert held.startswith("held: ")
    assert 'was changed by "Ben"' in held
    assert "held" not in await team.use("Ben", tools["whole"], given["Ben"], client=client)


@each_row("stored", ["one\r\nada\r\n", "one\nada", "\ufeffone\nada  \n\n"])
async def test_a_client_that_writes_other_ends_of_lines_has_written_its_version(
    make: Make, stored: str
) -> None:
    team = await make(folder=f"of {len(stored)}")
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    given = {"file_path": str(team.folder / "a.py"), "content": "one\nada\n"}
    assert await team.use("Ada", "Write", given, lambda: team.put("a.py", stored)) == ""
    assert await team.use("Ada", "Write", given) == ""
    assert 'was changed by "Ada"' in await team.write("Ben", "ben\n")


@each_row("command", ["cat a.py; make test", "make test; cat a.py"])
@each_row("client", [*TOOLS])
async def test_a_command_has_read_the_version_from_before_a_change_made_while_it_ran(
    make: Make, command: str, client: str
) -> None:
    team, tool, given = await make(), TOOLS[client]["shell"], {"command": command}
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    assert await team.tell("Ada", "edit", tool, given, client=client) == ""
    assert await team.write("Ben", "ben\n") == ""
    team.wait(5)
    told = await team.tell("Ada", "tool", tool, given, client=client)
    assert '"a.py" was changed by "Ben" 5 s ago, after you last read it.' in told
    assert "+ben" in told
    whole, path = TOOLS[client]["whole"], {TOOLS[client]["path"]: str(team.folder / "a.py")}
    assert (await team.use("Ada", whole, path, client=client)).startswith("held: ")
    await team.use("Ada", tool, {"command": "cat a.py"}, client=client)
    assert "held" not in await team.use("Ada", whole, path, client=client)


async def test_two_commands_of_one_session_at_once_have_each_read_the_version_from_before_it(
    make: Make,
) -> None:
    team, given = await make(), {"command": "cat a.py"}
    assert await team.tell("Ada", "edit", "Bash", given, call="1") == ""
    await team.write("Ben", "ben\n")
    assert await team.tell("Ada", "edit", "Bash", given, call="2") == ""
    assert '"a.py" was changed by "Ben"' in await team.tell("Ada", "tool", "Bash", given, call="1")
    assert (await team.write("Ada", "ada\n")).startswith("held: ")
    assert await team.tell("Ada", "tool", "Bash", given, call="2") == ""
    assert "held" not in await team.write("Ada", "ada\n")


async def test_without_a_hook_before_a_command_a_file_changed_within_the_last_minute_does_not_count_as_read(
    make: Make,
) -> None:
    team, given = await make(), {"command": "cat a.py; make test"}
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await team.write("Ben", "ben\n")
    os.utime(team.folder / "a.py", (time.time() - 20,) * 2)
    assert '"a.py" may have changed while you read it.' in await team.tell("Ada", "tool", "Bash", given)
    assert (await team.write("Ada", "ada\n")).startswith("held: ")
    await team.run("Ada", "cat a.py")
    assert "held" not in await team.write("Ada", "ada\n")


async def test_a_worktree_and_a_sub_folder_of_a_known_repository_are_its_project(
    make: Make, tmp_path: Path
) -> None:
    team = await make()
    top = team.folder
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "x")
    tree = tmp_path / "tree"
    git(top, "worktree", "add", "-q", str(tree))
    (tree / "deep").mkdir()
    for folder, cwd in ((tree / "deep", tree / "deep"), (top / "src", top / "src"), (tree, tmp_path)):
        team.folder = folder
        team.put("a.py", "one\n")
        for agent in ("Ada", "Ben"):
            assert await team.use(agent, "Read", {"file_path": str(folder / "a.py")}, cwd=str(cwd)) == ""
        assert await team.write("Ada", "two\n", cwd=str(cwd)) == ""
        assert '"Ada"' in await team.write("Ben", "three\n", cwd=str(cwd)), folder
    team.folder = top
    await team.read("Ben")
    assert await team.write("Ben", "top\n") == "", "the file of another working tree is another file"
    team.folder = tmp_path
    team.put("outside.py", "x\n")
    for agent in ("Ada", "Ben"):
        await team.read(agent, "outside.py")
    await team.write("Ada", "y\n", "outside.py")
    assert await team.write("Ben", "z\n", "outside.py") == "", "no project"


async def test_an_agent_has_one_row_for_a_file_and_rows_expire(make: Make) -> None:
    team = await make()
    for number in range(5):
        for agent in ("Ada", "Ben"):
            await team.read(agent)
            await team.write(agent, f"{agent} {number}\n")
    key = next(iter({view.file for view in await views(team, "a.py")}))
    assert [agent_of_viewer(view.viewer_id) for view in await views(team, "a.py")] == [1, 2]
    assert key.endswith(f":{team.folder / 'a.py'}")
    team.wait(VIEWS_KEPT / 1_000 + 1)
    team.put("b.py", "x\n")
    await team.read("Ben", "b.py")
    assert [*await views(team, "a.py"), *await views(team, "a.py", "Ben")] == []
    assert len(await views(team, "b.py", "Ben")) == 1


async def views(team: Team, name: str, agent: str = "Ada") -> list[FileView]:
    """Return what the store has about a file: the view of this agent's session, and those of writers."""
    mine = viewer({"Ada": 1, "Ben": 2}[agent], f"session claude/s-{agent}")
    key = f"{socket.gethostname()}:{team.folder / name}"
    return await team.room.store.read(lambda tx: tx.file_views([key], viewer_id=mine))


async def test_a_repeated_read_writes_nothing_to_the_store(make: Make) -> None:
    team = await make()
    await team.read("Ada")
    before = await views(team, "a.py")
    team.wait(60)
    await team.read("Ada")
    assert await views(team, "a.py") == before


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Provide a function that fills the disk under the data folder, which is a separate small file system."""
    home = tmp_path / "home"
    home.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(home)]
    if subprocess.run(command, capture_output=True, check=False, timeout=20).returncode:
        pytest.skip("only root mounts a small file system")

    def fill() -> None:
        with contextlib.suppress(OSError), (home / "full").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    yield fill
    subprocess.run(["umount", str(home)], check=True, timeout=20)


async def test_on_a_full_disk_writes_are_held_by_what_is_known_and_a_warning_says_so(
    make: Make, full_disk: Callable[[], None]
) -> None:
    team = await make()
    for agent in ("Ada", "Ben"):
        await team.read(agent)
    await asyncio.to_thread(full_disk)
    path = {"file_path": str(team.folder / "a.py"), "content": "ada\n"}
    warned = await team.tell("Ada", "edit", "Write", path, shown="systemMessage")
    assert "hook-files cannot be written (No space left on device)" in warned
    assert "POSTROOM_DATA_DIR" in warned
    assert "cannot be written" not in await team.write("Ada", "ada\n"), "the model has nothing to do"
    held = await team.write("Ben", "ben\n")
    assert held.startswith("held: postroom: this write is held")
    assert "cannot be written" in held
    await team.read("Ben")
    assert "held" not in await team.write("Ben", "ada and ben\n")
    left = [one.name for one in (team.home / "hook-files").rglob("*") if one.is_file()]
    assert [one for one in left if "." in one and not one.endswith(".late")] == [], "no drafts"
    (team.home / "full").unlink()
    assert (await team.write("Ada", "more\n")).startswith("held: ")
    await team.read("Ada")
    assert await team.tell("Ada", "edit", "Write", path, shown="systemMessage") == ""


async def test_a_file_that_is_cut_off_on_a_full_disk_replaces_no_whole_one(tmp_path: Path) -> None:
    script = """
import resource, sys
from postroom.cli.hook_files import _put
path = sys.argv[1]
_put(path, b"whole\\n" * 1_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
try:
    _put(path, b"other\\n" * 2_000)
except OSError as error:
    print(error.strerror)
"""
    path = tmp_path / "folder" / "file"
    command = [sys.executable, "-c", script, str(path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"File too large\n"
    assert path.read_bytes() == b"whole\n" * 1_000
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_copies_and_lists_of_sessions_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"MAX_COPIES": 4, "MAX_COPIED": 100_000, "MAX_SESSIONS": 5}
    for name, limit in limits.items():
        monkeypatch.setattr(f"postroom.cli.hook_files.{name}", limit)
    path, data = tmp_path / "f", tmp_path / "data"
    for number in range(150):
        path.write_text(f"{number}\n" * 9_000)
        sent = {"session_id": f"s{number}", "tool_name": "Read", "tool_input": {"file_path": str(path)}}
        Look("claude", "tool", sent, str(data)).save()
    for folder in (data / "hook-files").iterdir():
        sizes = [one.stat().st_size for one in folder.iterdir()]
        assert len(sizes) <= (5 if folder.name == "sessions" else 4)
        assert sum(sizes) <= 100_000


@each_row(
    "command, uses",
    [
        ("cat a b | head -5 c", {"a": "read", "b": "read", "c": "read"}),
        ("sed -i s/x/y/ a", {"a": "shell"}),
        ("sed -n 1,5p a > b 2>&1", {"a": "read", "b": "shell"}),
        ("cd d && X=1 sudo tee -a 'a b' >/dev/null", {"d/a b": "shell"}),
        ("pytest a; mv a b", {"a": "shell", "b": "shell"}),
        ("""python -c "open('a', 'w').write('x')" """, {"a": "named"}),
        ("printf x>>a;cp a b", {"a": "shell", "b": "shell"}),
        ("cat <<'EOF' > a\nb\nEOF", {"a": "shell"}),
        ("git commit -m 'fix a'", {}),
        ("rm a; pytest a b --c=c", {"a": "shell", "b": "named", "c": "named"}),
        ("rm a\\ b", {"a b": "shell"}),
        ("cd d && git apply <<'EOF'\n--- a/a b\t2026\n+++ b/a b\t2026\n@@ -1 +1 @@\nEOF", {"d/a b": "shell"}),
        ("patch -p0 <<'EOF'\n--- /dev/null\n+++ b\n--- no file\nEOF", {"b": "shell"}),
        ("'unclosed", {}),
    ],
)
def test_the_words_of_a_shell_command_say_how_it_uses_a_file(
    tmp_path: Path, command: str, uses: dict[str, str]
) -> None:
    for name in ("a", "b", "c", "a b", "d/a b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    given = {"tool_name": "Bash", "tool_input": {"command": command}}
    sent = {"cwd": str(tmp_path), "session_id": command, **given}
    before = Look("claude", "edit", sent, str(tmp_path / "data"))
    before.save()
    after = Look("claude", "tool", sent, str(tmp_path / "data"))
    found = {os.path.relpath(path, tmp_path): how for path, _, how in (*before.reports, *after.reports)}
    assert found == uses
