"""Promises of a thread store about committed messages and what executors keep."""

import asyncio
from collections.abc import Awaitable, Collection
from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.run_given import TOGETHER, said
from postroom.contracts.messages import (
    ContentBlock,
    DeliveryMode,
    Message,
    MessageMetadata,
    MessageRecord,
    Role,
    ToolCall,
    Visibility,
)
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery, ThreadCommit
from postroom.contracts.runs import (
    RunMessageInput,
    RunRecord,
    RunStatus,
    Summary,
    SummaryDraft,
    TerminationReason,
)
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock


async def test_messages_are_numbered_without_gaps(stores: RunStores) -> None:
    first = await said(stores, "m1", "m2")
    await said(stores, "other", thread="u")
    second = await said(stores, "m3")
    assert (first.message_count, second.message_count) == (2, 3)
    records = await stores.threads.list_message_records("t", MessageQuery())
    assert [(one.seq, one.message_id, one.thread_id) for one in records] == [
        (1, "m1", "t"),
        (2, "m2", "t"),
        (3, "m3", "t"),
    ]
    thread = await stores.threads.load_thread("t")
    assert thread.message_count == 3
    assert [one.id for one in await stores.threads.load_messages("t") or ()] == ["m1", "m2", "m3"]


@on_both
async def test_a_message_reads_back_as_it_was_committed(stores: RunStores, clock: ManualClock) -> None:
    messages = (
        Message.user("Hallo: 'ü' \"x\" 東京 \U0001f600\n", id="m: 'ü'"),
        Message(
            role=Role.ASSISTANT,
            id="m2",
            content=(
                ContentBlock(type="thinking", text="hm"),
                ContentBlock(type="image", data={"url": "x", "size": [1, 2.5, None, True]}),
            ),
            tool_calls=(ToolCall(id="call", name="look", arguments={"a": {"b": [1]}}),),
            metadata=MessageMetadata(run_id="r1", step_index=3, sender_agent_id="a", compacts=(1, 2)),
        ),
        Message.tool("call", "seen", id="m3"),
        Message.internal("wake", id="m4"),
        Message(role=Role.SYSTEM, id="m5"),
    )
    await stores.coordinator.commit(ThreadCommit(thread_id="t", messages=messages))
    assert await stores.threads.load_messages("t") == messages
    records = await stores.threads.list_message_records("t", MessageQuery())
    assert records == tuple(
        MessageRecord(thread_id="t", seq=seq, message=message, created_at=clock.now())
        for seq, message in enumerate(messages, start=1)
    )


async def test_messages_are_listed_by_what_is_asked(stores: RunStores) -> None:
    messages = tuple(
        Message(
            role=Role.USER,
            id=f"m{seq}",
            visibility=Visibility.INTERNAL if seq % 2 else Visibility.ALL,
            metadata=MessageMetadata(run_id="r1") if seq % 3 == 0 else None,
        )
        for seq in range(1, 10)
    )
    await stores.coordinator.commit(ThreadCommit(thread_id="t", messages=messages))

    async def found(**query: object) -> list[int]:
        records = await stores.threads.list_message_records("t", MessageQuery(**query))
        return [one.seq for one in records]

    assert await found() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert await found(visibility=Visibility.ALL) == [2, 4, 6, 8]
    assert await found(visibility=Visibility.INTERNAL, after=3, before=9) == [5, 7]
    assert await found(run_id="r1") == [3, 6, 9]
    assert await found(run_id="r1", visibility=Visibility.ALL) == [6]
    assert await found(run_id="nobody") == []
    assert await found(after=7) == [8, 9]
    assert await found(before=3) == [1, 2]
    assert await found(after=9) == []
    assert await found(limit=2) == [1, 2]
    assert await found(newest_first=True, limit=3) == [9, 8, 7]
    assert await found(newest_first=True, before=7, after=2, limit=2, visibility=Visibility.ALL) == [6, 4]


async def test_a_page_of_messages_has_an_end_and_all_of_them_have_none(stores: RunStores) -> None:
    many = MAX_PAGE + 5
    await said(stores, *(f"m{number}" for number in range(many)))
    assert len(await stores.threads.list_message_records("t", MessageQuery(limit=10_000))) == MAX_PAGE
    rest = await stores.threads.list_message_records("t", MessageQuery(after=MAX_PAGE))
    assert [one.seq for one in rest] == list(range(MAX_PAGE + 1, many + 1))
    assert len(await stores.threads.load_messages("t") or ()) == many
    names = [f"m{number}" for number in range(many)]
    assert len(await stores.threads.load_message_records("t", names)) == many


async def test_numbering_goes_on_when_messages_are_deleted(stores: RunStores) -> None:
    await said(stores, "m1", "m2", "m3")
    await said(stores, "other", thread="u")
    assert await stores.threads.delete_messages("t") == 3
    assert await stores.threads.load_messages("t") == ()
    assert await stores.threads.load_message_records("t", ["m1"]) == ()
    assert await stores.threads.delete_messages("t") == 0
    assert await stores.threads.delete_messages("nobody") == 0
    await said(stores, "m4", "m5")
    records = await stores.threads.list_message_records("t", MessageQuery())
    assert [(one.seq, one.message_id) for one in records] == [(4, "m4"), (5, "m5")]
    assert [one.seq for one in await stores.threads.list_message_records("t", MessageQuery(after=4))] == [5]
    named = await stores.threads.load_message_records("t", ["m5", "m4"])
    assert [one.seq for one in named] == [4, 5]
    assert len(await stores.threads.load_messages("u") or ()) == 1


@on_both
async def test_appending_at_the_same_time_leaves_no_gap(stores: RunStores) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(said(stores, f"a{number}", f"b{number}"))
    records = await stores.threads.list_message_records("t", MessageQuery())
    assert [one.seq for one in records] == list(range(1, 2 * TOGETHER + 1))
    names = [one.message_id for one in records]
    assert len(set(names)) == 2 * TOGETHER
    for first, second in zip(names[::2], names[1::2], strict=True):
        assert (first[0], second[0], first[1:]) == ("a", "b", second[1:])
    thread = await stores.threads.load_thread("t")
    assert thread.message_count == 2 * TOGETHER


@on_both
async def test_pending_messages_are_counted_for_several_threads(stores: RunStores) -> None:
    for thread, many in (("t", 3), ("u", 1), ("v", 2)):
        added = [Message.user("x", id=f"{thread}{number}") for number in range(many)]
        await stores.threads.append_pending(thread, added, DeliveryMode())

    def counted(*threads: str) -> Awaitable[dict[str, int]]:
        return stores.store.read(lambda tx: tx.runs.messages.count_waiting(threads))

    assert await counted("u", "t", "nothing") == {"t": 3, "u": 1}
    assert await counted("nothing") == {}


async def test_what_executors_keep_is_replaced_whole(stores: RunStores) -> None:

    async def keep(state: dict[str, object] | None) -> None:
        await stores.coordinator.commit(ThreadCommit(thread_id="t", thread_state=state))

    await keep({"a": [1, {"ü": None}], "b": 2})
    await keep(None)
    assert await stores.threads.load_thread_state("t") == {"a": [1, {"ü": None}], "b": 2}
    await keep({"c": 3})
    assert await stores.threads.load_thread_state("t") == {"c": 3}
    await keep({})
    assert await stores.threads.load_thread_state("t") == {}
    assert await stores.threads.load_thread_state("u") is None


async def _exchanged(stores: RunStores, clock: ManualClock, number: int) -> None:
    """Store a run that has ended, its question and its answer."""
    clock.advance(timedelta(seconds=1))
    now = clock.now()
    run = RunRecord(
        run_id=f"r{number}",
        thread_id="t",
        status=RunStatus.DONE,
        input=RunMessageInput(thread_id="t", trigger_message_ids=(f"q{number}",)),
        termination=TerminationReason.natural_end(),
        created_at=now,
        started_at=now,
        finished_at=now,
        updated_at=now,
    )
    answer = replace(
        Message.assistant(f"answer {number}", id=f"a{number}"),
        metadata=MessageMetadata(run_id=run.run_id),
    )
    asked = Message.user(f"question {number}", id=f"q{number}")
    await stores.coordinator.commit(ThreadCommit(thread_id="t", messages=(asked, answer), run=run))


async def test_a_summary_stands_for_what_it_covers(stores: RunStores, clock: ManualClock) -> None:

    async def seen(**hidden: Collection[str]) -> tuple[str | None, list[str | None], int]:
        found = await stores.threads.recent_conversation("t", "new", **hidden)
        text = None if found.summary is None else found.summary.text
        return text, [message.id for message in found.messages], len(found.turns)

    async def sum_up(number: int, *covered: str) -> None:
        found = await stores.threads.recent_conversation("t", "new")
        kept = frozenset(one.id or "" for one in found.messages).difference(covered)
        summary = Summary(number=number, text=f"summary {number}", since=found.since(kept, "new"))
        draft = SummaryDraft(summary=summary, covers=covered)
        await stores.coordinator.commit(ThreadCommit(thread_id="t", summary=draft))

    for number in range(1, 5):
        await _exchanged(stores, clock, number)
    assert await seen() == (None, ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"], 4)
    await sum_up(1, "q1", "a1")
    assert await seen() == ("summary 1", ["q2", "a2", "q3", "a3", "q4", "a4"], 3)
    await sum_up(2, "q2", "a2", "q3")
    await _exchanged(stores, clock, 5)
    assert await seen() == ("summary 2", ["a3", "q4", "a4", "q5", "a5"], 3)
    whole = ["q2", "a2", "q3", "a3", "q4", "a4", "q5", "a5"]
    assert await seen(hidden_runs=["r2"]) == ("summary 1", whole, 4)
    assert await seen(hidden_message_ids=["q3"]) == ("summary 1", whole, 4)
    assert await seen(hidden_runs=["r4"]) == ("summary 2", ["a3", "q4", "a4", "q5", "a5"], 3)
    assert await seen(hidden_runs=["r1", "r3"]) == (None, ["q1", "a1", *whole], 5)
    await sum_up(2, "q2", "a2")
    assert await seen() == ("summary 2", ["q3", "a3", "q4", "a4", "q5", "a5"], 3)
    assert len(await stores.threads.load_messages("t") or ()) == 10
    await stores.threads.delete_messages("t")
    assert await seen() == (None, [], 5)
