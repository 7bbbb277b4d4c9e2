"""Promises of a mail store about being filled with whole rows, as a rebuild from an archive does."""

from collections.abc import Mapping, Sequence

from conformance.promises import given
from conformance.promises.given import put_message, refused
from postroom.contracts.errors import StateError, StoreError
from postroom.contracts.mail import Term
from postroom.contracts.project_log import LogBounds
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

FAR = 2**53 + 1
"""The first whole number that a floating-point number cannot hold."""


def _archive() -> Mapping[str, Sequence[Mapping[str, object]]]:
    """Return rows in no helpful order: referring ones before those referred to, later before earlier."""
    sent = {"project_id": 5, "sender_id": 8, "sender_name": "Ada", "thread_id": "t", "importance": "high"}
    agent = {"project_id": 5, "program": "p", "model": "m", "created_at": 1, "last_active_at": 2}
    held = {
        "project_id": 5,
        "agent_id": 8,
        "pattern": "a",
        "prefix": "a",
        "exclusive": 1,
        "created_at": 1,
        "ttl": 9,
    }
    return {
        "file_reservations": [{"id": 3, "expires_at": 10, **held}],
        "attachments": [
            {"message_id": FAR, "position": 0, "sha256": "x", "name": "n", "media_type": "t", "size": 1}
        ],
        "blobs": [{"sha256": "x", "content": b"x"}],
        "recipients": [
            {"message_id": FAR, "agent_id": 8, "kind": "to", "seq": 4, "position": 1},
            {"message_id": FAR, "agent_id": 9, "kind": "cc", "seq": 1, "position": 0, "read_at": 7},
        ],
        "messages": [
            {"id": FAR, "subject": "Later", "body_md": "plum", "created_ts": 6, "ack_required": 1, **sent},
            {"id": 4, "subject": "First", "body_md": "pear", "created_ts": 5, **sent},
        ],
        "agents": [
            {"id": 9, "name": "Ben", "name_key": "ben", "inbox_seq": 1, **agent},
            {"id": 8, "name": "Ada", "name_key": "ada", "inbox_seq": 4, **agent},
        ],
        "projects": [{"id": 5, "slug": "s", "human_key": "/s", "created_at": 1, "spelling": "/s"}],
    }


async def an_empty_store_is_filled_from_whole_rows(store: MailStore, clock: ManualClock) -> None:
    """Rows come back with their ids whatever their order, threads and search know them, numbers go on."""
    await store.write(lambda tx: tx.restore_rows(_archive()))
    project, ada = await store.read(lambda tx: (tx.project("s"), tx.agent(5, "ADA")))
    assert project is not None
    assert ada is not None
    assert (project.id, ada.id, ada.inbox_seq, ada.program) == (5, 8, 4, "p")
    later = await store.read(lambda tx: tx.message(FAR))
    assert later is not None
    assert (later.id, later.ack_required, later.created_at, later.importance) == (FAR, True, 6, "high")
    recipients = (await store.read(lambda tx: tx.recipients([FAR])))[FAR]
    assert [(one.name, one.kind, one.seq, one.read_at) for one in recipients] == [
        ("Ben", "cc", 1, 7),
        ("Ada", "to", 4, None),
    ]
    await store.settle()
    head = (await store.read(lambda tx: tx.threads(5, limit=9)))[0]
    assert (head.first_id, head.last_id, head.subject, head.messages) == (4, FAR, "First", 2)
    hits = await store.read(lambda tx: tx.search(5, Term("plum"), order="newest", limit=9))
    assert [hit.message.id for hit in hits] == [FAR]
    held = await store.read(lambda tx: tx.live_reservations(5, now=9))
    assert [(one.id, one.holder, one.exclusive) for one in held] == [(3, "Ada", True)]
    assert [one.sha256 for one in (await store.read(lambda tx: tx.attachments([FAR])))[FAR]] == ["x"]
    sent = await store.write(lambda tx: put_message(tx, ada, [ada]))
    assert sent.id == FAR + 1
    assert (await store.read(lambda tx: tx.recipients([sent.id])))[sent.id][0].seq == 5
    assert (await store.write(lambda tx: given.agent(tx, 5, "Cyd"))).id == 10


async def a_store_that_holds_mail_is_not_refilled(store: MailStore, clock: ManualClock) -> None:
    """Nor is one filled with unknown tables or columns, or with rows that lack one; nothing is left of it."""
    project = {"id": 5, "slug": "s", "human_key": "/s", "created_at": 1}
    with refused(StateError):
        await store.write(lambda tx: tx.restore_rows({"projects": [project], "secrets": []}))
    with refused(StateError):
        await store.write(lambda tx: tx.restore_rows({"projects": [{**project, "x) --": 1}]}))
    with refused(StoreError):
        await store.write(lambda tx: tx.restore_rows({"projects": [project, {"id": 6}]}))
    assert await store.read(lambda tx: tx.projects(limit=9)) == []
    await store.write(lambda tx: tx.restore_rows({"projects": [project]}))
    with refused(StateError):
        await store.write(lambda tx: tx.restore_rows({"projects": [{**project, "id": 6, "slug": "t"}]}))


async def the_log_of_a_project_that_was_put_back_goes_on(store: MailStore, clock: ManualClock) -> None:
    """Behind the entries that were told before: no number stands for two."""
    rows = [
        {"id": 5, "slug": "s", "human_key": "/s", "created_at": 1, "spelling": "/s"},
        {"id": 6, "slug": "t", "human_key": "/t", "created_at": 1, "spelling": "/t"},
    ]
    await store.write(lambda tx: tx.restore_rows({"projects": rows}, {"s": 41, "gone": 7}))
    assert await store.read(lambda tx: tx.log_bounds(5)) == LogBounds(oldest=41, newest=42)
    [entry] = await store.read(lambda tx: tx.project_events(5, after=41, limit=9))
    assert (entry.seq, entry.happening.kind, entry.happening.at) == (42, "project.made", 1)
    assert await store.read(lambda tx: tx.log_bounds(6)) == LogBounds(oldest=0, newest=0)
    await store.write(lambda tx: given.agent(tx, 5, "Ada"))
    assert (await store.read(lambda tx: tx.log_bounds(5))).newest == 43


PROMISES = (
    an_empty_store_is_filled_from_whole_rows,
    a_store_that_holds_mail_is_not_refilled,
    the_log_of_a_project_that_was_put_back_goes_on,
)
