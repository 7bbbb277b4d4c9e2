"""The control room: the first page of a project, with its current activity."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from postroom.contracts.mail import InboxEntry, Project
from postroom.contracts.questions import MAX_TEXT_LENGTH
from postroom.contracts.work import Floor, WorkCounts
from postroom.mail import conversation
from postroom.mail.projects import PEOPLE_KEY
from postroom.mail.reservations import together
from postroom.stores.store import Transaction
from postroom.web.forms import MAX_AT_ONCE
from postroom.web.reading import BRIEF, cut, thread_rows
from postroom.web.serving import choice, remembered_name
from postroom.web.site import Site

SILENCE: Final = 5 * 60_000
"""The milliseconds without output after which the control room marks an active run as silent."""
UNREAD: Final = 5
"""Maximum number of messages to the viewer that are shown."""
_DONE: Final = ("", "yes", "no", "answered", "taken_back", "closed", "late", "end", "share")


async def control_room(site: Site, request: Request) -> Response:
    """Show a project's control room."""
    services, me = site.services, remembered_name(request)
    done = choice(request, "done", _DONE)
    run_id, _, question = request.query_params.get("answered", "").partition("/")
    health = () if services is None else await services.runs.health()

    def look(tx: Transaction, project: Project) -> dict[str, Any]:
        mail, floor, values = tx.mail, Floor(), dict[str, Any]()
        if services is not None:
            floor = services.runs.floor(tx, project.slug, health)
            pairs = [(conflict.first, conflict.second) for conflict in floor.conflicts]
            overlaps = together(pairs) if pairs else []
            counts = WorkCounts(
                open_runs=floor.open_in_all,
                questions=sum(question.snoozed_until is None for question in floor.questions),
                failures=floor.failed_in_all,
            )
            values = {"overlaps": overlaps, "conflicts": len(overlaps), "counts": counts}
        else:  # the newest threads, the agents and the reservations
            heads = cut(mail.threads(project.id, limit=BRIEF + 1), BRIEF, lambda head: head.last_id)
            values = {
                "overlaps": (),
                "threads": thread_rows(mail, heads.rows),
                "has_more_threads": heads.next is not None,
                "agents": mail.active_agents(project.id, limit=BRIEF + 1),
                "reservations": mail.live_reservations(project.id, now=tx.now(), limit=BRIEF + 1),
                "brief": BRIEF,
            }
        causes = {number for work in (*floor.works, *floor.given_up) for number in work.messages}
        causes |= {entry.message for entry in floor.waiting}
        causes |= {number for wait in floor.waits for number in wait.messages}
        began = list(mail.messages(sorted(causes)).values()) if causes else []
        people = mail.project(PEOPLE_KEY) if me else None
        person = None if people is None else mail.agent(people.id, me)
        mine: list[InboxEntry] = []
        if person is not None:
            mine = mail.inbox(person.id, limit=UNREAD, unread_only=True)
        answer = None
        if run_id and services is not None:
            answer = services.questions.given_answer(tx, project.slug, run_id, question)
        return {
            "floor": floor,
            "mine": mine,
            "subjects": {message.id: message for message in conversation.here(mail, project, began)}
            if began
            else {},
            "given": answer,
            **values,
        }

    shown = await site.read(request, look, is_fresh=services is None)
    return await site.draw(
        request,
        "project",
        shown,
        questions=shown.values["floor"].questions,
        done=done,
        longest_why=MAX_TEXT_LENGTH,
        silence=SILENCE,
        at_once=MAX_AT_ONCE,
    )
