"""The conversations of the chat page, the entries that each of them shows, and the port that stores both."""

from collections.abc import Sequence
from typing import Protocol

from postroom.contracts.messages import Json
from postroom.contracts.records import Record, field


class WebConversation(Record, frozen=True, kw_only=True):
    """A conversation in the list of one person. Instants are milliseconds since the epoch."""

    person: str
    conversation_id: str
    title: str
    created_at: int = 0
    active_at: int = 0
    """The position of its newest entry, or the time of its creation while it is empty."""


class WebEntry(Record, frozen=True, kw_only=True):
    """A message, an answer or a question that a conversation shows; `body` is its content for the page."""

    person: str
    conversation_id: str
    entry_id: str
    position: int
    """Entries are shown in the order of their positions. All positions of a person differ."""
    body: dict[str, Json] = field(default_factory=dict)


class WebChats(Protocol):
    """The conversations and sign-ins of the chat page. No listing returns more than 200 rows."""

    async def end_session(self, hashed: str, *, ends_at: int) -> None:
        """Store the hash of a session that a person signed out of, until the session ends by itself."""
        ...

    async def is_session_ended(self, hashed: str) -> bool:
        """Return whether a person signed out of the session with this hash."""
        ...

    async def conversations(
        self, person: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[WebConversation, ...]:
        """Return a person's conversations, the last active first; only those active before an instant."""
        ...

    async def conversation(self, person: str, conversation_id: str) -> WebConversation | None:
        """Return one conversation; None if there is no such conversation."""
        ...

    async def open(self, person: str, conversation_id: str, *, title: str) -> None:
        """Create an empty conversation; an existing conversation keeps its title.

        Raises:
            InvalidRecord: A part is blank, or holds half a character.
        """
        ...

    async def put(self, entries: Sequence[WebEntry]) -> bool:
        """Store entries of one conversation; a known entry gets the new body and keeps its position.

        Return False, and store nothing, if the conversation does not exist: it was deleted.

        Raises:
            InvalidRecord: An id is blank, or a text holds half a character.
        """
        ...

    async def rename(self, person: str, conversation_id: str, title: str) -> bool:
        """Give a conversation another title; return False if there is no such conversation.

        Raises:
            InvalidRecord: The title is blank, or holds half a character.
        """
        ...

    async def delete(self, person: str, conversation_id: str) -> bool:
        """Delete a conversation with its entries; return False if there is no such conversation."""
        ...

    async def entries(
        self, person: str, conversation_id: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[WebEntry, ...]:
        """Return the newest entries of a conversation, the newest first; only those before a position."""
        ...

    async def entry(self, person: str, entry_id: str) -> WebEntry | None:
        """Return one entry of a person, from any conversation; None if there is no such entry."""
        ...
