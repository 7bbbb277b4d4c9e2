"""A store that refuses, or loses its answer after it wrote: with a key, every change happens once."""

import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mail_room import CHANGES, Room, a_room, everything, furnish, room_on_a_file
from postroom.contracts.errors import StoreUnavailable
from postroom.mail.context import Caller
from postroom.stores.changes import MAIL
from postroom.stores.mail.store import MailStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.testing.faults import LosingStore, RefusingStore, writes, writes_that
from table_rows import each_row

room = room_on_a_file


def _over(room: Room, faulty: Callable[[MailStore, Iterator[bool]], MailStore], plan: Iterator[bool]) -> Room:
    """Return the same mail room over a store that fails on purpose."""
    return a_room(faulty(room.store, plan), room.clock)


async def furnished() -> Room:
    """Return a mail room in memory in which every change can be made."""
    clock = ManualClock()
    room = a_room(SqliteStore.in_memory(clock), clock)
    await furnish(room)
    return room


@each_row("name", CHANGES)
async def test_a_change_whose_answer_was_lost_is_repeated_under_its_key_with_one_effect(name: str) -> None:
    room = await furnished()
    arguments = {**CHANGES[name].arguments, "idempotency_key": "k"}
    losing = _over(room, LosingStore, writes(1, 2))
    with pytest.raises(StoreUnavailable) as caught:
        await losing.call(name, **arguments)
    assert caught.value.retryable
    after = await everything(room.store)
    assert after["answers"] == 1
    answer = await _insist(losing, name, arguments)
    assert await losing.call(name, **arguments) == answer
    assert await everything(room.store) == after


@each_row("name", CHANGES)
async def test_a_change_that_the_store_refused_has_no_effect_and_then_one(name: str) -> None:
    room = await furnished()
    before = await everything(room.store)
    arguments = {**CHANGES[name].arguments, "idempotency_key": "k"}
    refusing = _over(room, RefusingStore, writes(1, 2, 3))
    for asked in (CHANGES[name].arguments, arguments, arguments):
        with pytest.raises(StoreUnavailable):
            await refusing.call(name, **asked)
        assert await everything(room.store) == before
    answer = await refusing.call(name, **arguments)
    after = await everything(room.store)
    assert after != before
    # The call that is repeated asked the question; its repetition says that it asks nothing new.
    repeated = answer | {"asked": False, "state": "open"} if name == "ask_person" else answer
    assert await refusing.call(name, **arguments) == repeated
    assert await everything(room.store) == after


@each_row(
    "name",
    [
        "mark_message_read",
        "acknowledge_message",
        "retire_agent",
        "unretire_agent",
        "set_contact_policy",
        "respond_contact",
        "recall_message",
    ],
)
async def test_changes_that_are_harmless_to_repeat_need_no_key_after_a_lost_answer(name: str) -> None:
    room = await furnished()
    losing = _over(room, LosingStore, writes(1))
    with pytest.raises(StoreUnavailable):
        await losing.call(name, **CHANGES[name].arguments)
    after = await everything(room.store)
    await losing.call(name, **CHANGES[name].arguments)
    again = await everything(room.store)
    assert {**again, "outbox": None, "backlog": None} == {**after, "outbox": None, "backlog": None}


async def test_a_rotation_whose_answer_was_lost_is_repeated_and_the_newest_file_holds_the_token(
    room: Room,
) -> None:
    await room.open()
    made: list[str] = []

    def keep(slug: str, name: str) -> tuple[str, str]:
        made.append(f"token {len(made)} of {name} in {slug}")
        return made[-1], "/tokens/ada"

    losing = a_room(LosingStore(room.store, writes(1)), room.clock, keep_token=keep)
    with pytest.raises(StoreUnavailable):
        await losing.call("rotate_agent_token", agent_name="Ada")
    assert await losing.mail.knows_token(made[0])
    await losing.call("rotate_agent_token", agent_name="Ada", caller=Caller(operator=True))
    assert not await losing.mail.knows_token(made[0])
    assert await losing.mail.knows_token(made[1])


async def test_reading_goes_on_while_nothing_can_be_written(room: Room) -> None:
    await furnish(room)
    refusing = _over(room, RefusingStore, writes_that(lambda _: True))
    assert len(await refusing.inbox("Ben")) == 2
    assert (await refusing.call("health_check"))["status"] == "ok"
    assert (await refusing.call("search_messages", query="subject"))["hits"]
    with pytest.raises(StoreUnavailable):
        await refusing.call("mark_message_read", agent_name="Ben", message_id=1)


async def test_a_hint_is_given_for_what_was_written_also_when_its_answer_is_lost(room: Room) -> None:
    await furnish(room)
    for faulty, is_written in ((LosingStore, True), (RefusingStore, False)):
        unlucky = _over(room, faulty, writes(1))
        with unlucky.store.changes.listen(MAIL) as told:
            with pytest.raises(StoreUnavailable):
                await unlucky.send("Ada", "Ben")
            assert await told.wait(timedelta()) is is_written


async def _insist(room: Room, name: str, arguments: dict[str, Any]) -> Any:
    """Repeat a call under its key until its answer arrives, as a client does."""
    for _ in range(200):
        try:
            return await room.call(name, **arguments)
        except StoreUnavailable:
            continue
    raise AssertionError("no answer in two hundred tries")


@given(st.integers(0, 2**32), st.sampled_from([LosingStore, RefusingStore]))
@settings(max_examples=25)
def test_many_clients_that_insist_have_one_effect_each_however_the_store_fails(
    seed: int, faulty: Callable[[MailStore, Iterator[bool]], MailStore]
) -> None:
    dice = random.Random(seed)

    async def play() -> None:
        clock = ManualClock()
        sound = a_room(SqliteStore.in_memory(clock), clock)
        await sound.open()
        room = _over(sound, faulty, writes_that(lambda _: dice.random() < 0.5))
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                message = {"sender_name": ("Ada", "Cyd")[number % 2], "to": ["Ben"], "subject": f"{number}"}
                group.create_task(
                    _insist(room, "send_message", {**message, "body_md": "b", "idempotency_key": f"{number}"})
                )
        arrived = await sound.inbox("Ben", after=0, limit=100)
        assert sorted(int(one["subject"]) for one in arrived) == list(range(12))
        assert [one["seq"] for one in arrived] == list(range(1, 13))

    asyncio.run(play())
