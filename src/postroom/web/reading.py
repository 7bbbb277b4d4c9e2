"""Gathers what each page shows from one consistent view of the store, with a bounded number of look-ups.

Nothing here knows of HTML. Hidden copies are left out here, before any page can see them: as recipients of a
message, and as messages of an inbox.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from postroom.contracts.choices import Importance, SearchOrder
from postroom.contracts.errors import UnknownAgent, UnknownMessage, UnknownProject
from postroom.contracts.mail import (
    Agent,
    Attachment,
    Message,
    Project,
    ProjectTally,
    Query,
    Recipient,
    Reservation,
    SearchHit,
    ThreadHead,
)
from postroom.mail import conversation, sending
from postroom.mail.conflicts import conflicts
from postroom.mail.projects import PEOPLE_KEY
from postroom.markdown import REFERENCE
from postroom.stores.mail.access import MailReads
from postroom.web import links
from postroom.web.views import (
    AgentPage,
    BoxRow,
    Overview,
    Page,
    ProjectRow,
    ReservationsPage,
    ShownMessage,
    Tally,
    ThreadRow,
)

PROJECTS = 20
AGENTS = 50
BOX = 25
HELD = 50
HITS = 20
LIVE = 200
ENDED = 30
MOST_NAMED = 200
BRIEF = 8
"""Rows of a list on a project's first page."""
COUNTED = 99
"""Rows of a project are counted up to here, and said to be more beyond."""


T = TypeVar("T")


def known_project(reads: MailReads, slug: str) -> Project:
    """Return the project with this slug.

    Raises:
        UnknownProject: there is none.
    """
    project = reads.project(slug)
    if project is None:
        raise UnknownProject(
            f"no project is called {slug!r}", value=slug, remedy="look for it in the list of projects"
        )
    return project


def projects(reads: MailReads, *, after: int) -> Page[ProjectRow]:
    """Return a page of projects, those with the newest mail first."""
    found = reads.projects(limit=PROJECTS + 1, after=after)
    page = cut(found, PROJECTS, lambda project: project.id)
    counted = {one.project_id: one for one in reads.tallies([one.id for one in page.rows], most=COUNTED + 1)}
    rows = [_project_row(project, counted[project.id]) for project in page.rows]
    return Page(sorted(rows, key=lambda row: row.last_at or 0, reverse=True), page.next)


def overview(reads: MailReads, slug: str, *, now: int) -> Overview:
    """Return a project's newest threads, latest active agents and live reservations."""
    project = known_project(reads, slug)
    active = reads.active_agents(project.id, limit=BRIEF + 1)
    heads = cut(reads.threads(project.id, limit=BRIEF + 1), BRIEF, lambda head: head.last_id)
    live = reads.live_reservations(project.id, now=now, limit=BRIEF + 1)
    return Overview(
        project=project,
        threads=Page(thread_rows(reads, heads.rows), heads.next),
        agents=cut(active, BRIEF, lambda agent: agent.id),
        reservations=cut(live, BRIEF, lambda one: one.id),
    )


def message(reads: MailReads, slug: str, message_id: int) -> tuple[Project, ShownMessage]:
    """Return one message of a project, or one that came to it.

    Raises:
        UnknownMessage: the project has no such message.
    """
    project = known_project(reads, slug)
    found = reads.message(message_id)
    if found is None or not conversation.here(reads, project, [found]):
        raise UnknownMessage(f"{slug} has no message {message_id}", value=message_id)
    return project, shown_messages(reads, project, [found])[0]


def slug_of_thread(reads: MailReads, project: Project, message: Message) -> str:
    """Return the slug of a project in whose thread a message is: this one's, or that of whoever wrote it.

    A message from another project is in a thread here where a person wrote it, or somebody here wrote too.
    """
    if message.project_id != project.id:
        talk = conversation.Conversation(reads, reads, project, message.thread_id)
        if [one.id for one in talk.messages(limit=1, after=message.id - 1)] != [message.id]:
            return _slugs(reads, [message.project_id])[message.project_id]
    return project.slug


def how_seen(reads: MailReads, shown: ShownMessage) -> list[tuple[str, str]]:
    """Return the readers of a message that may be shown, each with how it will see the message."""
    seen = sending.how_seen(reads, shown.message, shown.recipients)
    return [(one.name, seen[one.agent_id]) for one in shown.recipients]


def agents(reads: MailReads, slug: str, *, after: int) -> tuple[Project, Page[Agent]]:
    """Return a page of a project's agents, retired ones too, in the order of their registration."""
    project = known_project(reads, slug)
    found = reads.agents(project.id, include_retired=True, limit=AGENTS + 1, after=after)
    return project, cut(found, AGENTS, lambda agent: agent.id)


def agent(reads: MailReads, slug: str, name: str, *, sent: bool, before: int | None, now: int) -> AgentPage:
    """Return an agent with a page of its inbox, or of what it sent, the newest first.

    Raises:
        UnknownAgent: the project has no such agent.
    """
    project = known_project(reads, slug)
    found = known_agent(reads, project, name)
    held = reads.live_reservations(project.id, now=now, agent_id=found.id, limit=HELD + 1)
    return AgentPage(
        project=project,
        agent=found,
        box=(sent_by if sent else inbox_of)(reads, found, before),
        held=cut(held, HELD, lambda one: one.id),
    )


def known_agent(reads: MailReads, project: Project, name: str) -> Agent:
    """Return an agent of a project.

    Raises:
        UnknownAgent: the project has no such agent.
    """
    found = reads.agent(project.id, name)
    if found is None:
        raise UnknownAgent(
            f"{project.slug} has no agent called {name!r}",
            value=name,
            remedy="look for it among the project's agents",
        )
    return found


def reservations(reads: MailReads, slug: str, *, path: str, now: int) -> ReservationsPage:
    """Return live reservations (with a path: those that may touch it) and the last that ended."""
    project = known_project(reads, slug)
    found = reads.live_reservations(project.id, now=now, near=_literal_part(path) or None, limit=LIVE + 1)
    live = cut(found, LIVE, lambda one: one.id)
    newest = reads.newest_reservations(project.id, limit=ENDED)
    ended = [one for one in reversed(newest) if one.released_at is not None or one.expires_at <= now]
    return ReservationsPage(
        project=project,
        live=Page(sorted(live.rows, key=lambda one: (one.pattern, one.id)), live.next),
        conflicts=_by_holder(live.rows),
        ended=ended,
    )


def _by_holder(live: Sequence[Reservation]) -> dict[int, list[Reservation]]:
    """Return the reservations of other agents that overlap one, one of the two exclusive, by its id."""
    found: dict[int, list[Reservation]] = {}
    for one in conflicts(live):
        found.setdefault(one.first.id, []).append(one.second)
        found.setdefault(one.second.id, []).append(one.first)
    return found


def search(
    reads: MailReads, slug: str, query: Query | None, *, order: SearchOrder, cursor: int
) -> tuple[Project, Page[SearchHit]]:
    """Return a page of what a search finds; nothing when it asks for nothing."""
    project = known_project(reads, slug)
    if query is None:
        return project, Page([])
    hits = reads.search(project.id, query, order=order, limit=HITS + 1, cursor=cursor)
    page = cut(hits, HITS, lambda hit: hit.message.id)
    return project, Page(page.rows, cursor + HITS if page.next and order == "best" else page.next)


def references(reads: MailReads, project: Project, texts: Mapping[int, str]) -> dict[int, dict[str, str]]:
    """Return the addresses of what each text names: messages as `#12`, agents and people as `@lena`.

    The project must be allowed to show the message. An agent of the project comes before a person. The first
    200 numbers and the first 200 names are looked up.
    """
    words = {key: dict.fromkeys(one[0] for one in REFERENCE.finditer(text)) for key, text in texts.items()}
    every = dict.fromkeys(word for found in words.values() for word in found)
    numbers = [int(word[1:]) for word in every if word[0] == "#"][:MOST_NAMED]
    names = [word[1:] for word in every if word[0] == "@"][:MOST_NAMED]
    messages = conversation.here(reads, project, list(reads.messages(numbers).values())) if numbers else ()
    known = {f"#{one.id}": links.message(project.slug, one.id) for one in messages}
    people = reads.project(PEOPLE_KEY) if names else None
    for name in names:
        for home in (people, project):
            if home is not None and (found := reads.agent(home.id, name)) is not None:
                known[f"@{name}"] = links.agent(home.slug, found.name)
    return {key: {word: known[word] for word in found if word in known} for key, found in words.items()}


def awaited(message: Message, recipients: Sequence[Recipient]) -> int:
    """Return how many of these recipients still owe the acknowledgement that a message asks for."""
    if not message.ack_required or message.recalled_at is not None:
        return 0
    return sum(one.acked_at is None for one in recipients)


def attached(reads: MailReads, message_id: int, sha256: str) -> list[Attachment]:
    """Return the attachments of a message whose bytes, or whose preview's, have this SHA-256.

    Raises:
        UnknownMessage: there are none, or the message was recalled.
    """
    found = reads.message(message_id)
    stored = reads.attachments([message_id]).get(message_id, [])
    matching = [one for one in stored if sha256 in (one.sha256, one.preview_sha256)]
    if found is None or found.recalled_at is not None or not matching:
        raise UnknownMessage(
            f"message {message_id} has no such file", value=message_id, remedy="open it from its message"
        )
    return matching


def cut(found: Sequence[T], limit: int, number: Callable[[T], int]) -> Page[T]:
    """Make a page of `limit` rows out of one row more, which says whether there is a next page."""
    shown = found[:limit]
    return Page(shown, number(shown[-1]) if len(found) > limit else None)


def _project_row(project: Project, counted: ProjectTally) -> ProjectRow:
    return ProjectRow(
        project=project,
        agents=Tally(min(counted.agents, COUNTED), counted.agents > COUNTED),
        threads=Tally(min(counted.threads, COUNTED), counted.threads > COUNTED),
        last_at=counted.last_at,
    )


def thread_rows(reads: MailReads, heads: Sequence[ThreadHead]) -> list[ThreadRow]:
    """Return threads with their first and their newest messages."""
    ids = sorted({number for head in heads for number in (head.first_id, head.last_id)})
    known = reads.messages(ids)
    recipients = reads.recipients(ids)
    rows = []
    for head in heads:
        ends = [known[number] for number in {head.first_id, head.last_id} if number in known]
        standing = [one for one in ends if one.recalled_at is None]
        row = ThreadRow(
            head=head,
            first=known.get(head.first_id),
            last=known.get(head.last_id),
            importance=max((one.importance for one in standing), key=_weight, default="normal"),
            owed=sum(awaited(one, openly(recipients.get(one.id, []))) for one in standing),
        )
        rows.append(row)
    return rows


def _weight(importance: Importance) -> int:
    return ("low", "normal", "high", "urgent").index(importance)


def shown_messages(reads: MailReads, project: Project, messages: Sequence[Message]) -> list[ShownMessage]:
    """Return messages with everything around them that a page of a project may show."""
    ids = [one.id for one in messages]
    known = {one.id: one for one in messages}
    answered = [one.reply_to for one in messages if one.reply_to is not None and one.reply_to not in known]
    known |= reads.messages(answered) if answered else {}
    senders = reads.agents_by_id(sorted({one.sender_id for one in messages}))
    recipients = reads.recipients(ids)
    attachments = reads.attachments(ids)
    shown = {one.id for one in conversation.here(reads, project, list(known.values()))}
    homes = _slugs(reads, (one.project_id for one in senders.values()))
    cards = []
    for one in messages:
        sender = senders.get(one.sender_id)
        answers = known.get(one.reply_to) if one.reply_to is not None else None
        card = ShownMessage(
            message=one,
            sender=sender,
            home=homes.get(sender.project_id) if sender else None,
            recipients=openly(recipients.get(one.id, [])),
            attachments=attachments.get(one.id, []) if one.recalled_at is None else [],
            answers=answers if answers and answers.id in shown else None,
        )
        cards.append(card)
    return cards


def openly(recipients: Iterable[Recipient]) -> list[Recipient]:
    """Return the recipients without hidden copies."""
    return [one for one in recipients if one.kind != "bcc"]


def inbox_of(reads: MailReads, owner: Agent, before: int | None) -> Page[BoxRow]:
    """Return the entries of a window below a sequence number, without those that came as hidden copies."""
    top = min(before or owner.inbox_seq + 1, owner.inbox_seq + 1)
    after = max(top - 1 - BOX, owner.inbox_floor)
    window = reads.inbox_events(owner.id, after=after, limit=BOX)
    entries = [entry for entry in reversed(window) if entry.seq < top and entry.kind != "bcc"]
    slugs = _slugs(reads, (entry.message.project_id for entry in entries))
    rows = [
        BoxRow(message=entry.message, project_slug=slugs.get(entry.message.project_id), entry=entry)
        for entry in entries
    ]
    return Page(rows, after + 1 if after > owner.inbox_floor else None)


def sent_by(reads: MailReads, owner: Agent, before: int | None) -> Page[BoxRow]:
    """Return what an agent sent, the newest first; recalled messages are not in it."""
    page = cut(reads.sent_messages(owner.id, limit=BOX + 1, before=before), BOX, lambda one: one.id)
    messages = page.rows
    recipients = reads.recipients([one.id for one in messages])
    slugs = _slugs(reads, (one.project_id for one in messages))
    rows = [
        BoxRow(
            message=one,
            project_slug=slugs.get(one.project_id),
            recipients=openly(recipients.get(one.id, [])),
        )
        for one in messages
    ]
    return Page(rows, page.next)


def _slugs(reads: MailReads, project_ids: Iterable[int]) -> dict[int, str]:
    found = {project_id: reads.project_by_id(project_id) for project_id in sorted(set(project_ids))}
    return {project_id: project.slug for project_id, project in found.items() if project is not None}


def _literal_part(path: str) -> str:
    """Return the whole segments of a path or pattern before its first wildcard."""
    segments = [segment for segment in path.replace("\\", "/").split("/") if segment not in ("", ".")]
    literal = []
    for segment in segments:
        if any(mark in segment for mark in "*?["):
            break
        literal.append(segment)
    return "/".join(literal)
