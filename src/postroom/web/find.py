"""The page that searches all projects for projects, agents, messages, runs and actions.

Without JavaScript, it is a page with a search field. With JavaScript, Ctrl+K shows the results in a dialog.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.mail import Project
from postroom.contracts.run_stores import RunQuery
from postroom.contracts.work import SHOWN_STATES, RunSearch
from postroom.mail.query import parse_query
from postroom.services.floor import dispatch_of, work_of
from postroom.stores.store import Transaction
from postroom.web import links
from postroom.web.runs import MAX_TEXT_LENGTH
from postroom.web.serving import remembered_name
from postroom.web.site import Shown, Site
from postroom.web.wording import folder_name

PROJECTS: Final = 50
"""Maximum number of projects that are searched, beginning with the oldest."""
AGENTS: Final = 200
"""Maximum number of agents of each project that are searched."""
EACH: Final = 6
"""Maximum number of results of each kind."""
MIN_QUESTION_LENGTH: Final = 2
"""Minimum length of a text for which messages and runs are searched."""
_PAGES: Final = (
    *(("Control room", ""), ("Timeline", "timeline"), ("Threads", "threads"), ("Tasks", "tasks")),
    *(("Agents", "agents"), ("Reservations", "reservations")),
)
_WORKING_PAGES: Final = (
    ("Write a message", "write"),
    ("Runs", "runs"),
    ("Questions", "questions"),
    ("Schedules", "schedules"),
)


class Found(NamedTuple):
    """A search result with its kind, title, description and address."""

    kind: str
    title: str
    about: str
    address: str


async def find(site: Site, request: Request) -> Response:
    """Show the projects, agents, messages, runs and actions that match the words of a search."""
    question = request.query_params.get("q", "").strip()[:MAX_TEXT_LENGTH]
    is_whole = "part" not in request.query_params
    me = remembered_name(request)

    def look(tx: Transaction) -> Shown:
        words = question.casefold().split()
        projects = tx.mail.projects(limit=PROJECTS)
        results = [result for result in _acts(site, projects, me) if _matches(result, words)][: 2 * EACH]
        agents = (
            Found("agent", agent.name, name, links.page(project.slug, "agents", agent.name))
            for project in projects
            for name in [folder_name(project.human_key)]
            for agent in tx.mail.agents(project.id, include_retired=False, limit=AGENTS)
        )
        results += [agent for agent in agents if words and _matches(agent, words)][:EACH]
        if len(question) < MIN_QUESTION_LENGTH:
            return Shown({"q": question, "found": results}, site.clock.now())
        if site.services is not None:
            # Find the runs whose id begins with a text. If there are none, find the newest runs that contain
            # its words, for a whole page.
            works = [
                work_of(run, dispatch_of(tx, run))
                for run in tx.runs.threads.list_runs(RunQuery(id_prefix=question), EACH)
            ]
            if is_whole and not works:
                works = list(site.services.runs.found(tx, "", RunSearch(text=question)).works[:EACH])
            results += [
                Found(
                    "run",
                    f"{work.agent}: {SHOWN_STATES[work.state]}",
                    f"{work.project} {work.run_id}",
                    links.page(work.project, "runs", work.run_id),
                )
                for work in works
                if work.project
            ]
        # Find the newest messages that match. The last word of the text may be only the start of a word.
        query = parse_query(question if question.endswith(("*", '"')) else f"{question}*")
        if query is not None:
            hits = [
                (hit.message, project)
                for project in projects
                for hit in tx.mail.search(project.id, query, order="newest", limit=EACH)
            ]
            hits.sort(key=lambda one: one[0].id, reverse=True)
            results += [
                Found(
                    "message",
                    message.subject or "no subject",
                    f"#{message.id} of {message.sender_name} in {folder_name(project.human_key)}",
                    links.page(project.slug, "m", message.id),
                )
                for message, project in hits[:EACH]
            ]
        return Shown({"q": question, "found": results}, site.clock.now())

    if is_whole:
        await site.settle()
    return await site.draw(request, "find", await site.store.read(look))


def _matches(one: Found, words: list[str]) -> bool:
    text = f"{one.kind} {one.title} {one.about}".casefold()
    return all(word in text for word in words)


def _acts(site: Site, projects: list[Project], me: str) -> Iterator[Found]:
    """Yield the pages of the server and of each project, and the actions that a person can start."""
    yield Found("page", "Inbox", "everything that needs you", "/")
    if site.services is not None:
        yield Found("page", "Chats", "questions and failures of chats", links.chats())
    for project in projects:
        name = folder_name(project.human_key)
        yield Found("project", name, project.human_key, links.page(project.slug))
    for project in projects:
        name = folder_name(project.human_key)
        for title, path in (*_PAGES[1:], *(_WORKING_PAGES if site.services is not None else ())):
            kind = "action" if path == "write" else "page"
            yield Found(kind, title, name, links.page(project.slug, path))
        if site.services is not None:
            yield Found("action", "Retry failed runs", name, links.page(project.slug, "runs", state="failed"))
            yield Found(
                "action", "Cancel active runs", name, links.page(project.slug, "runs", state="active")
            )
