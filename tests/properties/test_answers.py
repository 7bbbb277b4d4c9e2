"""Every question gets one answer, from a person who may answer it and for its action, on any surface and after restarts.

Each example is a question and random steps: answers on several surfaces at the same moment, at one server or at two
servers of one database, withdrawn answers, restarts, and time that passes. After each step all surfaces of all
servers show the same. At the end the agent has received the answer once, or not at all.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import PostroomError
from postroom.contracts.records import replace
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.gateway.questions import Questions
from postroom.gateway.replies import question_of
from postroom.gateway.session import Platform, SessionSource
from postroom.mcp_server.windows import Windows
from postroom.services.questions import QuestionTimeouts
from postroom.stores.postgres.store import PostgresStore
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock
from store_kinds import SCHEMA, empty, refuse_missing
from waking.test_kinds_of_questions import BAD, GOOD, KINDS, POSTROOM
from waking_room import PROJECT
from work_room import SLUG, TOKEN, WorkRoom, hidden, post

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]

RUNS: Final = [
    pytest.param(("sqlite", 50), id="few-sqlite"),
    pytest.param(("postgres", 15), id="few-two-servers"),
    pytest.param(("sqlite", 1_000), id="many-sqlite"),
    pytest.param(("postgres", 300), id="many-two-servers"),
]
"""The database, and the number of examples unless `POSTROOM_EXAMPLES` sets it; CI runs the few."""
PEOPLE: Final = ("ana", "ben", "cyd")
OTHERS: Final = {
    "choice": "eur",
    "form": "amount = 7; currency = USD",
    "text": "Name it Cy.",
    "yes_no": "no",
    "yes_no_or_words": "yes",
}
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "yes_no": {"on_timeout": "no"},
    "yes_no_or_words": {"on_timeout": "no"},
    "choice": {"on_timeout": "default", "default": "USD"},
    "text": {"on_timeout": "default", "default": "as before"},
    "form": {"on_timeout": "cancel"},
}
LIMITS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"to": ["human:ana", "human:ben"]},
    {"not_by": ["human:ana"]},
    {"to": ["human:ana", "human:cyd"], "not_by": ["human:cyd"]},
)
TAKE_BACK_MS: Final = 8_000
DEADLINE_S: Final = 60
QUESTIONS: Final = f"/p/{SLUG}/questions"
Act = tuple[Any, ...]
Step = tuple[Any, ...]


@dataclass
class Asked:
    """A question of the example, with the answers that may be accepted and the accepted answer."""

    run_id: str
    question: Any
    kind: str
    limits: dict[str, Any]
    given: tuple[str, str] | None = None
    """Who answered, and where; None while the question is open."""

    def takes(self, by: str) -> bool:
        named = f"human:{by}"
        return named not in self.limits.get("not_by", []) and (
            not self.limits.get("to") or named in self.limits["to"]
        )


async def on_page(room: WorkRoom, asked: Asked, words: str, by: str, **more: str) -> None:
    """Send the form of the page of questions, which may have been open in the browser for a long time."""
    async with room.browser() as browser:
        token = hidden((await browser.get(QUESTIONS)).text, "form_token")
        fields = [("form_token", token), ("run", asked.run_id), ("number", asked.question.number), ("by", by)]
        if asked.question.asked.fields:
            given = dict(part.strip().partition(" = ")[::2] for part in words.replace(";", "\n").split("\n"))
            places = {one.name: place for place, one in enumerate(asked.question.asked.fields)}
            fields += [("names", name) for name in places]
            fields += [(f"v{places[name]}", value) for name, value in given.items() if name in places]
        else:
            fields.append(("answer", words))
        found = await post(browser, QUESTIONS, *fields, *more.items())
        assert found.status_code < 500, found.text


async def over_http(room: WorkRoom, asked: Asked, words: str, by: str) -> None:
    """Answer as the command line does, through administration."""
    async with room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}") as operator:
        body = {"number": asked.question.number, "answer": words, "by": by}
        found = await operator.post("/admin/questions", json=body)
        assert found.status_code < 500, found.text


async def in_chat(room: WorkRoom, asked: Asked, words: str, by: str, *, pressed: bool = False) -> None:
    """Answer with the command of a chat, or with the button that sends it."""
    source = SessionSource(platform=Platform.TELEGRAM, chat_id="1", chat_type="dm", user_id="7", user_name=by)
    chat = Questions(room.runs.mailbox, room.stores.threads, room.clock)
    approved = {"yes": True, "no": False}.get(words) if pressed else None
    said = asked.question.number if approved is not None else f"{asked.question.number} {words}"
    run = await room.stores.threads.load_run(asked.run_id)
    await chat.decide([run.thread_id], source, said, approved=approved)


async def by_button(room: WorkRoom, asked: Asked, words: str, by: str) -> None:
    await in_chat(room, asked, words, by, pressed=True)


async def by_mail(room: WorkRoom, asked: Asked, words: str, by: str) -> None:
    """Answer by a reply to the message that asks; the sender gets the reason of a refusal."""
    asks = next((one for one in await room.messages() if f"- {asked.question.text}" in one.body_md), None)
    if asks is None or not words.strip():
        return
    reply = {"project_key": "postroom-people", "sender_name": by, "message_id": asks.id, "body_md": words}
    await room.mail.call("reply_message", reply, caller=POSTROOM)


async def in_window(room: WorkRoom, asked: Asked, words: str, by: str) -> None:
    """Answer in the window of the client; the person at the window has no name."""
    content: dict[str, Any] = {"answer": words}
    if asked.kind == "form":
        content = dict(part.strip().partition(" = ")[::2] for part in words.replace(";", "\n").split("\n"))
    arguments = {"project_key": PROJECT, "agent_name": "Ada"}
    reply = {"action": "accept", "content": content}
    await Windows(room.questions).take(arguments, asked.question.number, reply, by, left=2)


SURFACES: Final[dict[str, Callable[..., Any]]] = {
    "page": on_page,
    "http": over_http,
    "chat": in_chat,
    "button": by_button,
    "mail": by_mail,
    "window": in_window,
}
WHERE: Final = {"button": "chat"}
"""The name of a surface in the record of an answer, if it has another name here."""


def _steps() -> st.SearchStrategy[list[Step]]:
    which, server = st.integers(0, 1), st.integers(0, 1)
    answer = st.tuples(
        st.just("answer"),
        which,
        server,
        st.sampled_from(sorted(SURFACES)),
        st.sampled_from(PEOPLE),
        st.integers(0, 4),
    )
    act = st.one_of(
        answer,
        answer,
        answer,
        st.tuples(st.just("take_back"), which, server),
        st.tuples(st.just("snooze"), which, server),
        st.tuples(st.just("deadline"), which, server),
        st.tuples(st.just("stale"), which, server, st.sampled_from(["page", "http", "chat", "button"])),
    )
    return st.lists(
        st.one_of(
            st.tuples(st.just("together"), st.lists(act, min_size=1, max_size=4)),
            st.tuples(st.just("together"), st.lists(act, min_size=1, max_size=4)),
            st.tuples(st.just("restart"), server),
            st.tuples(st.just("wait"), st.sampled_from([3, 9, 61])),
        ),
        min_size=1,
        max_size=6,
    )


def _words(kind: str, number: int) -> tuple[str, bool]:
    """Return one of the possible answers to a question of this kind, and whether it fits."""
    if number < 2:
        return (GOOD[kind][0], OTHERS[kind])[number], True
    wrong = [one for one in BAD[kind] if one.strip()] or [" "]
    return wrong[number % len(wrong)], False


async def _take_back(room: WorkRoom, asked: Asked) -> Any:
    """Take back the answer that the question has now, or none."""
    place = SLUG, asked.run_id, asked.question.number
    given = await room.look(room.questions.given_answer, *place)
    return await room.questions.take_back(*place, "" if given is None else given.answer_id)


class World:
    """The questions of an example, the servers, and what may be the answers."""

    def __init__(self, stores: list[Any], clock: ManualClock, kind: str, limits: dict[str, Any]) -> None:
        self.stores, self.clock, self.kind, self.limits = stores, clock, kind, limits
        self.rooms = [self._room(store) for store in stores]
        self.asked: list[Asked] = []
        self.told: list[str] = []
        """All texts that agents got, including those from closed servers."""

    def _room(self, store: Any) -> WorkRoom:
        room = WorkRoom(
            store, store.runs, self.clock, take_back_ms=TAKE_BACK_MS, is_exclusive=len(self.stores) == 1
        )
        room.agents.asks = self._arguments()
        return room

    def _arguments(self) -> dict[str, Any]:
        return {
            **KINDS[self.kind],
            "timeout_seconds": DEADLINE_S,
            **DEFAULTS[self.kind],
            **self.limits,
        }

    async def open(self, asks: str) -> None:
        """Make an agent ask: one question or two in a run, or one outside a run."""
        [first, *_] = self.rooms
        await first.people("Ada", "Ash", runners=("Ash",))
        for name in PEOPLE:
            await first.people_named.add(name, None)
        for room in self.rooms:
            room.agents.more_questions = ["And this?"] if asks == "two" else []
        if asks == "outside":
            asked = {"project_key": PROJECT, "agent_name": "Ada", "question": "May I?", **self._arguments()}
            await first.mail.call("ask_person", asked)
        else:
            await first.send("Ada", "Ash")
        await self.turn()
        [run] = await first.stores.threads.list_runs(RunQuery(statuses=(RunStatus.WAITING,)))
        for ticket in run.open_tickets:
            self.asked.append(Asked(run.run_id, question_of(run, ticket), self.kind, self.limits))
        assert len(self.asked) == 1 + (asks == "two")
        self.is_outside = asks == "outside"

    async def turn(self) -> None:
        for _ in self.rooms:
            for room in self.rooms:
                await room.turn()

    async def step(self, name: str, what: Any) -> None:
        match name:
            case "restart":
                place = what % len(self.rooms)
                self.told += self.rooms[place].agents.told
                await self.rooms[place].close()
                self.rooms[place] = self._room(self.stores[place])
                await self.rooms[place].runs.mailbox.recover()
            case "wait":
                self.clock.advance(timedelta(seconds=what))
                for room in self.rooms:
                    await room.runs.mailbox.recover()
            case "together":
                await self.together(what)
        await self.turn()
        await self.agree()

    async def together(self, acts: list[Act]) -> None:
        """Perform acts at the same moment, and find out which answers they may have given."""
        calls = []
        may = [{one.given} if one.given else set[tuple[str, str] | None]() for one in self.asked]
        for act in acts:
            asked = self.asked[place := act[1] % len(self.asked)]
            room = self.rooms[act[2] % len(self.rooms)]
            calls.append(self._act(room, asked, act, may[place]))
            if act[0] == "answer" and act[3] == "mail":  # one reply answers all questions of the message
                for one in may:
                    one |= may[place]
        found = await asyncio.gather(*calls, return_exceptions=True)
        failed = [one for one in found if isinstance(one, Exception) and not isinstance(one, PostroomError)]
        assert not failed, failed
        self.may = may

    def _act(self, room: WorkRoom, asked: Asked, act: Act, may: set[tuple[str, str] | None]) -> Any:
        match act[0]:
            case "answer":
                surface, by = act[3], act[4]
                words, is_fit = _words(self.kind, act[5])
                if surface == "window":
                    if not self.is_outside or asked.limits.get("to") or asked.limits.get("not_by"):
                        return asyncio.sleep(0)  # no window shows this question
                    is_fit = is_fit and (self.kind != "choice" or words in KINDS["choice"]["choices"])
                    if is_fit or (words, self.kind) == ("usd", "choice"):
                        may.add((f"the person at {by}", "window"))
                elif is_fit and asked.takes(by) and not (surface == "mail" and self.is_outside):
                    may.add((by, WHERE.get(surface, surface)))
                return SURFACES[surface](room, asked, words, by)
            case "take_back":
                if asked.given is None or asked.given[1] == "page":
                    may.add(None)
                return _take_back(room, asked)
            case "snooze":
                return room.questions.snooze(asked.question.number, for_ms=60_000)
            case "deadline":
                return QuestionTimeouts(room.runs, self.clock, self.clock).round()
        words = _words(self.kind, 0)[0]
        other = replace(asked.question, number="abcdef", call_id="abcdef")
        return SURFACES[act[3]](room, replace_asked(asked, other), words, "ana")

    async def agree(self) -> None:
        """Check that the run and every surface of every server tell the same."""
        for asked in self.asked:
            await self._agree_on(asked)

    async def _agree_on(self, asked: Asked) -> None:
        number = asked.question.number
        run: RunRecord = await self.rooms[0].stores.threads.load_run(asked.run_id)
        ends = [one for one in run.answered if question_of(run, one.ticket).number == number]
        given = [one.decision for one in ends if one.is_answer]
        is_open = number in [question_of(run, one).number for one in run.open_tickets]
        is_open = is_open and run.status is RunStatus.WAITING
        assert len(ends) + is_open == 1, ends
        assert given or is_open or run.status is RunStatus.DONE, "only the end of its run closes it"
        now = None
        if given:
            [decision] = given
            now = (decision.by, decision.decision_id.partition("/")[0])
            assert decision.result.get("digest", "") == asked.question.asked.digest
            assert decision.by == "nobody" or now[1] == "window" or asked.takes(decision.by)
            assert decision.approved is not True or decision.by != "nobody"
        await self._follows(asked, run, now)
        for room in self.rooms:
            listed = [one["number"] for one in await room.questions.questions()]
            chat = Questions(room.runs.mailbox, room.stores.threads, room.clock)
            here = [one.number for one in await chat.open(run.thread_id)]
            inbox = [one.number async for _, one, _ in chat.everywhere()]
            for surface in (listed, here, inbox):
                assert (number in surface) is is_open, surface
            async with room.browser() as browser:
                page = (await browser.get(QUESTIONS)).text
                home = (await browser.get("/")).text
            assert (f'id="q-{number}"' in page) is is_open
            assert not is_open or (f'value="{number}"' in home and asked.run_id in home)
            shown = await room.look(room.questions.given_answers, SLUG, limit=50)
            assert [(one.by, one.approved) for one in shown if one.number == number] == [
                (one.decision.by, one.decision.approved) for one in ends
            ]

    async def _follows(self, asked: Asked, run: RunRecord, now: tuple[str, str] | None) -> None:
        """Check that this step may have given the answer."""
        before = asked.given
        if now == before:
            return
        may = self.may[self.asked.index(asked)]
        is_late = run.updated_at and any(
            one.ticket.expires_at is not None and one.ticket.expires_at <= self.clock.now()
            for one in run.answered
        )
        allowed = set(may) | ({("nobody", "silence")} if is_late else set())
        if any("before the agent got the answer" in (one.decision.reason or "") for one in run.answered):
            allowed.add(None)  # the deadline of another question has cancelled the run
        assert now in allowed, (before, now, allowed)
        asked.given = now

    async def end(self) -> None:
        """Check the texts that the agent got when everything has been delivered."""
        self.clock.advance(timedelta(milliseconds=TAKE_BACK_MS + 1_000))
        for room in self.rooms:
            await room.runs.mailbox.recover()
        await self.turn()
        await self.agree()
        told = [*self.told, *(text for room in self.rooms for text in room.agents.told)]
        for asked in self.asked:
            heard = Counter(text for text in told if f"You asked a person: {asked.question.text}" in text)
            if self.is_outside:
                run = await self.rooms[0].stores.threads.load_run(asked.run_id)
                mailed = [one for one in await self.rooms[0].messages() if one.subject.startswith("Answer: ")]
                is_mailed = not run.is_open and (asked.given is None or asked.given[1] != "window")
                assert len(mailed) == is_mailed, mailed
            elif asked.given is None:
                assert not heard, heard
            elif any(one.given is None for one in self.asked):
                assert heard.total() <= 1, heard
            else:
                assert heard.total() == 1, (asked.given, told)


def replace_asked(asked: Asked, question: Any) -> Asked:
    return Asked(asked.run_id, question, asked.kind, asked.limits)


def _play(
    stores: list[Any], clock: ManualClock, kind: str, limits: Any, asks: str, steps: list[Step]
) -> None:
    async def play() -> None:
        world = World(stores, clock, kind, limits)
        try:
            await world.open(asks)
            for name, what in steps:
                await world.step(name, what)
            await world.end()
        finally:
            for room in world.rooms:
                await room.close()

    asyncio.run(play())


@pytest.fixture(scope="module", params=RUNS)
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[int, Callable[[], list[Any]], ManualClock]]:
    """Return the number of examples, a function that opens an empty store for each server, and its clock."""
    kind, examples = request.param
    refuse_missing(kind)
    dsn = request.getfixturevalue("postgres_dsn") if kind == "postgres" else ""
    clock, kept = ManualClock(), list[Any]()
    if dsn:
        kept = [PostgresStore.open(dsn, schema=SCHEMA, clock=clock, readers=2) for _ in range(2)]

    def fresh() -> list[Any]:
        if dsn:
            empty(dsn)
            return kept
        for store in kept:
            store.close()
        kept[:] = [SqliteStore.in_memory(clock)]
        return kept

    yield examples, fresh, clock
    for store in kept:
        store.close()


KINDS_OF_ASKING: Final = ("one", "two", "outside")


def test_each_question_gets_one_answer_by_somebody_who_may_and_all_surfaces_agree(opened) -> None:
    examples, fresh, clock = opened

    @settings(
        max_examples=int(os.environ.get("POSTROOM_EXAMPLES", examples)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        kind=st.sampled_from(sorted(KINDS)),
        limits=st.sampled_from(LIMITS),
        asks=st.sampled_from(KINDS_OF_ASKING),
        steps=_steps(),
    )
    def play(kind: str, limits: dict[str, Any], asks: str, steps: list[Step]) -> None:
        _play(fresh(), clock, kind, limits, asks, steps)

    play()
