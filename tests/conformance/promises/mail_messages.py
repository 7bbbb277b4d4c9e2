"""Promises of a mail store about messages, recipients, inboxes and threads."""

from collections.abc import Sequence
from typing import Any

from conformance.promises.given import MINUTE, Office, an_office, put_message, refused
from postroom.contracts.choices import Importance
from postroom.contracts.errors import StoreError
from postroom.contracts.mail import Message, ThreadFilter
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

ODD_TEXT = "a\r\nb\tc \u00a0\u200b\u202e\ufeff\x01\x7f é e\u0301 ß 中文 👩‍👩‍👧 \U0010ffff '\"; -- % _ \\"
FAR = 2**53 + 1
"""The first whole number that a floating-point number cannot hold."""
LARGEST = 2**63 - 1


async def _three_messages(store: MailStore, here: Office) -> list[int]:
    """Send Ben three messages of one instant and return their ids."""
    return await store.write(lambda tx: [put_message(tx, here.ada, [here.ben], now=5).id for _ in range(3)])


async def _inbox(
    store: MailStore, agent_id: int, *, limit: int = 10, unread_only: bool = False, **cursor: int
) -> list[int]:
    found = await store.read(lambda tx: tx.inbox(agent_id, limit=limit, unread_only=unread_only, **cursor))
    return [entry.message.id for entry in found]


async def a_message_reads_back_as_it_was_sent(store: MailStore, clock: ManualClock) -> None:
    """Every column is kept as it was given, whatever characters it holds and however long it is."""
    here = await an_office(store)

    def send(tx: MailWrites) -> Message:
        return tx.insert_message(
            project_id=here.project.id,
            sender=here.ada,
            thread_id="plan:1.a_b-c",
            subject=f"Subject {ODD_TEXT}",
            body_md=ODD_TEXT * 1_000,
            importance="urgent",
            ack_required=True,
            topic="tøpic",
            broadcast=True,
            reply_to=7,
            now=clock.now(),
        )

    sent = await store.write(send)
    assert (sent.sender_id, sent.sender_name, sent.thread_id) == (here.ada.id, "Ada", "plan:1.a_b-c")
    assert (sent.subject, sent.body_md) == (f"Subject {ODD_TEXT}", ODD_TEXT * 1_000)
    assert (sent.importance, sent.ack_required, sent.broadcast) == ("urgent", True, True)
    assert (sent.topic, sent.reply_to, sent.recalled_at) == ("tøpic", 7, None)
    assert (sent.created_at, sent.project_id) == (clock.now(), here.project.id)
    assert await store.read(lambda tx: tx.message(sent.id)) == sent
    assert await store.read(lambda tx: tx.messages([sent.id, 99, sent.id])) == {sent.id: sent}


async def a_message_without_a_thread_begins_one(store: MailStore, clock: ManualClock) -> None:
    """The thread is named after the message's id, in the answer and when read."""
    here = await an_office(store)
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
    assert sent.thread_id == f"msg-{sent.id}"
    assert await store.read(lambda tx: tx.message(sent.id)) == sent
    assert await store.read(lambda tx: tx.thread(here.project.id, sent.thread_id, limit=10)) == [sent]


async def ids_that_nobody_has_find_nothing(store: MailStore, clock: ManualClock) -> None:
    """However large an id or a cursor is, absence is an answer and no near number is taken for it."""
    here = await an_office(store)
    await _three_messages(store, here)

    def look(tx: MailReads) -> list[object]:
        return [
            *(tx.message(number) for number in (0, -1, FAR, LARGEST)),
            *(tx.reservation(number) for number in (0, FAR, LARGEST)),
            *(tx.project_by_id(number) for number in (0, FAR, LARGEST)),
        ]

    assert set(await store.read(look)) == {None}
    assert await store.read(lambda tx: tx.messages([FAR, LARGEST])) == {}
    assert await store.read(lambda tx: tx.agents_by_id([FAR, LARGEST])) == {}
    assert await store.read(lambda tx: tx.agents_named(LARGEST, ["Ada"])) == []
    assert await store.read(lambda tx: tx.inbox_events(here.ben.id, after=LARGEST, limit=10)) == []
    assert await store.read(lambda tx: tx.project_messages(here.project.id, after=LARGEST, limit=10)) == []
    assert await store.read(lambda tx: tx.unread_count(LARGEST)) == 0


async def recipients_come_in_the_order_in_which_they_were_named(store: MailStore, clock: ManualClock) -> None:
    """Neither kind nor agent changes the order; each carries its name, project, kind and place."""
    here, there = await an_office(store), await an_office(store, "elsewhere")
    named = [(here.cyd, "cc"), (there.ben, "to"), (here.ada, "bcc"), (here.ben, "to")]

    def send(tx: MailWrites) -> tuple[int, int]:
        one = put_message(tx, here.ada, [])
        tx.insert_recipient(one.id, here.cyd, "cc")
        tx.insert_recipient(one.id, there.ben, "to")
        two = put_message(tx, here.ada, [here.ben])
        tx.insert_recipient(one.id, here.ada, "bcc")
        return one.id, two.id

    one, two = await store.write(send)
    await store.write(lambda tx: tx.insert_recipient(one, here.ben, "to"))
    found = await store.read(lambda tx: tx.recipients([two, one, 99]))
    assert [(each.agent_id, each.kind) for each in found[one]] == [(agent.id, kind) for agent, kind in named]
    assert [each.name for each in found[one]] == ["Cyd", "Ben", "Ada", "Ben"]
    assert [each.project_slug for each in found[one]] == ["harbor", "elsewhere", "harbor", "harbor"]
    assert [each.seq for each in found[one]] == [1, 1, 1, 2]
    assert {(each.message_id, each.read_at, each.acked_at) for each in found[one]} == {(one, None, None)}
    assert [(each.agent_id, each.seq) for each in found[two]] == [(here.ben.id, 1)]
    assert found[99] == []


async def each_inbox_counts_its_messages_without_gaps(store: MailStore, clock: ManualClock) -> None:
    """Sequence numbers begin at 1 for each agent, and the agent knows the newest."""
    here = await an_office(store)

    async def sent() -> list[int]:
        message = await store.write(lambda tx: put_message(tx, here.ada, [here.ben, here.cyd]))
        readers = (await store.read(lambda tx: tx.recipients([message.id])))[message.id]
        return [one.seq for one in readers]

    assert await sent() == [1, 1]
    assert await sent() == [2, 2]
    ben = (await store.read(lambda tx: tx.agents_by_id([here.ben.id])))[here.ben.id]
    assert (ben.inbox_seq, ben.inbox_floor) == (2, 0)


async def an_agent_is_named_once_in_a_message(store: MailStore, clock: ManualClock) -> None:
    """Naming it again is refused and takes no sequence number; so is naming one for a message nobody sent."""
    here = await an_office(store)
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
    with refused(StoreError):
        await store.write(lambda tx: tx.insert_recipient(sent.id, here.ben, "cc"))
    with refused(StoreError):
        await store.write(lambda tx: tx.insert_recipient(99, here.ben, "to"))
    assert len((await store.read(lambda tx: tx.recipients([sent.id])))[sent.id]) == 1
    again = await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
    assert (await store.read(lambda tx: tx.recipients([again.id])))[again.id][0].seq == 2


async def an_inbox_shows_the_newest_first(store: MailStore, clock: ManualClock) -> None:
    """Without a cursor the newest come first, as many as asked for, each as its recipient sees it."""
    here = await an_office(store)
    first, second, third = await _three_messages(store, here)
    assert await _inbox(store, here.ben.id) == [third, second, first]
    assert await _inbox(store, here.ben.id, limit=2) == [third, second]
    assert await _inbox(store, here.ben.id, limit=0) == []
    assert await _inbox(store, here.ada.id) == []
    newest = (await store.read(lambda tx: tx.inbox(here.ben.id, limit=1)))[0]
    assert newest.message == await store.read(lambda tx: tx.message(third))
    assert (newest.kind, newest.seq, newest.read_at, newest.acked_at) == ("to", 3, None, None)


async def a_cursor_skips_no_message_of_the_same_instant(store: MailStore, clock: ManualClock) -> None:
    """With a cursor the oldest come first; pages join without a gap though all were sent at once."""
    here = await an_office(store)
    first, second, third = await _three_messages(store, here)
    assert await _inbox(store, here.ben.id, after=0) == [first, second, third]
    assert await _inbox(store, here.ben.id, after=0, limit=2) == [first, second]
    assert await _inbox(store, here.ben.id, after=2, limit=2) == [third]
    assert await _inbox(store, here.ben.id, after=3) == []


async def since_keeps_messages_of_that_very_instant(store: MailStore, clock: ManualClock) -> None:
    """A message sent exactly then is kept, one sent a millisecond before is not."""
    here, now = await an_office(store), clock.now()

    def send(tx: MailWrites) -> list[int]:
        return [put_message(tx, here.ada, [here.ben], now=now + late).id for late in (-1, 0, 1)]

    _, exact, later = await store.write(send)
    found = await store.read(lambda tx: tx.inbox(here.ben.id, limit=10, since=now))
    assert [entry.message.id for entry in found] == [later, exact]
    found = await store.read(lambda tx: tx.inbox(here.ben.id, limit=10, since=now, after=2))
    assert [entry.message.id for entry in found] == [later]
    found = await store.read(lambda tx: tx.inbox(here.ben.id, limit=10, since=now, before=3))
    assert [entry.message.id for entry in found] == [exact]


async def an_inbox_is_narrowed_by_what_is_unread_and_important(store: MailStore, clock: ManualClock) -> None:
    """Filters hold together, in either order, and a limit counts what they keep."""
    here = await an_office(store)
    levels: list[Importance] = ["low", "normal", "high", "urgent", "high"]

    def send(tx: MailWrites) -> list[int]:
        sent = [put_message(tx, here.ada, [here.ben], importance=level).id for level in levels]
        tx.mark_read(sent[2], here.ben.id, clock.now())
        return sent

    low, normal, _, urgent, high = await store.write(send)
    assert await _inbox(store, here.ben.id, unread_only=True) == [high, urgent, normal, low]
    assert await _inbox(store, here.ben.id, unread_only=True, before=3) == [normal, low]
    assert await _inbox(store, here.ben.id, unread_only=True, after=1) == [normal, urgent, high]
    assert await _inbox(store, here.ben.id, unread_only=True, after=1, limit=2) == [normal, urgent]

    async def important(kinds: Sequence[Importance], *, unread_only: bool) -> int:
        found = await store.read(
            lambda tx: tx.inbox(here.ben.id, limit=10, importance=kinds, unread_only=unread_only)
        )
        return len(found)

    assert await important(["high"], unread_only=False) == 2
    assert await important(["high"], unread_only=True) == 1
    assert await important(["high", "urgent"], unread_only=True) == 2
    assert await important([], unread_only=True) == 4


async def unread_messages_are_counted(store: MailStore, clock: ManualClock) -> None:
    """Neither read nor recalled ones count, nor those of others."""
    here = await an_office(store)
    first, second, _ = await _three_messages(store, here)
    assert await store.read(lambda tx: tx.unread_count(here.ben.id)) == 3
    await store.write(lambda tx: tx.mark_read(first, here.ben.id, clock.now()))
    await store.write(lambda tx: tx.mark_read(first, here.ben.id, clock.now()))
    assert await store.read(lambda tx: tx.unread_count(here.ben.id)) == 2
    await store.write(lambda tx: tx.mark_recalled(second, clock.now()))
    assert await store.read(lambda tx: tx.unread_count(here.ben.id)) == 1
    assert await store.read(lambda tx: tx.unread_count(here.ada.id)) == 0


async def the_first_mark_stays(store: MailStore, clock: ManualClock) -> None:
    """Marks are per recipient; repeating one answers with the first instant; others get None."""
    here, now = await an_office(store), clock.now()
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben, here.cyd]))

    def mark(tx: MailWrites) -> list[int | None]:
        return [
            tx.mark_read(sent.id, here.ben.id, now),
            tx.mark_read(sent.id, here.ben.id, now + 1),
            tx.mark_acked(sent.id, here.ben.id, now + 2),
            tx.mark_acked(sent.id, here.ben.id, now + 3),
            tx.mark_acked(sent.id, here.cyd.id, now + 4),
            tx.mark_read(sent.id, here.cyd.id, now + 5),
            tx.mark_read(sent.id, here.ada.id, now),
            tx.mark_acked(sent.id, here.ada.id, now),
            tx.mark_read(99, here.ben.id, now),
        ]

    assert await store.write(mark) == [now, now, now + 2, now + 2, now + 4, now + 4, None, None, None]
    found = (await store.read(lambda tx: tx.recipients([sent.id])))[sent.id]
    marks = [(one.agent_id, one.read_at, one.acked_at) for one in found]
    assert marks == [(here.ben.id, now, now + 2), (here.cyd.id, now + 4, now + 4)]
    entry = (await store.read(lambda tx: tx.inbox(here.ben.id, limit=1)))[0]
    assert (entry.read_at, entry.acked_at) == (now, now + 2)


async def a_recalled_message_keeps_its_entry_and_loses_its_text(store: MailStore, clock: ManualClock) -> None:
    """It leaves the inbox; events, recipients and thread keep the entry without subject, body and topic."""
    here, now = await an_office(store), clock.now()
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben], topic="t", importance="high"))
    await store.write(lambda tx: tx.mark_recalled(sent.id, now))
    await store.write(lambda tx: tx.mark_recalled(sent.id, now + MINUTE))
    found = await store.read(lambda tx: tx.message(sent.id))
    assert found is not None
    assert (found.subject, found.body_md, found.topic, found.recalled_at) == ("", "", "", now)
    assert (found.sender_name, found.thread_id, found.importance) == ("Ada", sent.thread_id, "high")
    assert await _inbox(store, here.ben.id) == []
    assert await _inbox(store, here.ben.id, after=0, unread_only=True) == []
    events = await store.read(lambda tx: tx.inbox_events(here.ben.id, after=0, limit=10))
    assert [(entry.message, entry.seq) for entry in events] == [(found, 1)]
    assert len((await store.read(lambda tx: tx.recipients([sent.id])))[sent.id]) == 1
    assert await store.read(lambda tx: tx.thread(here.project.id, sent.thread_id, limit=10)) == [found]


async def events_of_an_inbox_are_every_entry_in_order(store: MailStore, clock: ManualClock) -> None:
    """Read, recalled or new: whoever goes on from the last sequence number misses nothing."""
    here = await an_office(store)
    first, second, third = await _three_messages(store, here)

    def change(tx: MailWrites) -> None:
        tx.mark_read(first, here.ben.id, clock.now())
        tx.mark_recalled(second, clock.now())

    await store.write(change)
    events = await store.read(lambda tx: tx.inbox_events(here.ben.id, after=0, limit=10))
    assert [(entry.seq, entry.message.id) for entry in events] == [(1, first), (2, second), (3, third)]
    events = await store.read(lambda tx: tx.inbox_events(here.ben.id, after=1, limit=1))
    assert [entry.message.id for entry in events] == [second]
    assert await store.read(lambda tx: tx.inbox_events(here.ben.id, after=3, limit=10)) == []


async def a_thread_is_read_in_order(store: MailStore, clock: ManualClock) -> None:
    """Its messages come by id after a cursor, its tail in the same order; another project's do not mix in."""
    here, there = await an_office(store), await an_office(store, "elsewhere")

    def send(tx: MailWrites) -> list[Message]:
        put_message(tx, there.ada, [there.ben], thread="plan")
        put_message(tx, here.ada, [here.ben], thread="other")
        return [put_message(tx, here.ada, [here.ben], thread="plan") for _ in range(4)]

    sent = await store.write(send)
    home = here.project.id
    assert await store.read(lambda tx: tx.thread(home, "plan", limit=10)) == sent
    assert await store.read(lambda tx: tx.thread(home, "plan", limit=2, after=sent[0].id)) == sent[1:3]
    assert await store.read(lambda tx: tx.thread(home, "plan", limit=2, after=sent[3].id)) == []
    assert await store.read(lambda tx: tx.thread_tail(home, "plan", limit=3)) == sent[1:]
    assert await store.read(lambda tx: tx.thread_tail(home, "plan", limit=9)) == sent
    assert await store.read(lambda tx: tx.thread_tail(home, "none", limit=9)) == []
    await store.settle()
    sizes = await store.read(lambda tx: [tx.thread_size(home, name) for name in ("plan", "other", "none")])
    assert sizes == [4, 1, 0]


async def participants_of_a_thread_are_counted(store: MailStore, clock: ManualClock) -> None:
    """Who wrote and got a thread's newest messages is counted, without recalled ones and hidden copies."""
    here, there = await an_office(store), await an_office(store, "elsewhere")
    home = here.project.id

    def send(tx: MailWrites) -> None:
        sent = [put_message(tx, here.ada, [here.ben, there.ada], thread="plan") for _ in range(4)]
        put_message(tx, here.ben, [here.cyd], thread="plan", kind="bcc")
        put_message(tx, there.ada, [here.ada], thread="plan")
        put_message(tx, there.ben, [there.ada], thread="plan")
        tx.mark_read(sent[0].id, here.ben.id, clock.now())
        tx.mark_recalled(sent[3].id, clock.now())

    await store.write(send)

    async def counted(project_id: int, among: int) -> list[tuple[str, str, int, int]]:
        found = await store.read(
            lambda tx: tx.thread_participants(project_id, "plan", home_id=home, among=among)
        )
        return [(one.project_slug, one.name, one.wrote, one.unread) for one in found]

    assert await counted(home, 9) == [
        ("harbor", "Ada", 3, 0),
        ("harbor", "Ben", 1, 2),
        ("elsewhere", "Ada", 0, 3),
    ]
    assert await counted(home, 3) == [
        ("harbor", "Ada", 1, 0),
        ("harbor", "Ben", 1, 1),
        ("elsewhere", "Ada", 0, 1),
    ]
    assert await counted(there.project.id, 9) == [("harbor", "Ada", 0, 1), ("elsewhere", "Ada", 1, 0)]


async def threads_come_by_their_newest_message(store: MailStore, clock: ManualClock) -> None:
    """An answer brings its thread to the front; a head tells of the first and the newest message."""
    here, there = await an_office(store), await an_office(store, "elsewhere")

    def send(tx: MailWrites) -> list[Message]:
        put_message(tx, there.ada, [there.ben], thread="foreign")
        return [
            put_message(tx, here.ada, [here.ben], thread="one", subject="First", now=1),
            put_message(tx, here.ada, [here.ben], thread="two", subject="Second", now=2),
        ]

    first, second = await store.write(send)
    await store.settle()
    answer = await store.write(
        lambda tx: put_message(tx, here.ben, [here.ada], thread="one", subject="Re: First", now=3)
    )
    await store.settle()
    heads = await store.read(lambda tx: tx.threads(here.project.id, limit=10))
    assert [(head.thread_id, head.subject, head.messages) for head in heads] == [
        ("one", "First", 2),
        ("two", "Second", 1),
    ]
    assert (heads[0].first_id, heads[0].last_id) == (first.id, answer.id)
    assert (heads[0].last_at, heads[0].last_sender) == (3, "Ben")
    assert await store.read(lambda tx: tx.threads(here.project.id, limit=1)) == heads[:1]
    assert await store.read(lambda tx: tx.threads(here.project.id, limit=9, before=answer.id)) == heads[1:]
    assert await store.read(lambda tx: tx.threads(here.project.id, limit=9, before=second.id)) == []


async def projects_are_counted_up_to_a_number(store: MailStore, clock: ManualClock) -> None:
    """Agents that are there, threads, and when the last message was written."""
    here, empty = await an_office(store), await an_office(store, "elsewhere")

    def happened(tx: MailWrites) -> None:
        for number in range(3):
            put_message(tx, here.ada, [here.ben], thread=f"thread {number}", now=number)
        tx.set_agent_retired(empty.ben.id, 9, now=9)

    await store.write(happened)
    await store.settle()
    ids = [here.project.id, empty.project.id]
    told = await store.read(lambda tx: tx.tallies([*ids, 999], most=9))
    assert [(one.project_id, one.threads, one.last_at) for one in told] == [(ids[0], 3, 2), (ids[1], 0, None)]
    assert told[0].agents == told[1].agents + 1
    capped = await store.read(lambda tx: tx.tallies(ids, most=1))
    assert [(one.threads, one.agents) for one in capped] == [(1, 1), (0, 1)]


async def threads_are_wanted_by_what_is_in_them(store: MailStore, clock: ManualClock) -> None:
    """One message of a thread has all that is asked for; hidden copies and recalled messages do not count."""
    here, people = await an_office(store), await an_office(store, "people")

    def send(tx: MailWrites) -> list[Message]:
        return [
            put_message(tx, here.ada, [here.ben], thread="plain", now=1),
            put_message(tx, here.ben, [here.ada], thread="urgent", importance="urgent", ack=True),
            put_message(tx, here.ada, [here.ben], thread="hidden", kind="bcc", now=3),
            put_message(tx, here.ada, [here.ben], thread="recalled", now=4),
            put_message(tx, people.cyd, [here.ada], thread="plain", now=5),
            put_message(tx, people.cyd, [people.ada], thread="urgent", now=6),
        ]

    sent = await store.write(send)
    await store.write(lambda tx: tx.mark_recalled(sent[3].id, 7))
    await store.write(lambda tx: tx.mark_read(sent[0].id, here.ben.id, 7))
    await store.settle()

    async def found(**wanted: Any) -> list[str]:
        asked = ThreadFilter(people_id=people.project.id, **wanted)
        heads, more = await store.read(lambda tx: tx.wanted_threads(here.project.id, asked, limit=9, among=9))
        assert more is None
        return [head.thread_id for head in heads]

    assert await found() == ["hidden", "urgent", "plain"]
    assert await found(seen="unread") == ["urgent", "plain"]
    assert await found(seen="unread", agent_id=here.ben.id) == []
    assert await found(seen="unacknowledged") == ["urgent"]
    assert await found(importance=("high", "urgent")) == ["urgent"]
    assert await found(agent_id=here.ben.id) == ["urgent", "plain"]
    assert await found(person_id=people.cyd.id) == ["plain"]
    assert await found(person_id=people.cyd.id, agent_id=here.ada.id, seen="unread") == ["plain"]


async def wanted_threads_are_looked_for_window_by_window(store: MailStore, clock: ManualClock) -> None:
    """A look that found too few says where to look on; none where nothing is left."""
    here = await an_office(store)
    levels: tuple[Importance, ...] = ("urgent", "low", "low")
    sent = await store.write(
        lambda tx: [
            put_message(tx, here.ada, [here.ben], thread=f"t{number}", importance=level)
            for number, level in enumerate(levels)
        ]
    )
    await store.settle()
    few = ThreadFilter(importance=("urgent",))

    async def found(
        wanted: ThreadFilter, limit: int, among: int, before: int | None = None
    ) -> tuple[list[str], int | None]:
        heads, more = await store.read(
            lambda tx: tx.wanted_threads(here.project.id, wanted, limit=limit, among=among, before=before)
        )
        return [head.thread_id for head in heads], more

    assert await found(few, 9, 2) == ([], sent[1].id)
    assert await found(few, 9, 2, sent[1].id) == (["t0"], None)
    assert await found(ThreadFilter(), 1, 9) == (["t2"], sent[2].id)


async def messages_of_a_project_come_by_id(store: MailStore, clock: ManualClock) -> None:
    """Pages join without a gap, recalled messages included."""
    here, there = await an_office(store), await an_office(store, "elsewhere")
    sent = await _three_messages(store, here)
    await _three_messages(store, there)
    await store.write(lambda tx: tx.mark_recalled(sent[1], clock.now()))

    async def page(*, after: int, limit: int) -> list[int]:
        found = await store.read(lambda tx: tx.project_messages(here.project.id, after=after, limit=limit))
        return [message.id for message in found]

    assert await page(after=0, limit=10) == sent
    assert await page(after=0, limit=2) == sent[:2]
    assert await page(after=sent[1], limit=2) == sent[2:]


async def the_newest_messages_of_a_project_come_by_id(store: MailStore, clock: ManualClock) -> None:
    """Recalled messages included, those of other projects not."""
    here, there = await an_office(store), await an_office(store, "elsewhere")
    sent = await _three_messages(store, here)
    await _three_messages(store, there)
    await store.write(lambda tx: tx.mark_recalled(sent[2], clock.now()))

    async def newest(limit: int) -> list[int]:
        found = await store.read(lambda tx: tx.newest_messages(here.project.id, limit=limit))
        return [message.id for message in found]

    assert await newest(9) == sent
    assert await newest(2) == sent[1:]


async def what_an_agent_sent_comes_newest_first(store: MailStore, clock: ManualClock) -> None:
    """Pages join without a gap; what others sent and what was recalled is left out."""
    here = await an_office(store)
    sent = await _three_messages(store, here)
    await store.write(lambda tx: put_message(tx, here.ben, [here.ada]))
    await store.write(lambda tx: tx.mark_recalled(sent[1], clock.now()))

    async def page(limit: int, before: int | None = None) -> list[int]:
        found = await store.read(lambda tx: tx.sent_messages(here.ada.id, limit=limit, before=before))
        return [message.id for message in found]

    assert await page(9) == [sent[2], sent[0]]
    assert await page(1) == [sent[2]]
    assert await page(9, sent[2]) == [sent[0]]


PROMISES = (
    participants_of_a_thread_are_counted,
    the_newest_messages_of_a_project_come_by_id,
    what_an_agent_sent_comes_newest_first,
    a_message_reads_back_as_it_was_sent,
    a_message_without_a_thread_begins_one,
    ids_that_nobody_has_find_nothing,
    recipients_come_in_the_order_in_which_they_were_named,
    each_inbox_counts_its_messages_without_gaps,
    an_agent_is_named_once_in_a_message,
    an_inbox_shows_the_newest_first,
    a_cursor_skips_no_message_of_the_same_instant,
    since_keeps_messages_of_that_very_instant,
    an_inbox_is_narrowed_by_what_is_unread_and_important,
    unread_messages_are_counted,
    the_first_mark_stays,
    a_recalled_message_keeps_its_entry_and_loses_its_text,
    events_of_an_inbox_are_every_entry_in_order,
    a_thread_is_read_in_order,
    threads_come_by_their_newest_message,
    projects_are_counted_up_to_a_number,
    threads_are_wanted_by_what_is_in_them,
    wanted_threads_are_looked_for_window_by_window,
    messages_of_a_project_come_by_id,
)
