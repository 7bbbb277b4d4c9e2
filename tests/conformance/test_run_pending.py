"""Promises of a thread store about the pending zone: what waits to be read, and may still be changed."""

import asyncio

from conformance.boxes import on_both
from conformance.promises.given import refused
from conformance.promises.run_given import (
    TOGETHER,
    a_thread,
    message_ids,
    said,
    waiting,
)
from postroom.contracts.errors import (
    AlreadyConsumed,
    DuplicateRecord,
    InvalidRecord,
    UnknownMessage,
    VersionConflict,
)
from postroom.contracts.messages import (
    Message,
    PendingMessage,
)
from postroom.contracts.run_stores import ThreadCommit
from postroom.stores.runs.ports import RunStores


async def _consume(stores: RunStores, *entries: PendingMessage) -> None:
    """Let a run read what waits."""
    await stores.coordinator.commit(
        ThreadCommit(
            thread_id=entries[0].thread_id,
            messages=tuple(one.message for one in entries),
            consumes=tuple(one.version for one in entries),
        )
    )


@on_both
async def test_an_id_waits_once_and_is_not_committed(stores: RunStores) -> None:
    await said(stores, "done")
    before = await waiting(stores, "m1")
    for names in (("m2", "m1"), ("m2", "done"), ("m1",)):
        with refused(DuplicateRecord):
            await waiting(stores, *names)
    assert await stores.threads.pending_messages("t") == before
    await a_thread(stores, "u")
    await waiting(stores, "m1", "done", thread="u")


async def test_an_edit_may_ask_for_what_was_looked_at(stores: RunStores) -> None:
    await a_thread(stores)
    await waiting(stores, "m1")
    edited = await stores.threads.edit_pending("t", Message.user("second", id="m1"), expected_revision=1)
    for revision in (1, 3):
        with refused(VersionConflict):
            await stores.threads.edit_pending("t", Message.user("x", id="m1"), expected_revision=revision)
        with refused(VersionConflict):
            await stores.threads.retract_pending("t", "m1", expected_revision=revision)
    assert await stores.threads.pending_messages("t") == (edited,)


async def test_what_was_read_cannot_be_changed(stores: RunStores) -> None:
    await a_thread(stores)
    (first,) = await waiting(stores, "m1")
    await _consume(stores, first)
    for revision in (None, 1, 9):
        with refused(AlreadyConsumed):
            await stores.threads.edit_pending("t", Message.user("x", id="m1"), expected_revision=revision)
        with refused(AlreadyConsumed):
            await stores.threads.retract_pending("t", "m1", expected_revision=revision)
    for thread, name in (("t", "m2"), ("u", "m1")):
        with refused(UnknownMessage):
            await stores.threads.edit_pending(thread, Message.user("x", id=name))
        with refused(UnknownMessage):
            await stores.threads.retract_pending(thread, name)
    messages = await stores.threads.load_messages("t")
    assert messages == (first.message,)


@on_both
async def test_what_waits_can_be_put_into_another_order(stores: RunStores) -> None:
    await a_thread(stores)
    entries = await waiting(stores, "m1", "m2", "m3", "m4")
    expected = [one.version for one in entries]
    ordered = await stores.threads.reorder_pending("t", ["m3", "m1", "m4", "m2"], expected=expected)
    assert message_ids(ordered) == ["m3", "m1", "m4", "m2"]
    assert [one.position for one in ordered] == [1, 2, 3, 4]
    assert await stores.threads.pending_messages("t") == ordered
    with refused(VersionConflict):
        await stores.threads.reorder_pending("t", ["m1", "m2", "m3", "m4"], expected=expected)
    assert message_ids(await stores.threads.reorder_pending("t", ["m4", "m3", "m2", "m1"])) == [
        "m4",
        "m3",
        "m2",
        "m1",
    ]


async def test_an_order_names_all_that_waits_and_nothing_else(stores: RunStores) -> None:
    await a_thread(stores)
    entries = await waiting(stores, "m1", "m2", "m3")
    for order in (["m1", "m2"], ["m1", "m2", "m3", "m4"], ["m1", "m2", "m2"], ["m1", "m2", "x"], []):
        with refused(InvalidRecord):
            await stores.threads.reorder_pending("t", order)
    assert await stores.threads.pending_messages("t") == entries
    assert await stores.threads.reorder_pending("u", []) == ()


@on_both
async def test_threads_with_something_to_read_are_listed(stores: RunStores) -> None:
    for thread in ("b", "B", "a", "é", "_"):
        await a_thread(stores, thread)
        await waiting(stores, f"m-{thread}", thread=thread)
    await said(stores, "done", thread="c")
    store, expected = stores.threads, ("B", "_", "a", "b", "é")
    assert await store.threads_with_pending() == expected
    assert await store.threads_with_pending(limit=2) == expected[:2]
    assert await store.threads_with_pending(limit=2, after="_") == expected[2:4]
    assert await store.threads_with_pending(after="é") == ()
    await store.retract_pending("a", "m-a")
    await _consume(stores, *await store.pending_messages("b"))
    assert await store.threads_with_pending() == ("B", "_", "é")


@on_both
async def test_adding_at_the_same_time_loses_nothing(stores: RunStores) -> None:
    await a_thread(stores)
    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(waiting(stores, f"a{number}", f"b{number}"))
    entries = await stores.threads.pending_messages("t")
    assert [one.position for one in entries] == list(range(1, 2 * TOGETHER + 1))
    names = message_ids(entries)
    for first, second in zip(names[::2], names[1::2], strict=True):
        assert (first[0], second[0], first[1:]) == ("a", "b", second[1:])


@on_both
async def test_reading_and_withdrawing_have_one_winner(stores: RunStores) -> None:
    await a_thread(stores)
    for number in range(8):
        (entry,) = await waiting(stores, f"m{number}")

        async def withdraw(name: str) -> bool:
            try:
                await stores.threads.retract_pending("t", name)
            except AlreadyConsumed:
                return False
            return True

        async def read(waits: PendingMessage) -> bool:
            try:
                await _consume(stores, waits)
            except VersionConflict:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            withdrawn = group.create_task(withdraw(entry.pending_id))
            consumed = group.create_task(read(entry))
        assert withdrawn.result() != consumed.result()
        committed = await stores.threads.load_message_records("t", [entry.pending_id])
        assert bool(committed) == consumed.result()
        assert await stores.threads.pending_messages("t") == ()
