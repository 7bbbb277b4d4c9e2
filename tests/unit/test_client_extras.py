"""The parts of a set-up that need a yes: a skill, a block of rules in AGENTS.md, and an extension."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clients_room import Homes, Room, Rooms
from table_rows import each_row

BLOCK_BEGIN = "<!-- postroom: begin"
SKILLS = {
    "codex": ".codex/skills/postroom/SKILL.md",
    "gemini": ".gemini/skills/postroom/SKILL.md",
    "copilot": ".copilot/skills/postroom/SKILL.md",
    "opencode": ".config/opencode/skills/postroom/SKILL.md",
}
EXTENSION = ".copilot/extensions/postroom/extension.mjs"
Run = Callable[..., tuple[int, str]]


@each_row("name", list(SKILLS))
def test_a_skill_is_written_on_request_and_removed_with_its_folders(name: str, rooms: Rooms) -> None:
    room = rooms()
    before = room.tree()
    room.set_up(name)
    assert SKILLS[name] not in room.tree()
    room.set_up(name, extras=("skill",))
    text = room.read(SKILLS[name])
    assert text.startswith("---\nname: postroom\ndescription: ")
    assert room.status_of(name).extras == ("skill",)
    (room.home / SKILLS[name]).write_text("mine")
    assert "changed" in room.drifts(name)
    room.set_up(name, extras=("skill",))
    assert (room.read(SKILLS[name]), room.drifts(name)) == (text, [])
    room.take_out(name)
    assert room.tree() == before


@each_row(
    "written", [None, "", "# Rules", "# Rules\n", "# Rules\n\n\n", "# Rules\r\nEnd\r\n", "\ufeff# Rules\n"]
)
def test_rules_stand_behind_the_text_of_others_which_is_given_back_to_the_byte(
    written: str | None, rooms: Rooms
) -> None:
    room = rooms()
    if written is not None:
        room.write(".codex/AGENTS.md", written)
    before = room.tree()
    room.set_up("codex", extras=("rules",))
    text = room.read(".codex/AGENTS.md")
    assert text.startswith(written or "")
    assert text.count(BLOCK_BEGIN) == 1
    room.set_up("codex", extras=("rules",))
    assert room.read(".codex/AGENTS.md") == text
    assert room.drifts("codex") == []
    room.take_out("codex")
    assert room.tree() == before


def test_text_that_others_write_around_the_rules_stays(room: Room) -> None:
    room.write(".codex/AGENTS.md", "# Rules\n")
    room.set_up("codex", extras=("rules",))
    text = room.read(".codex/AGENTS.md")
    room.write(".codex/AGENTS.md", f"# First\n{text}\n# Last\n".replace("`fetch_inbox`", "something else"))
    assert room.drifts("codex") == ["changed"]
    room.set_up("codex", extras=("rules",))
    assert room.read(".codex/AGENTS.md") == f"# First\n{text}\n# Last\n"
    room.take_out("codex")
    assert room.read(".codex/AGENTS.md") == "# First\n# Rules\n\n# Last\n"


def test_clients_that_share_the_rules_of_a_project_leave_them_to_the_last(room: Room) -> None:
    room.scope = "project"
    (room.home / "harbour").mkdir()
    before = room.tree()
    for name in ("claude", "codex", "copilot", "opencode"):
        room.set_up(name, extras=("rules",))
    text = room.read("harbour/AGENTS.md")
    assert text.count(BLOCK_BEGIN) == 1
    for name in ("codex", "opencode", "claude"):
        room.take_out(name)
        assert room.read("harbour/AGENTS.md") == text
    room.take_out("copilot")
    assert room.tree() == before


def test_a_later_no_removes_what_an_earlier_yes_wrote(room: Room) -> None:
    room.set_up("copilot")
    without = room.tree()
    room.set_up("copilot", extras=("skill", "extension"))
    settings = json.loads(room.read(".copilot/settings.json"))
    assert settings["experimental"] is True
    assert "joinSession" in room.read(EXTENSION)
    room.set_up("copilot")
    assert room.tree() == without


@each_row("chosen", ["true", "false"])
def test_a_choice_of_the_user_about_experimental_features_stays(chosen: str, rooms: Rooms) -> None:
    room = rooms()
    text = f'{{"experimental": {chosen}}}\n'
    room.write(".copilot/settings.json", text)
    room.set_up("copilot", extras=("extension",))
    assert str(json.loads(room.read(".copilot/settings.json"))["experimental"]).lower() == chosen
    room.take_out("copilot")
    assert room.read(".copilot/settings.json") == text


@pytest.fixture
def home(homes: Homes) -> Path:
    """Return a home with Codex and Copilot CLI."""
    home = homes.new()
    for name in (".codex", ".copilot"):
        (home / name).mkdir()
    return home


@pytest.fixture
def run(homes: Homes) -> Run:
    return lambda *words: homes.run(*words)[:2]


def written(home: Path) -> set[str]:
    return {
        name
        for name in (SKILLS["codex"], SKILLS["copilot"], ".codex/AGENTS.md", EXTENSION)
        if (home / name).exists()
    }


def test_without_a_terminal_nothing_that_needs_a_yes_is_written_and_the_options_are_told(
    home: Path, run: Run
) -> None:
    code, out = run("codex", "copilot", "--no-verify")
    assert code == 0
    assert "not written without your consent: extension, rules, skill" in out
    assert "add --extension --rules --skill, or --yes" in out
    assert written(home) == set()


def test_a_dry_run_shows_what_would_be_asked_for_and_writes_nothing(home: Path, run: Run) -> None:
    code, out = run("codex", "copilot", "--dry-run")
    assert code == 0
    for name in (SKILLS["codex"], SKILLS["copilot"], ".codex/AGENTS.md", EXTENSION):
        assert f"+++ {home}/{name}" in out
    assert BLOCK_BEGIN in out
    assert written(home) == set()


def test_options_and_yes_answer_the_questions(home: Path, run: Run) -> None:
    run("codex", "copilot", "--no-verify", "--skill", "--no-rules")
    assert written(home) == {SKILLS["codex"], SKILLS["copilot"]}
    run("codex", "copilot", "--no-verify", "--yes", "--no-rules")
    assert written(home) == {SKILLS["codex"], SKILLS["copilot"], EXTENSION}
    code, out = run("codex", "copilot", "--no-verify", "--json")  # what is there stays
    assert (code, json.loads(out)["clients"][0]["extras"]) == (0, {"skill": True, "rules": False})
    assert written(home) == {SKILLS["codex"], SKILLS["copilot"], EXTENSION}
    run("remove")
    assert written(home) == set()
    assert not (home / ".copilot/extensions").exists()


class Typed(io.StringIO):
    """A person's input at a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_person_at_a_terminal_is_asked_once_for_each_part(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed("n\ny\n"))
    assert run("codex", "--no-verify")[0] == 0
    assert written(home) == {".codex/AGENTS.md"}
    monkeypatch.setattr("sys.stdin", Typed(""))  # a question that nobody answers would end the command
    assert run("codex", "--no-verify", "--no-skill")[0] == 0
    assert written(home) == {".codex/AGENTS.md"}
