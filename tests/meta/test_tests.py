"""No test waits for time to pass: it moves a clock, or waits for what it waits for."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

SLEEPS = {
    "dispatch/test_lifecycle.py:wait": "the sleep of a manual clock, which the test moves",
    "faults/storm.py:weather": "a look at processes that wake nobody",
    "faults/storm.py:stand_still_again_and_again": "how long a process is stopped and cut off",
    "faults/storm_worker.py:work": "work in a process of its own that takes some milliseconds",
    "waking/test_waking.py:noted": "the sleep of a manual clock, which the test moves",
    "e2e/gateway_process.py:run": "an agent in a process of its own that works for some milliseconds",
    "faults/test_runs_ride_out_outages.py:measure": "how late the machine wakes this process is what is measured",
    "faults/test_runs_ride_out_outages.py:test_runs_and_their_readers_ride_out_a_restart": "a schedule wakes nobody",
    "soak/books.py:opened": "a process that was killed holds a file for a moment; nobody wakes who waits for it",
    "soak/callers.py:ask": "a caller looks again and again at a real server that is killed",
    "soak/callers.py:_called": "the same",
    "soak/callers.py:_sent": "the same; and how long a command lives before it is killed",
    "soak/callers.py:until_taken": "the same",
    "soak/killing.py:_round": "how long a server lives before it is killed",
    "soak/killing.py:_start": "the same",
    "soak/peers.py:_think": "how long a model thinks",
    "soak/progress.py:_show": "how often a storm says how far it is",
    "soak/several.py:_look_after": "a look at processes that wake nobody",
    "soak/several.py:_stand_still_again_and_again": "how long a server is stopped and cut off",
    "soak/several.py:last": "how long faults happen",
    "soak/several.py:ready": "a look at processes that wake nobody",
    "soak/world.py:ready": "a look at a process that wakes nobody",
    "real_clients/test_real_servers.py:soon": "a look at real servers, which wake nobody",
    "paths/plays.py:until": "a look at a real application, which is no part of the counted path",
    "paths/plays.py:settled": "the time in which calls are counted; nothing fails if it is too short",
    "paths/plays.py:execute": "how slowly an agent writes, so that its chat shows a draft",
    "unit/test_gateway_pacing.py:say": "the sleep of a manual clock, which the test moves",
    "chats/test_storms.py:_worked": "the sleep of a manual clock, which the test moves",
    "e2e/peer.py:first": "a process of its own looks again and again at a real server; there is nothing to be woken by",
    "e2e/test_rolling_upgrade.py:send": "how long a client thinks between its messages to real servers",
    "e2e/test_rolling_upgrade.py:more": "a look at clients of real servers, which wake nobody",
    "e2e/test_rolling_upgrade.py:writes": "a look at a database that processes of their own write to",
    "e2e/test_connections.py:sent_and_read": "plays a client that sends slowly: the pause is what is tested",
    "pauses.py:_pause": "imitates a slow disk, only in `make nightly`",
}
"""Where a sleep has a length, and why."""


def sleeps(tree: ast.AST, within: str = "") -> Iterator[str]:
    """Yield the function around each `sleep` whose length is not a plain 0."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else within
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0] if node.args else None
            of_run = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "run"
            if of_run:  # it holds nobody up, and is what is tested
                continue
            if called == "sleep" and not (isinstance(first, ast.Constant) and first.value == 0):
                yield inner
        yield from sleeps(node, inner)


def test_no_test_waits_for_time_to_pass() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))}
    found = {
        f"{path.relative_to(TESTS).as_posix()}:{function}"
        for path, text in texts.items()
        if re.search(r"\bsleep\s*\(", text)  # to read all of them into trees takes seconds
        for function in sleeps(ast.parse(text))
    }
    assert found == SLEEPS.keys()


def test_the_look_at_sleeps_sees_them() -> None:
    text = "async def a():\n    await asyncio.sleep(0)\n    time.sleep(1)\ndef b():\n    sleep(delay)\n"
    assert list(sleeps(ast.parse(text))) == ["a", "b"]
