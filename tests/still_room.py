"""What the pages on which people work show, of every shape and standing still; for tests of their looks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from postroom.contracts.errors import StaleDecision, UnknownRun
from postroom.contracts.schedules import Missed, Overlap, Schedule
from postroom.contracts.work import GivenAnswer, OpenQuestion, Output, Waiting, Work, WorkCounts
from postroom.services.people import Draft, Limits, Posted
from postroom.web.forms import PageServices
from web_samples import HOSTILE, HOUR, MINUTE

LONG = "Agent-with-a-name-of-sixty-four-characters-without-a-place-to-1"
WORD = "everything_in_one_word_" * 20


class StillRoom:
    """A fake for tests: it shows what it was made of, and changes nothing."""

    limits = Limits(subject_chars=512, body_bytes=1 << 20)

    async def people(self) -> Sequence[str]:
        return ["Ana", LONG]

    async def mark(self, name: str, message: int, *, acknowledge: bool) -> None:
        raise AssertionError("nothing is marked")

    async def name(self, name: str) -> str:
        raise AssertionError("nobody is named")

    def __init__(self, now: int, messages: tuple[int, ...]) -> None:
        self._now = now
        self._messages = messages

    def form_token(self, cookies: str) -> str | None:
        return "t" * 64

    def takes_form(self, cookies: str, token: str) -> bool:
        return False

    async def send(self, slug: str, draft: Draft) -> Posted:
        raise AssertionError("nothing is sent")

    async def open_questions(self, slug: str) -> Sequence[OpenQuestion]:
        return [
            OpenQuestion(
                number=f"{number:06x}",
                text=text,
                run_id="r3",
                thread_id=f"agent:orchard/{name}",
                asked_at=self._now - number * HOUR,
                project=slug,
                agent=name,
            )
            for number, (name, text) in enumerate(
                (("GreenLake", "May I?"), (LONG, WORD), ("BlueFox", "\n".join(HOSTILE)[:1_900]))
            )
        ]

    async def given_answers(self, slug: str, *, limit: int) -> Sequence[GivenAnswer]:
        return [
            GivenAnswer(
                number=f"{number:06x}",
                text=text,
                run_id="r1",
                approved=approved,
                why=text,
                by=by,
                where="on the pages",
                answered_at=self._now - number * HOUR,
                project=slug,
                agent=LONG,
            )
            for number, (text, approved, by) in enumerate(
                (("May I?", True, "Ana"), (WORD, False, WORD), (HOSTILE[0], None, ""))
            )
        ]

    async def given_answer(self, slug: str, run_id: str, number: str) -> GivenAnswer | None:
        return None

    async def decide(
        self, slug: str, run_id: str, number: str, *, approved: bool, why: str, by: str
    ) -> GivenAnswer:
        raise StaleDecision("nothing is asked")

    async def works(self, slug: str) -> Sequence[Work]:
        began = self._now - 3 * HOUR
        going = {"project": slug, "messages": self._messages, "created_at": began, "can_cancel": True}
        ended = {"project": slug, "messages": self._messages[:1], "created_at": began, "started_at": began}
        return [
            Work(run_id="r1", agent="GreenLake", state="at work", started_at=began, attempts=2, **going),
            Work(run_id="r2", agent=LONG, state="queued", why=WORD, until=self._now + MINUTE, **going),
            Work(run_id="r3", agent="BlueFox", state="asks", questions=2, **ended),
            Work(run_id="r4", agent="D", state="done", finished_at=self._now, parent_run_id="r5", **ended),
            Work(run_id="r5", agent="E", state="cancelled", finished_at=self._now - 2 * HOUR, **ended),
            Work(
                run_id="r6",
                agent=LONG,
                state="failed",
                finished_at=self._now - HOUR,
                why=HOSTILE[0] + WORD,
                can_replay=True,
                **ended,
            ),
        ]

    async def counts(self, slug: str) -> WorkCounts:
        return WorkCounts(open_runs=3, questions=3, given_up=1)

    async def waiting(self, slug: str) -> Sequence[Waiting]:
        return [
            Waiting(
                message=message,
                project=slug,
                agent=LONG,
                since_at=self._now - MINUTE,
                why=WORD,
                behind_run_id="r1",
            )
            for message in (*self._messages, 999_999)
        ]

    async def work(self, run_id: str) -> Work:
        for one in await self.works("orchard"):
            if one.run_id == run_id:
                return one
        raise UnknownRun("there is none", value=run_id)

    async def output(self, run_id: str) -> Output:
        return Output(text="\x1b[31m" + "\n".join([*HOSTILE, WORD, "y" * 3_000]), is_cut=True)

    async def of_project(self, slug: str) -> Sequence[Schedule]:
        message: dict[str, Any] = {
            "project": slug,
            "sender": "Ana",
            "to": [LONG, *HOSTILE],
            "subject": WORD,
            "body": WORD,
        }
        made = Schedule(
            schedule_id="s1",
            kind="mail",
            name=LONG,
            cron="0 9 * * MON",
            every_ms=None,
            zone="Europe/Berlin",
            payload=message,
            missed=Missed.ONCE,
            overlap=Overlap.QUEUE,
            jitter_ms=0,
            created_at=self._now,
            starts_at=self._now,
            tick_at=self._now,
            next_at=self._now + HOUR,
        )
        paused: dict[str, Any] = {
            "name": HOSTILE[0],
            "next_at": None,
            "last_at": self._now - HOUR,
            "passed_over": 2,
        }
        return [made, replace(made, **paused, cron=None, every_ms=HOUR, last_error=HOSTILE[0] + WORD)]

    async def at_work(self, slug: str) -> Mapping[str, int]:
        return {"greenlake": self._now - HOUR}

    async def cancel(self, run_id: str) -> None:
        raise AssertionError("nothing is cancelled")

    async def replay(self, run_id: str) -> Work:
        raise AssertionError("nothing is tried again")


def still_room(*, now: int, messages: tuple[int, ...]) -> PageServices:
    """Return a room whose pages show something of every shape."""
    made = StillRoom(now, messages)
    return PageServices(visitors=made, questions=made, messages=made, runs=made, schedules=made)
