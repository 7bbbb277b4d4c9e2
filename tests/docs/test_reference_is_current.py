"""The pages of `docs/reference/` match the output of `docs/generate.py` for the present code."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typer.main import get_command

from machine import PATIENCE
from postroom.app.config import SETTINGS
from postroom.app.metrics import Metrics
from postroom.cli.commands import tree
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import all_errors
from postroom.mail.operations import MAIL_OPERATIONS

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, generated again."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, ROOT / "docs" / "generate.py", folder], check=True, timeout=PATIENCE)
    return folder


def test_no_page_is_missing_or_left_over(made: Path) -> None:
    assert sorted(path.name for path in REFERENCE.iterdir()) == sorted(path.name for path in made.iterdir())


@pytest.mark.parametrize("name", ["commands", "errors", "http", "metrics", "rest", "settings", "tools"])
def test_a_page_is_what_the_code_says(made: Path, name: str) -> None:
    written = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert written == (made / f"{name}.md").read_text(encoding="utf-8"), "run `make docs`"


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def commands(command: object, words: str) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [words]
    return [leaf for name, one in inner.items() for leaf in commands(one, f"{words} {name}")]


LINES = {
    "rest": [f"| {one.method} | `{one.path}` |" for one in MAIL_OPERATIONS],
    "tools": [f"## {operation.name}" for operation in MAIL_OPERATIONS],
    "settings": [f"| `{name}` | `POSTROOM_{name.upper()}` |" for name in SETTINGS],
    "commands": [f"## {words}" for words in commands(get_command(tree()), "postroom")],
    "errors": [f"| `{kind.code}` |" for kind in all_errors()],
}


def test_a_page_leaves_nothing_out(subtests: pytest.Subtests) -> None:
    for name in LINES:
        with subtests.test(name=name):
            assert [line for line in LINES[name] if f"\n{line}" not in page(name)] == []


def without_json(command: Any, words: str) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [] if any("--json" in one.opts for one in command.params) else [words]
    return [leaf for name, one in inner.items() for leaf in without_json(one, f"{words} {name}".strip())]


def test_the_commands_without_json_are_named() -> None:
    said = f"`{', '.join(without_json(get_command(tree()), ''))}`"
    named = re.sub(r"`, `|` and `", ", ", " ".join(str(tree().info.epilog).split()))
    assert f"All commands except {said} accept --json" in named
    named = re.sub(r"`, `|` and `", ", ", " ".join(page("commands").split()))
    assert f"{said} do not accept `--json`" in named


class NoWriter:
    """The part of a store that metrics read."""

    grouping = (0, 0)


def test_every_metric_is_documented() -> None:
    registry: CollectorRegistry = Metrics(NoWriter(), SystemClock()).registry  # type: ignore[arg-type]  # only that
    names = [family.name for family in registry.collect()]
    assert names
    assert [name for name in names if f"| `{name}" not in page("metrics")] == []


def edge_codes(path: Path) -> set[str]:
    """Return the codes that a module of the HTTP edge writes itself: texts given as `code` or after a status."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            found |= {
                word.value.value
                for word in node.keywords
                if word.arg == "code" and isinstance(word.value, ast.Constant)
            }
            if isinstance(node.func, ast.Name) and node.func.id == "_refusal":
                found |= {one.value for one in node.args[1:2] if isinstance(one, ast.Constant)}
    return found


def test_every_code_of_the_http_edge_is_documented() -> None:
    found = set().union(*map(edge_codes, (ROOT / "src/postroom/http_api").glob("*.py")))
    assert {"internal_error", "unknown_host"} <= found
    assert [code for code in sorted(found) if f"\n| `{code}` |" not in page("errors")] == []
