"""The examples in README and `docs/` are executed, and their links lead to existing targets.

The marks are HTML comments on the line above a block, explained for readers in `docs/index.md`:

    <!-- run -->            shell or Python, executed with a server running
    <!-- run: offline -->   the same, with no server running
    <!-- output -->         what the block before it printed; `...` stands for anything
    <!-- greeting -->       what the server printed when it started

Pages speak of the home folder `/home/me`, of a project in `harbour` below it, and of port 8765; for the run
these become a temporary folder and a free port.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from postroom.app.config import Settings
from postroom.mail.projects import make_slug
from postroom.version import __version__

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*sorted(ROOT.glob("*.md")), *DOCS]
ADRS = [path for path in DOCS if path.parent.name == "decisions" and path.stem != "index"]
MARKED = re.compile(
    r"^<!-- (run|run: offline|output|greeting) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCE_PATH = re.compile(r"`((?:src/postroom|import-names|tests|docs|benchmarks)/[\w./-]+?)(?:::(\w+))?`")

SECONDS = 60
"""How long one block, or the start of a server, may take."""


@dataclass(frozen=True, slots=True)
class Block:
    """A marked block of a page."""

    mark: str
    language: str
    text: str


def marked(path: Path) -> list[Block]:
    return [Block(*found) for found in MARKED.findall(path.read_text(encoding="utf-8"))]


class Desk:
    """A home folder with a project, and a server that is started and stopped as a page asks."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "harbour"
        self.project.mkdir(parents=True)
        self.data = home / ".local/share/postroom"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("POSTROOM_", "XDG_"))
            },
            "HOME": str(home),
            "POSTROOM_DATA_DIR": str(self.data),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.greeting = ""
        self._address = "127.0.0.1:8765"
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server unless it runs, and wait until it listens."""
        if self._server is not None:
            return
        screen, end = os.openpty()  # to a person at a terminal it says more than to a pipe
        with (self.home / "server.err").open("w") as errors:
            self._server = subprocess.Popen(
                ["postroom", "up", "--port", "0"],
                env=self.environment,
                cwd=self.home,
                stdout=end,
                stderr=errors,
            )
        os.close(end)
        with os.fdopen(screen, "rb") as shown:
            self.greeting = self._read_greeting(shown)
        self._address = re.search(r"MCP +http://([^/]+)/", self.greeting)[1]  # type: ignore[index]  # it greets so

    def _read_greeting(self, shown: BinaryIO) -> str:
        lines: list[str] = []
        while not (lines and lines[-1].startswith("Press Ctrl-C")):
            try:
                lines.append(shown.readline().decode().rstrip())
            except OSError:  # how a screen says that nobody writes to it any more
                pytest.fail(f"the server ended: {(self.home / 'server.err').read_text()}")
        return "\n".join(lines)

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(timeout=SECONDS)
            self._server = None

    def run(self, block: Block) -> str:
        """Execute a block in the project's folder and return what it printed."""
        self.stop() if block.mark == "run: offline" else self.start()
        if self._server is not None:
            self._wait_for_the_archive()
        text = self.here(block.text)
        words = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*words, text],
            env=self.environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{text}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def here(self, text: str) -> str:
        """Return a page's text with what it names on this machine."""
        return (
            text.replace("127.0.0.1:8765", self._address)
            .replace("/home/me", str(self.home))
            .replace("home-me", make_slug(str(self.home)))
        )

    def _wait_for_the_archive(self) -> None:
        """Pages show the archive after the message, as a reader meets it: written."""
        token = (self.data / "token").read_text().strip()
        asked = urllib.request.Request(
            f"http://{self._address}/admin/status", headers={"Authorization": f"Bearer {token}"}
        )
        for _ in range(SECONDS * 20):
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                if json.load(answer)["archive_backlog"]["waiting"] == 0:
                    return
            threading.Event().wait(0.05)
        pytest.fail("the archive was not written")


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(tmp_path_factory.mktemp("home"))
    yield made
    made.stop()


def spaced(text: str) -> str:
    """Return text with runs of blanks as one: cells are apart by tabs in a pipe and by blanks on a screen."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def assert_shown(shown: str, printed: str) -> None:
    # A line of "..." alone stands for any number of lines, also none.
    pattern = (
        re.escape(spaced(shown))
        .replace(re.escape("\n...\n"), r"\n(?:.*\n)??")
        .replace(re.escape("..."), ".*?")
    )
    assert re.fullmatch(pattern, spaced(printed), re.DOTALL), (
        f"the page shows\n{shown}\nand this was\n{printed}"
    )


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", [path for path in TEXTS if marked(path)], ids=lambda path: path.stem)
def test_what_a_page_shows_happens(path: Path, desk: Desk) -> None:
    printed = ""
    for block in marked(path):
        if "curl " in block.text and not shutil.which("curl"):
            (pytest.fail if os.environ.get("CI") else pytest.skip)("curl is not installed")
        if block.mark == "output":
            assert_shown(desk.here(block.text), printed)
        elif block.mark == "greeting":
            desk.start()
            assert_shown(desk.here(block.text), desk.greeting)
        else:
            printed = desk.run(block)


def test_the_readme_and_the_first_page_are_executed() -> None:
    readme = marked(ROOT / "README.md")
    assert [(block.mark, block.language) for block in readme] == [
        ("greeting", "text"),
        ("run", "sh"),
        ("run: offline", "python"),
        ("output", "text"),
    ]
    assert len(marked(ROOT / "docs/start.md")) > 10


def test_the_readme_is_short_and_begins_as_promised() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads == ["Start", "Choose your door", "What you can rely on", "When not to use it", "More"]


def test_the_library_in_the_readme_has_ten_lines() -> None:
    program = next(block.text for block in marked(ROOT / "README.md") if block.language == "python")
    assert len([line for line in program.splitlines() if line.strip()]) <= 10


def test_the_commands_that_set_it_up_are_in_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = {
        name for path in TEXTS for name in re.findall(r"\bmake ([a-z-]+)\b", path.read_text(encoding="utf-8"))
    }
    text = everything()
    commands = {name for name in named if re.search(rf"[`\n]make {name}(?![a-z-])", text)}
    assert {"run", "test"} <= commands
    assert commands <= set(targets)


def everything() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in TEXTS)


def test_the_rules_for_those_who_change_it_are_ten_and_short() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    rules = re.split(r"^\d+\. ", text.partition("## Ten rules")[2].partition("\n## ")[0], flags=re.MULTILINE)[
        1:
    ]
    assert len(rules) == 10
    assert [rule for rule in rules if not re.search(r"Source:.*Enforcer.*[Tt]est", rule, re.DOTALL)] == []


def test_the_changes_of_this_version_are_told() -> None:
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as its readers' programs make them."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", head.replace("`", "")).strip().lower().replace(" ", "-") for head in heads
    }


def test_every_link_leads_somewhere(subtests: pytest.Subtests) -> None:
    for path in TEXTS:
        with subtests.test(path=path):
            lost = []
            for link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
                if link.startswith(("https://", "http://")):
                    continue
                target, _, anchor = link.partition("#")
                page = (path.parent / target).resolve() if target else path
                if not page.exists() or (anchor and anchor not in anchors(page)):
                    lost.append(link)
            assert lost == []


def test_every_file_that_is_named_is_there(subtests: pytest.Subtests) -> None:
    for path in TEXTS:
        with subtests.test(path=path):
            lost = []
            for name, function in SOURCE_PATH.findall(path.read_text(encoding="utf-8")):
                file = ROOT / name
                if not file.exists() or (
                    function and f"def {function}(" not in file.read_text(encoding="utf-8")
                ):
                    lost.append(f"{name}::{function}" if function else name)
            assert lost == []


def test_every_page_is_reached_from_the_first() -> None:
    lists = [ROOT / "docs/index.md", ROOT / "docs/internals/decisions/index.md"]
    linked = {
        (path.parent / link).resolve()
        for path in lists
        for link in LINK.findall(path.read_text(encoding="utf-8"))
    }
    assert [path.name for path in DOCS if path != lists[0] and path not in linked] == []


def test_a_decision_says_why_what_follows_and_what_holds_it(subtests: pytest.Subtests) -> None:
    for path in ADRS:
        with subtests.test(path=path):
            text = path.read_text(encoding="utf-8")
            heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
            assert heads == ["Context", "Decision", "Consequences", "Checked by"]
            assert text.startswith(f"# {int(path.stem[:4])}. ")
            assert len(text.splitlines()) <= 60


def test_decisions_are_numbered_without_gaps() -> None:
    text = (ROOT / "docs/internals/decisions/index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(\d+)\. (\[.*\]\((\d{4})-.*\.md\)$|.*: replaced by \[\d+\]\()", text, re.MULTILINE)
    assert [int(number) for number, _, _ in listed] == list(range(1, len(listed) + 1))
    assert [path.stem[:4] for path in ADRS] == [page for _, _, page in listed if page]


def test_every_configuration_that_is_shown_reads(subtests: pytest.Subtests) -> None:
    for path in TEXTS:
        with subtests.test(path=path):
            for language, text in FENCED.findall(path.read_text(encoding="utf-8")):
                if language == "json":
                    json.loads(text)
                elif language == "toml":
                    tomllib.loads(text)


def test_clients_are_shown_the_address_of_a_server_with_no_settings() -> None:
    given = Settings()
    address = f"http://{given.host}:{given.port}{given.mcp_path}"
    shown = re.findall(r"http://[^\s\"'`)]+/mcp", (ROOT / "docs/start.md").read_text(encoding="utf-8"))
    assert len(shown) >= 7
    assert set(shown) == {address}


def test_every_import_name_is_told(subtests: pytest.Subtests) -> None:
    for name in ["app", "config", "db", "storage"]:
        with subtests.test(name=name):
            told = (ROOT / "docs/internals/import-names.md").read_text(encoding="utf-8")
            row = next(line for line in told.splitlines() if line.startswith(f"| `mcp_agent_mail.{name}` |"))
            exported = importlib.import_module(f"mcp_agent_mail.{name}").__all__
            assert [one for one in exported if not re.search(rf"`{one}[`(]", row)] == []


def test_the_place_for_the_figures_is_marked() -> None:
    text = (ROOT / "docs/internals/benchmarks.md").read_text(encoding="utf-8")
    assert text.index("<!-- table:begin -->") < text.index("<!-- table:end -->")
