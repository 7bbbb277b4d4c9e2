"""The page of a run: its state, the use of its time, its steps, its output, and why it waits."""

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.mail import Attempt, Message, Project
from postroom.contracts.questions import MAX_TEXT_LENGTH
from postroom.contracts.work import Work
from postroom.mail import conversation
from postroom.services.changes import changes_since
from postroom.services.questions import QuestionService
from postroom.services.run_story import Story
from postroom.stores.mail.access import MailReads
from postroom.stores.store import Transaction
from postroom.web import files, links
from postroom.web.control_room import SILENCE
from postroom.web.reading import references
from postroom.web.runs import decide, known_run
from postroom.web.serving import choice, number, see
from postroom.web.site import WorkingSite
from postroom.web.timeline_axis import lasts
from postroom.web.timeline_marks import Shape
from postroom.web.wording import lines

ANSWERS_LOOKED_AT: Final = 100
"""Maximum number of messages after the first one that are searched for answers, on each thread."""
GATES: Final = (
    ("superseded", "No newer run has replaced it"),
    ("too_late", "Its deadline has not passed"),
    ("not_due", "It is due"),
    ("thread_busy", "No other run is active on its thread"),
    ("behind_question", "No question is open on its thread"),
    ("behind_others", "It is the first run of its thread"),
    ("elsewhere", "It may run on this server"),
    ("at_limit", "Limits permit it"),
    ("over_budget", "Its budget permits it"),
    ("draining", "The server accepts work"),
    ("no_free_slot", "A slot is free"),
    ("tenant_at_limit", "Its tenant has a free slot"),
)
"""The conditions for the start of a queued run, in the order in which the queue checks them."""
_CALLED: Final = {
    "queued": "queued",
    "done": "active",
    "at-work": "active",
    "failed": "failed attempts",
    "interrupted": "interrupted",
    "asks": "waiting for an answer",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition for the start of a queued run."""

    text: str
    state: Literal["passed", "stops", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """An activity of a run, with its start and length in percent of the run's time."""

    shape: Shape
    length: int
    x: float
    width: float

    @property
    def called(self) -> str:
        """The name of the activity."""
        return _CALLED[self.shape]


async def run(site: WorkingSite, request: Request) -> Response:
    """Show a run or the output of a run, or accept a person's decision about the run."""
    if request.method == "POST":
        return await decide(site, request)
    named, services = request.path_params["run_id"], site.services
    output = choice(request, "output", ("end", "more", "raw", "whole"))
    wants_changes = "changes" in request.query_params or "changes" in request.query_params.get("part", "")

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        work = known_run(services, tx, project, named)
        if named != work.run_id or output != "end":
            return {"work": work}
        story = services.runs.story(tx, work.run_id)
        sent = _sent(tx.mail, project, work, story.prompts)
        messages = [step.message for step in story.steps if step.message]
        shown = {message.id for message in conversation.here(tx.mail, project, messages)}
        story, told = _told_once(story, sent["answers"], shown)
        texts = {place: lines(step.text) for place, step in enumerate(story.steps) if step.kind == "says"}
        for place, entry in enumerate(story.steps):
            if entry.message and entry.message.id in told:
                texts[place] = entry.message.body_md
        return {
            "work": work,
            "story": story,
            **sent,
            "shown": shown,
            "told": told,
            "said": texts,
            "named": references(tx.mail, project, texts),
            "is_output_told": lines(story.output.text).strip() in told.values(),
            "subjects": {row.id: row for row in conversation.here(tx.mail, project, story.prompts)},
            "stretches": _stretches(work, story.attempts, site.clock.now()),
            **_questions(services.questions, tx, work, request.query_params.get("answered", "")),
            "folder": _folder(tx.mail, project, work) if wants_changes else "",
            "beside": tx.runs.threads.runs_beside(work.run_id),
        }

    page = await site.read(request, look)
    work: Work = page.values["work"]
    if named != work.run_id:  # the address contains a part of the id, or the id of the dispatch
        query = request.url.query
        return see(f"{links.page(work.project, 'runs', work.run_id)}{'?' if query else ''}{query}")
    if output != "end":
        return await _output(site, request, work, output)
    if work.state == "queued":
        [work] = await services.runs.explained([work])
    return await site.draw(
        request,
        "run",
        page,
        questions=page.values["asked"],
        work=work,
        **(await _changes(site, page.values["folder"], work) if wants_changes else {"changes": None}),
        longest_why=MAX_TEXT_LENGTH,
        silence=SILENCE,
        bodies=await site.markdown.render(page.values["said"], references=page.values["named"]),
        gates=_gates(work) if work.state == "queued" else [],
        lasts=lasts,
        done=choice(
            request, "done", ("", "taken_back", "closed", "late", "cancel", "replay", "discard", "hasten")
        ),
    )


async def _changes(site: WorkingSite, folder: str, work: Work) -> dict[str, Any]:
    """Return the changes in a folder since a run started, with a rendered diff for each file."""
    changes = await asyncio.to_thread(changes_since, folder, work.started_at or work.created_at)
    files = () if changes is None else changes.files
    blocks = dict[int, str]()
    for place, file in enumerate(files):  # a diff is a Markdown code block, which none of its lines can end
        longest = max((len(ticks) for ticks in re.findall("`+", file.diff)), default=2)
        fence = "`" * max(longest + 1, 3)
        blocks[place] = f"{fence}diff\n{lines(file.diff)}\n{fence}"
    return {"changes": changes, "diffs": await site.markdown.render(blocks)}


def _questions(questions: QuestionService, tx: Transaction, work: Work, answered: str) -> dict[str, Any]:
    """Return the open questions of a run, and the answer that the address of the page names."""
    run = work.project, work.run_id
    return {
        "asked": questions.questions_of(tx, *run) if work.questions and work.finished_at is None else (),
        "given": questions.given_answer(tx, *run, answered) if answered else None,
    }


def _folder(reads: MailReads, project: Project, work: Work) -> str:
    """Return the working folder of a run's agent, or the folder of the project if the agent has none."""
    agent = reads.agent(project.id, work.agent)
    runner = None if agent is None else reads.runner(agent.id)
    cwd = None if runner is None else json.loads(runner.runner).get("cwd")
    return cwd if isinstance(cwd, str) else project.human_key


async def _output(site: WorkingSite, request: Request, work: Work, wanted: str) -> Response:
    """Return the output of a run as plain text."""
    runs = site.services.runs
    if wanted == "more":
        text, after = await runs.output_after(work.run_id, number(request, "after") or 0)
        over = {} if work.finished_at is None else {"Postroom-Over": "1"}
        return files.plain(lines(text), headers={"Postroom-Cursor": str(after), **over})
    text = lines((await runs.output(work.run_id, whole=True)).text)
    if wanted == "raw":
        return files.plain(text)
    content = text.encode("utf-8", "replace")
    return files.download(content, f"output-{work.run_id}.txt", etag=hashlib.sha256(content).hexdigest())


def _gates(work: Work) -> list[Gate]:
    """Return the conditions for the start of a queued run, and whether each condition is met."""
    names = [name for name, _ in GATES]
    stop = names.index(work.gate) if work.gate in names else len(names)
    return [
        Gate(text=text, state="passed" if place < stop else "stops" if place == stop else "later")
        for place, (_, text) in enumerate(GATES)
    ]


def _stretches(work: Work, attempts: Sequence[Attempt], now: int) -> list[Stretch]:
    """Return the activity of a run over time, until the end of the run or the current time."""
    parts: list[tuple[Shape, int, int]] = []
    at = min([work.created_at, *(attempt.queued_at for attempt in attempts)])
    for entry in attempts:
        parts.append(("queued", at, entry.began_at))
        end = entry.ended_at if entry.ended_at is not None else now
        shape: Shape = "at-work" if entry.ended_at is None else "done"
        if entry.outcome in ("failed", "cancelled"):
            shape = entry.outcome
        elif entry.outcome == "cut_off":
            shape = "interrupted"
        parts.append((shape, entry.began_at, end))
        at = end
        if entry.outcome == "waiting":
            at = entry.waited_until if entry.waited_until is not None else now
            parts.append(("asks", end, at))
    if work.state == "queued":
        parts.append(("queued", at, now))
    parts = [(shape, begin, end) for shape, begin, end in parts if end > begin]
    if not parts:
        return []
    first, whole = parts[0][1], max(parts[-1][2] - parts[0][1], 1)
    return [
        Stretch(
            shape=shape,
            length=end - begin,
            x=round((begin - first) * 100 / whole, 3),
            width=round(max((end - begin) * 100 / whole, 0.3), 3),
        )
        for shape, begin, end in parts
    ]


def _told_once(story: Story, answers: Sequence[Message], shown: set[int]) -> tuple[Story, dict[int, str]]:
    """Remove text from a run's steps if an answer on the page repeats the text."""
    told = {
        answer.id: lines(answer.body_md).strip()
        for answer in answers
        if answer.id in shown and answer.recalled_at is None
    }
    steps = [
        step for step in story.steps if step.kind != "says" or lines(step.text).strip() not in told.values()
    ]
    return replace(story, steps=steps), told


def _sent(reads: MailReads, project: Project, work: Work, prompts: Sequence[Message]) -> dict[str, Any]:
    """Return the messages with the result of a run, and the ids of the messages that contain questions."""
    first: dict[str, int] = {}
    for prompt in prompts:
        first[prompt.thread_id] = min(prompt.id, first.get(prompt.thread_id, prompt.id))
    behind = [
        reply
        for thread_id, message in first.items()
        for reply in reads.thread(project.id, thread_id, limit=ANSWERS_LOOKED_AT, after=message)
    ]
    sent = reads.answers_among(work.run_id, [reply.id for reply in behind])
    ended = work.finished_at
    results = [one for one in behind if one.id in sent and ended is not None and one.created_at >= ended]
    return {"answers": results, "asking": sent - {one.id for one in results}}
