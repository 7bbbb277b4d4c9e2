"""All operations of callers: one table from which tools, documents, tests and the command line are made."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, get_type_hints

from postroom.contracts.errors import InsufficientScope, NotPermitted
from postroom.contracts.tokens import ADMIN, SCOPES, Grant, Scope
from postroom.mail import (
    agents,
    commands,
    contact_requests,
    event_log,
    inbox,
    reservations,
    sending,
    threads,
)
from postroom.mail.commands import Command
from postroom.mail.context import OperationContext
from postroom.mail.waking import asking

READ: Final[frozenset[Scope]] = frozenset({"mail:read"})
"""The right to read all mail; no operation that changes something needs only this."""
SEND: Final[frozenset[Scope]] = frozenset({"mail:send"})
"""The right to act in mail: write, mark, answer, ask for contact, register agents and projects."""
RESERVE: Final[frozenset[Scope]] = frozenset({"reserve"})
RUN: Final[frozenset[Scope]] = frozenset({"run"})
"""The right to act as a run that the server has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a caller: its name, its command, its function, and the rights that it needs."""

    name: str
    command: type[Command]
    run: Callable[[OperationContext[Any, Any], Any], Any]
    changes: bool
    needs: frozenset[Scope]
    """The scopes that a named token must have, all of them; agents and the operator need none."""
    is_of_one_project: bool = False
    """Whether a token that is bound to a project may call it there; refused by default."""
    destructive: bool = False
    repeatable: bool = False
    """Whether a repeated change leaves the same state as the first."""
    settled: bool = False
    """Whether it reads indexes that a store may update later: search and the list of threads."""

    def __post_init__(self) -> None:
        if not self.needs or not self.needs <= set(SCOPES):
            raise ValueError(f"operation {self.name} declares an unknown scope: {sorted(self.needs)}")

    def check(self, grant: Grant | None, *, slug: str | None = None) -> None:
        """Raise unless a named token with this grant may call it; without a grant every call is permitted.

        Raises:
            InsufficientScope: The token lacks a scope.
            NotPermitted: The token is bound to a project, and the operation concerns several.
        """
        if grant is not None:
            grant.check(self.needs, self.name, is_of_one_project=self.is_of_one_project, slug=slug)

    def is_open_to(self, grant: Grant | None) -> bool:
        """Return whether a named token with this grant may call it."""
        try:
            self.check(grant)
        except (InsufficientScope, NotPermitted):
            return False
        return True

    @property
    def description(self) -> str:
        """Its description for a model in one line: what it does, when to use it and what to do next."""
        return " ".join((self.command.__doc__ or "").split())

    @property
    def answer(self) -> Any:
        """The return type that its function declares."""
        return get_type_hints(self.run)["return"]

    @property
    def summary(self) -> str:
        """Its description in one sentence."""
        return (self.command.__doc__ or "").partition("\n")[0]


def _looks(
    needs: frozenset[Scope],
    command: type[Command],
    run: Callable[[OperationContext[Any, Any], Any], Any],
    **more: bool,
) -> Operation:
    return Operation(name=run.__name__, command=command, run=run, changes=False, needs=needs, **more)


def _changes(
    needs: frozenset[Scope],
    command: type[Command],
    run: Callable[[OperationContext[Any, Any], Any], Any],
    **more: bool,
) -> Operation:
    return Operation(name=run.__name__, command=command, run=run, changes=True, needs=needs, **more)


ALL_OPERATIONS: tuple[Operation, ...] = (
    _looks(READ, commands.HealthCheck, agents.health_check),
    _changes(SEND, commands.EnsureProject, agents.ensure_project, repeatable=True, is_of_one_project=True),
    _changes(READ | SEND | RESERVE, commands.StartSession, agents.start_session, is_of_one_project=True),
    _changes(SEND, commands.RegisterAgent, agents.register_agent, is_of_one_project=True),
    _changes(SEND, commands.CreateAgentIdentity, agents.create_agent_identity, is_of_one_project=True),
    _looks(READ, commands.ShowProject, threads.show_project, settled=True, is_of_one_project=True),
    _looks(READ, commands.Whois, agents.whois, is_of_one_project=True),
    _looks(READ, commands.ListAgents, agents.list_agents, is_of_one_project=True),
    _changes(
        ADMIN,
        commands.RetireAgent,
        agents.retire_agent,
        destructive=True,
        repeatable=True,
        is_of_one_project=True,
    ),
    _changes(ADMIN, commands.UnretireAgent, agents.unretire_agent, repeatable=True, is_of_one_project=True),
    Operation(
        name="rotate_agent_token",
        command=commands.RotateAgentToken,
        run=agents.rotated_elsewhere,
        changes=True,
        needs=ADMIN,
        destructive=True,
        is_of_one_project=True,
    ),
    _changes(SEND, commands.SendMessage, sending.send_message, is_of_one_project=True),
    _changes(SEND, commands.ReplyMessage, sending.reply_message, is_of_one_project=True),
    _changes(
        SEND,
        commands.RecallMessage,
        sending.recall_message,
        destructive=True,
        repeatable=True,
        is_of_one_project=True,
    ),
    _looks(READ, commands.FetchInbox, inbox.fetch_inbox, is_of_one_project=True),
    _looks(READ, commands.FetchInboxEvents, inbox.fetch_inbox_events, is_of_one_project=True),
    _looks(READ, commands.GetMessage, inbox.get_message, is_of_one_project=True),
    _looks(READ, commands.GetAttachment, inbox.get_attachment, is_of_one_project=True),
    _looks(READ, commands.DeliveryStatus, inbox.delivery_status, is_of_one_project=True),
    _changes(
        SEND, commands.MarkMessageRead, inbox.mark_message_read, repeatable=True, is_of_one_project=True
    ),
    _changes(
        SEND, commands.AcknowledgeMessage, inbox.acknowledge_message, repeatable=True, is_of_one_project=True
    ),
    _looks(READ, commands.SearchMessages, threads.search_messages, settled=True, is_of_one_project=True),
    _looks(READ, commands.FetchThread, threads.fetch_thread, is_of_one_project=True),
    _looks(READ, commands.SummarizeThread, threads.summarize_thread, is_of_one_project=True),
    _changes(RUN, commands.AskPerson, asking.ask_person, repeatable=True, is_of_one_project=True),
    _changes(
        SEND,
        commands.RequestContact,
        contact_requests.request_contact,
        repeatable=True,
        is_of_one_project=True,
    ),
    _changes(
        SEND,
        commands.RespondContact,
        contact_requests.respond_contact,
        repeatable=True,
        is_of_one_project=True,
    ),
    _looks(READ, commands.ListContacts, contact_requests.list_contacts, is_of_one_project=True),
    _changes(
        SEND, commands.SetContactPolicy, agents.set_contact_policy, repeatable=True, is_of_one_project=True
    ),
    _changes(RESERVE, commands.ReservePaths, reservations.file_reservation_paths, is_of_one_project=True),
    _looks(RESERVE, commands.CheckReservations, reservations.check_file_reservations, is_of_one_project=True),
    _changes(
        RESERVE,
        commands.ReleaseReservations,
        reservations.release_file_reservations,
        repeatable=True,
        is_of_one_project=True,
    ),
    _changes(
        RESERVE, commands.RenewReservations, reservations.renew_file_reservations, is_of_one_project=True
    ),
    _changes(
        RESERVE,
        commands.ForceReleaseReservation,
        reservations.force_release_file_reservation,
        destructive=True,
        repeatable=True,
        is_of_one_project=True,
    ),
    _looks(RESERVE, commands.ListReservations, reservations.list_file_reservations, is_of_one_project=True),
    _looks(READ, commands.FetchEvents, event_log.fetch_events, is_of_one_project=True),
)

OPERATIONS = {operation.name: operation for operation in ALL_OPERATIONS}
WHOLE_ATTACHMENT: Final = replace(OPERATIONS["get_attachment"], run=inbox.attached_file)
"""get_attachment for callers that accept bytes: it returns the whole file."""
