"""Every case has a lane, and the list of what CI runs of slow files names cases that exist."""

import subprocess
import sys
from pathlib import Path

import pytest

from lanes import IN_CI, is_in_ci, lane_of

TESTS = Path(__file__).resolve().parents[1]


def test_each_listed_name_is_a_test_of_its_file() -> None:
    missing = {
        f"{file}::{case}"
        for file, cases in IN_CI.items()
        for case in cases
        if f"def {case.partition('[')[0]}(" not in (TESTS / file).read_text(encoding="utf-8")
    }
    assert missing == set()


@pytest.mark.long
def test_each_listed_case_is_collected() -> None:
    """A beginning of parameters that no case has would leave a file without its cases in CI."""
    files = [file for file in IN_CI if not file.startswith("real_clients/")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not nightly", *files]
    told = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True).stdout
    collected = {line.removeprefix("tests/") for line in told.splitlines() if "::" in line}
    assert [
        f"{file}::{case}"
        for file in files
        for case in IN_CI[file]
        if not any(one.startswith(f"{file}::{case}") for one in collected)
    ] == []


def test_a_long_case_of_a_file_that_is_not_listed_is_in_ci() -> None:
    assert lane_of("e2e/test_new.py", "test_a", (), is_long=True) is None


def test_a_listed_name_takes_all_its_cases_and_a_listed_beginning_those_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(IN_CI, "e2e/test_x.py", ("test_a", "test_b[one"))
    cases = ("test_a", "test_a[1]", "test_b[one-2]", "test_b[two]", "test_ab", "test_b")
    assert [case for case in cases if is_in_ci("e2e/test_x.py", case)] == [
        "test_a",
        "test_a[1]",
        "test_b[one-2]",
    ]
    assert lane_of("e2e/test_x.py", "test_b[two]", (), is_long=True) == "nightly"
    assert lane_of("e2e/test_x.py", "test_b[two]", (), is_long=False) is None


@pytest.mark.parametrize(
    ("file", "kind", "lane"),
    [
        ("conformance/test_mail_changes.py", "sqlite", None),
        ("conformance/test_mail_changes.py", "postgres", "long"),
        ("conformance/test_mail_changes.py", "pooled", "nightly"),
        ("faults/test_relay.py", "postgres", "long"),
        ("dispatch/test_leases.py", "postgres", "long"),
        ("dispatch/test_leases.py", "sqlite", None),
        ("waking/test_waking.py", "postgres", "nightly"),
    ],
)
def test_a_case_on_postgresql_is_in_ci_if_engines_differ_there(
    file: str, kind: str, lane: str | None
) -> None:
    assert lane_of(file, f"test_a[{kind}]", [kind], is_long=False) == lane
