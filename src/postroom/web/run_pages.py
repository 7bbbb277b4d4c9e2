"""The pages of runs: what agents are at, what waits and why, what they ask, what is sent by schedule."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.errors import InvalidArgument, StaleDecision, TooLarge, UnknownRun
from postroom.contracts.mail import Message, Project
from postroom.contracts.run_stores import BEFORE_ALL_RUNS, RunCursor
from postroom.contracts.work import RunFilter, RunSearch, Work
from postroom.mail import conversation
from postroom.markdown import Markdown
from postroom.services.run_story import Story
from postroom.stores.mail.access import MailReads
from postroom.web import files, links
from postroom.web.forms import PageContext, read_form, remember_name, see
from postroom.web.reading import references
from postroom.web.run_time import gates, stretches
from postroom.web.serving import Endpoint, choice, number
from postroom.web.threads import OFFERED, offered_names
from postroom.web.timeline_axis import lasts
from postroom.web.wording import lines

_GOING = ("at work", "queued")
LONGEST_ID = 512
ANSWERS_LOOKED_AT = 100
"""Messages of a thread behind the one that began a run."""
LONGEST_TEXT = 200
"""Characters of the text by which runs are looked for."""
STATES: Final[tuple[RunFilter, ...]] = (
    "",
    "at work",
    "queued",
    "asks",
    "ended",
    "done",
    "cancelled",
    "failed",
)
_PLACE: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.(.{1,512})")


class RunPages:
    """Shows runs and takes what people decide about them."""

    def __init__(self, working: PageContext) -> None:
        self._with = working
        self._markdown = Markdown()

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints by their addresses."""
        return (("/p/{slug}/runs", self.runs), ("/p/{slug}/runs/{run_id:path}", self.run))

    async def runs(self, request: Request) -> Response:
        """Show the runs of a project's agents; end one, or have one tried again."""
        project = await self._with.project(request)
        if request.method == "POST":
            return await self._decided(request, project)
        runs, wanted = self._with.services.runs, _wanted(request)
        is_filtered = wanted != RunSearch()
        found = await runs.found(project.slug, wanted if is_filtered else RunSearch(state="ended"))
        works = () if is_filtered else await runs.unsettled(project.slug)
        waiting = () if is_filtered else await runs.waiting(project.slug)
        subjects = await self._subjects(project, [*works, *found.works], [one.message for one in waiting])
        agents = await self._with.mail.read(lambda reads: offered_names(reads, project, wanted.agent))
        return await self._with.html(
            request,
            "runs",
            project=project,
            chosen=wanted,
            is_filtered=is_filtered,
            states=STATES,
            agents=agents[:OFFERED],
            has_more_agents=len(agents) > OFFERED,
            found=found,
            going=[one for one in works if one.state in _GOING],
            asking=[one for one in works if one.state == "asks"],
            dead=[one for one in works if one.can_replay],
            ended=[one for one in found.works if is_filtered or not one.can_replay],
            waiting=waiting,
            subjects=subjects,
            live=choice(request, "live", ("0", "1")) == "1",
        )

    async def run(self, request: Request) -> Response:
        """Show one run: how it stands, where its time went, what it did and put out; or its output alone."""
        project = await self._with.project(request)
        if request.method == "POST":
            return await self._decided(request, project)
        runs, named = self._with.services.runs, request.path_params["run_id"]
        work = await self._known(project, named)
        if named != work.run_id:  # it was cut, or is its dispatch's
            query = request.url.query
            return see(f"{links.run(project.slug, work.run_id)}{'?' if query else ''}{query}")
        wanted = choice(request, "output", ("end", "more", "raw", "whole"))
        if wanted != "end":
            return await self._output(request, work, wanted)
        story = await runs.story(work.run_id)
        answers = await self._with.mail.read(lambda reads: _answers(reads, project, work))
        messages = [one.message for one in story.steps if one.message]
        shown = {one.id for one in await self._here(project, messages)}
        story, told = _told_once(story, answers, shown)
        output = await runs.output(work.run_id)
        said = {place: lines(one.text) for place, one in enumerate(story.steps) if one.kind == "says"}
        said |= {
            place: one.message.body_md
            for place, one in enumerate(story.steps)
            if one.message and one.message.id in told
        }
        named = await self._with.mail.read(lambda reads: references(reads, project, said))
        return await self._with.html(
            request,
            "run",
            project=project,
            work=work,
            output=output,
            is_output_told=work.finished_at is not None
            and any(_same(output.text, one.body_md) for one in answers if one.id in told),
            subjects=await self._subjects(project, [work], []),
            shown=shown,
            answers=answers,
            told=told,
            bodies=await self._markdown.render(said, references=named),
            story=story,
            stretches=stretches(work, story.attempts, self._with.clock.now()),
            gates=gates(work),
            lasts=lasts,
            done=choice(request, "done", ("", "cancel", "replay", "discard", "hasten")),
        )

    async def _output(self, request: Request, work: Work, wanted: str) -> Response:
        """Give what a run has put out: what is behind a number of its log, or all that was kept."""
        runs = self._with.services.runs
        if wanted == "more":
            text, after = await runs.output_after(work.run_id, number(request, "after") or 0)
            over = {} if work.finished_at is None else {"Postroom-Over": "1"}
            return files.plain(lines(text), headers={"Postroom-Cursor": str(after), **over})
        text = lines((await runs.output(work.run_id, whole=True)).text)
        if wanted == "raw":
            return files.plain(text)
        content = text.encode("utf-8", "replace")
        return files.download(content, f"output-{work.run_id}.txt", etag=hashlib.sha256(content).hexdigest())

    async def _here(self, project: Project, messages: Sequence[Message]) -> list[Message]:
        return await self._with.mail.read(lambda reads: conversation.here(reads, project, messages))

    async def _decided(self, request: Request, project: Project) -> Response:
        form = await read_form(request, self._with.services.visitors)
        work = await self._known(project, form.text("run"))
        runs = self._with.services.runs
        match form.text("do"):
            case "cancel":
                await runs.cancel(work.run_id)
                return see(links.run(project.slug, work.run_id, done="cancel"))
            case "replay":
                again = await runs.replay(work.run_id)
                return see(links.run(project.slug, again.run_id, done="replay"))
            case "hasten":
                await runs.hasten(work.run_id)
                return see(links.run(project.slug, work.run_id, done="hasten"))
            case "discard":
                await runs.discard(work.run_id)
                return see(links.run(project.slug, work.run_id, done="discard"))
        raise InvalidArgument(
            "a run can be cancelled, tried again, tried now or left",
            value=form.text("do")[:40],
            remedy="press a button",
        )

    async def _known(self, project: Project, run_id: str) -> Work:
        """Return a run of the project's agents.

        Raises:
            UnknownRun: there is none; those of other projects are none of ours.
        """
        unknown = UnknownRun(f"{project.slug} has no run {run_id[:80]!r}", value=run_id[:80])
        if not 0 < len(run_id) <= LONGEST_ID or "\0" in run_id:
            raise unknown
        work = await self._with.services.runs.named(run_id)
        if work.project != project.slug:
            raise unknown
        return work

    async def _subjects(
        self, project: Project, works: Sequence[Work], messages: Sequence[int]
    ) -> dict[int, Message]:
        """Return the messages that began runs, or wait, as far as the project may show them."""
        ids = sorted({*messages, *(number for one in works for number in one.messages)})
        found = await self._with.mail.read(
            lambda reads: conversation.here(reads, project, list(reads.messages(ids).values()))
        )
        return {one.id: one for one in found}


def _wanted(request: Request) -> RunSearch:
    """Return which runs an address asks for.

    Raises:
        InvalidArgument: The address has an unknown state or place.
    """
    given = request.query_params
    before = _PLACE.fullmatch(given.get("before", ""))
    if before is None and given.get("before"):
        raise InvalidArgument(
            f"no page of runs begins before {given['before'][:40]!r}",
            value=given["before"][:40],
            remedy="go back to the newest runs",
        )
    return RunSearch(
        state=choice(request, "state", STATES),
        agent=given.get("agent", "")[:LONGEST_NAME],
        text=given.get("q", "").strip()[:LONGEST_TEXT],
        before=BEFORE_ALL_RUNS if before is None else RunCursor(int(before[1]), int(before[2]), before[3]),
    )


def _told_once(story: Story, answers: Sequence[Message], shown: set[int]) -> tuple[Story, set[int]]:
    """Return the steps without what an answer among them says too, and which answers they tell in full."""
    ids = {one.id for one in answers if one.id in shown and one.recalled_at is None}
    told = {one.message.id for one in story.steps if one.kind == "wrote" and one.message} & ids
    texts = [one.body_md for one in answers if one.id in told]
    steps = [
        one
        for one in story.steps
        if one.kind != "says" or not any(_same(one.text, answer) for answer in texts)
    ]
    return replace(story, steps=steps), told


def _same(text: str, answer: str) -> bool:
    """Say whether a text is that of an answer, whatever spaces and steering of a terminal are around it."""
    return lines(text).strip() == lines(answer).strip()


def _answers(reads: MailReads, project: Project, work: Work) -> list[Message]:
    """Return messages of this project that tell how a run ended, on the threads of the messages it got."""
    first: dict[str, int] = {}
    for one in reads.messages(list(work.messages)).values():
        first[one.thread_id] = min(one.id, first.get(one.thread_id, one.id))
    behind = [
        one
        for thread_id, message in first.items()
        for one in reads.thread(project.id, thread_id, limit=ANSWERS_LOOKED_AT, after=message)
    ]
    return [one for one in behind if reads.answering_run(one.id) == work.run_id]


MOST_ANSWERS = 30
LONGEST_WHY = 2_000
LONGEST_NAME = 64
"""Characters."""
_WORDS = {"yes": True, "no": False}


class QuestionPages:
    """Shows questions and takes answers."""

    def __init__(self, working: PageContext) -> None:
        self._with = working

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints by their addresses."""
        return (("/p/{slug}/questions", self.questions),)

    async def questions(self, request: Request) -> Response:
        """Show what a project's agents wait to be told and what they were told lately; take an answer."""
        project = await self._with.project(request)
        if request.method == "POST":
            return await self._answered(request)
        questions = self._with.services.questions
        return await self._with.html(
            request,
            "questions",
            project=project,
            asked=await questions.open_questions(project.slug),
            given=await questions.given_answers(project.slug, limit=MOST_ANSWERS),
            done=request.query_params.get("done", ""),
            longest_why=LONGEST_WHY,
            live=request.query_params.get("live") == "1",
        )

    async def _answered(self, request: Request) -> Response:
        project = await self._with.project(request)
        form = await read_form(request, self._with.services.visitors)
        word, why, by = form.text("answer"), form.text("why").strip(), form.text("by").strip()
        run_id, number = form.text("run"), form.text("number")
        if form.text("do") == "take_back":
            await self._with.services.questions.take_back(project.slug, run_id, number)
            return see(links.questions(project.slug))
        if word not in _WORDS:
            raise InvalidArgument("the answer must be yes or no", value=word[:40], remedy="press a button")
        if len(why) > LONGEST_WHY or len(by) > LONGEST_NAME:
            raise TooLarge(
                f"a reason has at most {LONGEST_WHY} characters, a name {LONGEST_NAME}",
                value=max(len(why), len(by)),
                remedy="say it shorter; nothing was answered",
            )
        if not by:
            raise InvalidArgument(
                "the answer does not say who gives it", value=by, remedy="go back and write your name"
            )
        questions = self._with.services.questions
        try:
            await questions.decide(project.slug, run_id, number, approved=_WORDS[word], why=why, by=by)
        except StaleDecision as error:
            before = await questions.given_answer(project.slug, run_id, number)
            return await self._with.html(
                request,
                "stale_answer",
                409,
                project=project,
                before=before,
                asked=[one for one in await questions.open_questions(project.slug) if one.run_id == run_id],
                message=error.message,
            )
        from_control_room = form.text("back") == "control"
        answer = see(
            links.project(project.slug, done=word, answered=f"{run_id}/{number}")
            if from_control_room
            else links.questions(project.slug, done=number)
        )
        remember_name(request, answer, by)
        return answer


class SchedulePages:
    """Shows the schedules of a project, and takes what people do about them."""

    def __init__(self, working: PageContext) -> None:
        self._with = working

    def endpoints(self) -> Sequence[tuple[str, Endpoint]]:
        """Return the endpoints by their addresses."""
        return (("/p/{slug}/schedules", self.schedules),)

    async def schedules(self, request: Request) -> Response:
        """Show what is sent to a project's agents again and again; pause, resume or send one now."""
        project = await self._with.project(request)
        if request.method == "POST":
            return await self._decided(request, project)
        return await self._with.html(
            request,
            "schedules",
            project=project,
            schedules=await self._with.services.schedules.of_project(project.slug),
            done=request.query_params.get("done", ""),
            sent=number(request, "sent"),
        )

    async def _decided(self, request: Request, project: Project) -> Response:
        form = await read_form(request, self._with.services.visitors)
        schedules, name, sent = self._with.services.schedules, form.text("name"), None
        await schedules.named(name, project.slug)
        match form.text("do"):
            case "pause":
                await schedules.pause(name)
            case "resume":
                await schedules.resume(name)
            case "trigger":
                sent = await schedules.trigger(name)
            case other:
                raise InvalidArgument(
                    "a schedule can be paused, resumed or sent now",
                    value=other[:40],
                    remedy="press a button",
                )
        return see(links.schedules(project.slug, done=name, sent=sent))
