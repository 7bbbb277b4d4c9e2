"""A mail room to test in: `Mail` over a store, calls in one line, refusals that change nothing."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest

from postroom.contracts.errors import PostroomError
from postroom.contracts.mail import Project
from postroom.contracts.tasks import ENDED_STATES, OPEN_STATES
from postroom.mail.context import Caller, Rules
from postroom.mail.service import Mail
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.engine import SqliteEngine
from postroom.testing import ManualClock

THE_PLAN = hashlib.sha256(b"the plan").hexdigest()
"""The file that comes with message 1 in the world of `furnish`."""
HARBOR = "/projects/harbor"
SHORE = "/projects/shore"
AGENTS = ("Ada", "Ben", "Cyd")

E = TypeVar("E", bound=PostroomError)

UNPLACED = ("health_check", "ensure_project")
"""Operations that take no project key."""


@dataclass(slots=True)
class Room:
    """A mail service with its store and a clock to move."""

    mail: Mail
    clock: ManualClock
    seen: tuple[int | None, dict[str, object]] | None = None
    """The last read of the store, and the number of rows written before it."""

    @property
    def store(self) -> MailStore:
        return self.mail.store

    async def call(self, operation: str, /, *, caller: Caller | None = None, **arguments: Any) -> Any:
        """Perform an operation, in the project `HARBOR` unless another is named."""
        place = {} if operation in UNPLACED else {"project_key": HARBOR}
        return await self.mail.call(operation, {**place, **arguments}, caller=caller)

    async def refused(
        self, kind: type[E], operation: str, /, *, caller: Caller | None = None, **arguments: Any
    ) -> E:
        """Perform an operation that must be refused in this very way, and see that nothing changed."""
        before = await self._everything()
        with pytest.raises(PostroomError) as caught:
            await self.call(operation, caller=caller, **arguments)
        assert type(caught.value) is kind, caught.value
        assert_presentable(caught.value)
        assert await self._everything() == before
        return caught.value

    async def _everything(self) -> dict[str, object]:
        """Return all that the store holds; it is read again only when a row was written since, were it undone."""
        written = _rows_written(self.store)
        if written is None or self.seen is None or self.seen[0] != written:
            self.seen = (written, await everything(self.store))
        return self.seen[1]

    async def open(self, *names: str, project: str = HARBOR) -> None:
        """Make a project with agents."""
        await self.call("ensure_project", human_key=project)
        for name in names or AGENTS:
            await self.call("register_agent", project_key=project, program="shell", model="none", name=name)

    async def send(self, sender: str, *to: str, **more: Any) -> int:
        """Send a message and return its id."""
        message = {"subject": "A subject", "body_md": "A body", "to": list(to), **more}
        sent = await self.call("send_message", sender_name=sender, **message)
        return int(sent["deliveries"][0]["payload"]["id"])

    async def inbox(self, name: str, **more: Any) -> list[dict[str, Any]]:
        """Return an agent's inbox."""
        found: list[dict[str, Any]] = await self.call("fetch_inbox", agent_name=name, **more)
        return found


def a_room(store: MailStore, clock: ManualClock, rules: Rules | None = None, **more: Any) -> Room:
    """Return a mail room over a store."""
    return Room(Mail(store, clock, rules, **more), clock)


@contextmanager
def in_memory(clock: ManualClock) -> Iterator[Room]:
    """Open an empty mail room, for a test that needs a new one for each row of a table."""
    memory = SqliteStore.in_memory(clock)
    yield a_room(memory, clock)
    memory.close()


@pytest.fixture
def room_in_memory(clock: ManualClock) -> Iterator[Room]:
    """An empty mail room. Rules are decided above the store: that each kind keeps its promises is tested there."""
    with in_memory(clock) as room:
        yield room


@pytest.fixture
def room_on_a_file(sqlite_store: SqliteStore, clock: ManualClock) -> Room:
    """An empty mail room whose readers are not its writer."""
    return a_room(sqlite_store, clock)


RUN_OF_ADA = "run-of-ada"
_WHO = {"program": "p", "model": "m"}


@dataclass(frozen=True, slots=True)
class Change:
    """A change: its arguments, and others that would make it another call."""

    arguments: dict[str, Any]
    other: dict[str, Any] = field(default_factory=dict)


CHANGES: dict[str, Change] = {
    "ensure_project": Change({"human_key": "/projects/new"}, {"git_identity": "r#1"}),
    "start_session": Change({**_WHO, "reserve_paths": ["z"]}, {"model": "n"}),
    "register_agent": Change(_WHO, {"model": "n"}),
    "create_agent_identity": Change(_WHO, {"model": "n"}),
    "retire_agent": Change({"agent_name": "Cyd"}),
    "unretire_agent": Change({"agent_name": "Ret"}),
    "send_message": Change(
        {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}, {"subject": "t"}
    ),
    "reply_message": Change({"sender_name": "Ben", "message_id": 1, "body_md": "b"}, {"body_md": "c"}),
    "recall_message": Change({"sender_name": "Ada", "message_id": 1}, {"message_id": 2}),
    "mark_message_read": Change({"agent_name": "Ben", "message_id": 1}, {"message_id": 2}),
    "acknowledge_message": Change({"agent_name": "Ben", "message_id": 1}, {"message_id": 2}),
    "ask_person": Change(
        {"agent_name": "Ada", "run_id": RUN_OF_ADA, "question": "May I?"}, {"question": "May we?"}
    ),
    "request_contact": Change({"agent_name": "Ada", "to": "Ben"}, {"to": "Cyd"}),
    "respond_contact": Change({"agent_name": "Ada", "requester": "Ben", "accept": True}, {"accept": False}),
    "set_contact_policy": Change({"agent_name": "Ada", "policy": "approval"}, {"policy": "closed"}),
    "file_reservation_paths": Change({"agent_name": "Ada", "paths": ["x", "y"]}, {"paths": ["x"]}),
    "release_file_reservations": Change({"agent_name": "Ben"}, {"paths": ["p"]}),
    "renew_file_reservations": Change({"agent_name": "Ben"}, {"ttl_seconds": 9}),
    "force_release_file_reservation": Change(
        {"agent_name": "Ada", "reservation_id": 1, "reason": "r"}, {"reason": "other"}
    ),
    "claim_task": Change({"agent_name": "Ada"}, {"task_id": 1}),
    "add_task": Change({"agent_name": "Ada", "title": "Light the pier"}, {"title": "Paint it"}),
    "update_task": Change({"agent_name": "Ada", "task_id": 1, "text": "Red."}, {"text": "Blue."}),
    "done_task": Change({"agent_name": "Ben", "task_id": 2, "epoch": 1}, {"message": "Lit."}),
    "add_note": Change({"agent_name": "Ada", "subject": "Lamp", "text": "It is red."}, {"subject": "Oil"}),
    "end_note": Change({"agent_name": "Ben", "note_id": 1}, {"note_id": 2}),
    "subscribe": Change({"agent_name": "Ada", "kind": "file_changed", "about": "src/"}, {"about": "docs/"}),
    "end_subscription": Change({"agent_name": "Ben", "subscription_id": 1}, {"subscription_id": 2}),
}


async def furnish(room: Room) -> None:
    """Open a project in which every change of the table has something to do."""
    await room.open("Ada", "Ben", "Cyd", "Ret")
    await room.call("retire_agent", agent_name="Ret")
    await room.send("Ada", "Ben", attachments=[{"name": "plan.txt", "content_base64": "dGhlIHBsYW4="}])
    await room.send("Ada", "Ben", "Cyd")
    await room.call("file_reservation_paths", agent_name="Ben", paths=["p", "q"])
    for title in ("Place the lamp", "Switch it on"):
        await room.call("add_task", agent_name="Ada", title=title)
    await room.call("claim_task", agent_name="Ben", task_id=2)
    await room.call("add_note", agent_name="Ada", subject="Paint", text="It must dry for a day.")
    await room.call("subscribe", agent_name="Ben", kind="task_ready")
    await set_to_work(room.store)


async def set_to_work(store: MailStore) -> None:
    """Let a run of Ada be active."""

    def sit(tx: MailWrites) -> None:
        ada = tx.agent(tx.projects(limit=1)[0].id, "Ada")
        assert ada is not None
        tx.begin_run(RUN_OF_ADA, ada.id, 1)

    await store.write(sit)


def _rows_written(store: MailStore) -> int | None:
    """Return how many rows were ever written, those of a change that was undone too; None if nothing counts."""
    engine = store.store.engine if isinstance(store, SqliteStore) else None
    connection = engine.writer.connection if isinstance(engine, SqliteEngine) else None
    return None if connection is None else connection.total_changes


async def everything(store: MailStore) -> dict[str, object]:
    """Return all that a store holds, for comparing before with after."""

    def look(tx: MailReads) -> dict[str, object]:
        projects = tx.projects(limit=1_000)
        return {
            "projects": [_project(tx, project) for project in projects],
            "outbox": tx.outbox.open("archive", limit=100_000),
            "backlog": tx.outbox.backlog("archive"),
        }

    found = await store.read(look)
    return {**found, **await _uncovered(store)}


def _project(tx: MailReads, project: Project) -> dict[str, object]:
    agents = tx.agents(project.id, include_retired=True, limit=100_000)
    messages = tx.project_messages(project.id, limit=100_000)
    ids = [message.id for message in messages]
    return {
        "project": project,
        "agents": agents,
        "messages": messages,
        "recipients": tx.recipients(ids),
        "attachments": tx.attachments(ids),
        "reservations": tx.reservations(project.id, limit=100_000),
        "contacts": [tx.contacts(agent.id) for agent in agents],
        "tasks": [
            task
            for state in OPEN_STATES
            for task in tx.tasks_in(project.id, state, after=(-1, 0), limit=100_000)
        ]
        + [
            task
            for state in ENDED_STATES
            for task in tx.ended_tasks(project.id, state, before=(2**62, 0), limit=100_000)
        ],
        "subscriptions": [tx.subscriptions_of(agent.id) for agent in agents],
        "notes": tx.active_notes(project.id, now=0),
        "events": tx.project_events(project.id, after=0, limit=100_000),
    }


async def _uncovered(store: MailStore) -> dict[str, int]:
    """Count the records that the port does not list: kept answers, stored bytes, aliases, questions of active runs."""
    if isinstance(store, SqliteStore):
        counts = "SELECT (SELECT count(*) FROM idempotency), (SELECT count(*) FROM blobs), " + (
            "(SELECT count(*) FROM project_aliases), (SELECT count(*) FROM questions)"
        )
        row = await store.store.engine.readers.submit(lambda tx: tx.connection.execute(counts).fetchone())
    else:
        return await _uncovered(store._store)  # type: ignore[attr-defined]  # a store that fails on purpose
    return dict(zip(("answers", "blobs", "aliases", "questions"), row, strict=True))


def assert_presentable(error: PostroomError) -> None:
    """See that a refusal says something, is short, and can be written by every encoder of JSON."""
    plain = error.as_dict()
    assert plain["code"] == error.code
    assert error.message
    assert error.remedy, f"{error.code} has no remedy: {error.message}"
    assert len(json.dumps(plain, allow_nan=False)) < 10_000
    assert msgspec.json.decode(msgspec.json.encode(plain)) == json.loads(json.dumps(plain))
