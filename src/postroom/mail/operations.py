"""Everything a caller may do: one table from which tools, documents, tests and the command line are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postroom.contracts.tokens import ADMIN, SCOPES, Scope
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
from postroom.mail.desk import Desk
from postroom.mail.waking import asking

READ: Final[frozenset[Scope]] = frozenset({"mail:read"})
"""To look at everything of mail; no operation that changes something asks for it alone."""
SEND: Final[frozenset[Scope]] = frozenset({"mail:send"})
"""To act in mail: write, mark, answer, ask for contact, register agents and projects."""
RESERVE: Final[frozenset[Scope]] = frozenset({"reserve"})
RUN: Final[frozenset[Scope]] = frozenset({"run"})
"""To act as a run that the server has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing a caller may do: its name, what it takes, the function that does it, and who may."""

    name: str
    command: type[Command]
    run: Callable[[Desk[Any], Any], Any]
    changes: bool
    needs: frozenset[Scope]
    """The scopes that a named token must have, all of them; agents and the operator need none."""
    is_of_one_project: bool = True
    """Whether it can be done within one project; else no token that is bound to one may do it."""
    destructive: bool = False
    settled: bool = False
    """Whether it reads what a store may bring up to date afterwards: search and the list of threads."""

    def __post_init__(self) -> None:
        if not self.needs or not self.needs <= set(SCOPES):
            raise ValueError(f"operation {self.name} declares no scope that there is: {sorted(self.needs)}")

    @property
    def description(self) -> str:
        """The promise in a sentence, as callers read it."""
        return (self.command.__doc__ or "").strip()


def _looks(
    needs: frozenset[Scope],
    command: type[Command],
    run: Callable[[Desk[Any], Any], Any],
    *,
    settled: bool = False,
    is_of_one_project: bool = True,
) -> Operation:
    return Operation(
        name=run.__name__,
        command=command,
        run=run,
        changes=False,
        needs=needs,
        settled=settled,
        is_of_one_project=is_of_one_project,
    )


def _changes(
    needs: frozenset[Scope],
    command: type[Command],
    run: Callable[[Desk[Any], Any], Any],
    *,
    destructive: bool = False,
) -> Operation:
    return Operation(
        name=run.__name__, command=command, run=run, changes=True, needs=needs, destructive=destructive
    )


ALL_OPERATIONS: tuple[Operation, ...] = (
    _looks(READ, commands.HealthCheck, agents.health_check, is_of_one_project=False),
    _changes(SEND, commands.EnsureProject, agents.ensure_project),
    _changes(READ | SEND | RESERVE, commands.StartSession, agents.start_session),
    _changes(SEND, commands.RegisterAgent, agents.register_agent),
    _changes(SEND, commands.CreateAgentIdentity, agents.create_agent_identity),
    _looks(READ, commands.ShowProject, threads.show_project, settled=True),
    _looks(READ, commands.Whois, agents.whois),
    _looks(READ, commands.ListAgents, agents.list_agents),
    _changes(ADMIN, commands.RetireAgent, agents.retire_agent, destructive=True),
    _changes(ADMIN, commands.UnretireAgent, agents.unretire_agent),
    Operation(
        name="rotate_agent_token",
        command=commands.RotateAgentToken,
        run=agents.rotated_elsewhere,
        changes=True,
        needs=ADMIN,
        destructive=True,
    ),
    _changes(SEND, commands.SendMessage, sending.send_message),
    _changes(SEND, commands.ReplyMessage, sending.reply_message),
    _changes(SEND, commands.RecallMessage, sending.recall_message, destructive=True),
    _looks(READ, commands.FetchInbox, inbox.fetch_inbox),
    _looks(READ, commands.FetchInboxEvents, inbox.fetch_inbox_events),
    _looks(READ, commands.GetMessage, inbox.get_message),
    _looks(READ, commands.DeliveryStatus, inbox.delivery_status),
    _changes(SEND, commands.MarkMessageRead, inbox.mark_message_read),
    _changes(SEND, commands.AcknowledgeMessage, inbox.acknowledge_message),
    _looks(READ, commands.SearchMessages, threads.search_messages, settled=True),
    _looks(READ, commands.SummarizeThread, threads.summarize_thread),
    _changes(RUN, commands.AskPerson, asking.ask_person),
    _changes(SEND, commands.RequestContact, contact_requests.request_contact),
    _changes(SEND, commands.RespondContact, contact_requests.respond_contact),
    _looks(READ, commands.ListContacts, contact_requests.list_contacts),
    _changes(SEND, commands.SetContactPolicy, agents.set_contact_policy),
    _changes(RESERVE, commands.ReservePaths, reservations.file_reservation_paths),
    _looks(RESERVE, commands.CheckReservations, reservations.check_file_reservations),
    _changes(RESERVE, commands.ReleaseReservations, reservations.release_file_reservations),
    _changes(RESERVE, commands.RenewReservations, reservations.renew_file_reservations),
    _changes(
        RESERVE,
        commands.ForceReleaseReservation,
        reservations.force_release_file_reservation,
        destructive=True,
    ),
    _looks(RESERVE, commands.ListReservations, reservations.list_file_reservations),
    _looks(READ, commands.FetchEvents, event_log.fetch_events),
)

OPERATIONS = {operation.name: operation for operation in ALL_OPERATIONS}
