"""Much work handed over in one call: the same work as by `enqueue`, in few commits, once for each key."""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from embedded_room import SOON, Open, echo
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import (
    DuplicateRecord,
    InvalidArgument,
    InvalidSubmission,
    MailboxClosed,
    PostroomError,
    QueueFull,
)
from postroom.contracts.limits import Limit, LimitScope
from postroom.contracts.messages import Message
from postroom.dispatch import submission
from postroom.embedded.handle import RunHandle
from postroom.embedded.items import Item
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Run
from postroom.stores.codec import encode
from postroom.stores.sql_transaction import SqlTransaction

LATER = timedelta(days=1)
IN_A_YEAR = datetime(2100, 1, 1, tzinfo=UTC)


async def nothing(run: Run) -> None:
    """Be done."""


@pytest.mark.long
async def test_each_item_is_answered_and_handles_come_in_order(opening: Open) -> None:
    told: list[tuple[int, int]] = []
    items = (Item(f"chat-{number % 700}", {"page": number}) for number in range(1_200))
    async with opening(echo) as mailbox:
        handles = await mailbox.enqueue_many(items, progress=lambda *done: told.append(done))
        assert [handle.thread_id for handle in handles] == [f"chat-{number % 700}" for number in range(1_200)]
        assert told == [(500, 1_200), (1_000, 1_200), (1_200, 1_200)]
        assert await handles[1_199].result(timeout=60) == 'you said {"page":1199}'
        assert await handles[499].result(timeout=60) == 'you said {"page":499}'
        assert await mailbox.enqueue_many([]) == []


async def test_the_same_rows_are_written_as_by_enqueue(opening: Open) -> None:
    options = {
        "key": "k",
        "agent": "ada",
        "tenant": "acme",
        "limit_key": "mail",
        "priority": 7,
        "delay": LATER,
        "deadline": IN_A_YEAR,
        "attempts": 3,
        "retry_delay": timedelta(seconds=2),
        "max_retry_delay": timedelta(seconds=9),
    }
    async with opening(nothing) as mailbox:
        for thread in ("used-1", "used-2"):
            await mailbox.enqueue(thread, "before", delay=LATER)
        alone = [
            await mailbox.enqueue("new-1", {"a": 1}, **options),
            await mailbox.enqueue("used-1", "more", delay=LATER),
        ]
        many = await mailbox.enqueue_many(
            [Item("new-2", {"a": 1}, **options), Item("used-2", "more", delay=LATER)]
        )
        for one, other in zip(alone, many, strict=True):
            assert await rows_of(mailbox, one) == await rows_of(mailbox, other)


class Counted:
    """Counts what a transaction waits for, and passes everything on."""

    def __init__(self, sql: SqlTransaction, looks: list[str]) -> None:
        self._sql = sql
        self._looks = looks

    def __getattr__(self, name: str) -> object:
        if name in ("ask", "all", "one", "changed"):
            self._looks.append(name)
        return getattr(self._sql, name)


async def test_what_a_commit_looks_at_does_not_grow_with_its_items(opening: Open) -> None:
    looks = list[str]()
    async with opening(nothing) as mailbox:
        engine = mailbox.stores.store.engine
        write = engine.write
        engine.write = lambda change, **options: write(lambda sql: change(Counted(sql, looks)), **options)
        await mailbox.enqueue_many(Item(f"t{number % 20}", number, delay=LATER) for number in range(60))
        new = len(looks)
        await mailbox.enqueue_many(Item(f"t{number % 20}", number, delay=LATER) for number in range(60))
        assert max(new, len(looks) - new) <= 4


async def rows_of(mailbox: Mailbox, handle: RunHandle) -> str:
    """Return what is stored of a thread and its newest run, without ids and instants."""
    threads = mailbox.stores.threads
    run = await threads.load_run(handle.id)
    rows = await mailbox.admin.list_dispatches(handle.thread_id)
    [row] = [one for one in rows if one.run_id == handle.id]
    assert run is not None
    assert run.input is not None
    said = await threads.load_message_records(handle.thread_id, run.input.trigger_message_ids)
    shown = encode([await threads.load_thread(handle.thread_id), run, row, *said])
    for number, name in enumerate(
        (handle.thread_id, handle.id, row.dispatch_id, *run.input.trigger_message_ids)
    ):
        shown = shown.replace(name, f"#{number}")
    return re.sub(r"[0-9]{13,}", "0", shown)


async def test_any_mix_of_threads_and_keys_leaves_what_single_calls_leave(opening: Open) -> None:
    random = Random(12)

    def mixed(name: str, number: int) -> Item:
        key = f"k{random.randrange(12)}" if random.random() < 0.5 else None
        thread = f"{name}-{random.randrange(9)}"
        content = key or f"{number}"  # a key names one content
        return Item(thread, content, key=key, priority=random.randrange(256), delay=LATER)

    plain = [mixed("alone", number) for number in range(80)]
    both = [plain, [replace(item, thread=item.thread.replace("alone", "many")) for item in plain]]
    async with opening(nothing) as mailbox:
        for item in plain:
            await mailbox.enqueue(
                item.thread, item.content, key=item.key, priority=item.priority, delay=item.delay
            )
        for part in (both[1][:30], both[1][30:]):  # the second finds threads and keys of the first
            await mailbox.enqueue_many(part)
        left = []
        for items in both:
            for thread in sorted({item.thread for item in items}):
                said = await mailbox.stores.threads.load_messages(thread) or ()
                rows = await mailbox.admin.list_dispatches(thread)
                left.append(([one.text() for one in said], sorted(row.priority for row in rows)))
        assert left[: len(left) // 2] == left[len(left) // 2 :]


async def test_the_same_keys_again_enqueue_the_rest_and_double_nothing(opening: Open) -> None:
    items = [Item(f"t{number % 7}", number, key=f"job-{number}", delay=LATER) for number in range(40)]
    async with opening(nothing) as mailbox:
        first = await mailbox.enqueue_many([*items[:25], *items[:3]])
        again = await mailbox.enqueue_many(items)
        ids = [handle.id for handle in again]
        assert [handle.id for handle in first] == [*ids[:25], *ids[:3]]
        assert len(set(ids)) == 40
        counted = await mailbox.stores.dispatches.count_by_status()
        assert counted[RunDispatchStatus.QUEUED] == 40
        assert (await mailbox.enqueue("t3", 3, key="job-3")).id == ids[3]


async def test_work_that_is_done_is_not_enqueued_again(opening: Open) -> None:
    items = [Item(f"t{number % 2}", number, key=f"k{number}") for number in range(6)]
    async with opening(echo) as mailbox:
        answers = [await one.result(timeout=60) for one in await mailbox.enqueue_many(items)]
        again = await mailbox.enqueue_many([*items, Item("t1", "new", key="k9")])
        assert [await one.result(timeout=60) for one in again] == [*answers, "you said new"]


async def test_a_call_that_is_cut_off_between_two_commits_is_called_again(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MOST_TOGETHER", 10)
    items = [Item(f"t{number}", number, key="once", delay=LATER) for number in range(35)]

    def give_up(done: int, of: int) -> None:
        if done == 20:
            raise ConnectionAbortedError

    async with opening(nothing) as mailbox:
        with pytest.raises(ConnectionAbortedError):
            await mailbox.enqueue_many(items, progress=give_up)
        counted = await mailbox.stores.dispatches.count_by_status()
        assert counted[RunDispatchStatus.QUEUED] == 20
        assert len({handle.id for handle in await mailbox.enqueue_many(items)}) == 35
        counted = await mailbox.stores.dispatches.count_by_status()
        assert counted[RunDispatchStatus.QUEUED] == 35


async def test_of_two_calls_with_the_same_keys_at_once_each_key_is_one_run(opening: Open) -> None:
    items = [Item(f"t{number % 5}", number, key=f"k{number}", delay=LATER) for number in range(30)]
    async with opening(nothing) as mailbox:
        calls = (mailbox.enqueue_many(items), mailbox.enqueue_many(items[::-1]))
        one, other = await asyncio.gather(*calls)
        assert [handle.id for handle in one] == [handle.id for handle in other[::-1]]
        counted = await mailbox.stores.dispatches.count_by_status()
        assert counted[RunDispatchStatus.QUEUED] == 30


BAD: dict[str, tuple[object, type[PostroomError], str]] = {
    "no item": (("t", "a"), InvalidArgument, "it must be an Item, not tuple"),
    "content": (Item("t", object()), InvalidArgument, "what is enqueued cannot be stored"),
    "half a character": (Item("t", "\ud800"), InvalidSubmission, "half of a character"),
    "thread": (Item(7, "a"), InvalidArgument, "thread must be text, not int"),  # type: ignore[arg-type]
    "priority": (Item("t", "a", priority=256), InvalidSubmission, "the priority is from 0 to 255"),
    "true": (Item("t", "a", priority=True), InvalidArgument, "priority must be a whole number, not bool"),
    "delay": (Item("t", "a", delay=timedelta(-1)), InvalidSubmission, "the delay must not be negative"),
    "no delay": (Item("t", "a", delay=5), InvalidArgument, "delay must be a timedelta"),  # type: ignore[arg-type]
    "deadline": (Item("t", "a", deadline=datetime(2030, 1, 1)), InvalidArgument, "no time zone"),  # noqa: DTZ001
    "key": (Item("t", "a", key=" "), InvalidArgument, "a key must not be blank"),
    "tenant": (Item("t", "a", tenant="a\0"), InvalidSubmission, "the tenant has at most"),
    "limit key": (Item("t", "a", limit_key="a\0"), InvalidSubmission, "the limit key has at most"),
    "attempts": (Item("t", "a", attempts=0), InvalidSubmission, "at least one attempt"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_item_is_refused_with_its_place_before_anything_is_written(
    opening: Open, case: str
) -> None:
    item, kind, text = BAD[case]
    async with opening(nothing) as mailbox:
        with pytest.raises(kind, match=f"^item 2: .*{text}"):
            await mailbox.enqueue_many([Item("t", 0), Item("t", 1), item])  # type: ignore[list-item]
        assert await mailbox.stores.threads.load_thread("t") is None


async def test_what_cannot_be_stored_undoes_its_commit_and_no_other(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MOST_TOGETHER", 2)
    config = replace(SOON, max_queued_per_thread=2)
    items = [Item(thread, "a", delay=LATER) for thread in ("t", "t", "u", "t")]
    async with opening(nothing, config) as mailbox:
        with pytest.raises(QueueFull, match=r"^item 3: .*thread 't'"):
            await mailbox.enqueue_many(items)
        assert await mailbox.stores.dispatches.count_queued("t", at_most=9) == 2
        assert await mailbox.stores.threads.load_thread("u") is None
        twice = [Item("v", Message.user("a", id="m")), Item("v", Message.user("a", id="m"))]
        with pytest.raises(DuplicateRecord, match=r"^item 1: "):
            await mailbox.enqueue_many(twice)
        assert await mailbox.stores.threads.load_thread("v") is None
    with pytest.raises(MailboxClosed):
        await mailbox.enqueue_many(items)


async def test_another_call_is_answered_between_two_commits(opening: Open) -> None:
    async with opening(nothing) as mailbox:
        seen: list[int] = []
        items = [Item(f"t{number}", number, delay=LATER) for number in range(1_500)]
        many = asyncio.create_task(mailbox.enqueue_many(items, progress=lambda done, _: seen.append(done)))
        while not seen:
            await asyncio.sleep(0)
        await mailbox.enqueue("other", "me too", delay=LATER)
        assert seen[-1] < 1_500
        await many


async def test_runs_of_one_limit_key_are_as_many_at_once_as_may_be(opening: Open) -> None:
    going, together = set[str](), list[int]()

    async def watched(run: Run) -> None:
        going.add(run.id)
        await asyncio.sleep(0)
        together.append(len(going))
        going.discard(run.id)

    config = replace(
        SOON, limits=(Limit(per=LimitScope.KEY, at_once=1), Limit(per=LimitScope.TENANT, at_once=1))
    )
    async with opening(watched, config) as mailbox:
        handles = await mailbox.enqueue_many(Item(f"a{n}", "go", limit_key="provider") for n in range(4))
        handles += [await mailbox.enqueue(f"b{n}", "go", limit_key="provider") for n in range(3)]
        for handle in handles:
            await handle.result(timeout=60)
        assert set(together) == {1}
        handles = await mailbox.enqueue_many(Item(f"c{n}", "go", tenant="acme") for n in range(4))
        told = [event.type async for event in mailbox.stream("d", "go", tenant="acme", limit_key="provider")]
        for handle in handles:
            await handle.result(timeout=60)
        assert (set(together), told) == ({1}, ["end"])
