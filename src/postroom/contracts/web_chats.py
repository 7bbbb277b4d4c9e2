"""The conversations of the chat page, the entries that each of them shows, and the port that stores both."""

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field


class WebConversation(Record, frozen=True, kw_only=True):
    """A conversation in a person's list. Times are in milliseconds since the epoch."""

    person: str
    conversation_id: str
    title: str
    created_at: int = 0
    active_at: int = 0
    """The position of its newest entry or, while it is empty, the time when it was created."""


class WebEntry(Record, frozen=True, kw_only=True):
    """A message, an answer or a question that a conversation shows; `body` is its content for the page."""

    person: str
    conversation_id: str
    entry_id: str
    position: int
    """Entries are shown in the order of their positions, which are unique for each person."""
    body: dict[str, Json] = field(default_factory=dict)
