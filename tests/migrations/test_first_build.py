"""What the first build left, killed in the middle of its work, is opened by the code of today and goes on.

`first_build/make.py` says how the files were made. Here a real server, or a gateway on PostgreSQL, is started on
a copy of them, and what they hold is looked for by what agents, people and programs call.
"""

import asyncio
import importlib
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from channels.fake_telegram import FakeTelegram, shown_text, update
from dispatch_room import Deaf, done
from e2e import gateway_process
from e2e.running import Line, RunningServer
from e2e.test_gateway_server import on_a_loop_of_its_own
from migrations.copying import copy_to_postgres
from postgres_server import missing_postgres, running_postgres
from postroom.contracts.activation import RunActivation
from postroom.contracts.events import EventScope
from postroom.contracts.messages import Message
from postroom.contracts.runs import RunStatus
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway import wording

LEFT = Path(__file__).with_name("first_build")
EXPECTED = json.loads((LEFT / "expected.json").read_text())
MAIL = EXPECTED["sqlite"]
RUNS = EXPECTED["postgres"]
PROJECT, SLUG = MAIL["project"], MAIL["slug"]
PATIENCE = 60.0
LATER_MS = 5 * 60_000
"""Between the end of the first build and the start of today's code: every lease has ended."""
FIRST_BUILD = 1795
"""With what every instant begins that the first build wrote."""
JSON = {"Content-Type": "application/json"}
pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


def soon(look: Callable[[], Any]) -> Any:
    """Look until there is something, and return it."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        pause.wait(0.05)
    raise AssertionError("it did not happen in time")


def heard(fake: FakeTelegram, chat: int) -> list[str]:
    """Return what was said in a chat, as people read it."""
    return [
        shown_text(one["text"]) if one.get("parse_mode") == "MarkdownV2" else one["text"]
        for one in fake.sent("sendMessage")
        if int(one["chat_id"]) == chat
    ]


class Opened:
    """A server of today over a copy of the data folder, and the chat that it speaks to.

    With an empty database `dsn` everything that was in the file is copied there first.
    """

    def __init__(self, folder: Path, fake: FakeTelegram, feed: Callable[[Any], None], dsn: str = "") -> None:
        with tarfile.open(LEFT / "data.tar.xz") as packed:
            packed.extractall(folder, filter="tar")
        settings = folder / "data" / "gateway.toml"
        settings.write_text(re.sub('base_url = ".*"', f'base_url = "{fake.url}"', settings.read_text()))
        program: tuple[str, ...] | None = (str(LEFT / "at_instant.py"), str(MAIL["killed_at"] + LATER_MS))
        flags = ["--database-url", dsn] if dsn else []
        if dsn:
            # The clock of the database cannot be moved: every instant is.
            program, by = None, int(time.time() * 1000) - MAIL["killed_at"] - LATER_MS
            file = folder / "data" / "postroom.db"
            copy_to_postgres(file, dsn, becomes=lambda value: _moved_value(value, by=by))
            with psycopg.connect(
                dsn
            ) as session:  # the archive, in which nothing is moved, knows when that was
                session.execute("UPDATE postroom.projects SET created_at = created_at - %s", (by,))
            for file in (folder / "data").glob("postroom.db*"):
                file.unlink()
        self.server = RunningServer(folder / "data", *flags, program=program)
        self.fake, self._feed, self.is_moved = fake, feed, bool(dsn)
        self._updates = 1_000

    def tool(self, name: str, /, **arguments: Any) -> Any:
        with self.server.line() as line:
            return line.tool(name, **{"project_key": PROJECT, **arguments})

    def asked(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        with self.server.line() as line:
            raw = None if body is None else json.dumps(body).encode()
            answer = line.request(method, path, body=raw, headers=JSON)
        assert answer.status == status, answer.text
        return answer.json()

    def inbox(self, name: str, **more: Any) -> list[dict[str, Any]]:
        return list(self.tool("fetch_inbox", agent_name=name, **{"after": 0, "limit": 1000, **more}))

    def answers_to(self, thread: str) -> list[str]:
        """Return what was written to Ada on a thread."""
        return [one["body_md"] for one in self.inbox("Ada") if one["thread_id"] == thread]

    def said(self, chat: int, text: str) -> None:
        """Have somebody write in their chat."""
        self._updates += 1
        who = {"id": chat, "is_bot": False, "first_name": f"P{chat}"}
        place = {"id": chat, "type": "private", "first_name": f"P{chat}"}
        told = {"message_id": self._updates, "date": 1, "text": text, "from": who, "chat": place}
        self._feed(update(self._updates, message=told))

    def chat_answers(self, chat: int) -> int:
        """Return how often the agent answered in a chat since the server was started."""
        return sum("done by Gil" in text for text in heard(self.fake, chat))


_NUMBERS = count(1)


@contextmanager
def a_database() -> Iterator[str]:
    """An empty database of its own."""
    if reason := missing_postgres():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    name = f"first_build_{os.getpid()}_{next(_NUMBERS)}"
    with running_postgres() as server:
        with psycopg.connect(server, autocommit=True) as session:
            session.execute(f"CREATE DATABASE {name}")
        yield re.sub(r"/[^/?]*(\?.*)?$", rf"/{name}\1", server)
        with psycopg.connect(server, autocommit=True) as session:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("left")
    with (
        nullcontext("") if request.param == "sqlite" else a_database() as dsn,
        on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, loop),
    ):
        made = Opened(folder, fake, lambda told: loop.call_soon_threadsafe(fake.feed, told), dsn)
        with made.server:
            yield made
        assert "Traceback" not in made.server.log()


def test_letters_are_there_with_who_read_acknowledged_or_recalled_them(opened: Opened) -> None:
    kept, letters = MAIL["letters"], MAIL["messages"]
    for name in ("Ada", "Ben", "Bo", "Hal", "Di"):
        there = {one["id"]: (one["subject"], one["body_md"]) for one in opened.inbox(name)}
        unread = MAIL["unread"][f"{name}@{SLUG}"]
        assert {number: there[number] for number in unread} == {
            number: (letters[str(number)]["subject"], letters[str(number)]["body"]) for number in unread
        }
    unread = [one["id"] for one in opened.inbox("Ben", unread_only=True)]
    assert unread == MAIL["unread"][f"Ben@{SLUG}"]
    told = opened.tool("delivery_status", agent_name="Ada", message_id=kept["first"])["recipients"]
    assert {one["name"]: one["state"] for one in told} == {
        "Ben": "acknowledged",
        "Cleo": "stored",
        "Dora": "stored",
    }
    read = opened.tool("delivery_status", agent_name="Ada", message_id=kept["read"])["recipients"]
    assert [one["state"] for one in read] == ["read"]
    recalled = opened.tool("get_message", agent_name="Ada", message_id=kept["recalled"])
    assert recalled["recalled_at"]
    assert "not for you" not in json.dumps(recalled)


def test_a_hidden_reader_attachments_and_threads_are_as_they_were(opened: Opened) -> None:
    kept = MAIL["letters"]
    for name, hidden in (("Ada", ["Dora"]), ("Ben", [])):
        found = opened.tool("get_message", agent_name=name, message_id=kept["first"])
        assert (found["to"], found["cc"], found.get("bcc") or []) == (["Ben"], ["Cleo"], hidden)
    plan = next(one for one in found["attachments"] if one["name"] == "plan.txt")
    with opened.server.line() as line:
        sent = line.request("GET", f"/attachments/{plan['sha256']}?message={kept['first']}")
    assert (sent.status, sent.body) == (200, b"left, then right\n")
    thread = opened.tool("summarize_thread", thread_id="lights")
    assert {one["name"] for one in thread["participants"]} >= {"Ada", "Ben"}
    hits = opened.tool("search_messages", query="north")["hits"]
    assert [one["id"] for one in hits] == [kept["first"]]


def test_agents_contacts_reservations_and_people_are_as_they_were(opened: Opened) -> None:
    listed = opened.tool("list_agents", include_retired=True)["agents"]
    agents = {one["name"]: one for one in listed}
    assert {name for name, one in agents.items() if one["retired_at"]} == {"Dora"}
    assert agents["Cleo"]["contact_policy"] == "approval"
    contacts = opened.tool("list_contacts", agent_name="Cleo")
    told = json.dumps(contacts)
    assert (told.count('"approved"'), told.count('"pending"')) == (1, 1)
    held = opened.tool("list_file_reservations")["reservations"]
    assert {(one["agent"], one["path"], one["exclusive"]) for one in held} == {
        ("Ada", "src/**", True),
        ("Ben", "docs/*.md", False),
    }
    people = {one["name"]: one.get("chat") for one in opened.asked("GET", "/admin/people")["people"]}
    assert people == {"hal": "telegram/1", "bob": None}
    runners = opened.asked("GET", "/admin/runners")["runners"]
    assert {one["agent"] for one in runners} == {"Bo", "Cy", "Di", "Gil", "Hal", "Ike", "Kim", "Lea", "Max"}
    assert {tuple(one["runner"]["pass_env"]) for one in runners} == {("FIRST_BUILD_DESK",)}


def test_tokens_open_what_they_opened(opened: Opened) -> None:
    for token, agent in ((MAIL["named_token"]["reader"], "Ada"), (MAIL["agent_token"]["Ben"], "Ben")):
        with Line(opened.server.address, headers={"Authorization": f"Bearer {token}"}) as line:
            assert line.tool("fetch_inbox", project_key=PROJECT, agent_name=agent)
    listed = opened.asked("GET", "/admin/tokens?all=yes")["tokens"]
    assert {one["name"] for one in listed} == {"reader", "gone"}


def test_a_call_that_was_answered_before_is_answered_alike_and_done_once(opened: Opened) -> None:
    asked = MAIL["idempotent"]
    assert opened.tool(asked["tool"], **asked["arguments"]) == asked["answer"]
    on_thread = [one["id"] for one in opened.inbox("Ben") if one["thread_id"] == "lights"]
    assert on_thread == [MAIL["letters"]["first"]]


def test_runs_at_work_queued_or_only_stored_end_and_answer_each_letter_once(opened: Opened) -> None:
    threads = {"work-bo-1": "Bo", "work-bo-2": "Bo", "work-max": "Max"}
    hal = MAIL["unread"][f"Hal@{SLUG}"]
    threads |= {one["thread_id"]: "Hal" for one in opened.inbox("Hal") if one["id"] in hal}
    assert len(threads) == 3 + len(hal)
    soon(lambda: set(threads) <= {one["thread_id"] for one in opened.inbox("Ada")})
    for name in ("Bo", "Max", "Hal"):
        soon(lambda name=name: not opened.inbox(name, unread_only=True))
    found = Counter((one["thread_id"], one["body_md"]) for one in opened.inbox("Ada"))
    answered = {one: times for one, times in found.items() if one[0] in threads}
    assert answered == {(thread, f"done by {name}"): 1 for thread, name in threads.items()}


def test_what_had_ended_has_ended_once_and_a_dead_letter_is_kept(opened: Opened) -> None:
    assert opened.answers_to("work-hal") == ["done by Hal"]
    assert opened.answers_to("work-kim")[1:] == ["done by Kim"]
    [failed] = opened.answers_to("work-di")
    assert "the lamp is broken" in failed
    runs = opened.asked("GET", f"/admin/runs?project={SLUG}")["runs"]
    states = {one["agent"]: one["state"] for one in runs if one["agent"] in ("Di", "Lea", "Kim")}
    assert states == {"Di": "failed", "Lea": "cancelled", "Kim": "done"}
    assert "the lamp is broken" in json.dumps(opened.asked("GET", "/admin/runs/dead"))


def test_questions_can_be_answered_and_their_runs_go_on(opened: Opened) -> None:
    for kept, answer in zip(MAIL["questions"], ("yes", "no"), strict=True):
        listed = opened.asked("GET", "/admin/questions")["questions"]
        [one] = [one for one in listed if one["question"] == kept["text"]]
        assert opened.is_moved or one["number"] == kept["number"]  # it is made from the instant, too
        opened.asked("POST", "/admin/questions", {"number": one["number"], "answer": answer})
        opened.asked("POST", "/admin/questions", {"number": one["number"], "answer": "no"}, status=409)
        name = kept["agent"]
        assert soon(lambda name=name: opened.answers_to(f"work-{name.lower()}")[1:]) == [f"done by {name}"]
    assert opened.asked("GET", "/admin/questions")["questions"] == []


def test_each_message_of_a_chat_is_answered_once(opened: Opened) -> None:
    messages = Counter(one["chat"] for one in MAIL["open_lines"])
    assert {one["status"] for one in MAIL["open_lines"]} == {"waiting", "handed_over"}
    soon(lambda: all(opened.chat_answers(chat) >= number for chat, number in messages.items()))

    def closed() -> bool:
        told = opened.asked("GET", "/health/detailed")["gateway"]["lines"]
        return not (told["queued"] or told["running"])

    soon(closed)
    assert {chat: opened.chat_answers(chat) for chat in messages} == dict(messages)


def test_an_answer_that_was_given_up_is_kept_and_can_be_delivered(opened: Opened) -> None:
    [dead] = opened.asked("GET", "/admin/gateway/dead")["undelivered"]
    assert "bot was blocked" in json.dumps(dead)
    before = opened.chat_answers(5)
    opened.asked("POST", "/admin/gateway/dead", {"outbox_id": dead["outbox_id"]})
    soon(lambda: opened.chat_answers(5) == before + 1)


def test_who_was_let_in_writes_on_and_who_asked_can_be_let_in(opened: Opened) -> None:
    told = MAIL["pairing"]
    people = opened.asked("GET", "/admin/gateway/people")
    assert told["in"] in json.dumps(people["people"])
    asked = {"platform": "telegram", "code": told["code"], "role": "member"}
    opened.asked("POST", "/admin/gateway/pair", asked)
    opened.said(int(told["asks"]), "thank you")
    soon(lambda: opened.chat_answers(int(told["asks"])))


def test_the_log_of_a_project_has_no_gap_and_goes_on(opened: Opened) -> None:
    numbers: list[int] = []
    while page := opened.tool("fetch_events", after=numbers[-1] if numbers else 0, limit=100)["events"]:
        numbers += [one["seq"] for one in page]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > MAIL["newest_event"]


def test_letters_that_were_not_in_the_archive_come_there(opened: Opened) -> None:
    opened.server.await_archive()
    repository = opened.server.repository(SLUG)
    listed = subprocess.run(
        ["git", "--git-dir", str(repository), "log", "--all", "-p"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Check the **north** pier." in listed
    assert "Not archived yet" in listed


def _moved_value(value: Any, *, by: int) -> Any:
    if isinstance(value, int) and value // 10**9 == FIRST_BUILD:
        return value + by
    return _moved(value, by=by) if isinstance(value, str) else value


# Runs and chats on PostgreSQL.


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A database of its own, as the first build left it a moment ago."""
    importlib.import_module("postroom.stores.postgres")  # reads its statements, so not within an event loop
    dump = lzma.decompress((LEFT / "postgres.sql.xz").read_bytes()).decode()
    with a_database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as session:
            session.execute(_moved(dump, by=int(time.time() * 1000) - RUNS["killed_at"] - LATER_MS))
        yield dsn


def _moved(dump: str, *, by: int) -> str:
    """Move every instant, since the server's clock cannot be moved."""
    return re.sub(rf"\b{FIRST_BUILD}\d{{9}}\b", lambda found: str(int(found[0]) + by), dump)


@pytest.fixture(scope="module")
def gone_on(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, FakeTelegram]]:
    """The database when a gateway of today has answered what was open, and the chats that it spoke in."""
    folder = tmp_path_factory.mktemp("gateway")
    texts = [one["text"] for one in RUNS["open_lines"]]
    with on_a_loop_of_its_own(lambda: FakeTelegram().serving()) as (fake, _):
        words = [str(gateway_process.__file__), database, str(folder / "journal"), fake.url, "2"]
        with (folder / "errors").open("wb") as errors:
            process = subprocess.Popen([sys.executable, *words], stdout=errors, stderr=errors)
        try:
            soon(lambda: {f"re: {text}" for text in texts} <= {_plain(text) for text in _all_heard(fake)})
            soon(
                lambda: (
                    {("held-1", "one"), ("held-1", "two"), ("held-2", "one")} <= _ended(folder / "journal")
                )
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, (folder / "errors").read_text()
        finally:
            process.kill()
            process.wait()
        yield database, fake


def _ended(journal: Path) -> set[tuple[str, str]]:
    """Return the threads and texts of the runs that were executed to their end."""
    rows = [row.split(" ") for row in journal.read_text().splitlines()]
    return {(thread, text) for word, thread, _, text, _ in rows if word == "end"}


def _plain(text: str) -> str:
    return text.removeprefix(f"{wording.POSSIBLE_DUPLICATE}\n")


def _all_heard(fake: FakeTelegram) -> list[str]:
    return [text for chat in {one["chat"] for one in RUNS["open_lines"]} for text in heard(fake, chat)]


@asynccontextmanager
async def stores_on(dsn: str) -> AsyncIterator[Any]:
    """Open what holds runs and chats on PostgreSQL: the one place here that knows its name."""
    from postroom.stores.postgres import PostgresStore

    stores = await asyncio.to_thread(PostgresStore.open, dsn)
    try:
        yield stores
    finally:
        await asyncio.to_thread(stores.close)


class Deciding(Deaf):
    """Says what was decided."""

    async def execute(self, activation: Any, sink: Any) -> Any:
        return done(activation, f"decided: {[resume.approved for _, resume in activation.decisions]}")


async def test_what_is_on_postgresql_is_as_it_was(gone_on: tuple[str, FakeTelegram]) -> None:
    async with stores_on(gone_on[0]) as stores:
        mailbox = Mailbox(Deciding(), stores.runs)
        texts = [one.text() for one in await stores.runs.threads.load_messages("done")]
        assert texts == ["one", "re: one", "two", "re: two"]
        assert [one.thread_id for one in await mailbox.dead_letters()] == ["failing"]
        assert [one.message.text() for one in await mailbox.pending("pending")] == ["later"]
        told = (await stores.runs.events.list(EventScope.thread("done"))).events
        assert [one.event_kind for one in told][:3] == ["Kind0", "Kind1", "Kind2"]
        due = await stores.runs.outbox.claim("own", "t", lease_ms=1_000, limit=10)
        assert sorted(one.payload["n"] for one in due) == [1, 2]
        people = stores.chat.people
        assert [one.user_id for one in await people.people()] == ["8"]
        assert [one.user_id for one in await people.requests()] == ["9"]
        await mailbox.aclose()


async def test_runs_on_postgresql_that_were_at_work_or_queued_end_once(
    gone_on: tuple[str, FakeTelegram],
) -> None:
    async with stores_on(gone_on[0]) as stores:
        for thread, wanted in (
            ("held-1", ["one", "re: one", "two", "re: two"]),
            ("held-2", ["one", "re: one"]),
        ):
            messages = [one.text() for one in await stores.runs.threads.load_messages(thread)]
            assert Counter(messages) >= Counter(wanted)
            assert Counter(messages)["re: one"] == 1


async def test_a_question_on_postgresql_can_be_answered_and_its_run_goes_on(
    gone_on: tuple[str, FakeTelegram],
) -> None:
    async with stores_on(gone_on[0]) as stores:
        mailbox = Mailbox(Deciding(), stores.runs)
        run = await stores.runs.threads.latest_run("asking-open")
        assert run.status is RunStatus.WAITING
        [ticket] = run.waiting.tickets
        assert (ticket.tool_call_id, ticket.reason) == ("call-1", "May I?")
        yes = ToolCallResume(decision_id="d1", result={"approved": True})
        decided = RunActivation.new(
            "asking-open", [], agent_id="agent", continue_run_id=run.run_id, decisions=[("call-1", yes)]
        )
        await mailbox.submit_background(decided)
        await mailbox.submit_background(RunActivation.new("done", [Message.user("three")], agent_id="agent"))
        await mailbox.settled()
        await mailbox.aclose()
        texts = [one.text() for one in await stores.runs.threads.load_messages("asking-open")]
        assert texts[-1] == "decided: [True]"
        assert (await stores.runs.threads.latest_run("asking-open")).status is RunStatus.DONE
        assert (await stores.runs.threads.load_messages("done"))[-2].text() == "three"


def test_each_message_of_a_chat_on_postgresql_is_answered_once(gone_on: tuple[str, FakeTelegram]) -> None:
    """Or again with a mark: on a busy machine a try may take longer than its lease of two seconds."""
    answered: list[str] = []
    for chat in {one["chat"] for one in RUNS["open_lines"]}:
        firsts: list[str] = []
        for text in heard(gone_on[1], chat):
            if (plain := _plain(text)).startswith("re: "):
                assert plain not in firsts or plain != text, f"{text!r} is there twice, unmarked"
                firsts += [] if plain in firsts else [plain]
        assert firsts == sorted(firsts)
        answered += firsts
    assert Counter(answered) == Counter(f"re: {one['text']}" for one in RUNS["open_lines"])
