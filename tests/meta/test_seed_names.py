"""Every test of the mailbox's acceptance document has its counterpart of the same name, and one alone."""

import ast
import os
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ROOT.parent / "shared" / "seeds" / "raw"
PORTS = ROOT / "tests" / "dispatch"
HOW_MANY = 177

SEED_TEST = re.compile(
    r"#\[(?:tokio::)?test(?:\([^)\]]*\))?\]"  # the mark, plain or with its options, in a `proptest!` as well
    r"\s*(?:#\[[^\]]*\]\s*)*"  # other marks
    r"(?:pub\s+)?(?:async\s+)?fn\s+(\w+)"
)


def seed_tests(text: str) -> list[str]:
    """Return the names of the tests of a Rust source."""
    return SEED_TEST.findall(text)


def ported_tests(text: str) -> list[str]:
    """Return the names of the test functions of a Python source, without their prefix."""
    return [
        node.name.removeprefix("test_")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def test_every_test_of_the_seed_is_ported_once() -> None:
    found = sorted(SEEDS.glob("002_*.txt"))
    if not found:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("the seed is not at ../shared/seeds/raw/002_*.txt beside the project")
    [seed] = found
    names = seed_tests(seed.read_text(encoding="utf-8"))
    assert len(names) == len(set(names)) == HOW_MANY

    ported = Counter(
        name
        for path in sorted(PORTS.rglob("*.py"))
        for name in ported_tests(path.read_text(encoding="utf-8"))
    )
    assert [name for name in names if not ported[name]] == [], "these tests of the seed are not ported"
    assert [name for name in names if ported[name] > 1] == [], "these tests of the seed are ported twice"


def test_the_look_at_tests_sees_them() -> None:
    rust = """
    fn helper() {}
    #[test]
    fn plain() {}
    #[tokio::test]
    async fn on_a_loop() {}
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    #[ignore]
    async fn on_threads() {}
    proptest::proptest! {
    #[test]
    fn property(msg in ".*") {}
    }
    """
    assert seed_tests(rust) == ["plain", "on_a_loop", "on_threads", "property"]
    python = "def helper(): ...\ndef test_a(): ...\nclass B:\n    async def test_b(self): ...\n"
    assert ported_tests(python) == ["a", "b"]
