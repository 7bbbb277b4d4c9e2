"""The conversations of the chat page, the entries that they show, and the port that stores both."""

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field


class WebConversation(Record, frozen=True, kw_only=True):
    """A conversation in a person's list.

    Times are in milliseconds since 1970.
    """

    person: str
    conversation_id: str
    title: str
    created_at: int = 0
    active_at: int = 0
    """The position of the newest entry; without entries, the time when the conversation was created."""


class WebEntry(Record, frozen=True, kw_only=True):
    """A message, answer or question in a conversation."""

    person: str
    conversation_id: str
    entry_id: str
    position: int
    """The place of the entry in the conversation; it is unique for each person."""
    body: dict[str, Json] = field(default_factory=dict)
