"""What the first page and the list of questions cost, with few and with very many open questions.

There are 20 projects, 10,000 messages and 5,000 runs that have ended.
"""

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import pages
from benchmarks.figures import Table, median, ms, p95, size
from benchmarks.http import serving
from postroom.app.config import load_settings
from postroom.app.wiring import Application
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    Thread,
    WaitingReason,
)
from postroom.mail.waking.prompts import agent_thread
from postroom.stores.store import Transaction

MESSAGES = size(10_000, 60)
RUNS = size(5_000, 40)
PROJECTS = size(20, 3)
AGENTS = 5
FEW, MANY = size(100, 6), size(10_000, 30)
ROUNDS = size(40, 2)
LENGTH = 7 * pages.DAY


def main() -> None:
    """Print a table for few and one for many open questions."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as name:
        few, many = Path(name) / "few", Path(name) / "many"
        _fill_both(few, many)
        _measured(many, MANY, _measured(few, FEW, {}))


def _fill_both(few: Path, many: Path) -> None:
    few.mkdir(parents=True)
    asyncio.run(_fill(few))
    shutil.copytree(few, many)
    asyncio.run(_asked(many, range(FEW, MANY)))


def _measured(folder: Path, questions: int, few: Mapping[str, float]) -> dict[str, float]:
    """Print what pages and lists cost on top of an empty page; return the processor time of each."""
    stored = f"{PROJECTS} projects, {MESSAGES:,} messages, {RUNS:,} runs"
    table = Table(f"{questions:,} open questions in {stored}")
    addresses = {
        "empty": "/p/nowhere",
        "the first page": "/",
        "the first page's questions, again": "/?part=questions",
        "a project's questions": "/p/bench-0/questions",
        "a run that asks": "/p/bench-0/runs/ask-00000000",
        "the list of questions": "/admin/questions?limit=20",
        "a question by its number": "/admin/questions/one?number=000001",
        "a question that is not open": "/admin/questions/one?number=ffffff",
    }
    taken, used = dict[str, list[float]](), dict[str, float]()
    with serving("short", "httptools", folder=folder) as server:
        for what, path in addresses.items():
            may_fail = what in ("empty", "a question that is not open")
            pages.look(server, path, may_fail=may_fail)  # fills the caches
            before = server.cpu()
            taken[what] = [pages.look(server, path, may_fail=may_fail) for _ in range(ROUNDS)]
            used[what] = (server.cpu() - before) / ROUNDS
    empty = median(taken.pop("empty"))
    for what, found in taken.items():
        table.add(
            f"{what}: p95",
            f"{ms(p95(found))} (median {ms(median(found))})",
            f"a page that is not there {ms(empty)}",
            None,
            f"at most 100 ms on top: {ms(p95(found) - empty)}",
        )
        usual = few.get(what, 0.0)
        ratio = used[what] / usual if usual else None
        against = f"{FEW} open: {ms(usual)}" if few else ""
        table.add(
            f"{what}: processor time",
            ms(used[what]),
            against,
            ratio,
            "at most 4: a page shows at most 50 questions",
        )
    return used


async def _fill(folder: Path) -> None:
    with contextlib.closing(_opened(folder)) as application:
        begin = int(time.time() * 1000) - LENGTH
        for place in range(PROJECTS):
            key = _project(place)
            await application.mail.call("ensure_project", {"human_key": key})
            for number in range(AGENTS):
                made = {"project_key": key, "program": "bench", "model": "none", "name": f"Agent{number}"}
                await application.mail.call("register_agent", made)
            many, runs = range(MESSAGES // PROJECTS), range(place, RUNS, PROJECTS)
            step = LENGTH // max(len(many), 1)
            await application.store.write(
                lambda tx, key=key, many=many, step=step: pages.store_messages(tx, key, many, begin, step)
            )
            await application.runs.stores.store.write(
                lambda tx, key=key, runs=runs: pages.store_runs(tx, key, runs, begin, LENGTH // RUNS),
                key="runs",
            )
        await application.store.settle()
    await _asked(folder, range(FEW))


async def _asked(folder: Path, numbers: range) -> None:
    """Store runs that wait for an answer, each on a thread of its own, as if each agent had many lanes."""
    with contextlib.closing(_opened(folder)) as application:

        def change(tx: Transaction) -> None:
            for number in numbers:
                _ask(tx, number, tx.now() - (MANY - number) * 1_000)

        await application.runs.stores.store.write(change, key="runs")


def _ask(tx: Transaction, number: int, at: int) -> None:
    agent = f"Agent{number % AGENTS}"
    lane = number if number >= PROJECTS * AGENTS else 0
    thread = agent_thread(f"bench-{number % PROJECTS}", agent, lane)
    call = f"{number:06x}"
    ticket = RunWaitingTicket(
        ticket_id=call, tool_call_id=call, reason=f"May I send invoice {number}? " * 4, updated_at=at
    )
    if tx.runs.threads.load(thread) is None:
        tx.runs.threads.put(Thread(id=thread, created_at=at, updated_at=at))
    tx.runs.threads.create_run(
        RunRecord(
            run_id=f"ask-{number:08}",
            thread_id=thread,
            agent_id=agent,
            status=RunStatus.WAITING,
            waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=(ticket,)),
            created_at=at,
            started_at=at,
            updated_at=at,
        )
    )


def _opened(folder: Path) -> Application:
    settings = load_settings(environment={}, overrides={"data_dir": str(folder), "archive_enabled": False})
    return Application.open(settings)


def _project(place: int) -> str:
    return f"/bench/{place}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", few, many]:
            _measured(Path(many), MANY, _measured(Path(few), FEW, {}))
        case ["fill", few, many]:
            _fill_both(Path(few), Path(many))
