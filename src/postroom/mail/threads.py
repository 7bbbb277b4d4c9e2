"""Operations on many messages: search, threads, and summaries of threads without a model."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NotRequired, TypedDict

from postroom.contracts.clock import iso
from postroom.contracts.errors import UnknownThread
from postroom.contracts.mail import Message, Project
from postroom.mail.commands import FetchThread, SearchMessages, ShowProject, SummarizeThread
from postroom.mail.context import ReadContext
from postroom.mail.conversation import Conversation
from postroom.mail.inbox import shown_messages
from postroom.mail.names import shown
from postroom.mail.projects import find_project
from postroom.mail.query import parse_query
from postroom.mail.views import (
    AgentView,
    MessageView,
    ProjectView,
    ReservationView,
    agent_view,
    fit,
    project_view,
    reservation_view,
)

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n")
_QUESTION_END = re.compile(r"\?[?!\"')\]*_]*$")
_CODE = re.compile(r"```.*?(```|\Z)|`[^`\n]*`", re.DOTALL)
"""Matches code, because a question mark or a period in code does not end a sentence."""

_AROUND = " \t\r>*-#"
"""The Markdown characters that can surround a sentence."""

_PARTLY_SEARCHED: Final = 20
"""Maximum number of messages that a search result lists as partly searched."""
SUMMARY_MESSAGES = 1_000
"""Maximum number of newest messages that a summary reads. Older messages are only counted."""
MAX_QUESTIONS = 50
MAX_QUESTION_CHARS = 300

HitView = TypedDict(
    "HitView",
    {
        "id": int,
        "thread_id": str,
        "subject": str,
        "from": str,
        "importance": str,
        "topic": str,
        "created_ts": str,
        "snippet": str,
    },
)
"""A message that a search found."""


class SearchView(TypedDict):
    """A page of messages that match a search.

    Pass `next` as `cursor` for the next page; null means the last page. `partly_searched` lists messages of
    which only the first 16,000 characters were searched.
    """

    hits: list[HitView]
    next: int | None
    query: str
    partly_searched: NotRequired[list[int]]


class QuestionView(TypedDict):
    """A question in a thread to which only the author of the question has replied."""

    message_id: int
    asked_by: str
    text: str


class UnackedView(TypedDict):
    """A message that still lacks acknowledgements."""

    message_id: int
    subject: str
    waiting_for: list[str]


class ParticipantView(TypedDict):
    """An agent or person who wrote in a thread, with the number of messages."""

    name: str
    messages: int


class SummaryView(TypedDict):
    """A summary of a thread."""

    thread_id: str
    subject: str
    messages: int
    left_out: int
    first_ts: str
    last_ts: str
    participants: list[ParticipantView]
    open_questions: list[QuestionView]
    unacknowledged: list[UnackedView]
    reservations: list[ReservationView]


class ThreadMessages(TypedDict):
    """A page of the messages of a thread.

    Pass `next` as `after` for the next page; null means the last page.
    """

    thread_id: str
    messages: list[MessageView]
    next: int | None


class ThreadView(TypedDict):
    """An entry in a list of threads."""

    thread_id: str
    subject: str
    messages: int
    last_ts: str
    last_from: str


class ProjectOverview(ProjectView):
    """A project with the newest agents, threads and reservations."""

    agents: list[AgentView]
    threads: list[ThreadView]
    reservations: list[ReservationView]


def show_project(context: ReadContext, asked: ShowProject) -> ProjectOverview:
    """Return a project with up to 100 agents, threads and reservations."""
    project = find_project(context.projects, asked.project_key)
    heads = context.tx.threads(project.id, limit=100)
    return {
        **project_view(project),
        "agents": [
            agent_view(agent) for agent in context.tx.agents(project.id, include_retired=False, limit=100)
        ],
        "threads": [
            {
                "thread_id": head.thread_id,
                "subject": head.subject,
                "messages": head.messages,
                "last_ts": iso(head.last_at),
                "last_from": head.last_sender,
            }
            for head in heads
        ],
        "reservations": [
            reservation_view(reservation)
            for reservation in context.tx.live_reservations(project.id, now=context.now, limit=100)
        ],
    }


def search_messages(context: ReadContext, asked: SearchMessages) -> SearchView:
    """Search the messages of a project.

    Text in the query that is not an operator is searched literally.
    """
    project = find_project(context.projects, asked.project_key)
    query = parse_query(asked.query)
    if query is None:
        return {"hits": [], "next": None, "query": asked.query}
    hits = context.tx.search(project.id, query, order=asked.order, limit=asked.limit, cursor=asked.cursor)
    following = None
    if len(hits) == asked.limit:
        following = hits[-1].message.id if asked.order == "newest" else asked.cursor + len(hits)
    view: SearchView = {
        "hits": [
            {
                "id": hit.message.id,
                "thread_id": hit.message.thread_id,
                "subject": hit.message.subject,
                "from": hit.message.sender_name,
                "importance": hit.message.importance,
                "topic": hit.message.topic,
                "created_ts": iso(hit.message.created_at),
                "snippet": hit.snippet,
            }
            for hit in hits
        ],
        "next": following,
        "query": asked.query,
    }
    if partly := context.tx.partly_searched(project.id, query, limit=_PARTLY_SEARCHED):
        view["partly_searched"] = partly
    return view


def fetch_thread(context: ReadContext, asked: FetchThread) -> ThreadMessages:
    """Return messages of a thread, oldest first, without blind-copy recipients.

    Raises:
        UnknownThread: The project has no such thread.
    """
    project = find_project(context.projects, asked.project_key)
    talk = Conversation(context.tx, context.projects, project, asked.thread_id)
    items = talk.messages(limit=asked.limit + 1, after=asked.after)
    if not items and not talk.messages(limit=1):
        raise _unknown(project, asked.thread_id)
    messages = fit(shown_messages(context, project, items[: asked.limit]))
    return {
        "thread_id": asked.thread_id,
        "messages": messages,
        "next": messages[-1]["id"] if len(items) > len(messages) else None,
    }


def _unknown(project: Project, thread_id: str) -> UnknownThread:
    return UnknownThread(f"project {project.slug} has no thread {shown(thread_id)}", value=thread_id)


def summarize_thread(context: ReadContext, asked: SummarizeThread) -> SummaryView:
    """Return a thread's participants, open questions, missing acknowledgements and reservations.

    Raises:
        UnknownThread: The project has no such thread.
    """
    project = find_project(context.projects, asked.project_key)
    size = context.tx.thread_size(project.id, asked.thread_id)
    if not size:
        raise _unknown(project, asked.thread_id)
    messages = context.tx.thread_tail(project.id, asked.thread_id, limit=SUMMARY_MESSAGES)
    recipients = context.tx.recipients([message.id for message in messages if message.ack_required])
    writers = {message.sender_id for message in messages}
    held = context.tx.live_reservations(project.id, now=context.now)
    unacked_views: list[UnackedView] = []
    for message in messages:
        waiting = [
            other.name
            for other in recipients.get(message.id, [])
            if other.acked_at is None and other.kind != "bcc"
        ]
        if message.ack_required and message.recalled_at is None and waiting:
            unacked_views.append(
                {"message_id": message.id, "subject": message.subject, "waiting_for": waiting}
            )
    return {
        "thread_id": asked.thread_id,
        "subject": messages[0].subject,
        "messages": size,
        "left_out": size - len(messages),
        "first_ts": iso(messages[0].created_at),
        "last_ts": iso(messages[-1].created_at),
        "participants": [
            {"name": name, "messages": count}
            for name, count in Counter(message.sender_name for message in messages).items()
        ],
        "open_questions": _open_questions(messages),
        "unacknowledged": unacked_views,
        "reservations": [
            reservation_view(reservation) for reservation in held if reservation.agent_id in writers
        ],
    }


def _open_questions(messages: Sequence[Message]) -> list[QuestionView]:
    last = messages[-1]
    before = next((message.id for message in reversed(messages) if message.sender_id != last.sender_id), 0)
    questions: list[QuestionView] = []
    for message in messages:
        last_other = before if message.sender_id == last.sender_id else last.id
        if message.id > last_other:
            questions.extend(
                {"message_id": message.id, "asked_by": message.sender_name, "text": text}
                for text in _questions(message.body_md)
            )
    return questions[:MAX_QUESTIONS]


def _questions(body: str) -> list[str]:
    prose = _CODE.sub(_blank_code, body)
    results, begin = [], 0
    for end in (*_SENTENCE_END.finditer(prose), None):
        stop = end.start() if end else len(prose)
        sentence, text = prose[begin:stop].rstrip(_AROUND), body[begin:stop].strip(_AROUND)
        if len(text) > 2 and _QUESTION_END.search(sentence[-20:]):
            results.append(text[:MAX_QUESTION_CHARS])
        begin = end.end() if end else stop
    return results


def _blank_code(code: re.Match[str]) -> str:
    return ("\n" if "\n" in code[0] else "x") * len(code[0])
