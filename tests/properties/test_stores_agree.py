"""Random steps against SQLite and PostgreSQL, side by side: the answers agree."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from postroom.contracts.choices import ContactPolicy, ContactStatus, Importance, RecipientKind
from postroom.contracts.errors import PostroomError
from postroom.contracts.mail import SEARCH_FIELDS, All, AnyOf, Attachment, Not, Phrase, Query, Term
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.waking import FileView, Nudges
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.stores.postgres import PostgresStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from sqlite_files import assert_index_agrees
from store_kinds import SCHEMA, empty

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SERVER: dict[str, str] = {}
"""Where PostgreSQL is; a state machine takes no fixtures."""
EXAMPLES = 8
"""Unless `POSTROOM_EXAMPLES` sets the number."""
START = 1_700_000_000_000
SPAN = 30
MANY = 1_000

ids = st.sampled_from([1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 5, 9])
"""Mostly of existing records, because a change that fails anywhere is undone whole."""
instants = st.integers(min_value=START, max_value=START + SPAN)
lengths = st.integers(min_value=0, max_value=8)
limits = st.integers(min_value=0, max_value=5)
places = st.integers(min_value=0, max_value=6)
names = st.sampled_from(["Ada", "ADA", "Ben", "Åsa", "ÅSA", "Straße", "STRASSE"])
slugs = st.sampled_from(["one", "two", "three"])
threads = st.sampled_from([None, "t:1", "t:2"])
thread_names = st.sampled_from(["t:1", "t:2", "msg-1", "msg-4", "none"])
topics = st.sampled_from(["", "plum", "release"])
hashes = st.sampled_from(["a", "b", "c"])
prefixes = st.sampled_from(["", "src", "src/a", "src/a/b", "src/ab", "src/a0", "docs"])
words = st.sampled_from(
    [
        "plum",
        "Plum",
        "plums",
        "pear",
        "café",
        "cafe\u0301",
        "ПРИВЕТ",
        "plum-pear",
        "東京",
        "a_b",
        "1.5",
        "…",
        '"',
        "*",
    ]
)
odd_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
texts = st.builds(
    lambda parts, gap: gap.join(parts),
    st.lists(words | odd_text, max_size=5),
    st.sampled_from([" ", "\n", " - "]),
)
fields = st.sampled_from([None, *SEARCH_FIELDS])
leaves = st.builds(
    Term, words | st.sampled_from(["pl", "ca", "прив", "plum pe"]), st.booleans(), fields
) | st.builds(Phrase, st.lists(words, max_size=3).map(tuple), fields)
queries: st.SearchStrategy[Query] = st.recursive(
    leaves,
    lambda inner: (
        st.builds(All, st.lists(inner, max_size=3).map(tuple))
        | st.builds(AnyOf, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Not, inner, inner)
    ),
    max_leaves=6,
)


@dataclass(frozen=True)
class Step:
    """One call of the port; `actor` is the id of the agent that the method wants as a record."""

    method: str
    arguments: dict[str, Any]
    actor: int | None = None

    def __call__(self, tx: MailReads) -> object:
        if self.actor is None:
            return getattr(tx, self.method)(**self.arguments)
        agent = tx.agents_by_id([self.actor]).get(self.actor)
        return agent and getattr(tx, self.method)(
            **{_ACTOR_NAMES.get(self.method, "agent"): agent}, **self.arguments
        )


_ACTOR_NAMES = {"insert_message": "sender"}


@dataclass(frozen=True)
class Message:
    """A message and its recipients; a message that names an agent twice is refused."""

    sender: int
    readers: Sequence[int]
    thread: str | None = None
    subject: str = "plum"
    body: str = "pear"
    importance: Importance = "normal"
    now: int = START

    def __call__(self, tx: MailWrites) -> object:
        agents = tx.agents_by_id([self.sender, *self.readers])
        if self.sender not in agents:
            return None
        message = tx.insert_message(
            project_id=agents[self.sender].project_id,
            sender=agents[self.sender],
            thread_id=self.thread,
            subject=self.subject,
            body_md=self.body,
            importance=self.importance,
            ack_required=False,
            topic="plum",
            broadcast=False,
            reply_to=None,
            now=self.now,
        )
        return message, [
            tx.insert_recipient(message.id, agents[reader], "to")
            for reader in self.readers
            if reader in agents
        ]


@dataclass(frozen=True)
class EffectStep:
    """A change of effects that wait; rows are named by their place, for each store has its own ids."""

    kind: str
    places: Sequence[int]
    verb: str
    error: str

    def __call__(self, tx: MailWrites) -> object:
        if self.verb == "enqueue":
            draft = OutboxDraft(kind=self.kind, target="t", payload={"error": self.error})
            return len(tx.outbox.enqueue([draft]))
        claimed = tx.outbox.claim(self.kind, "t", lease_ms=0, limit=MANY)
        chosen = [claimed[place] for place in self.places if place < len(claimed)]
        ids, tokens = [one.outbox_id for one in chosen], [one.claim_token or "" for one in chosen]
        if self.verb == "ack":
            return tx.outbox.ack(ids, tokens)
        return tx.outbox.nack(ids, tokens, error=self.error)


def step(
    method: str, *, acting: bool = False, **arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(method), st.fixed_dictionaries(arguments), ids if acting else st.none())


def choice(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(kind))


words = st.sampled_from(["hook", "watch"])
nudges = st.builds(Nudges, held_seq=st.integers(0, 4), notified_at=st.integers(0, 4))
file_views = st.builds(
    FileView,
    file=words,
    viewer_id=st.integers(1, 2),
    seen_blob=st.sampled_from(["", "hook", "gone"]),
    written_at=instants,
    changed_by=st.none() | ids,
    notice=st.integers(0, 2),
    used_at=instants,
)
attachments = st.builds(
    Attachment,
    sha256=hashes,
    name=st.just("n"),
    media_type=st.just("t"),
    size=lengths,
    preview_sha256=st.none() | hashes,
)
people = (
    step(
        "insert_project",
        slug=slugs,
        human_key=slugs.map("/{}".format),
        spelling=slugs,
        git_identity=odd_text,
        owner=slugs,
        now=instants,
    )
    | step("add_project_alias", project_id=ids, human_key=slugs.map("C:/{}".format))
    | step("set_git_identity", project_id=ids, git_identity=odd_text)
    | step("set_project_folder", project_id=ids, human_key=ids.map("C:/moved/{}".format), spelling=slugs)
    | step(
        "insert_agent",
        project_id=st.integers(1, 2),
        name=names,
        program=odd_text,
        model=odd_text,
        task_description=texts,
        now=instants,
    )
    | step(
        "update_agent", agent_id=ids, program=odd_text, model=odd_text, task_description=texts, now=instants
    )
    | step("set_agent_retired", agent_id=ids, retired_at=st.none() | instants, now=instants)
    | step("set_agent_token", agent_id=ids, token_hash=st.none() | hashes)
    | step("set_contact_policy", agent_id=ids, policy=choice(ContactPolicy), now=instants)
    | step("touch_agent", agent_id=ids, now=instants)
    | step("put_contact", from_id=ids, to_id=ids, status=choice(ContactStatus), reason=odd_text, now=instants)
)
messages = (
    step(
        "insert_message",
        acting=True,
        project_id=st.integers(1, 2),
        thread_id=threads,
        subject=texts,
        body_md=texts,
        importance=choice(Importance),
        ack_required=st.booleans(),
        topic=topics,
        broadcast=st.booleans(),
        reply_to=st.none() | ids,
        now=instants,
    )
    | step("insert_recipient", acting=True, message_id=ids, kind=choice(RecipientKind))
    | st.builds(Message, ids, st.lists(ids, max_size=3), threads, texts, texts, choice(Importance), instants)
    | st.builds(
        Message,
        ids,
        st.lists(ids, max_size=3, unique=True),
        threads,
        texts,
        texts,
        choice(Importance),
        instants,
    )
    | step("mark_read", message_id=ids, agent_id=ids, now=instants)
    | step("mark_acked", message_id=ids, agent_id=ids, now=instants)
    | step("mark_recalled", message_id=ids, now=instants)
    | step("mark_announced", agent_id=ids, message_ids=st.lists(ids, max_size=4), by=words, now=instants)
    | step("bind_client_session", client=words, session_id=words, agent_id=ids, now=instants)
    | step("end_client_session", client=words, session_id=words)
    | step("purge_client_sessions", before=instants, limit=limits)
    | step("set_nudges", agent_id=ids, nudges=nudges)
    | step("put_file_view", view=file_views)
    | step("note_file_change", file=words, blob=words, viewer_id=ids, now=instants, since=instants)
    | step("mark_file_views_told", viewer_id=ids)
    | step("purge_file_views", before=instants, limit=limits)
    | step("insert_blob", sha256=hashes, content=st.binary(max_size=4))
    | step("insert_attachment", message_id=ids, attachment=attachments)
)
effects = (
    step(
        "insert_reservation",
        acting=True,
        pattern=odd_text,
        prefix=prefixes,
        exclusive=st.booleans(),
        reason=odd_text,
        ttl=lengths,
        now=instants,
    )
    | step(
        "extend_reservation",
        reservation_id=ids,
        expires_at=instants,
        ttl=lengths,
        exclusive=st.booleans(),
        reason=odd_text,
        now=instants,
    )
    | step("release_reservation", reservation_id=ids, now=instants, by=names, reason=odd_text)
    | step("expire_reservations", project_id=st.integers(1, 2), now=instants)
    | step(
        "insert_answer", scope=slugs, key=hashes, digest=hashes, answer=st.binary(max_size=4), now=instants
    )
    | step("purge_answers", before=instants, limit=limits)
    | step("trim_log", project_id=ids, keep=places, limit=limits)
    | st.builds(
        EffectStep,
        slugs,
        st.lists(ids.map(lambda n: n - 1), max_size=3),
        st.sampled_from(["enqueue", "enqueue", "ack", "nack"]),
        odd_text,
    )
)
steps = people | messages | messages | effects


some = st.lists(ids, max_size=4)
keys = st.sampled_from(["one", "/two", "C:/three", "none"])
looks = (
    step(
        "inbox",
        agent_id=ids,
        limit=limits,
        after=st.none() | places,
        since=st.none() | instants,
        unread_only=st.booleans(),
        importance=st.lists(choice(Importance), max_size=2),
    )
    | step("inbox_events", agent_id=ids, after=places, limit=limits)
    | step(
        "live_reservations",
        project_id=st.integers(1, 2),
        now=instants,
        near=st.none() | prefixes,
        agent_id=st.none() | ids,
        limit=st.none() | limits,
    )
    | step("projects", limit=limits, after=places)
    | step("project", key=keys)
    | step("projects_spelled", spelling=keys)
    | step("agents", project_id=st.integers(1, 2), include_retired=st.booleans(), limit=limits, after=places)
    | step("agent", project_id=st.integers(1, 2), name=names)
    | step("agents_by_id", agent_ids=some)
    | step("messages_of", agent_id=ids, message_ids=some)
    | step(
        "project_events",
        project_id=st.integers(1, 3),
        after=places,
        limit=limits,
        kinds=st.sampled_from([(), ("message.sent",), ("delivery.read", "reservation.made")]),
    )
    | step("project_messages", project_id=st.integers(1, 2), limit=limits, after=places)
    | step("newest_messages", project_id=st.integers(1, 2), limit=limits)
    | step("sent_messages", agent_id=ids, limit=limits, before=st.none() | places)
    | step("newest_reservations", project_id=st.integers(1, 2), limit=limits)
    | step("active_agents", project_id=st.integers(1, 2), limit=limits)
    | step("messages", message_ids=some)
    | step("recipients", message_ids=some)
    | step("unannounced", agent_id=ids, limit=limits)
    | step("directed_unread", agent_id=ids, limit=st.integers(1, 3))
    | step("client_session", client=words, session_id=words)
    | step("nudges", agent_id=ids)
    | step("file_views", files=st.lists(words, max_size=2), viewer_id=ids)
    | step("due_file_views", viewer_id=ids, limit=limits)
    | step("attachments", message_ids=some)
    | step("thread", project_id=st.integers(1, 2), thread_id=thread_names, limit=limits, after=places)
    | step("thread_tail", project_id=st.integers(1, 2), thread_id=thread_names, limit=limits)
    | step("thread_size", project_id=st.integers(1, 2), thread_id=thread_names)
    | step(
        "thread_participants",
        project_id=st.integers(1, 2),
        thread_id=thread_names,
        home_id=st.integers(1, 2),
        among=limits,
    )
    | step("reservations", project_id=st.integers(1, 2), limit=limits, after=places)
    | step("reservation", reservation_id=ids)
    | step("contact", from_id=ids, to_id=ids)
)


def everything(tx: MailReads) -> dict[str, object]:
    """Read all stored data, in every way that needs no settling."""
    projects = tx.projects(limit=MANY)
    agents = [agent for one in projects for agent in tx.agents(one.id, include_retired=True, limit=MANY)]
    messages = [message for one in projects for message in tx.project_messages(one.id, limit=MANY)]
    message_ids = [message.id for message in messages]
    return {
        "projects": projects,
        "aliases": [tx.project(f"C:/{slug}") for slug in ("one", "two", "three")],
        "agents": agents,
        "tokens": [tx.agent_by_token(token) for token in "abc"],
        "messages": messages,
        "recipients": tx.recipients(message_ids),
        "attachments": tx.attachments(message_ids),
        "blobs": [tx.blob(sha256) for sha256 in "abc"],
        "events": {agent.id: tx.inbox_events(agent.id, after=0, limit=MANY) for agent in agents},
        "unread": {agent.id: tx.unread_count(agent.id) for agent in agents},
        "contacts": {agent.id: tx.contacts(agent.id) for agent in agents},
        "reservations": {one.id: tx.reservations(one.id, limit=MANY) for one in projects},
        "answers": [tx.answer(scope, key) for scope in ("one", "two", "three") for key in "abc"],
        "outbox": [
            [(row.payload, row.attempt_count, row.last_error, row.may_have_arrived) for row in rows]
            for rows in (tx.outbox.open(kind, limit=MANY) for kind in ("one", "two", "three"))
        ],
        "backlog": [tx.outbox.backlog(kind).waiting for kind in ("one", "two", "three")],
        "counts": tx.counts(),
        "log": {one.id: tx.project_events(one.id, after=0, limit=MANY) for one in projects},
        "bounds": {one.id: tx.log_bounds(one.id) for one in projects},
    }


AnyStep = Step | EffectStep | Message


class Undone(Exception):
    """Raised at the end of a change, to undo it."""


@pytest.fixture(scope="module", autouse=True)
def a_server(postgres_dsn: str) -> None:
    SERVER["dsn"] = postgres_dsn


class Agreement(RuleBasedStateMachine):
    """Two stores that are given the same steps."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.sqlite = self._opened()
        dsn = SERVER["dsn"]
        self.postgres = PostgresStore.open(dsn, schema=SCHEMA, clock=ManualClock(START), readers=1)
        empty(dsn)
        self.session = psycopg.connect(dsn, autocommit=True)

    def teardown(self) -> None:
        self.runner.run(self.sqlite.settle())
        wrong = self.runner.run(self.sqlite.check())
        self.sqlite.close()
        self.postgres.close()
        self.session.close()
        self.runner.close()
        with closing(sqlite3.connect(self.sqlite.path)) as connection:  # raises where index and texts differ
            assert_index_agrees(connection)
        self.folder.cleanup()
        assert wrong == []

    def _opened(self) -> SqliteStore:
        path = Path(self.folder.name) / "postroom.db"
        return SqliteStore.open(path, clock=ManualClock(START), purpose="test")

    def _same(self, work: Callable[[MailStore], Any]) -> Any:
        expected = self.runner.run(_outcome(work(self.sqlite)))
        numbers = self._numbers()
        found = self.runner.run(_outcome(work(self.postgres)))
        if expected[0] == "failure":
            # PostgreSQL may tell of a refused write what SQLite tells of a later step, and counts on.
            assert found[0] == "failure"
            self._count_on(numbers)
        else:
            assert found == expected
        return expected[1]

    def _numbers(self) -> list[Any]:
        return self.session.execute(
            "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = %s", [SCHEMA]
        ).fetchall()

    def _count_on(self, numbers: list[Any]) -> None:
        for name, last in numbers:
            self.session.execute(
                "SELECT setval(CAST(format('%%I.%%I', %s::text, %s::text) AS regclass), %s, %s)",
                [SCHEMA, name, last or 1, last is not None],
            )

    def _look(self, look: Callable[[MailReads], Any]) -> Any:
        return self._same(lambda store: store.read(look))

    @initialize()
    def there_is_an_office_with_mail(self) -> None:
        def change(tx: MailWrites) -> None:
            for slug in ("one", "two"):
                path = f"/{slug}"
                made = tx.insert_project(
                    slug=slug, human_key=path, spelling=slug, git_identity="", owner="", now=START
                )
                for name in ("Ada", "Ben")[: 3 - made.id]:
                    tx.insert_agent(made.id, name=name, program="", model="", task_description="", now=START)
            for sender, readers in ((1, [2, 3]), (2, [1]), (3, [1, 2])):
                Message(sender, readers)(tx)
                terms = {
                    "pattern": "src",
                    "prefix": "src",
                    "exclusive": True,
                    "reason": "",
                    "ttl": 5,
                    "now": START,
                }
                Step("insert_reservation", terms, sender)(tx)
            tx.insert_blob("a", b"a")
            tx.insert_blob("b", b"b")

        self._same(lambda store: store.write(change))

    @rule(changes=st.lists(steps, min_size=2, max_size=6))
    def each_step_is_a_change(self, changes: list[AnyStep]) -> None:
        for change in changes:
            self._same(lambda store, change=change: store.write(change))

    @rule(changes=st.lists(steps, min_size=2, max_size=3))
    def several_steps_are_one_change(self, changes: list[AnyStep]) -> None:
        self._same(lambda store: store.write(lambda tx: [change(tx) for change in changes]))

    @rule(changes=st.lists(steps, min_size=1, max_size=3))
    def a_change_that_raises_is_undone(self, changes: list[AnyStep]) -> None:
        def change(tx: MailWrites) -> None:
            for each in changes:
                each(tx)
            raise Undone

        self._same(lambda store: store.write(change))

    @rule(project_id=st.integers(1, 2), query=queries, limit=limits, cursor=st.integers(0, 6))
    def a_search_finds_the_same(self, project_id: int, query: Query, limit: int, cursor: int) -> None:
        async def settle_and_search(store: MailStore) -> tuple[list[Any], set[Any]]:
            await store.settle()
            newest = await store.read(
                lambda tx: tx.search(project_id, query, order="newest", limit=limit, cursor=cursor)
            )
            best = await store.read(lambda tx: tx.search(project_id, query, order="best", limit=MANY))
            assert [hit.rank for hit in best] == sorted(hit.rank for hit in best)
            assert all(hit.rank < 0 for hit in best)
            return [hit.message for hit in newest], {hit.message for hit in best}

        self._same(settle_and_search)

    @rule(project_id=st.integers(1, 2), limit=limits, before=st.none() | ids)
    def threads_are_the_same(self, project_id: int, limit: int, before: int | None) -> None:
        async def settle_and_list(store: MailStore) -> tuple[list[Any], list[Any], list[int]]:
            await store.settle()
            heads = await store.read(lambda tx: tx.threads(project_id, limit=limit, before=before))
            every = await store.read(lambda tx: tx.threads(project_id, limit=MANY))
            sizes = await store.read(
                lambda tx: [tx.thread_size(project_id, head.thread_id) for head in every]
            )
            return heads, every, sizes

        _, every, sizes = self._same(settle_and_list)
        assert [head.messages for head in every] == sizes

    @rule(seen=st.lists(looks, min_size=1, max_size=4))
    def pages_and_look_ups_are_the_same(self, seen: list[Step]) -> None:
        self._look(lambda tx: [look(tx) for look in seen])

    @rule()
    def the_store_on_disk_is_opened_again(self) -> None:
        self.sqlite.close()
        self.sqlite = self._opened()

    @invariant()
    def all_records_are_the_same_and_fit_together(self) -> None:
        found = self._look(everything)
        for agent in found["agents"]:
            events = found["events"][agent.id]
            assert [entry.seq for entry in events] == list(range(1, agent.inbox_seq + 1))
            assert all(entry.read_at is not None for entry in events if entry.acked_at is not None)
            waiting = [
                entry for entry in events if entry.read_at is None and entry.message.recalled_at is None
            ]
            assert len(waiting) == found["unread"][agent.id]
        for message in found["messages"]:
            if message.recalled_at is not None:
                assert (message.subject, message.body_md, message.topic) == ("", "", "")
        for held in found["reservations"].values():
            assert all(before.id < after.id for before, after in pairwise(held))
        for project_id, bounds in found["bounds"].items():
            numbers = [one.seq for one in found["log"][project_id]]
            assert numbers == list(range(bounds.oldest + 1, bounds.newest + 1))


async def _outcome(work: Any) -> tuple[str, Any]:
    """Return what came of it: an answer, or the kind of failure."""
    try:
        return "answer", await work
    except (PostroomError, Undone) as error:
        return "failure", type(error)


Agreement.TestCase.settings = settings(
    max_examples=int(os.environ.get("POSTROOM_EXAMPLES", EXAMPLES)),
    stateful_step_count=40,
)
TestStoresAgree = Agreement.TestCase
