"""Each write of a run is refused, or loses its reply, repeatedly: no step is done twice, and no caller is notified of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import pytest
import pytest_asyncio

from postroom import Budget, BudgetScope, GiveUp, MailboxConfig, RunUnsuccessful
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import CommitUnknown, StoreUnavailable
from postroom.embedded.mailbox import Mailbox, queue_over
from postroom.embedded.running import Run
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import SqlStore, Transaction
from postroom.stores.stores import Stores
from store_kinds import opened

T = TypeVar("T")
OF_OTHERS = ("claim", "submit")
"""Changes of callers and of the rounds: they raise, or are made again by the next round."""


class Faulty:
    """A store of which every second write of a run fails, and every eleventh look."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.loses = False
        """Whether a write that fails is made all the same."""
        self.is_well = True
        self.refuses = ""
        """The name of the only changes that fail, each time."""
        self.failed = Counter[str]()
        self._writes = Counter[str]()
        self._looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, look: Callable[[Transaction], T]) -> T:
        self._looks += 1
        if not self.is_well and self._looks % 11 == 0:
            raise StoreUnavailable("failed on purpose")
        return await self._store.read(look)

    async def write(self, change: Callable[[Transaction], T], *, key: str = "") -> T:
        name = change.__name__
        self._writes[name] += 1
        if name == self.refuses:
            raise StoreUnavailable("failed on purpose")
        fails = not self.is_well and name not in OF_OTHERS and self._writes[name] % 2 == 1
        if fails:
            self.failed[name] += 1
        if fails and not self.loses:
            raise StoreUnavailable("failed on purpose")
        done = await self._store.write(change, key=key)
        if fails:
            raise CommitUnknown("lost on purpose")
        return done


@pytest_asyncio.fixture
async def faulty(tmp_path: Any) -> AsyncIterator[tuple[Stores, Faulty]]:
    context = opened("sqlite", tmp_path, str, SystemClock())
    store = await asyncio.to_thread(context.__enter__)
    stores = Stores(store, is_exclusive=True)
    faults = Faulty(store)
    stores.runs = RunStores(cast("SqlStore", faults))
    yield stores, faults
    await asyncio.to_thread(context.__exit__, None, None, None)


@pytest.mark.parametrize("loses", [False, True], ids=["refused", "reply lost"])
async def test_a_run_is_done_once_whatever_becomes_of_its_writes(
    faulty: tuple[Stores, Faulty], loses: bool
) -> None:
    stores, faults = faulty
    faults.loses = loses
    calls = Counter[str]()
    begins = asyncio.Event()

    def called(name: str) -> str:
        calls[name] += 1
        return name

    async def work(run: Run) -> str:
        await begins.wait()
        await run.step("first", called, f"{run.text} first")
        await run.log("between")
        if run.text == "fails":
            raise GiveUp("it cannot work")
        if run.text == "fails once" and run.attempt == 1:
            raise RuntimeError("the first attempt fails")
        answer = await run.ask("Go on?", name="go on") if run.text == "asks" else None
        if run.text == "sleeps":
            await run.sleep(timedelta(milliseconds=1))
        await run.step("last", called, f"{run.text} last")
        return "done" if answer is None else answer.text

    async def result(kind: str, handle: Any) -> str:
        if kind == "asks":
            async for event in handle.events():
                if event.type == "question":
                    await handle.answer("yes", question_id=event.data["question_id"])
        try:
            return str(await handle.result())
        except RunUnsuccessful as error:
            return error.message

    kinds = ("plain", "fails", "fails once", "asks", "sleeps")
    async with queue_over(stores, work, None) as queue:
        mailbox = Mailbox(queue, stores.runs)
        handles = {kind: await mailbox.enqueue(kind, kind) for kind in kinds}
        faults.is_well = False
        begins.set()
        async with asyncio.timeout(60):
            told = await asyncio.gather(*(result(kind, handle) for kind, handle in handles.items()))
        faults.is_well = True
    said = dict(zip(kinds, told, strict=True))
    assert (said["plain"], said["fails once"], said["sleeps"]) == ("done", "done", "done")
    assert said["asks"] == "yes"
    assert "it cannot work" in said["fails"]
    assert set(calls.values()) == {1}
    assert len(calls) == 2 * len(kinds) - 1
    assert {"end", "nack", "dead_letter"} <= set(faults.failed)


@pytest.mark.parametrize("loses", [False, True], ids=["refused", "reply lost"])
async def test_a_run_that_fails_counts_its_cost_once_and_keeps_its_error_whatever_becomes_of_the_write(
    faulty: tuple[Stores, Faulty], loses: bool
) -> None:
    stores, faults = faulty
    faults.loses = loses
    begun = Counter[str]()
    budget = Budget(per=BudgetScope.ALL, cost_micros=1_000_000)

    async def work(run: Run) -> str:
        begun[run.id] += 1
        run.used(cost_micros=7)
        faults.is_well = False
        raise GiveUp("it cannot work")

    async with queue_over(stores, work, None, config=MailboxConfig(budgets=(budget,))) as queue:
        handle = await Mailbox(queue, stores.runs).enqueue("t", "go")
        with pytest.raises(RunUnsuccessful, match="it cannot work"):
            await handle.result(timeout=60)
        faults.is_well = True
    account = budget.account({BudgetScope.ALL: "*"}, 0)
    assert account is not None
    spent = await stores.store.read(lambda tx: tx.runs.threads.spending([account.scope]))
    assert (spent[account.scope].cost_micros, set(begun.values())) == (7, {1})


async def test_output_that_an_outage_puts_off_is_kept_later_and_told_once(
    faulty: tuple[Stores, Faulty], caplog: pytest.LogCaptureFixture
) -> None:
    stores, faults = faulty

    async def work(run: Run) -> str:
        faults.refuses = "added"
        for number in range(5):
            await run.stream(f"{number} ")
            await run.log("what was streamed is written before this")
        faults.refuses = "added" if run.text == "ends in the outage" else ""
        await run.stream("end")
        return "done"

    async with queue_over(stores, work, None) as queue:
        mailbox = Mailbox(queue, stores.runs)
        told = [
            event.text async for event in mailbox.stream("a", "outlives the outage") if event.type == "text"
        ]
        assert "".join(told) == "0 1 2 3 4 end"
        assert (caplog.text.count("output.put_off"), caplog.text.count("output.lost")) == (1, 0)
        for name in ("b", "c"):
            handle = await mailbox.enqueue(name, "ends in the outage")
            assert await handle.result(timeout=60) == "done"
    assert (caplog.text.count("output.put_off"), caplog.text.count("output.lost")) == (2, 1)
