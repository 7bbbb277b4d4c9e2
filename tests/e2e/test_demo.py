"""The demonstration with a server, as a person runs it: it ends by itself and does what it announces."""

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.running import RunningServer, plain_environment, postroom
from machine import PATIENCE

pytestmark = pytest.mark.long


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def demo(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroom", "demo", *words],
        env={**plain_environment(data.parent), "POSTROOM_DATA_DIR": str(data)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def git(folder: str, *words: str) -> str:
    return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return json.loads(done.stdout)


def test_two_programs_do_six_tasks_meet_at_a_file_fail_once_and_ask_before_they_commit(
    server: RunningServer,
) -> None:
    found = told(demo(server.data_dir, "--yes", "--json"))
    assert found["outcome"] == "committed"
    steps = found["steps"]
    for expected in (
        "Ada has claimed task 1, Count every price (basket.py)",
        "Bo wants basket.py, but Ada holds it",
        "You let Bo try task 3 again",
        "Bo has finished task 3, Take off a discount: discount.py passes test_shop.Discount.",
        "Ada asks You: May I commit it?",
        "You to Ada: yes",
    ):
        assert steps.count(expected) == 1, steps
    [failure] = [one for one in steps if one.startswith("Bo failed at task 3, Take off a discount: ")]
    assert failure.endswith("test_shop.Discount fails: my change to discount.py is wrong")
    assert git(found["folder"], "log", "--format=%s").splitlines() == [
        "A shop with discounts and receipts",
        "A basket, with a bug",
    ]
    assert git(found["folder"], "status", "--porcelain", "--untracked-files=no") == ""
    with server.line() as line:
        tasks = line.tool("list_tasks", project_key=found["folder"], state="done")["tasks"]
        assert sorted((one["id"], one["epoch"]) for one in tasks) == [
            (number, 2 if number == 3 else 1) for number in range(1, 7)
        ]
        held = line.tool("list_file_reservations", project_key=found["folder"])
        assert held["reservations"] == []
        assert line.request("GET", "/admin/runners").json() == {"runners": []}
        page = line.request("GET", found["timeline"].removeprefix(server.url))
    assert page.status == 200
    assert 'aria-current="true">All</a>' in page.text
    for words in ("Task 1: Count every price", "started 1", "succeeded", "basket.py"):
        assert words in page.text
    assert "Traceback" not in server.log()


def test_its_question_is_listed_like_others_and_the_first_answer_counts(server: RunningServer) -> None:
    with at_a_terminal(server.data_dir, "demo") as (terminal, shown):
        wait_for(shown, "press Enter")
        os.write(terminal, b"\n")
        wait_for(shown, "[Y/n]")
        listed = postroom(server.data_dir, "questions", "list", "--json")
        [question] = json.loads(listed.stdout)["questions"]
        assert question["question"] == "May I commit it?"
        assert postroom(server.data_dir, "questions", "answer", question["number"], "no").returncode == 0
        os.write(terminal, b"y\n")  # too late: the question has its answer
        wait_for(shown, "Ada has blocked task 6, Commit the shop: You said no.")
        wait_for(shown, "The demo agents have stopped")


def wait_for(shown: Callable[[], str], text: str) -> None:
    """Read on until the text was shown."""
    while text not in (told := shown()):
        assert len(told) < 100_000, told


@contextmanager
def at_a_terminal(data: Path, *words: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """Run a command at a terminal; yield the terminal, and a function that reads on and returns all output."""
    terminal, inside = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "postroom", *words],
        env={**plain_environment(data.parent), "POSTROOM_DATA_DIR": str(data)},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    told: list[str] = []

    def shown() -> str:
        ready, _, _ = select.select([terminal], [], [], PATIENCE)
        assert ready, "".join(told)
        told.append(os.read(terminal, 4096).decode(errors="replace"))
        return "".join(told)

    try:
        yield terminal, shown
    finally:
        running.kill()
        running.wait()
        os.close(terminal)
