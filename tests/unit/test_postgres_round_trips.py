"""How often a writer of PostgreSQL waits for the server's answer: what a run costs on a server far away."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from dispatch_room import Counting
from postroom import Budget, Item, Limit, MailboxConfig, embedded
from postroom.contracts.activation import RunActivation
from postroom.contracts.limits import BudgetScope, BudgetWindow, LimitScope
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.postgres import PostgresStore
from postroom.stores.postgres.sql_transaction import LOOKS_OF_ONE_THREAD, PostgresTransaction
from postroom.stores.sql_transaction import Statement

MAX_PER_RUN = 8
COMMITS_A_RUN = 2


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the work of threads that start within the block and write."""
    found: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not threading.current_thread().name.startswith("postroom-writer"):
            return
        name = frame.f_code.co_qualname
        if name == "Connection.flush":
            found["round trips"] += 1
        elif name == "Connection.send" and frame.f_locals["text"] == "COMMIT":
            found["commits"] += 1

    threading.setprofile(called)
    try:
        yield found
    finally:
        threading.setprofile(None)


async def test_a_run_takes_two_commits_and_few_round_trips(postgres_dsn: str, a_schema: str) -> None:
    with counted() as found:
        kept = await asyncio.to_thread(PostgresStore.open, postgres_dsn, schema=a_schema)
    mailbox = Mailbox(Counting(), kept.runs)

    async def run() -> None:
        await mailbox.submit_background(RunActivation.new("echo", ["go"]))
        await mailbox.settled()

    try:
        await run()  # statements are prepared at their first use
        found.clear()
        await run()
    finally:
        await mailbox.aclose()
        await asyncio.to_thread(kept.close)
    assert found["commits"] == COMMITS_A_RUN
    assert found["round trips"] <= MAX_PER_RUN


async def test_what_a_change_still_knows_after_others_changed_the_limits_is_what_it_would_find(
    postgres_dsn: str, a_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer that outlives a change of the limits is asked again, and is the same."""
    begin, ask = PostgresTransaction.begin, PostgresTransaction._asked_for
    asked, kept, changed = dict[int, Any](), Counter[str](), list[Any]()

    def asked_for(self: PostgresTransaction, statement: Statement, bound: Any) -> Any:
        answer = ask(self, statement, bound)
        asked[id(answer)] = statement, bound, answer
        return answer

    def begun(self: PostgresTransaction, *, may_defer: bool, stale: set[str]) -> None:
        begin(self, may_defer=may_defer, stale=stale)
        known = [asked[id(answer)] for _, answer in self._asked] if stale else []
        again = [self.connection.look(statement, bound) for statement, bound, _ in known]
        if again:
            self.connection.wait()
        for (statement, _, answer), fresh in zip(known, again, strict=True):
            kept[statement.name] += 1
            if answer.rows != fresh.rows:
                changed.append((statement.name, answer.rows, fresh.rows))

    async def work(run: embedded.Run) -> str:
        run.used(input_tokens=1)
        await run.step("step", lambda: 1)
        return "done"

    monkeypatch.setattr(PostgresTransaction, "_asked_for", asked_for)
    monkeypatch.setattr(PostgresTransaction, "begin", begun)
    config = MailboxConfig(
        max_concurrent_runs=32,
        limits=(Limit(per=LimitScope.KEY, at_once=20),),
        budgets=(Budget(per=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=1_000_000),),
    )
    async with embedded.Mailbox.open(postgres_dsn, work, config=config, schema=a_schema) as mailbox:
        items = [Item(f"t{number % 70}", number, tenant="b", limit_key="k") for number in range(200)]
        for handle in await mailbox.enqueue_many(items):
            assert await handle.result(timeout=60) == "done"
        account = config.budgets[0].account({BudgetScope.TENANT: "b"}, mailbox.stores.clock.now())
        spent = await mailbox.stores.threads.spending([account.scope])
        assert spent[account.scope].runs == 200  # the claims of a commit share what they read, and add up
    assert (changed, kept.keys()) == ([], LOOKS_OF_ONE_THREAD)
