"""Two agents change one file at the same time: no edit is lost in silence in any client, whichever tool writes.

`POSTROOM_CLIENT_COLLISIONS=6` makes 6 collisions with each tool of each client, more than 100 together, and writes their
outcomes to `collisions.json`, from which `docs/clients.md` has its table. The default is 1.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from real_clients.asked import Asked, CallTool, Say, Step
from real_clients.bench import Bench
from real_clients.page import COLLISIONS, keep_collisions
from real_clients.table import COLLIDES

EACH: Final = int(os.environ.get("POSTROOM_CLIENT_COLLISIONS", "1"))
READ, ADA_S = "one boat\ntwo gulls\nthree nets\n", "one boat\ntwo gulls\nthree mended nets\n"
LINE: Final = "three mended nets"
MINE: Final = "Bo was here.\n"
OLD, NEW = "one boat", "one red boat"
LONG_AGO: Final = 1_700_000_000
NEAR: Final = 600
"""How many characters after the name of a changed file are about this file."""
DIFF: Final = "--- a/{0}\n+++ b/{0}\n@@ -1,2 +1,2 @@\n-one boat\n+one red boat\n two gulls\n"
UPDATE: Final = (
    "*** Begin Patch\n*** Update File: {0}\n@@\n-one boat\n+one red boat\n two gulls\n*** End Patch\n"
)
ADD: Final = "*** Begin Patch\n*** Add File: {0}\n+Bo was here.\n*** End Patch\n"
Call = Callable[[Path], CallTool]
pytestmark = pytest.mark.timeout(900)


def _shell(tool: str, key: str, **more: str) -> dict[str, Call]:
    """Return the calls with which a client's shell writes a file, and applies a patch."""
    return {
        "patch": lambda path: CallTool(
            tool, {key: f"git apply <<'EOF'\n{DIFF.format(path.name)}EOF", **more}
        ),
        "shell": lambda path: CallTool(tool, {key: f"printf 'Bo was here.\\n' > {path.name}", **more}),
    }


def _own(read: str, whole: str, edit: str, path: str, text: str, old: str, new: str) -> dict[str, Call]:
    """Return the calls of a client's own tools, by their names and those of their arguments."""
    return {
        "read": lambda file: CallTool(read, {path: str(file)}),
        "whole file": lambda file: CallTool(whole, {path: str(file), text: MINE}),
        "edit": lambda file: CallTool(edit, {path: str(file), old: OLD, new: NEW}),
    }


CALLS: Final[Mapping[str, Mapping[str, Call]]] = {
    "claude": {
        **_own("Read", "Write", "Edit", "file_path", "content", "old_string", "new_string"),
        **_shell("Bash", "command"),
    },
    "codex": {
        **_shell("exec_command", "cmd"),
        "read": lambda path: CallTool("exec_command", {"cmd": f"cat {path.name}"}),
        "whole file": lambda path: CallTool("apply_patch", {"input": ADD.format(path.name)}),
        "patch": lambda path: CallTool("apply_patch", {"input": UPDATE.format(path.name)}),
    },
    "gemini": {
        **_own("read_file", "write_file", "replace", "file_path", "content", "old_string", "new_string"),
        "edit": lambda path: CallTool(
            "replace", {"file_path": str(path), "old_string": OLD, "new_string": NEW, "instruction": "i"}
        ),
        **_shell("run_shell_command", "command"),
    },
    "opencode": {
        **_own("read", "write", "edit", "filePath", "content", "oldString", "newString"),
        **_shell("bash", "command", description="d"),
    },
    "copilot": {
        **_own("view", "create", "edit", "path", "file_text", "old_str", "new_str"),
        **_shell("bash", "command", description="d"),
    },
    "cline": {
        "read": lambda path: CallTool("read_files", {"files": [{"path": str(path)}]}),
        "whole file": lambda path: CallTool("apply_patch", {"input": ADD.format(path.name)}),
        "patch": lambda path: CallTool("apply_patch", {"input": UPDATE.format(path.name)}),
        "shell": lambda path: CallTool(
            "run_commands", {"commands": [f"printf 'Bo was here.\\n' > {path.name}"]}
        ),
    },
}


class Collisions:
    """Bo reads a file, Ada changes it, and Bo writes it without reading it again; then the next file."""

    def __init__(self, bench: Bench, kind: str) -> None:
        self._bench, self._calls, self._kind = bench, CALLS[bench.client.name], kind
        self._files = [bench.home.project / f"quay{number}.txt" for number in range(EACH)]
        for file in self._files:
            file.write_text(READ)
            os.utime(file, (LONG_AGO, LONG_AGO))
        self.outcomes: list[str] = []

    def __call__(self, asked: Asked) -> Step:
        number, is_read = divmod(len(asked.returned), 2)
        if number == EACH:
            if not is_read:  # a hook of the last write that had no time is made up for at the next step
                return self._calls["read"](self._files[-1])
            told = asked.text.replace('\\"', '"')  # Cline puts our text into a JSON document of its own
            self.outcomes = [self._outcome(file, told) for file in self._files]
            return Say("So it is.")
        file = self._files[number]
        if not is_read:
            return self._calls["read"](file)
        self._ada_changes(file)
        return self._calls[self._kind](file)

    def _ada_changes(self, file: Path) -> None:
        """Change the file as Ada, whose client reports it."""
        file.write_text(ADA_S)
        used = {"tool_name": "Write", "tool_input": {"file_path": str(file)}}
        sent = {"session_id": "ada", "cwd": str(file.parent), **used}
        words = ("env", "POSTROOM_AGENT=Ada", "postroom", "hook", "claude", "PostToolUse")
        for _ in range(2):  # the second reports it if the server had no time for the first
            self._bench.home.must(*words, given=json.dumps(sent))

    def _outcome(self, file: Path, told: str) -> str:
        """Return the result of the write, from the file and from the text that the model got."""
        text, notice = file.read_text(), f'"{file.name}" was changed by "Ada"'
        told_of_file = told.partition(notice)[2][:NEAR]
        if MINE not in text and NEW not in text:
            held = f"this write is held, because it would replace changes that you have not read. {notice}"
            return "held" if held in told else "refused by the client"
        if LINE in told_of_file:
            return "made and told"
        return "made beside the change, not told" if LINE in text else "lost in silence"


@pytest.mark.parametrize(
    ("client", "kind"),
    [(client, kind) for client, row in COLLIDES.items() for kind, one in row.items() if one],
)
def test_no_edit_is_lost_in_silence(client: str, kind: str, bench: Bench) -> None:
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")
    collisions = Collisions(bench, kind)
    # Claude Code asks a person before its shell applies a patch.
    allowed = ("--allowedTools", "Bash") if client == "claude" else ()
    done = bench.turn("Write each file.", script=collisions, flags=(*bench.trusted, *allowed))
    keep_collisions(client, kind, Counter(collisions.outcomes))
    assert collisions.outcomes == [COLLIDES[client][kind]] * EACH, bench.tell(done)


def test_the_outcomes_of_the_last_whole_run_are_those_of_the_table() -> None:
    found = json.loads(COLLISIONS.read_text())["outcomes"]
    expected = {client: {kind: one for kind, one in row.items() if one} for client, row in COLLIDES.items()}
    assert {
        client: {kind: next(iter(one)) for kind, one in row.items()} for client, row in found.items()
    } == expected
    assert {len(one) for row in found.values() for one in row.values()} == {1}
    assert sum(sum(one.values()) for row in found.values() for one in row.values()) >= 100
