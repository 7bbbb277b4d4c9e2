"""Promises of an inbound journal: a line is kept once, and lines move together or not at all."""

from datetime import timedelta

from postroom.contracts.chat import (
    LINE_MOVES,
    OPEN_LINES,
    ChatStores,
    InboundLine,
    LineMove,
    LineStatus,
)
from postroom.contracts.errors import (
    AlreadyConsumed,
    IllegalTransition,
    InvalidRecord,
    UnknownMessage,
)
from postroom.testing.clock import ManualClock
from postroom.testing.conformance.chat_given import (
    BLANK,
    HALF,
    IMPOSSIBLE,
    TOGETHER,
    ChatPromise,
    at_once,
    brought_to,
    draft,
    key,
    line_ids,
    moved,
    received,
)
from postroom.testing.conformance.given import refused

WAITING, HANDED_OVER, DONE = LineStatus.WAITING, LineStatus.HANDED_OVER, LineStatus.DONE


async def a_line_is_kept_as_it_came_in(stores: ChatStores, clock: ManualClock) -> None:
    """Waiting, with all that was given; by its key, by its id and among what is open."""
    body = {"text": "größe 'x' 😀", "media": [{"id": 2**53, "f": 1.5}], "none": None}
    given = draft("m: 'ü'", session_key="s: 'ü'", sender_id="u", body=body)
    found = await stores.journal.receive(given)
    assert found.is_new
    assert found.line == InboundLine(
        line_id=found.line.line_id,
        key=given.key,
        session_key=given.session_key,
        sender_id="u",
        body=body,
        status=WAITING,
        received_at=clock.now(),
        updated_at=clock.now(),
    )
    assert await stores.journal.find(given.key) == found.line
    assert await stores.journal.lines([found.line.line_id]) == (found.line,)
    assert await stores.journal.open_lines() == (found.line,)


async def a_line_needs_neither_sender_nor_body(stores: ChatStores, clock: ManualClock) -> None:
    """What was not given is read back as not given."""
    line = await received(stores, sender_id=None, body={})
    assert await stores.journal.find(line.key) == line
    assert (line.sender_id, line.body, line.thread_id, line.reason, line.revision) == (
        None,
        {},
        None,
        None,
        1,
    )


async def a_known_line_stays_as_it_stands(stores: ChatStores, clock: ManualClock) -> None:
    """However often it is sent, at each stage of its way; so a lost answer is asked for again."""
    line = await received(stores)
    for status in (WAITING, HANDED_OVER, DONE):
        line = await moved(stores, line, status)
        clock.advance(timedelta(seconds=1))
        for again in (draft(), draft(session_key="other", sender_id="other", body={"text": "other"})):
            found = await stores.journal.receive(again)
            assert (found.line, found.is_new) == (line, False)
    assert await stores.journal.counts() == {DONE: 1}


async def each_part_of_a_key_tells_lines_apart(stores: ChatStores, clock: ManualClock) -> None:
    """Platform, account, chat and id there."""
    given = [draft(), draft(platform="x"), draft(account="x"), draft(chat_id="x"), draft("x")]
    kept = [await stores.journal.receive(one) for one in given]
    assert all(one.is_new for one in kept)
    assert [await stores.journal.find(one.key) for one in given] == [one.line for one in kept]
    assert await stores.journal.find(key("y")) is None


async def a_line_without_a_name_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """Each part of the key, and the session key; nothing is stored."""
    for blank in BLANK:
        for part in ("platform", "account", "chat_id", "message_id", "session_key"):
            with refused(InvalidRecord):
                await stores.journal.receive(draft(**{part: blank}))
    assert await stores.journal.counts() == {}


async def a_text_with_half_a_character_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """In a line, a move and an edit, as an error of the caller's; nothing changes."""
    for part in ("platform", "message_id", "session_key", "sender_id"):
        with refused(InvalidRecord):
            await stores.journal.receive(draft(**{part: HALF}))
    with refused(InvalidRecord):
        await stores.journal.receive(draft(body={"text": HALF}))
    line = await received(stores)
    with refused(InvalidRecord):
        await stores.journal.edit(line.key, {"text": HALF})
    for move in (LineMove(status=DONE, reason=HALF), LineMove(status=DONE, thread_id=HALF)):
        with refused(InvalidRecord):
            await stores.journal.move([line.line_id], move)
    assert await stores.journal.open_lines() == (line,)


async def a_body_may_hold_every_character(stores: ChatStores, clock: ManualClock) -> None:
    """Those that databases dislike too."""
    body = {"text": "\0 \x1a \x1a0 \u2028 \U0010ffff", "\0": "'\"\\"}
    line = await received(stores, body=body)
    assert (await stores.journal.edit(line.key, {**body, "n": "\0"})).body == {**body, "n": "\0"}
    (told,) = await stores.journal.move(
        [line.line_id], LineMove(status=LineStatus.REJECTED, reason="\0 \x1a0")
    )
    assert await stores.journal.find(line.key) == told
    assert told.reason == "\0 \x1a0"


async def ids_grow_in_the_order_of_receipt(stores: ChatStores, clock: ManualClock) -> None:
    """In all chats together, and whatever the clock does."""
    found = []
    for number in range(5):
        clock.advance(timedelta(seconds=-1))
        await stores.journal.receive(draft(f"m{max(number - 1, 0)}"))  # most are known; that may leave a gap
        found.append((await received(stores, f"n{number}", chat_id=f"c{number}")).line_id)
    assert found == sorted(set(found))
    assert found[0] > 0


async def an_id_is_never_given_again(stores: ChatStores, clock: ManualClock) -> None:
    """Also when the line was removed and no other is left: it names a message on a thread."""
    line = await brought_to(stores, "m1", DONE)
    clock.advance(timedelta(seconds=1))
    assert await stores.journal.purge(older_than=clock.now()) == 1
    assert (await received(stores, "m1")).line_id > line.line_id


async def receiving_at_the_same_time_is_new_once(stores: ChatStores, clock: ManualClock) -> None:
    """All callers are given the one line."""
    for number in range(3):
        calls = [stores.journal.receive(draft(f"m{number}", body={"n": n})) for n in range(TOGETHER)]
        answers, _ = await at_once(calls)
        assert sum(one.is_new for one in answers) == 1
        assert len(answers) == TOGETHER
        assert all(one.line == answers[0].line for one in answers)
    assert await stores.journal.counts() == {WAITING: 3}


async def lines_that_come_at_the_same_time_are_all_kept(stores: ChatStores, clock: ManualClock) -> None:
    """Each with an id of its own."""
    answers, _ = await at_once([stores.journal.receive(draft(f"m{n}")) for n in range(TOGETHER)])
    assert all(one.is_new for one in answers)
    kept = await stores.journal.open_lines()
    assert line_ids(kept) == sorted({one.line.line_id for one in answers})
    assert len(kept) == TOGETHER


async def lines_move_where_there_is_an_arrow(stores: ChatStores, clock: ManualClock) -> None:
    """And nowhere else: what is not open never moves again."""
    for before in LineStatus:
        for after in LineStatus:
            line = await brought_to(stores, f"{before} {after}", before)
            if after is before or after in LINE_MOVES.get(before, ()):
                assert (await moved(stores, line, after)).status is after
                continue
            with refused(IllegalTransition):
                await moved(stores, line, after)
            assert await stores.journal.find(line.key) == line


async def a_move_tells_what_is_then_known(stores: ChatStores, clock: ManualClock) -> None:
    """The conversation and the reason; what it does not tell stays as it was."""
    line = await received(stores)
    clock.advance(timedelta(seconds=1))
    (over,) = await stores.journal.move([line.line_id], LineMove(status=HANDED_OVER, thread_id="chat/t"))
    assert (over.status, over.thread_id, over.reason) == (HANDED_OVER, "chat/t", None)
    assert (over.received_at, over.updated_at, over.revision) == (line.received_at, clock.now(), 1)
    clock.advance(timedelta(seconds=1))
    (failed,) = await stores.journal.move([line.line_id], LineMove(status=LineStatus.FAILED, reason="why"))
    assert (failed.status, failed.thread_id, failed.reason) == (LineStatus.FAILED, "chat/t", "why")
    assert failed.updated_at == clock.now()
    assert await stores.journal.find(line.key) == failed
    other = await received(stores, "m2")
    await stores.journal.move([other.line_id], LineMove(status=HANDED_OVER, thread_id="t", reason="first"))
    (done,) = await stores.journal.move([other.line_id], LineMove(status=DONE))
    assert (done.thread_id, done.reason) == ("t", "first")
    assert await stores.journal.find(other.key) == done


async def a_move_may_be_repeated(stores: ChatStores, clock: ManualClock) -> None:
    """One to the status that a line has changes nothing of it, whatever else it tells."""
    line = await received(stores)
    for status in (WAITING, HANDED_OVER, DONE):
        line = await moved(stores, line, status)
        clock.advance(timedelta(seconds=1))
        again = LineMove(status=status, thread_id="other", reason="other")
        assert await stores.journal.move([line.line_id], again) == (line,)
    assert await stores.journal.find(line.key) == line


async def lines_move_together_and_are_told_by_id(stores: ChatStores, clock: ManualClock) -> None:
    """One that is there already stays as it was; an id that comes twice counts once; no ids are no lines."""
    first, second, third = [await received(stores, f"m{number}") for number in range(3)]
    over = await moved(stores, second, HANDED_OVER)
    clock.advance(timedelta(seconds=1))
    asked = [third.line_id, first.line_id, third.line_id, second.line_id]
    told = await stores.journal.move(asked, LineMove(status=HANDED_OVER, thread_id="t"))
    assert line_ids(told) == line_ids([first, second, third])
    assert [line.thread_id for line in told] == ["t", None, "t"]
    assert told[1] == over
    assert await stores.journal.lines(asked) == told
    assert await stores.journal.move([], LineMove(status=DONE)) == ()
    assert await stores.journal.counts() == {HANDED_OVER: 3}


async def a_move_that_one_line_forbids_moves_none(stores: ChatStores, clock: ManualClock) -> None:
    """Wherever it stands among them."""
    lines = [
        await received(stores, "m0"),
        await brought_to(stores, "m1", DONE),
        await received(stores, "m2"),
    ]
    for asked in (line_ids(lines), line_ids(reversed(lines))):
        with refused(IllegalTransition):
            await stores.journal.move(asked, LineMove(status=HANDED_OVER))
    assert list(await stores.journal.lines(line_ids(lines))) == lines


async def a_move_of_an_unknown_line_moves_none(stores: ChatStores, clock: ManualClock) -> None:
    """One that was never there, was removed, or cannot be."""
    line = await received(stores, "m1")
    gone = await brought_to(stores, "m2", DONE)
    clock.advance(timedelta(seconds=1))
    assert await stores.journal.purge(older_than=clock.now()) == 1
    for unknown in (gone.line_id, gone.line_id + 99, *IMPOSSIBLE):
        for asked in ([unknown], [line.line_id, unknown]):
            with refused(UnknownMessage):
                await stores.journal.move(asked, LineMove(status=HANDED_OVER))
    assert await stores.journal.open_lines() == (line,)


async def of_moves_at_the_same_time_one_ends_a_line(stores: ChatStores, clock: ManualClock) -> None:
    """Those who asked for the same are told that it is so, the others that it may not be."""
    line = await received(stores)
    ends = (DONE, LineStatus.REJECTED, LineStatus.RETRACTED)
    moves = [LineMove(status=ends[n % 3], reason=str(n)) for n in range(TOGETHER)]
    answers, errors = await at_once(
        [stores.journal.move([line.line_id], one) for one in moves], IllegalTransition
    )
    (ended,) = await stores.journal.lines([line.line_id])
    assert all(one == (ended,) for one in answers)
    assert len(answers) == sum(one.status is ended.status for one in moves)
    assert len(answers) + len(errors) == TOGETHER


async def moves_of_the_same_lines_do_not_stand_in_their_way(stores: ChatStores, clock: ManualClock) -> None:
    """In whatever order they name them."""
    named = line_ids([await received(stores, f"m{number}") for number in range(6)])
    orders = [named[n % 6 :] + named[: n % 6] for n in range(TOGETHER)]
    orders = [list(reversed(one)) if n % 2 else one for n, one in enumerate(orders)]
    answers, _ = await at_once([stores.journal.move(one, LineMove(status=HANDED_OVER)) for one in orders])
    assert [line_ids(one) for one in answers] == [named] * TOGETHER


async def an_edit_replaces_the_body_of_an_open_line(stores: ChatStores, clock: ManualClock) -> None:
    """Before and after it was handed over; the revision counts them and all else stays."""
    line = await received(stores, sender_id="u")
    for revision, status in enumerate(OPEN_LINES, start=2):
        line = await moved(stores, line, status)
        clock.advance(timedelta(seconds=1))
        body = {"text": f"edit {revision}", "more": [1]}
        edited = await stores.journal.edit(line.key, body)
        assert (edited.body, edited.revision, edited.updated_at) == (body, revision, clock.now())
        assert (edited.line_id, edited.status, edited.received_at) == (line.line_id, status, line.received_at)
        assert edited.sender_id == "u"
        assert await stores.journal.find(line.key) == edited


async def an_edit_with_the_same_body_changes_nothing(stores: ChatStores, clock: ManualClock) -> None:
    """Neither the first one nor one that is repeated; the order of names is no difference."""
    line = await received(stores, body={"a": 1, "b": [2]})
    clock.advance(timedelta(seconds=1))
    assert await stores.journal.edit(line.key, {"b": [2], "a": 1}) == line
    edited = await stores.journal.edit(line.key, {"a": 2})
    clock.advance(timedelta(seconds=1))
    assert await stores.journal.edit(line.key, {"a": 2}) == edited
    assert await stores.journal.find(line.key) == edited


async def an_edit_of_a_line_never_received_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """And nothing is stored."""
    await received(stores)
    for unknown in (key("other"), key(chat_id="other")):
        with refused(UnknownMessage):
            await stores.journal.edit(unknown, {"text": "new"})
    assert await stores.journal.counts() == {WAITING: 1}


async def an_edit_of_a_line_that_is_not_open_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """However it ended, also with the body that it has."""
    for status in set(LineStatus) - set(OPEN_LINES):
        line = await brought_to(stores, status, status)
        for body in ({"text": "new"}, line.body):
            with refused(AlreadyConsumed):
                await stores.journal.edit(line.key, body)
        assert await stores.journal.find(line.key) == line


async def edits_at_the_same_time_all_count(stores: ChatStores, clock: ManualClock) -> None:
    """Each is a revision of its own, and the last one stands."""
    line = await received(stores)
    answers, _ = await at_once([stores.journal.edit(line.key, {"n": n}) for n in range(TOGETHER)])
    assert sorted(one.revision for one in answers) == list(range(2, TOGETHER + 2))
    assert await stores.journal.find(line.key) == max(answers, key=lambda one: one.revision)


async def an_edit_and_a_move_at_the_same_time_have_one_order(stores: ChatStores, clock: ManualClock) -> None:
    """The edit came first and the line ended with it, or it came too late and changed nothing."""
    for number in range(TOGETHER):
        line = await received(stores, f"m{number}")
        edit = stores.journal.edit(line.key, {"text": "edited"})
        move = moved(stores, line, DONE)
        calls = [edit, move] if number % 2 else [move, edit]
        answers, errors = await at_once(calls, AlreadyConsumed)
        (ended,) = await stores.journal.lines([line.line_id])
        assert ended.status is DONE
        assert ended in answers
        assert (ended.body, ended.revision) == ((line.body, 1) if errors else ({"text": "edited"}, 2))


PROMISES: tuple[ChatPromise, ...] = (
    a_line_is_kept_as_it_came_in,
    a_line_needs_neither_sender_nor_body,
    a_known_line_stays_as_it_stands,
    each_part_of_a_key_tells_lines_apart,
    a_line_without_a_name_is_refused,
    a_text_with_half_a_character_is_refused,
    a_body_may_hold_every_character,
    ids_grow_in_the_order_of_receipt,
    an_id_is_never_given_again,
    receiving_at_the_same_time_is_new_once,
    lines_that_come_at_the_same_time_are_all_kept,
    lines_move_where_there_is_an_arrow,
    a_move_tells_what_is_then_known,
    a_move_may_be_repeated,
    lines_move_together_and_are_told_by_id,
    a_move_that_one_line_forbids_moves_none,
    a_move_of_an_unknown_line_moves_none,
    of_moves_at_the_same_time_one_ends_a_line,
    moves_of_the_same_lines_do_not_stand_in_their_way,
    an_edit_replaces_the_body_of_an_open_line,
    an_edit_with_the_same_body_changes_nothing,
    an_edit_of_a_line_never_received_is_refused,
    an_edit_of_a_line_that_is_not_open_is_refused,
    edits_at_the_same_time_all_count,
    an_edit_and_a_move_at_the_same_time_have_one_order,
)
