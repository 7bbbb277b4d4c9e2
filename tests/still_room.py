"""The content of pages on which people work, of every shape and without changes; for tests of their appearance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from postroom.contracts import records
from postroom.contracts.errors import StaleDecision, UnknownRun
from postroom.contracts.mail import Attempt
from postroom.contracts.run_stores import RunCursor
from postroom.contracts.runs import Usage
from postroom.contracts.schedules import Missed, Overlap, Schedule
from postroom.contracts.work import (
    FailedRuns,
    Floor,
    FoundRuns,
    GivenAnswer,
    HealthFact,
    Held,
    OpenQuestion,
    Output,
    OwedMessage,
    QueuedRun,
    QueueState,
    ReservationConflict,
    RunAtWork,
    RunSearch,
    Stretch,
    Waiting,
    Waits,
    Work,
    WorkCounts,
)
from postroom.services.people import Draft, FormSizes, Posted
from postroom.services.run_story import Step, Story
from postroom.web.site import PageServices
from web_samples import HOSTILE, HOUR, MINUTE

LONG = "Agent-with-a-name-of-sixty-four-characters-without-a-place-to-1"
WORD = "everything_in_one_word_" * 20


def held(number: int, holder: str, pattern: str) -> Held:
    """Return a reservation that ends in an hour."""
    return Held(
        id=number,
        holder=holder,
        pattern=pattern,
        exclusive=True,
        reason=WORD,
        created_at=0,
        expires_at=HOUR,
    )


class StillRoom:
    """A fake for tests: it shows what it was made of, and changes nothing."""

    limits = FormSizes(
        subject_chars=512, body_bytes=1 << 20, files=20, file_bytes=10 << 20, files_bytes=25 << 20
    )

    def people(self, tx: object) -> Sequence[str]:
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

    def is_sealed(self, cookies: str, text: str, seal: str) -> bool:
        return seal == "ours"

    async def send(self, slug: str, draft: Draft) -> Posted:
        raise AssertionError("nothing is sent")

    async def note_shown(self, questions: object, where: str) -> None:
        pass

    def heard_at(self, tx: object, work: Work) -> int | None:
        return work.started_at

    def active(self, tx: object, most: int) -> tuple[Sequence[RunAtWork], int]:
        active = RunAtWork(
            run_id="r1",
            project="orchard",
            agent="GreenLake",
            since_at=self._now - 900_000,
            heard_at=None,
            last_line="Picked",
        )
        return [active], 1

    def failed(self, tx: object) -> Sequence[FailedRuns]:
        return [
            FailedRuns(
                agent=name,
                project=project,
                chat=chat,
                why=text,
                run_ids=ids,
                newest_at=self._now - HOUR,
                can_replay=bool(project),
            )
            for name, project, chat, text, ids in (
                ("GreenLake", "orchard", "", "exit 3", ("r1", "r2", "r3")),
                (LONG, "", LONG, WORD, ("r4",)),
                ("BlueFox", "orchard", "", "\n".join(HOSTILE)[:1_900], ("r5",)),
            )
        ]

    def listed(self, tx: object, after: str) -> Sequence[OpenQuestion]:
        return self.open_questions(tx, "orchard")

    def snoozed(self, tx: object, limit: int) -> Sequence[OpenQuestion]:
        return []

    def count_due(self, tx: object) -> int:
        return len(self.open_questions(tx, "orchard"))

    def is_asked_in_chats(self, tx: object) -> bool:
        return True

    def questions_of(self, tx: object, slug: str, run_id: str) -> Sequence[OpenQuestion]:
        return [one for one in self.open_questions(tx, slug) if one.run_id == run_id]

    def others(self, tx: object, slug: str, run_id: str) -> Sequence[OpenQuestion]:
        return []

    def open_questions(self, tx: object, slug: str) -> Sequence[OpenQuestion]:
        return [
            OpenQuestion(
                number=f"{number:06x}",
                text=text,
                run_id="r3",
                thread_id=f"agent:orchard/{name}",
                asked_at=self._now - number * HOUR,
                place="",
                project=slug,
                agent=name,
            )
            for number, (name, text) in enumerate(
                (("GreenLake", "May I?"), (LONG, WORD), ("BlueFox", "\n".join(HOSTILE)[:1_900]))
            )
        ]

    def given_answers(self, tx: object, slug: str, *, limit: int) -> Sequence[GivenAnswer]:
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
                answer_id=f"{number}",
                project=slug,
                agent=LONG,
            )
            for number, (text, approved, by) in enumerate(
                (("May I?", True, "Ana"), (WORD, False, WORD), (HOSTILE[0], None, ""))
            )
        ]

    def given_answer(self, tx: object, slug: str, run_id: str, number: str) -> GivenAnswer | None:
        return None

    async def decide(
        self, slug: str, run_id: str, number: str, *, approved: bool, why: str, by: str
    ) -> GivenAnswer:
        raise StaleDecision("nothing is asked")

    def unsettled(self, tx: object, slug: str) -> Sequence[Work]:
        return [one for one in self._works(slug) if one.finished_at is None or one.can_replay]

    def found(self, tx: object, slug: str, wanted: RunSearch) -> FoundRuns:
        ended = [one for one in self._works(slug) if one.finished_at is not None]
        return FoundRuns(ended, RunCursor(self._now, self._now, "r9"))

    def _works(self, slug: str) -> Sequence[Work]:
        began = self._now - 3 * HOUR
        going = {"project": slug, "messages": self._messages, "created_at": began, "can_cancel": True}
        ended = {"project": slug, "messages": self._messages[:1], "created_at": began, "started_at": began}
        return [
            Work(run_id="r1", agent="GreenLake", state="at work", started_at=began, attempts=2, **going),
            Work(
                run_id="r2",
                agent=LONG,
                state="queued",
                why=WORD,
                gate="not_due",
                until=self._now + MINUTE,
                **going,
            ),
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

    def counts(self, tx: object, slug: str) -> WorkCounts:
        return WorkCounts(open_runs=3, questions=3, failures=2)

    def for_people(self, tx: object, slugs: Sequence[str], most: int) -> dict[str, int]:
        return dict.fromkeys(slugs[:1], 4)

    def floor(self, tx: object, slug: str, health: object = ()) -> Floor:
        works = self._works(slug)
        return Floor(
            works=[one for one in works if one.finished_at is None],
            questions=self.open_questions(tx, slug),
            open_in_all=3,
            given_up=[one for one in works if one.can_replay],
            failed=self.failed(tx)[::2],
            failed_in_all=2,
            waiting=self.waiting(tx, slug),
            last_lines={"r1": "\n".join(HOSTILE[:4]), "r3": WORD},
            conflicts=[
                ReservationConflict(
                    first=held(1, "GreenLake", "src/**"), second=held(2, LONG, "src/" + WORD)
                ),
                ReservationConflict(
                    first=held(2, LONG, "src/" + WORD), second=held(3, HOSTILE[0], HOSTILE[1])
                ),
            ],
            holds={"greenlake": [held(1, "GreenLake", "src/**")] * 5, "bluefox": [held(4, "BlueFox", WORD)]},
            waits=[
                Waits(
                    names=("Ana", "GreenLake", LONG, "BlueFox"),
                    run_id="r3",
                    state="asks",
                    messages=(self._messages[0], 999_999, self._messages[-1]),
                ),
                Waits(names=(HOSTILE[0], LONG), run_id="r6", state="failed", messages=self._messages[:1]),
                Waits(names=("Ana", "GreenLake"), run_id="r1", state="at work", messages=self._messages[:1]),
            ],
            owed=[
                OwedMessage(
                    id=self._messages[0],
                    subject=subject,
                    sender="Ana",
                    ack_required=number == 0,
                    created_at=self._now - HOUR,
                    missing=("GreenLake", LONG, *HOSTILE[:4]),
                    readers=8,
                )
                for number, subject in enumerate((WORD, HOSTILE[0], ""))
            ],
            last_hour={
                "greenlake": [
                    Stretch(run_id="r0", began_at=self._now - 2 * HOUR, ended_at=began, outcome=outcome)
                    for began, outcome in ((self._now - 50 * MINUTE, "done"), (self._now - MINUTE, "failed"))
                ]
                + [Stretch(run_id="r1", began_at=self._now - 9 * MINUTE, ended_at=None, outcome="")]
            },
            health=[
                HealthFact(name="channels", state="failed", text="chats 1 of 2 connected"),
                HealthFact(name="backups", state="unknown", text="no backup yet"),
                HealthFact(name="server", state="ok", text="Server ready, up 6 d 4 h"),
            ],
        )

    def waiting(self, tx: object, slug: str) -> Sequence[Waiting]:
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

    async def health(self) -> Sequence[HealthFact]:
        return ()

    async def explained(self, works: Sequence[Work]) -> Sequence[Work]:
        return works

    def work(self, tx: object, named: str) -> Work:
        for one in self._works("orchard"):
            if one.run_id == named:
                return one
        raise UnknownRun("there is none", value=named)

    def last_output(self, tx: object, run_id: str) -> Output:
        return Output(text="\x1b[31m" + "\n".join([*HOSTILE, WORD, "y" * 3_000]), is_cut=True)

    async def output_after(self, run_id: str, after: int) -> tuple[str, int]:
        return "", after

    def story(self, tx: object, run_id: str) -> Story:
        failed = Attempt(
            id=1,
            run_id=run_id,
            agent_id=1,
            queued_at=self._now - 3 * HOUR,
            began_at=self._now - 2 * HOUR,
            ended_at=self._now - HOUR,
            outcome="failed",
            error=HOSTILE[0] + WORD,
        )
        texts = {"text": WORD, "result": HOSTILE[3]}
        steps = [
            Step(at=self._now - HOUR, kind="says", text="\n".join(HOSTILE)),
            Step(at=self._now - HOUR, kind="call", title=HOSTILE[0], ended_at=self._now, **texts),
            Step(at=self._now - HOUR, kind="asked", by=WORD, approved=False, ended_at=self._now, **texts),
            Step(at=self._now - HOUR, kind="failed", title="1", text=HOSTILE[0]),
        ]
        usage = Usage(input_tokens=184_310, output_tokens=9_846, cost_micros=840_000)
        attempts = [
            failed,
            records.replace(failed, id=2, began_at=self._now - HOUR, ended_at=None, outcome=""),
        ]
        return Story(
            steps=steps,
            tells_steps=run_id == "r1",
            attempts=attempts,
            usage=usage,
            models=[WORD],
            output=self.last_output(tx, run_id),
        )

    def of_project(self, tx: object, slug: str) -> Sequence[Schedule]:
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

    def standing(self, tx: object, slug: str) -> QueueState:
        queued = QueuedRun(run_id="r2", agent=LONG, since=self._now - MINUTE)
        return QueueState(queued=(queued,), given_up=frozenset({"r6"}))

    def at_work(self, tx: object, slug: str) -> Mapping[str, int]:
        return {"greenlake": self._now - HOUR}

    async def cancel(self, run_id: str) -> None:
        raise AssertionError("nothing is cancelled")

    async def replay(self, run_id: str) -> Work:
        raise AssertionError("nothing is tried again")


def still_room(*, now: int, messages: tuple[int, ...]) -> PageServices:
    """Return a room whose pages show something of every shape."""
    made = StillRoom(now, messages)
    return PageServices(visitors=made, questions=made, messages=made, runs=made, schedules=made, push=made)
