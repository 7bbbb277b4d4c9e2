"""Promises of a mail store to those who announce messages: what is left to announce, and what was said."""

from conformance.promises.given import Office, an_office, never_made, put_message, refused
from postroom.contracts.announcing import Arrival, ClientSession, Nudges
from postroom.contracts.errors import StoreError
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock


async def _three_messages(store: MailStore, here: Office) -> list[int]:
    return await store.write(lambda tx: [put_message(tx, here.ada, [here.ben], now=5).id for _ in range(3)])


async def _left(store: MailStore, agent_id: int, *, limit: int = 10) -> list[int]:
    found = await store.read(lambda tx: tx.unannounced(agent_id, limit=limit))
    return [one.message_id for one in found]


async def messages_to_be_announced_come_oldest_first(store: MailStore, clock: ManualClock) -> None:
    """They say who wrote, when and how urgently; what others got is not among them."""
    here = await an_office(store)
    sent = await store.write(
        lambda tx: put_message(tx, here.ada, [here.ben], kind="cc", importance="high", now=clock.now())
    )
    await store.write(lambda tx: put_message(tx, here.ada, [here.cyd]))
    second = await store.write(lambda tx: put_message(tx, here.cyd, [here.ben]).id)
    first = await store.read(lambda tx: tx.unannounced(here.ben.id, limit=1))
    assert first == [
        Arrival(
            message_id=sent.id,
            seq=1,
            kind="cc",
            sender_id=here.ada.id,
            sender_name="Ada",
            importance="high",
            broadcast=False,
            created_at=clock.now(),
        )
    ]
    assert await _left(store, here.ben.id) == [sent.id, second]
    assert await _left(store, 99) == []


async def a_message_that_is_read_or_recalled_is_not_announced(store: MailStore, clock: ManualClock) -> None:
    """What nobody needs to be told of any more is left out."""
    here = await an_office(store)
    first, second, third = await _three_messages(store, here)

    def change(tx: MailWrites) -> None:
        tx.mark_read(first, here.ben.id, clock.now())
        tx.mark_recalled(second, clock.now())

    await store.write(change)
    assert await _left(store, here.ben.id) == [third]


async def a_message_is_announced_once(store: MailStore, clock: ManualClock) -> None:
    """The first note stays, with its instant and its word; each recipient has its own."""
    here, now = await an_office(store), clock.now()
    sent = (await store.write(lambda tx: put_message(tx, here.ada, [here.ben, here.cyd]))).id

    def mark(tx: MailWrites) -> list[int]:
        return [
            tx.mark_announced(here.ben.id, [sent, sent, 99], by="hook", now=now),
            tx.mark_announced(here.ben.id, [sent], by="watch", now=now + 1),
            tx.mark_announced(here.ada.id, [sent], by="hook", now=now),
            tx.mark_announced(here.ben.id, [], by="hook", now=now),
        ]

    assert await store.write(mark) == [1, 0, 0, 0]
    found = (await store.read(lambda tx: tx.recipients([sent])))[sent]
    marks = [(one.name, one.announced_at, one.announced_by, one.read_at) for one in found]
    assert marks == [("Ben", now, "hook", None), ("Cyd", None, None, None)]
    assert await _left(store, here.ben.id) == []
    assert await _left(store, here.cyd.id) == [sent]


async def a_mark_whose_change_fails_is_not_made(store: MailStore, clock: ManualClock) -> None:
    """A line that was not given out leaves its messages to be announced."""
    here = await an_office(store)
    sent = (await _three_messages(store, here))[0]
    await never_made(store, lambda tx: tx.mark_announced(here.ben.id, [sent], by="hook", now=clock.now()))
    assert len(await _left(store, here.ben.id)) == 3


async def a_large_mailbag_is_announced_at_once(store: MailStore, clock: ManualClock) -> None:
    """More ids than a statement has places for parameters."""
    here = await an_office(store)

    def send(tx: MailWrites) -> list[int]:
        return [put_message(tx, here.ada, [here.ben]).id for _ in range(1_200)]

    sent = await store.write(send)
    marked = await store.write(lambda tx: tx.mark_announced(here.ben.id, sent, by="hook", now=clock.now()))
    assert marked == 1_200
    assert await _left(store, here.ben.id, limit=2_000) == []


async def directed_messages_are_those_that_name_their_reader(store: MailStore, clock: ManualClock) -> None:
    """Copies and broadcasts do not count, nor what was read or recalled."""
    here = await an_office(store)

    def send(tx: MailWrites) -> list[int]:
        ids = [put_message(tx, here.ada, [here.ben]).id for _ in range(3)]
        put_message(tx, here.ada, [here.ben], kind="cc")
        everybody = tx.insert_message(
            project_id=here.project.id,
            sender=here.ada,
            thread_id=None,
            subject="s",
            body_md="b",
            importance="normal",
            ack_required=False,
            topic="",
            broadcast=True,
            reply_to=None,
            now=1,
        )
        tx.insert_recipient(everybody.id, here.ben, "to")
        return ids

    first, second, third = await store.write(send)
    assert await store.read(lambda tx: tx.directed_unread(here.ben.id, limit=9)) == [
        (third, 3),
        (second, 2),
        (first, 1),
    ]
    assert await store.read(lambda tx: tx.directed_unread(here.ben.id, limit=1)) == [(third, 3)]
    await store.write(lambda tx: tx.mark_read(third, here.ben.id, clock.now()))
    await store.write(lambda tx: tx.mark_recalled(second, clock.now()))
    assert await store.read(lambda tx: tx.directed_unread(here.ben.id, limit=9)) == [(first, 1)]
    await store.write(lambda tx: tx.mark_read(first, here.ben.id, clock.now()))
    assert await store.read(lambda tx: tx.directed_unread(here.ben.id, limit=9)) == []


async def a_session_acts_as_one_agent(store: MailStore, clock: ManualClock) -> None:
    """The last note counts; clients' sessions of the same id are apart; one that ended is not known."""
    here, now = await an_office(store), clock.now()

    def bind(tx: MailWrites) -> None:
        tx.bind_client_session("claude", "s", here.ada.id, now)
        tx.bind_client_session("codex", "s", here.cyd.id, now)
        tx.bind_client_session("claude", "s", here.ben.id, now + 1)

    await store.write(bind)
    found = await store.read(lambda tx: (tx.client_session("claude", "s"), tx.client_session("codex", "s")))
    assert found == (
        ClientSession(client="claude", session_id="s", agent_id=here.ben.id, bound_at=now + 1),
        ClientSession(client="codex", session_id="s", agent_id=here.cyd.id, bound_at=now),
    )
    assert await store.read(lambda tx: tx.client_session("claude", "t")) is None
    asked = [here.ada.id, here.ben.id, here.cyd.id, 99]
    reach = await store.read(lambda tx: tx.reach(here.ada.id, asked))
    assert [one for one, known in reach.items() if known.has_session] == [here.ben.id, here.cyd.id]
    assert await store.read(lambda tx: tx.reach(here.ada.id, [])) == {}
    seen = {here.ben.id: now + 1, here.cyd.id: now}
    assert await store.read(lambda tx: tx.sessions_seen(asked)) == seen
    assert await store.read(lambda tx: tx.sessions_seen([])) == {}
    await store.write(lambda tx: tx.end_client_session("claude", "s"))
    await store.write(lambda tx: tx.end_client_session("claude", "s"))
    assert await store.read(lambda tx: tx.client_session("claude", "s")) is None
    with refused(StoreError):
        await store.write(lambda tx: tx.bind_client_session("claude", "s", 99, now))


async def old_sessions_are_forgotten(store: MailStore, clock: ManualClock) -> None:
    """The oldest first, a bounded number a call, none that is as young as asked."""
    here = await an_office(store)

    def bind(tx: MailWrites) -> None:
        for number in range(4):
            tx.bind_client_session("claude", f"s{number}", here.ada.id, 10 + number)

    await store.write(bind)
    assert await store.write(lambda tx: tx.purge_client_sessions(12, limit=1)) == 1
    assert await store.write(lambda tx: tx.purge_client_sessions(12, limit=9)) == 1
    assert await store.write(lambda tx: tx.purge_client_sessions(12, limit=9)) == 0
    assert await store.read(lambda tx: tx.client_session("claude", "s1")) is None
    assert await store.read(lambda tx: tx.client_session("claude", "s2")) is not None


async def nudges_read_back_as_they_were_noted(store: MailStore, clock: ManualClock) -> None:
    """An agent without a record was never held up nor told anything."""
    here = await an_office(store)
    assert await store.read(lambda tx: tx.nudges(here.ada.id)) == Nudges()
    first, second = Nudges(held_seq=3, notified_at=clock.now()), Nudges(held_seq=4, notified_at=1)
    await store.write(lambda tx: tx.set_nudges(here.ada.id, first))
    assert await store.read(lambda tx: tx.nudges(here.ada.id)) == first
    await store.write(lambda tx: tx.set_nudges(here.ada.id, second))
    assert await store.read(lambda tx: tx.nudges(here.ada.id)) == second
    assert await store.read(lambda tx: tx.nudges(here.ben.id)) == Nudges()
    with refused(StoreError):
        await store.write(lambda tx: tx.set_nudges(99, Nudges()))


PROMISES = (
    messages_to_be_announced_come_oldest_first,
    a_message_that_is_read_or_recalled_is_not_announced,
    a_message_is_announced_once,
    a_mark_whose_change_fails_is_not_made,
    a_large_mailbag_is_announced_at_once,
    directed_messages_are_those_that_name_their_reader,
    a_session_acts_as_one_agent,
    old_sessions_are_forgotten,
    nudges_read_back_as_they_were_noted,
)
