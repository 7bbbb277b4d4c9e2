"""Promises of an the intake log: a message is kept once, and messages move together or not at all."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.chat_given import (
    BLANK,
    HALF,
    IMPOSSIBLE,
    TOGETHER,
    at_once,
    brought_to,
    draft,
    inbound_ids,
    key,
    moved,
    received,
)
from conformance.promises.given import refused
from postroom.contracts.chat import INBOUND_MOVES, OPEN_STATUSES, InboundMessage, InboundMove, InboundStatus
from postroom.contracts.errors import (
    AlreadyConsumed,
    IllegalTransition,
    InvalidRecord,
    UnknownMessage,
)
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock

WAITING, HANDED_OVER, DONE = InboundStatus.WAITING, InboundStatus.HANDED_OVER, InboundStatus.DONE


@on_both
async def test_a_line_is_kept_as_it_came_in(chats: ChatStores, clock: ManualClock) -> None:
    body = {"text": "größe 'x' 😀", "media": [{"id": 2**53, "f": 1.5}], "none": None}
    given = draft("m: 'ü'", session_key="s: 'ü'", sender_id="u", body=body)
    found = await chats.intake_log.receive(given)
    assert found.is_new
    assert found.message == InboundMessage(
        inbound_id=found.message.inbound_id,
        key=given.key,
        session_key=given.session_key,
        sender_id="u",
        body=body,
        status=WAITING,
        received_at=clock.now(),
        updated_at=clock.now(),
    )
    assert await chats.intake_log.find(given.key) == found.message
    assert await chats.intake_log.messages([found.message.inbound_id]) == (found.message,)
    assert await chats.intake_log.open_messages() == (found.message,)


async def test_each_part_of_a_key_tells_lines_apart(chats: ChatStores) -> None:
    given = [draft(), draft(platform="x"), draft(account="x"), draft(chat_id="x"), draft("x")]
    kept = [await chats.intake_log.receive(one) for one in given]
    assert all(one.is_new for one in kept)
    assert [await chats.intake_log.find(one.key) for one in given] == [one.message for one in kept]
    assert await chats.intake_log.find(key("y")) is None


async def test_a_line_without_a_name_is_refused(chats: ChatStores) -> None:
    for blank in BLANK:
        for part in ("platform", "account", "chat_id", "message_id", "session_key"):
            with refused(InvalidRecord):
                await chats.intake_log.receive(draft(**{part: blank}))
    assert await chats.intake_log.counts() == {}


@on_both
async def test_a_text_with_half_a_character_is_refused(chats: ChatStores) -> None:
    for part in ("platform", "message_id", "session_key", "sender_id"):
        with refused(InvalidRecord):
            await chats.intake_log.receive(draft(**{part: HALF}))
    with refused(InvalidRecord):
        await chats.intake_log.receive(draft(body={"text": HALF}))
    message = await received(chats)
    with refused(InvalidRecord):
        await chats.intake_log.edit(message.key, {"text": HALF})
    for move in (InboundMove(status=DONE, reason=HALF), InboundMove(status=DONE, thread_id=HALF)):
        with refused(InvalidRecord):
            await chats.intake_log.move([message.inbound_id], move)
    assert await chats.intake_log.open_messages() == (message,)


@on_both
async def test_a_body_may_hold_every_character(chats: ChatStores) -> None:
    body = {"text": "\0 \x1a \x1a0 \u2028 \U0010ffff", "\0": "'\"\\"}
    message = await received(chats, body=body)
    assert (await chats.intake_log.edit(message.key, {**body, "n": "\0"})).body == {**body, "n": "\0"}
    (told,) = await chats.intake_log.move(
        [message.inbound_id], InboundMove(status=InboundStatus.REJECTED, reason="\0 \x1a0")
    )
    assert await chats.intake_log.find(message.key) == told
    assert told.reason == "\0 \x1a0"


@on_both
async def test_an_id_is_never_given_again(chats: ChatStores, clock: ManualClock) -> None:
    message = await brought_to(chats, "m1", DONE)
    clock.advance(timedelta(seconds=1))
    assert await chats.intake_log.purge(older_than=clock.now()) == 1
    assert (await received(chats, "m1")).inbound_id > message.inbound_id


@on_both
async def test_receiving_at_the_same_time_is_new_once(chats: ChatStores) -> None:
    for number in range(3):
        calls = [chats.intake_log.receive(draft(f"m{number}", body={"n": n})) for n in range(TOGETHER)]
        answers, _ = await at_once(calls)
        assert sum(one.is_new for one in answers) == 1
        assert len(answers) == TOGETHER
        assert all(one.message == answers[0].message for one in answers)
    assert await chats.intake_log.counts() == {WAITING: 3}


@on_both
async def test_lines_that_come_at_the_same_time_are_all_kept(chats: ChatStores) -> None:
    answers, _ = await at_once([chats.intake_log.receive(draft(f"m{n}")) for n in range(TOGETHER)])
    assert all(one.is_new for one in answers)
    kept = await chats.intake_log.open_messages()
    assert inbound_ids(kept) == sorted({one.message.inbound_id for one in answers})
    assert len(kept) == TOGETHER


async def test_lines_move_where_there_is_an_arrow(chats: ChatStores) -> None:
    for before in InboundStatus:
        for after in InboundStatus:
            message = await brought_to(chats, f"{before} {after}", before)
            if after is before or after in INBOUND_MOVES.get(before, ()):
                assert (await moved(chats, message, after)).status is after
                continue
            with refused(IllegalTransition):
                await moved(chats, message, after)
            assert await chats.intake_log.find(message.key) == message


async def test_a_move_tells_what_is_then_known(chats: ChatStores, clock: ManualClock) -> None:
    message = await received(chats)
    clock.advance(timedelta(seconds=1))
    (over,) = await chats.intake_log.move(
        [message.inbound_id], InboundMove(status=HANDED_OVER, thread_id="chat/t")
    )
    assert (over.status, over.thread_id, over.reason) == (HANDED_OVER, "chat/t", None)
    assert (over.received_at, over.updated_at, over.revision) == (message.received_at, clock.now(), 1)
    clock.advance(timedelta(seconds=1))
    (failed,) = await chats.intake_log.move(
        [message.inbound_id], InboundMove(status=InboundStatus.FAILED, reason="why")
    )
    assert (failed.status, failed.thread_id, failed.reason) == (InboundStatus.FAILED, "chat/t", "why")
    assert failed.updated_at == clock.now()
    assert await chats.intake_log.find(message.key) == failed
    other = await received(chats, "m2")
    await chats.intake_log.move(
        [other.inbound_id], InboundMove(status=HANDED_OVER, thread_id="t", reason="first")
    )
    (done,) = await chats.intake_log.move([other.inbound_id], InboundMove(status=DONE))
    assert (done.thread_id, done.reason) == ("t", "first")
    assert await chats.intake_log.find(other.key) == done


async def test_lines_move_together_and_are_told_by_id(chats: ChatStores, clock: ManualClock) -> None:
    first, second, third = [await received(chats, f"m{number}") for number in range(3)]
    over = await moved(chats, second, HANDED_OVER)
    clock.advance(timedelta(seconds=1))
    asked = [third.inbound_id, first.inbound_id, third.inbound_id, second.inbound_id]
    told = await chats.intake_log.move(asked, InboundMove(status=HANDED_OVER, thread_id="t"))
    assert inbound_ids(told) == inbound_ids([first, second, third])
    assert [message.thread_id for message in told] == ["t", None, "t"]
    assert told[1] == over
    assert await chats.intake_log.messages(asked) == told
    assert await chats.intake_log.move([], InboundMove(status=DONE)) == ()
    assert await chats.intake_log.counts() == {HANDED_OVER: 3}


async def test_a_move_that_one_line_forbids_moves_none(chats: ChatStores) -> None:
    messages = [
        await received(chats, "m0"),
        await brought_to(chats, "m1", DONE),
        await received(chats, "m2"),
    ]
    for asked in (inbound_ids(messages), inbound_ids(reversed(messages))):
        with refused(IllegalTransition):
            await chats.intake_log.move(asked, InboundMove(status=HANDED_OVER))
    assert list(await chats.intake_log.messages(inbound_ids(messages))) == messages


async def test_a_move_since_a_status_moves_no_message_that_has_another(chats: ChatStores) -> None:
    waiting, over = await received(chats, "m0"), await brought_to(chats, "m1", HANDED_OVER)
    taken_back = InboundMove(status=InboundStatus.RETRACTED, since=WAITING)
    with refused(IllegalTransition):
        await chats.intake_log.move(inbound_ids([waiting, over]), taken_back)
    assert await chats.intake_log.counts() == {WAITING: 1, HANDED_OVER: 1}
    for _ in range(2):
        [moved] = await chats.intake_log.move([waiting.inbound_id], taken_back)
        assert moved.status is InboundStatus.RETRACTED


async def test_a_move_of_an_unknown_line_moves_none(chats: ChatStores, clock: ManualClock) -> None:
    message = await received(chats, "m1")
    gone = await brought_to(chats, "m2", DONE)
    clock.advance(timedelta(seconds=1))
    assert await chats.intake_log.purge(older_than=clock.now()) == 1
    for unknown in (gone.inbound_id, gone.inbound_id + 99, *IMPOSSIBLE):
        for asked in ([unknown], [message.inbound_id, unknown]):
            with refused(UnknownMessage):
                await chats.intake_log.move(asked, InboundMove(status=HANDED_OVER))
    assert await chats.intake_log.open_messages() == (message,)


@on_both
async def test_of_moves_at_the_same_time_one_ends_a_line(chats: ChatStores) -> None:
    message = await received(chats)
    ends = (DONE, InboundStatus.REJECTED, InboundStatus.RETRACTED)
    moves = [InboundMove(status=ends[n % 3], reason=str(n)) for n in range(TOGETHER)]
    answers, errors = await at_once(
        [chats.intake_log.move([message.inbound_id], one) for one in moves], IllegalTransition
    )
    (ended,) = await chats.intake_log.messages([message.inbound_id])
    assert all(one == (ended,) for one in answers)
    assert len(answers) == sum(one.status is ended.status for one in moves)
    assert len(answers) + len(errors) == TOGETHER


@on_both
async def test_moves_of_the_same_lines_do_not_stand_in_their_way(chats: ChatStores) -> None:
    named = inbound_ids([await received(chats, f"m{number}") for number in range(6)])
    orders = [named[n % 6 :] + named[: n % 6] for n in range(TOGETHER)]
    orders = [list(reversed(one)) if n % 2 else one for n, one in enumerate(orders)]
    answers, _ = await at_once(
        [chats.intake_log.move(one, InboundMove(status=HANDED_OVER)) for one in orders]
    )
    assert [inbound_ids(one) for one in answers] == [named] * TOGETHER


async def test_an_edit_replaces_the_body_of_an_open_line(chats: ChatStores, clock: ManualClock) -> None:
    message = await received(chats, sender_id="u")
    for revision, status in enumerate(OPEN_STATUSES, start=2):
        message = await moved(chats, message, status)
        clock.advance(timedelta(seconds=1))
        body = {"text": f"edit {revision}", "more": [1]}
        edited = await chats.intake_log.edit(message.key, body)
        assert (edited.body, edited.revision, edited.updated_at) == (body, revision, clock.now())
        assert (edited.inbound_id, edited.status, edited.received_at) == (
            message.inbound_id,
            status,
            message.received_at,
        )
        assert edited.sender_id == "u"
        assert await chats.intake_log.find(message.key) == edited


async def test_an_edit_of_a_line_that_is_not_open_is_refused(chats: ChatStores) -> None:
    for status in set(InboundStatus) - set(OPEN_STATUSES):
        message = await brought_to(chats, status, status)
        for body in ({"text": "new"}, message.body):
            with refused(AlreadyConsumed):
                await chats.intake_log.edit(message.key, body)
        assert await chats.intake_log.find(message.key) == message


async def test_an_answer_is_forgotten_in_its_message_whatever_has_become_of_it(chats: ChatStores) -> None:
    for status in InboundStatus:
        message = await brought_to(chats, status, status)
        for _ in range(2):
            await chats.intake_log.forget_answer(message.key)
        found = await chats.intake_log.find(message.key)
        assert found.body == {**message.body, "metadata": {"forgotten": True}}
        assert (found.status, found.revision) == (message.status, message.revision)
    with refused(UnknownMessage):
        await chats.intake_log.forget_answer(key("other"))


@on_both
async def test_edits_at_the_same_time_all_count(chats: ChatStores) -> None:
    message = await received(chats)
    answers, _ = await at_once([chats.intake_log.edit(message.key, {"n": n}) for n in range(TOGETHER)])
    assert sorted(one.revision for one in answers) == list(range(2, TOGETHER + 2))
    assert await chats.intake_log.find(message.key) == max(answers, key=lambda one: one.revision)


@on_both
async def test_an_edit_and_a_move_at_the_same_time_have_one_order(chats: ChatStores) -> None:
    for number in range(TOGETHER):
        message = await received(chats, f"m{number}")
        edit = chats.intake_log.edit(message.key, {"text": "edited"})
        move = moved(chats, message, DONE)
        calls = [edit, move] if number % 2 else [move, edit]
        answers, errors = await at_once(calls, AlreadyConsumed)
        (ended,) = await chats.intake_log.messages([message.inbound_id])
        assert ended.status is DONE
        assert ended in answers
        assert (ended.body, ended.revision) == ((message.body, 1) if errors else ({"text": "edited"}, 2))
