"""What is checked in: nothing of the machine it was made on, and no registry that others cannot reach."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
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


def test_the_lock_names_versions_and_hashes_and_nothing_else() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,._-]+\])?==[^\s;]+( ; [^\\]+)?( \\)?"
    others = [
        line
        for line in text.splitlines()
        if not re.fullmatch(rf"{pinned}|    --hash=sha256:[0-9a-f]{{64}}( \\)?|#.*", line)
    ]
    assert others == []


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
