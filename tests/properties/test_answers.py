"""Whoever answers where, with what, at once or after a restart: one answer, by somebody who may, for that action."""

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import PostroomError
from postroom.gateway.questions import Questions
from postroom.services.questions import QuestionTimeouts
from postroom.stores.sqlite.store import SqliteStore
from postroom.testing import ManualClock
from waking.test_kinds_of_questions import BAD, GOOD, KINDS, POSTROOM, asked, in_chat, on_page, over_http
from work_room import SLUG, WorkRoom

pytestmark = pytest.mark.long

PEOPLE: Final = ("ana", "ben", "cyd")
OTHERS: Final = {"choice": "eur", "form": "amount = 7; currency = USD", "text": "Name it Cy.", "yes_no": "no"}
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "yes_no": {"on_timeout": "no"},
    "choice": {"on_timeout": "default", "default": "USD"},
    "text": {"on_timeout": "default", "default": "as before"},
    "form": {"on_timeout": "cancel"},
}
LIMITS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"to": ["human:ana", "human:ben"]},
    {"not_by": ["human:ana"]},
    {"to": ["human:ana", "human:cyd"], "not_by": ["human:cyd"]},
    {"action": "DROP TABLE payments_old"},
)


async def by_mail(room: WorkRoom, run: Any, question: Any, words: str, by: str) -> str:
    """Answer by a reply to the message that asks; a refusal is told to the sender."""
    asks = next(one for one in await room.messages() if f"- {question.text}" in one.body_md)
    reply = {"project_key": "postroom-people", "sender_name": by, "message_id": asks.id, "body_md": words}
    await room.mail.call("reply_message", reply, caller=POSTROOM)
    return ""


SURFACES = {"page": on_page, "http": over_http, "chat": in_chat, "mail": by_mail}
Step = tuple[Any, ...]


def _steps() -> st.SearchStrategy[list[Step]]:
    one = st.tuples(st.sampled_from(sorted(SURFACES)), st.sampled_from(PEOPLE), st.integers(0, 4))
    return st.lists(
        st.one_of(
            st.tuples(st.just("answers"), st.lists(one, min_size=1, max_size=3)),
            st.tuples(st.just("restart")),
            st.tuples(st.just("snooze")),
            st.tuples(st.just("silence")),
        ),
        min_size=1,
        max_size=5,
    )


def _words(kind: str, number: int) -> tuple[str, bool]:
    """Return one of the possible answers to a question of this kind, and whether it fits."""
    if number < 2:
        return (GOOD[kind][0], OTHERS[kind])[number], True
    wrong = [one for one in BAD[kind] if one.strip()] or [" "]
    return wrong[number % len(wrong)], False


def _may(limits: dict[str, Any], by: str) -> bool:
    named = f"human:{by}"
    return named not in limits.get("not_by", []) and (not limits.get("to") or named in limits["to"])


class World:
    """A question, the people who answer it, and the answers that may have been the first."""

    def __init__(self, kind: str, limits: dict[str, Any]) -> None:
        self.kind, self.limits = kind, limits
        self.clock = ManualClock()
        self.store = SqliteStore.in_memory(self.clock)
        self.room = WorkRoom(self.store, self.store.runs, self.clock)
        self.possible: set[str] | None = None
        """The people of whom one has answered; None while the question is open."""

    async def open(self) -> None:
        await self.room.people("Ada", "Ash", runners=("Ash",))
        for name in PEOPLE:
            await self.room.people_named.add(name, None)
        ends = {"timeout_seconds": 60, **DEFAULTS[self.kind]}
        self.run, self.question = await asked(self.room, **KINDS[self.kind], **ends, **self.limits)

    async def step(self, name: str, *what: Any) -> None:
        if name == "restart":
            await self.room.close()
            self.room = WorkRoom(self.store, self.store.runs, self.clock)
            await self.room.runs.mailbox.recover()
        elif name == "snooze" and self.possible is None:
            await self.room.questions.snooze(self.question.number, for_ms=60_000)
        elif name == "silence":
            self.clock.advance(timedelta(seconds=61))
            await QuestionTimeouts(self.room.runs, self.clock, self.clock).round()
            if self.possible is None:
                self.possible = set() if DEFAULTS[self.kind]["on_timeout"] == "cancel" else {"nobody"}
        elif name == "answers":
            await self.answers(what[0])
        await self.room.turn()
        await self.agree()

    async def answers(self, given: list[tuple[str, str, int]]) -> None:
        """Answer on several surfaces at once."""
        fits, calls = set[str](), []
        for surface, by, number in given:
            words, is_fit = _words(self.kind, number)
            if surface == "mail" and not words.strip():
                continue
            if (is_fit or (surface == "mail" and self.kind == "yes_no")) and _may(self.limits, by):
                fits.add(by)
            if self.possible is not None and surface == "page":
                continue  # the page has no form for it any more
            calls.append(SURFACES[surface](self.room, self.run, self.question, words, by))
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert not [
            one
            for one in found
            if isinstance(one, Exception) and not isinstance(one, PostroomError | AssertionError)
        ]
        if self.possible is None and fits:
            self.possible = fits

    async def agree(self) -> None:
        """Check that the run and every surface tell the same."""
        run = await self.room.stores.threads.load_run(self.run.run_id)
        answers = [one.decision for one in run.answered]
        listed = [one["number"] for one in await self.room.questions.questions()]
        chat = Questions(self.room.runs.mailbox, self.room.stores.threads, self.clock)
        chats = [one.number for one in await chat.open(self.run.thread_id)]
        inbox = [one.number for _, one in await chat.everywhere()]
        page = (await self.room.browser().get(f"/p/{SLUG}/questions")).text
        is_open = self.possible is None
        for surface in (listed, chats, inbox):
            assert (self.question.number in surface) is is_open
        assert (f'id="q-{self.question.number}"' in page) is is_open
        shown = await self.room.look(self.room.questions.given_answers, SLUG, limit=50)
        given_here = [one for one in shown if one.number == self.question.number]
        assert len(answers) == len(given_here) == (1 if self.possible else 0)
        for decision, told in zip(answers, given_here, strict=True):
            assert decision.by in (self.possible or ())
            assert decision.by == told.by
            assert decision.by == "nobody" or _may(self.limits, decision.by)
            assert decision.approved is not True or decision.by != "nobody"
            assert decision.result.get("digest", "") == self.question.asked.digest


@settings(max_examples=60)
@given(kind=st.sampled_from(sorted(KINDS)), limits=st.sampled_from(LIMITS), steps=_steps())
def test_each_question_gets_one_answer_by_somebody_who_may_and_all_surfaces_agree(
    kind, limits, steps
) -> None:
    async def play() -> None:
        world = World(kind, limits)
        try:
            await world.open()
            for step in steps:
                await world.step(*step)
        finally:
            await world.room.close()
            world.store.close()

    asyncio.run(play())
