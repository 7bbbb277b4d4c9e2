"""Every failure the house can name, in one tree, split by who must act.

    PostroomError
    ├── InputError            the caller mends the call
    │   ├── InvalidArgument, InvalidName, InvalidPattern, InvalidPath, InvalidRecipients, TooLarge
    │   ├── UnknownProject, UnknownAgent, UnknownMessage, UnknownThread, UnknownReservation
    │   └── NameTaken
    ├── StateError            the caller, at another time or in another way
    │   ├── IdempotencyConflict, AgentRetired, ContactRequired, ContactBlocked
    │   ├── AlreadyRead, NotHolder, CursorExpired, CursorAhead
    ├── AccessError           the caller proves who it is
    │   ├── TokenRequired, WrongToken, IdentityMismatch, NotPermitted
    ├── StoreError            the operator; the data is as it was
    │   ├── StoreUnavailable, StoreFull, StoreReadOnly, StoreCorrupt
    │   └── StoreHeld, SchemaTooNew            (at start-up: exit 78)
    ├── ArchiveUnavailable    the operator; mail goes on, the backlog drains later
    ├── ServerUnavailable     the person at the command line: start the server
    ├── MissingExtra          the operator installs what is named
    └── ConfigError           the operator, before anything starts (exit 78)

`code` is stable and never reused. The message names the value and what is wrong; `remedy` says what to do.
"""

from collections.abc import Mapping
from typing import ClassVar


class PostroomError(Exception):
    """The root. Carries a stable code, the offending value and the remedy."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    default_remedy: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        value: object = None,
        remedy: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.value = value
        self.remedy = self.default_remedy if remedy is None else remedy
        self.details = dict(details or {})

    def as_dict(self) -> dict[str, object]:
        """Return the failure as plain JSON data, the same on every edge."""
        return {
            "code": self.code,
            "message": self.message,
            "value": self.value,
            "remedy": self.remedy,
            "retryable": self.retryable,
            "details": self.details,
        }


class InputError(PostroomError):
    """The call is wrong as it stands; repeating it cannot help."""

    code = "invalid_input"


class InvalidArgument(InputError):
    """An argument is missing, of another type, or outside its range."""

    code = "invalid_argument"


class InvalidName(InputError):
    """An agent's name breaks the rule for names."""

    code = "invalid_name"


class NameTaken(InputError):
    """The name differs only by case from one that is in use."""

    code = "name_taken"


class InvalidPattern(InputError):
    """A reservation pattern leaves the project root or cannot be read."""

    code = "invalid_pattern"


class InvalidPath(InputError):
    """A path is relative, a placeholder, or leaves the place it must stay in."""

    code = "invalid_path"


class InvalidRecipients(InputError):
    """At least one recipient is not valid; nothing was sent to anybody."""

    code = "invalid_recipients"


class TooLarge(InputError):
    """A body, an attachment or a list is over its configured limit."""

    code = "too_large"


class UnknownProject(InputError):
    """No project has this path or slug."""

    code = "unknown_project"
    default_remedy = "call ensure_project with the project's absolute path first"


class UnknownAgent(InputError):
    """No agent of the project has this name."""

    code = "unknown_agent"
    default_remedy = "call register_agent first, or list_agents to see who is there"


class UnknownMessage(InputError):
    """No message with this id is visible to the caller."""

    code = "unknown_message"
    default_remedy = "take the id from fetch_inbox or search_messages"


class UnknownThread(InputError):
    """The project has no thread with this id."""

    code = "unknown_thread"
    default_remedy = "take the thread id from a message of the thread"


class UnknownReservation(InputError):
    """No reservation with this id exists in the project."""

    code = "unknown_reservation"
    default_remedy = "take the id from list_file_reservations"


class StateError(PostroomError):
    """The call is well formed but does not fit the present state."""

    code = "state_conflict"


class IdempotencyConflict(StateError):
    """The idempotency key was used before with another body."""

    code = "idempotency_conflict"
    default_remedy = "use a new key for a new call; repeat the same body to get the first answer again"


class AgentRetired(StateError):
    """The agent is retired: it neither sends nor receives."""

    code = "agent_retired"
    default_remedy = "call unretire_agent, or write to another agent"


class ContactRequired(StateError):
    """The recipient takes mail from approved contacts only."""

    code = "contact_required"
    default_remedy = "call request_contact and wait for the answer"


class ContactBlocked(StateError):
    """The recipient takes no mail from this sender."""

    code = "contact_blocked"
    default_remedy = "write to another agent of the project, or to a person"


class AlreadyRead(StateError):
    """The message was read before it could be recalled."""

    code = "already_read"
    default_remedy = "send a correction on the same thread"


class NotHolder(StateError):
    """The reservation belongs to another agent."""

    code = "not_holder"
    default_remedy = "ask the holder, or call force_release_file_reservation with a reason"


class CursorExpired(StateError):
    """Events after this cursor were purged; a reader that continued would miss some."""

    code = "cursor_expired"
    default_remedy = "start again from `oldest` and read the inbox once in full"


class CursorAhead(StateError):
    """The cursor lies beyond the newest event: it belongs to another database."""

    code = "cursor_ahead"
    default_remedy = "start again from `newest`; the database was restored or is another one"


class AccessError(PostroomError):
    """The caller has not proved who it is."""

    code = "access_denied"


class TokenRequired(AccessError):
    """This server asks for a token and the call carried none."""

    code = "token_required"
    default_remedy = "send the agent's token in the Postroom-Agent-Token header"


class WrongToken(AccessError):
    """The token is not one this server gave out, or it was revoked."""

    code = "wrong_token"
    default_remedy = "make a new one with `postroom agents token`"


class IdentityMismatch(AccessError):
    """The token belongs to another agent than the one the call names."""

    code = "identity_mismatch"
    default_remedy = "name the agent that the token belongs to"


class NotPermitted(AccessError):
    """The caller is known but may not do this."""

    code = "not_permitted"


class StoreError(PostroomError):
    """The store could not do it; what was there before is there still."""

    code = "store_error"
    default_remedy = "run `postroom doctor` on the server"


class StoreUnavailable(StoreError):
    """The store did not answer in time or is closed; the call may be repeated."""

    code = "store_unavailable"
    retryable = True


class StoreFull(StoreError):
    """The disk is full; nothing was written."""

    code = "store_full"
    retryable = True
    default_remedy = "free space on the disk that holds the database; no restart is needed"


class StoreReadOnly(StoreError):
    """The database file or its folder cannot be written."""

    code = "store_read_only"
    default_remedy = "give the server's user write access to the database and its folder"


class StoreCorrupt(StoreError):
    """The database does not read back as it was written."""

    code = "store_corrupt"
    default_remedy = "stop the server and run `postroom restore`"


class StoreHeld(StoreError):
    """Another process owns the database file."""

    code = "store_held"
    default_remedy = "stop the other server, or use it: commands write through the running one"


class SchemaTooNew(StoreError):
    """The database was written by a newer postroom."""

    code = "schema_too_new"
    default_remedy = "run the newer postroom again, or restore the backup taken before its migration"


class ArchiveUnavailable(PostroomError):
    """Git could not write the archive now; mail goes on and the backlog drains later."""

    code = "archive_unavailable"
    retryable = True
    default_remedy = "run `postroom doctor`; the backlog drains by itself when Git works again"


class ServerUnavailable(PostroomError):
    """No server answered."""

    code = "server_unavailable"
    retryable = True
    default_remedy = "start it with `postroom up`"


class MissingExtra(PostroomError):
    """An optional part is not installed."""

    code = "missing_extra"


class ConfigError(PostroomError):
    """A setting is missing or wrong; nothing was started."""

    code = "config_error"
    default_remedy = "run `postroom config show` to see every setting and where it came from"


def _branches(kind: type[PostroomError]) -> list[type[PostroomError]]:
    found = [kind]
    for child in kind.__subclasses__():
        found.extend(_branches(child))
    return found


def all_errors() -> list[type[PostroomError]]:
    """Return every error class of the tree, for the edges' tables and their tests."""
    return _branches(PostroomError)
