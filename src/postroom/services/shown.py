"""The places where people saw a question: mail, a chat, the pages, a notification, or a client's window.

Mail and chats have their own records: the message that asks, and the card with the buttons. For all other
places, one event is stored when a question is first shown there. The key of the event prevents a second one,
so loading a page again writes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from postroom.contracts.errors import PostroomError
from postroom.contracts.events import AppendOptions, CanonicalEventDraft, EventScope, EventVisibility
from postroom.contracts.messages import Json
from postroom.contracts.questions import NOTIFICATION, PAGES
from postroom.contracts.runs import ASKING, RunRecord
from postroom.contracts.waking import number_of
from postroom.gateway.session import SessionSource
from postroom.log import get_logger
from postroom.mail.projects import PEOPLE_SLUG
from postroom.stores.store import SqlStore, Transaction

_LOG = get_logger(__name__)
KIND: Final = "question_shown"
CAN_TAKE_BACK: Final = (PAGES, NOTIFICATION)
"""The interfaces whose answers can be withdrawn for some seconds, before the agent gets them."""
_WRITER: Final = "questions"
_REMEMBERED: Final = 10_000
"""Maximum number of places that a process remembers, so that it need not search the events again."""
_MOST_SHOWN: Final = 100
"""Maximum number of events of a run that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A place at which a question was shown.

    `at` is the time of the first display, or None if unknown.
    """

    where: str
    at: int | None


class SurfaceRecords:
    """Records where questions were shown."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._known = set[tuple[str, str, str]]()

    async def note(self, shown: Iterable[tuple[str, str]], where: str) -> None:
        """Record that questions were shown at a place.

        Each question is a pair of run id and number. Errors are logged, not raised.
        """
        new = {key: None for key in shown if (*key, where) not in self._known}
        if not new:
            return
        drafts = [
            CanonicalEventDraft(
                scopes=(EventScope.questions(run_id),),
                event_kind=KIND,
                payload={"number": number, "where": where},
                visibility=EventVisibility.INTERNAL,
                options=AppendOptions(writer_id=_WRITER, idempotency_key=f"{run_id}/{number}/{where}"),
            )
            for run_id, number in new
        ]
        locks = sorted(set[str]().union(*(draft.locks for draft in drafts)))

        def change(tx: Transaction) -> None:
            tx.lock(*locks)
            tx.events.append(drafts)

        try:
            await self._store.write(change)
        except PostroomError as error:
            _LOG.warning("question.shown_not_noted", where=where, reason=error.describe())
            return
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        self._known |= {(*key, where) for key in new}


def surfaces_of(tx: Transaction, run: RunRecord) -> Mapping[str, list[Surface]]:
    """Return the places at which a run's questions were shown, keyed by question number."""
    tickets = [*(answered.ticket for answered in run.answered), *run.open_tickets]
    surfaces: dict[str, list[Surface]] = {}
    thread = tx.chats.thread(run.thread_id)
    session = None if thread is None else tx.chats.session(thread.session_key)
    closed = {
        answered.ticket.tool_call_id: 0 if answered.is_unseen else answered.decision.updated_at
        for answered in run.answered
        if not answered.is_answer
    }
    cards: Json = {} if session is None else session.settings.get("cards", {})
    for ticket in tickets:
        number = number_of(run.run_id, ticket)
        places = surfaces.setdefault(number, [])
        # Outside a run, the only mail of the run is the one with the answer.
        is_mailed = ASKING not in run.thread_id
        message = tx.mail.report_of(run.run_id, ticket.updated_at) if is_mailed else None
        # If the run ended in the turn that asked, the mail is about its end, and does not show the question.
        if message is not None and message[1] < closed.get(ticket.tool_call_id, message[1] + 1):
            message_id, sent_at = message
            names = [
                f"human:{recipient.name}" if recipient.project_slug == PEOPLE_SLUG else recipient.name
                for recipient in tx.mail.recipients([message_id])[message_id]
            ]
            places.append(Surface(where=f"by mail to {', '.join(names)}", at=sent_at))
        card = cards.get(number) if isinstance(cards, dict) else None
        if isinstance(card, dict) and isinstance(card.get("source"), dict):
            address = SessionSource.from_dict(card["source"]).address.name
            at = card.get("at")
            places.append(Surface(where=f"in the chat {address}", at=at if isinstance(at, int) else None))
    scope = EventScope.questions(run.run_id).key
    for _, event in tx.events.of_scope(scope, after=0, limit=_MOST_SHOWN):
        place = Surface(where=str(event.payload["where"]), at=event.created_at)
        surfaces.setdefault(str(event.payload["number"]), []).append(place)
    return surfaces
