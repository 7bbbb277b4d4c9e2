"""Invariants of the mail room under any sequence of acts: contacts, hidden copies, cursors, leases."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mail_room import HARBOR, SHORE, Room, a_room
from postroom.contracts.errors import AlreadyRead, IdempotencyConflict, PostroomError
from postroom.contracts.mail import Message, Recipient
from postroom.mail.archive.archive import gather
from postroom.mail.context import Rules
from postroom.stores.mail.access import MailReads
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

pytestmark = pytest.mark.long

FIELD = "/projects/field"

SMALL = settings(max_examples=40)

Act = tuple[Any, ...]


def _run(play: Callable[[Room], Awaitable[None]]) -> None:
    """Play in an empty mail room in memory."""

    async def all_of_it() -> None:
        clock = ManualClock()
        store = SqliteStore.in_memory(clock)
        try:
            await play(a_room(store, clock))
        finally:
            store.close()

    asyncio.run(all_of_it())


# Contacts

HOMES = {"Ada": HARBOR, "Ben": HARBOR, "Cyd": HARBOR, "Eve": SHORE, "Flo": SHORE, "Gil": FIELD}
OWNERS = {HARBOR: "me", SHORE: "you", FIELD: "me"}
PEOPLE = st.sampled_from(sorted(HOMES))
CROWD = st.lists(PEOPLE, max_size=3)


def _address(name: str, home: str) -> str:
    return name if HOMES[name] == home else f"{name}@{HOMES[name]}"


def _acts() -> st.SearchStrategy[list[Act]]:
    policies = st.sampled_from(["open", "same_owner", "approval", "closed"])
    flags = st.fixed_dictionaries(
        {},
        optional={
            "importance": st.sampled_from(["low", "urgent"]),
            "ack_required": st.just(value=True),
            "broadcast": st.just(value=True),
            "thread_id": st.sampled_from(["t", "u"]),
        },
    )
    send = st.tuples(st.just("send"), PEOPLE, CROWD, CROWD, CROWD, flags)
    return st.lists(
        st.one_of(
            st.tuples(st.just("policy"), PEOPLE, policies),
            st.tuples(st.just("request"), PEOPLE, PEOPLE),
            st.tuples(st.just("respond"), PEOPLE, PEOPLE, st.booleans()),
            st.tuples(st.just("retire"), PEOPLE, st.booleans()),
            send,
            send,
            st.tuples(st.just("reply"), PEOPLE, st.integers(1, 12), st.booleans()),
            st.tuples(st.just("force"), PEOPLE, PEOPLE),
        ),
        max_size=30,
    )


@dataclass(slots=True)
class Wishes:
    """The wishes of each agent, kept outside the mail room in the simplest way."""

    policy: dict[str, str] = field(default_factory=lambda: dict.fromkeys(HOMES, "open"))
    granted: dict[tuple[str, str], bool] = field(default_factory=dict)
    """By recipient and sender: whether the recipient takes the sender's mail."""
    retired: set[str] = field(default_factory=set)

    def may(self, sender: str, reader: str, *, answers: bool) -> bool:
        """Whether a message may pass."""
        if reader in self.retired:
            return False
        if sender == reader:
            return True
        if self.policy[reader] == "closed" or self.granted.get((reader, sender)) is False:
            return False
        if answers or self.granted.get((reader, sender)):
            return True
        strangers = OWNERS[HOMES[sender]] != OWNERS[HOMES[reader]]
        return self.policy[reader] != "approval" and not strangers


async def _open_three(room: Room) -> None:
    for home, owner in OWNERS.items():
        names = [name for name in HOMES if HOMES[name] == home]
        await a_room(room.store, room.clock, Rules(owner=owner)).open(*names, project=home)


async def _do(room: Room, act: Act, wishes: Wishes) -> None:
    """Do one act, and record its effect on a person's wishes."""
    kind, who, *rest = act
    own = {"project_key": HOMES[who], "agent_name": who}
    if kind == "policy":
        await room.call("set_contact_policy", **own, policy=rest[0])
        wishes.policy[who] = rest[0]
    elif kind == "request":
        await room.call("request_contact", **own, to=_address(rest[0], HOMES[who]))
    elif kind == "respond":
        await room.call("respond_contact", **own, requester=_address(rest[0], HOMES[who]), accept=rest[1])
        wishes.granted[who, rest[0]] = rest[1]
    elif kind == "retire":
        await room.call("retire_agent" if rest[0] else "unretire_agent", **own)
        (wishes.retired.add if rest[0] else wishes.retired.discard)(who)
    elif kind == "force":
        holder = {"project_key": HOMES[rest[0]], "agent_name": rest[0]}
        held = await room.call("file_reservation_paths", **holder, paths=["a"])
        await room.call(
            "force_release_file_reservation", **own, reservation_id=held["granted"][0]["id"], reason="r"
        )
    elif kind == "reply":
        message = {"message_id": rest[0], "reply_all": rest[1], "body_md": "b"}
        await room.call("reply_message", project_key=HOMES[who], sender_name=who, **message)
    else:
        lists = dict(
            zip(
                ("to", "cc", "bcc"),
                ([_address(n, HOMES[who]) for n in names] for names in rest[:3]),
                strict=True,
            )
        )
        message = {"sender_name": who, "subject": "s", "body_md": "b", **lists, **rest[3]}
        await room.call("send_message", project_key=HOMES[who], **message)


async def _messages(room: Room) -> dict[int, tuple[Message, list[Recipient]]]:
    def look(tx: MailReads) -> dict[int, tuple[Message, list[Recipient]]]:
        found = [
            one for project in tx.projects(limit=9) for one in tx.project_messages(project.id, limit=999)
        ]
        recipients = tx.recipients([one.id for one in found])
        return {one.id: (one, recipients[one.id]) for one in found}

    return await room.store.read(look)


@given(_acts())
@settings(SMALL, max_examples=150)
def test_no_combination_of_flags_gets_a_message_to_one_who_does_not_take_it(acts: list[Act]) -> None:
    async def play(room: Room) -> None:
        await _open_three(room)
        wishes = Wishes()
        known: dict[int, tuple[Message, list[Recipient]]] = {}
        for act in acts:
            try:
                await _do(room, act, wishes)
            except PostroomError:
                assert await _messages(room) == known, "a refusal sends nothing"
                continue
            messages = await _messages(room)
            for number in messages.keys() - known.keys():
                message, readers = messages[number]
                original = known[message.reply_to] if message.reply_to else None
                for reader in readers:
                    assert wishes.may(
                        message.sender_name,
                        reader.name,
                        answers=_answers(original, message.sender_name, reader.name),
                    ), (act, reader)
            known = messages

    _run(play)


def _answers(original: tuple[Message, list[Recipient]] | None, sender: str, reader: str) -> bool:
    if original is None:
        return False
    message, readers = original
    return message.sender_name == reader and sender in {one.name for one in readers}


@given(_acts(), PEOPLE, PEOPLE)
@settings(SMALL, max_examples=60)
def test_one_who_takes_a_message_gets_it(acts: list[Act], sender: str, reader: str) -> None:
    async def play(room: Room) -> None:
        await _open_three(room)
        wishes = Wishes()
        for act in acts:
            try:
                await _do(room, act, wishes)
            except PostroomError:
                continue
        if sender in wishes.retired:
            return
        message = {
            "sender_name": sender,
            "to": [_address(reader, HOMES[sender])],
            "subject": "s",
            "body_md": "b",
        }
        try:
            await room.call("send_message", project_key=HOMES[sender], **message)
        except PostroomError:
            assert not wishes.may(sender, reader, answers=False)
        else:
            assert wishes.may(sender, reader, answers=False)

    _run(play)


# Hidden copies

ANIMALS = ("Quagga", "Numbat", "Okapi", "Zorilla", "Wombat")
ABROAD = "Vicuna"


@dataclass(slots=True)
class Seen:
    """The view of one viewer of one message, as text, and the names that it may contain."""

    viewer: str
    message: int
    text: str


def _names_in(text: str) -> set[str]:
    return {name for name in (*ANIMALS, ABROAD) if name in text}


ANIMAL = st.sampled_from(ANIMALS)
ANYBODY = st.sampled_from([*ANIMALS, f"{ABROAD}@projects-shore"])
MESSAGES = st.lists(
    st.tuples(
        ANIMAL,
        st.lists(ANYBODY, max_size=3),
        st.lists(ANYBODY, max_size=2),
        st.lists(ANYBODY, max_size=3),
        st.sampled_from(["send", "broadcast", "ack", "answer all", "recall"]),
    ),
    min_size=1,
    max_size=6,
)


async def _send_all(room: Room, messages: list[Act]) -> None:
    for sender, to, cc, bcc, twist in messages:
        try:
            sent = await room.call(
                "send_message",
                sender_name=sender,
                to=to,
                cc=cc,
                bcc=bcc,
                subject="zebra",
                body_md="zebra?",
                thread_id="t",
                ack_required=True,
                broadcast=twist == "broadcast",
            )
            message = sent["deliveries"][0]["payload"]["id"]
            readers = [one for one in (*to, *cc, *bcc) if "@" not in one]
            if twist == "ack" and readers:
                await room.call("acknowledge_message", agent_name=readers[-1], message_id=message)
            elif twist == "answer all" and readers:
                answer = {"message_id": message, "body_md": "zebra", "reply_all": True}
                await room.call("reply_message", sender_name=readers[-1], **answer)
            elif twist == "recall":
                await room.call("recall_message", sender_name=sender, message_id=message)
        except PostroomError:
            continue


async def _seen_by(room: Room, viewer: str, home: str, ids: Iterable[int]) -> list[Seen]:
    """Return each view of each message that an agent can have."""
    own = {"project_key": home, "agent_name": viewer}
    seen: list[Seen] = []
    for name in ("get_message", "delivery_status"):
        for number in ids:
            try:
                shown = await room.call(name, **own, message_id=number)
            except PostroomError as error:
                shown = error.as_dict()
            seen.append(Seen(viewer, number, json.dumps(shown)))
    entries = await room.call("fetch_inbox", **own, limit=1_000)
    entries += (await room.call("fetch_inbox_events", **own, limit=1_000))["events"]
    entries += (await room.call("start_session", project_key=home, name=viewer, program="p", model="m"))[
        "inbox"
    ]
    entries += (await room.call("search_messages", project_key=home, query="zebra"))["hits"]
    return seen + [Seen(viewer, one["id"], json.dumps(one)) for one in entries]


async def _archived(room: Room) -> list[Seen]:
    """Return each message as the archive shows it, to nobody in particular."""

    def look(tx: MailReads) -> dict[str, bytes]:
        project = tx.project(HARBOR)
        assert project is not None
        rows = tx.outbox.open("archive", limit=1_000)
        batch = gather(tx, project, [row.payload["record"] for row in rows])
        return {**batch.files, **{f"messages/{one.id}-": content for one, content in batch.recalled}}

    files = await room.store.read(look)
    pages = {path: content.decode() for path, content in files.items() if path.startswith("messages/")}
    return [Seen("", int(path.rpartition("/")[2].partition("-")[0]), text) for path, text in pages.items()]


def _may_stand(seen: Seen, message: Message, readers: list[Recipient]) -> set[str]:
    hidden = {one.name for one in readers if one.kind == "bcc"}
    own = hidden if seen.viewer == message.sender_name else hidden & {seen.viewer}
    return {message.sender_name, *(one.name for one in readers if one.kind != "bcc"), *own}


@given(MESSAGES)
@settings(SMALL, max_examples=60)
def test_no_view_shows_a_hidden_recipient_to_anyone_but_the_sender_and_itself(messages: list[Act]) -> None:
    async def play(room: Room) -> None:
        await room.open(*ANIMALS)
        await room.open(ABROAD, project=SHORE)
        await _send_all(room, messages)
        known = await _messages(room)
        seen = await _archived(room)
        for viewer in ANIMALS:
            seen += await _seen_by(room, viewer, HARBOR, known)
        seen += await _seen_by(room, ABROAD, SHORE, known)
        for one in seen:
            may = _may_stand(one, *known[one.message]) | ({one.viewer} if '"code"' in one.text else set())
            assert _names_in(one.text) <= may, one
        await _summary_shows_no_hidden(room, known)

    _run(play)


async def _summary_shows_no_hidden(room: Room, known: dict[int, tuple[Message, list[Recipient]]]) -> None:
    if not known:
        return
    found = await room.call("summarize_thread", thread_id="t")
    assert {one["name"] for one in found["participants"]} == {
        message.sender_name for message, _ in known.values()
    }
    for waiting in found["unacknowledged"]:
        _, readers = known[waiting["message_id"]]
        hidden = {one.name for one in readers if one.kind == "bcc"}
        assert not hidden & set(waiting["waiting_for"])


# Cursors

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("recall"), st.integers(0, 50)),
        st.tuples(st.just("read"), st.integers(0, 50)),
        st.tuples(st.just("follow"), st.integers(1, 4)),
        st.tuples(st.just("page"), st.integers(1, 4)),
        st.tuples(st.just("clock"), st.integers(-5, 5)),
    ),
    max_size=40,
)


@dataclass(slots=True)
class Follower:
    """Two readers of one inbox, each by its own cursor."""

    events: list[int] = field(default_factory=list)
    events_at: int = 0
    messages: list[int] = field(default_factory=list)
    messages_at: int = 0

    async def follow(self, room: Room, limit: int) -> bool:
        page = await room.call("fetch_inbox_events", agent_name="Ben", after=self.events_at, limit=limit)
        self.events += [one["id"] for one in page["events"]]
        self.events_at = page["next"]
        return bool(page["events"])

    async def page(self, room: Room, limit: int) -> bool:
        page = await room.inbox("Ben", after=self.messages_at, limit=limit)
        self.messages += [one["id"] for one in page]
        self.messages_at = page[-1]["seq"] if page else self.messages_at
        return bool(page)


@given(STEPS)
@settings(SMALL, max_examples=80)
def test_cursors_never_skip_or_repeat_a_message_while_others_send_recall_and_read(
    steps: list[tuple[str, int]],
) -> None:
    async def play(room: Room) -> None:
        await room.open("Ada", "Ben")
        sent: list[int] = []
        gone: set[int] = set()
        follower = Follower()
        for kind, number in steps:
            if kind == "send":
                sent += [await room.send("Ada", "Ben") for _ in range(number)]
            elif kind == "follow":
                await follower.follow(room, number)
            elif kind == "page":
                await follower.page(room, number)
            elif kind == "clock":
                room.clock.advance(timedelta(hours=number))
            elif sent:
                await _touch(room, kind, sent[number % len(sent)], gone)
        while await follower.follow(room, 3):
            pass
        while await follower.page(room, 3):
            pass
        assert follower.events == sent
        assert len(set(follower.messages)) == len(follower.messages)
        assert set(sent) - gone <= set(follower.messages) <= set(sent)

    _run(play)


async def _touch(room: Room, kind: str, message: int, gone: set[int]) -> None:
    if kind == "read":
        await room.call("mark_message_read", agent_name="Ben", message_id=message)
        return
    try:
        await room.call("recall_message", sender_name="Ada", message_id=message)
    except AlreadyRead:
        return
    gone.add(message)


# Leases

COVERS = {
    "a/x": {"a/x"},
    "a/*": {"a/x", "a/y"},
    "a/**": {"a/x", "a/y", "a/b/x"},
    "**/x": {"a/x", "a/b/x", "x"},
    "x": {"x"},
    "*": {"x", "z"},
    "port:1": {"port:1"},
}
HOLDERS = ("Ada", "Ben", "Cyd")
LEASES = st.lists(
    st.one_of(
        st.tuples(
            st.just("reserve"),
            st.sampled_from(HOLDERS),
            st.sampled_from(sorted(COVERS)),
            st.booleans(),
            st.integers(1, 90),
        ),
        st.tuples(st.just("release"), st.sampled_from(HOLDERS), st.sampled_from([*sorted(COVERS), ""])),
        st.tuples(st.just("renew"), st.sampled_from(HOLDERS), st.integers(1, 90)),
        st.tuples(st.just("pass"), st.integers(1, 40_000)),
    ),
    max_size=40,
)


@dataclass(slots=True)
class Lease:
    """A reservation, as simply as it can be kept."""

    ends: int
    ttl: int
    exclusive: bool


@dataclass(slots=True)
class Ledger:
    """The holders of reservations; activity extends them, at most once in half a minute."""

    now: int
    held: dict[tuple[str, str], Lease] = field(default_factory=dict)
    active: dict[str, int] = field(default_factory=dict)

    def live(self) -> dict[tuple[str, str], Lease]:
        return {key: lease for key, lease in self.held.items() if lease.ends > self.now}

    def sign_of_life(self, who: str) -> None:
        if self.now - self.active[who] < 30_000:
            return
        self.active[who] = self.now
        for (holder, _), lease in self.live().items():
            if holder == who:
                lease.ends = max(lease.ends, self.now + lease.ttl)

    def conflicts(self, who: str, path: str, *, exclusive: bool) -> set[tuple[str, str]]:
        return {
            (holder, other)
            for (holder, other), lease in self.live().items()
            if holder != who and (exclusive or lease.exclusive) and COVERS[path] & COVERS[other]
        }


async def _lease(room: Room, ledger: Ledger, act: Act) -> None:
    kind, who, *rest = act
    ledger.sign_of_life(who)
    if kind == "reserve":
        path, exclusive, seconds = rest
        answer = await room.call(
            "file_reservation_paths", agent_name=who, paths=[path], exclusive=exclusive, ttl_seconds=seconds
        )
        found = {
            (one["agent"], one["path"]) for conflict in answer["conflicts"] for one in conflict["holders"]
        }
        assert found == ledger.conflicts(who, path, exclusive=exclusive)
        ledger.held[who, path] = Lease(ledger.now + seconds * 1_000, seconds * 1_000, exclusive)
    elif kind == "release":
        chosen = {"paths": [rest[0]]} if rest[0] else {}
        await room.call("release_file_reservations", agent_name=who, **chosen)
        for key in list(ledger.held):
            if key[0] == who and (not rest[0] or COVERS[key[1]] <= COVERS[rest[0]]):
                del ledger.held[key]
    else:
        await room.call("renew_file_reservations", agent_name=who, ttl_seconds=rest[0])
        for key, lease in ledger.live().items():
            if key[0] == who:
                lease.ends, lease.ttl = max(lease.ends, ledger.now + rest[0] * 1_000), rest[0] * 1_000


@given(LEASES)
@settings(SMALL, max_examples=100)
def test_leases_conflict_extend_and_end_as_in_a_simple_ledger(acts: list[Act]) -> None:
    async def play(room: Room) -> None:
        await room.open(*HOLDERS)
        ledger = Ledger(room.clock.now(), active=dict.fromkeys(HOLDERS, room.clock.now()))
        for act in acts:
            if act[0] == "pass":
                room.clock.advance(timedelta(milliseconds=act[1]))
                ledger.now = room.clock.now()
            else:
                await _lease(room, ledger, act)
            listed = (await room.call("list_file_reservations"))["reservations"]
            shown = {(one["agent"], one["path"]): one["exclusive"] for one in listed}
            assert shown == {key: lease.exclusive for key, lease in ledger.live().items()}

    _run(play)


# Keys

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["Ada", "Ben"]), st.sampled_from(["k1", "k2", "k3"]), st.sampled_from(["s", "t"])
    ),
    max_size=25,
)


@given(CALLS, st.integers(0, 2**32))
@settings(SMALL, max_examples=60)
def test_each_key_of_each_agent_has_one_effect_in_whatever_order_calls_come(
    calls: list[Act], seed: int
) -> None:
    dice = random.Random(seed)

    async def play(room: Room) -> None:
        await room.open("Ada", "Ben", "Cyd")
        first: dict[tuple[str, str], tuple[str, Any]] = {}
        for who, key, subject in sorted(calls, key=lambda _: dice.random()):
            message = {
                "sender_name": who,
                "to": ["Cyd"],
                "subject": subject,
                "body_md": "b",
                "idempotency_key": key,
            }
            try:
                answer = await room.call("send_message", **message)
            except IdempotencyConflict:
                assert first[who, key][0] != subject
                continue
            assert first.setdefault((who, key), (subject, answer)) == (subject, answer)
        assert len(await room.inbox("Cyd", limit=1_000)) == len(first)

    _run(play)
