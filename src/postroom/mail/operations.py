"""Everything a caller may do: one table from which tools, documents, tests and the command line are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing a caller may do: its name, what it takes, the function that does it."""

    name: str
    command: type[Command]
    run: Callable[[Desk[Any], Any], Any]
    changes: bool
    destructive: bool = False
    settled: bool = False
    """Whether it reads what a store may bring up to date afterwards: search and the list of threads."""

    @property
    def description(self) -> str:
        """The promise in a sentence, as callers read it."""
        return (self.command.__doc__ or "").strip()


def _looks(
    command: type[Command], run: Callable[[Desk[Any], Any], Any], *, settled: bool = False
) -> Operation:
    return Operation(name=run.__name__, command=command, run=run, changes=False, settled=settled)


def _changes(
    command: type[Command], run: Callable[[Desk[Any], Any], Any], *, destructive: bool = False
) -> Operation:
    return Operation(name=run.__name__, command=command, run=run, changes=True, destructive=destructive)


ALL_OPERATIONS: tuple[Operation, ...] = (
    _looks(commands.HealthCheck, agents.health_check),
    _changes(commands.EnsureProject, agents.ensure_project),
    _changes(commands.StartSession, agents.start_session),
    _changes(commands.RegisterAgent, agents.register_agent),
    _changes(commands.CreateAgentIdentity, agents.create_agent_identity),
    _looks(commands.ShowProject, threads.show_project, settled=True),
    _looks(commands.Whois, agents.whois),
    _looks(commands.ListAgents, agents.list_agents),
    _changes(commands.RetireAgent, agents.retire_agent, destructive=True),
    _changes(commands.UnretireAgent, agents.unretire_agent),
    Operation(
        name="rotate_agent_token",
        command=commands.RotateAgentToken,
        run=agents.rotated_elsewhere,
        changes=True,
        destructive=True,
    ),
    _changes(commands.SendMessage, sending.send_message),
    _changes(commands.ReplyMessage, sending.reply_message),
    _changes(commands.RecallMessage, sending.recall_message, destructive=True),
    _looks(commands.FetchInbox, inbox.fetch_inbox),
    _looks(commands.FetchInboxEvents, inbox.fetch_inbox_events),
    _looks(commands.GetMessage, inbox.get_message),
    _looks(commands.DeliveryStatus, inbox.delivery_status),
    _changes(commands.MarkMessageRead, inbox.mark_message_read),
    _changes(commands.AcknowledgeMessage, inbox.acknowledge_message),
    _looks(commands.SearchMessages, threads.search_messages, settled=True),
    _looks(commands.SummarizeThread, threads.summarize_thread),
    _changes(commands.AskPerson, asking.ask_person),
    _changes(commands.RequestContact, contact_requests.request_contact),
    _changes(commands.RespondContact, contact_requests.respond_contact),
    _looks(commands.ListContacts, contact_requests.list_contacts),
    _changes(commands.SetContactPolicy, agents.set_contact_policy),
    _changes(commands.ReservePaths, reservations.file_reservation_paths),
    _looks(commands.CheckReservations, reservations.check_file_reservations),
    _changes(commands.ReleaseReservations, reservations.release_file_reservations),
    _changes(commands.RenewReservations, reservations.renew_file_reservations),
    _changes(commands.ForceReleaseReservation, reservations.force_release_file_reservation, destructive=True),
    _looks(commands.ListReservations, reservations.list_file_reservations),
    _looks(commands.FetchEvents, event_log.fetch_events),
)

OPERATIONS = {operation.name: operation for operation in ALL_OPERATIONS}
