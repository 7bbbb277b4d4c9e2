"""The resources: views that the tools give too, under `mail://` addresses, to read or to subscribe to."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from postroom.contracts.errors import InvalidArgument
from postroom.mail.commands import read_command
from postroom.mail.context import Caller
from postroom.mail.operations import OPERATIONS, WHOLE_ATTACHMENT
from postroom.mail.service import Mail


@dataclass(frozen=True, slots=True, kw_only=True)
class MailResource:
    """One kind of resource: its address, and the operation whose answer it shows."""

    name: str
    template: str
    description: str
    operation: str
    arguments: Callable[[dict[str, str]], dict[str, Any]]

    @property
    def pattern(self) -> re.Pattern[str]:
        """The expression that an address of this kind matches."""
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/?#]+)", self.template) + r"\Z")


RESOURCES: tuple[MailResource, ...] = (
    MailResource(
        name="inbox",
        template="mail://inbox/{project}/{agent}",
        description="The newest messages of an agent.",
        operation="fetch_inbox",
        arguments=lambda part: {"project_key": part["project"], "agent_name": part["agent"], "limit": 50},
    ),
    MailResource(
        name="attachment",
        template="mail://attachment/{project}/{agent}/{message}/{sha256}",
        description="A file that came with a message of an agent.",
        operation="get_attachment",
        arguments=lambda part: {
            "project_key": part["project"],
            "agent_name": part["agent"],
            "message_id": part["message"],
            "sha256": part["sha256"],
        },
    ),
    MailResource(
        name="thread",
        template="mail://thread/{project}/{thread}",
        description="A thread at a glance.",
        operation="summarize_thread",
        arguments=lambda part: {"project_key": part["project"], "thread_id": part["thread"]},
    ),
    MailResource(
        name="agents",
        template="mail://agents/{project}",
        description="The agents of a project.",
        operation="list_agents",
        arguments=lambda part: {"project_key": part["project"], "limit": 1000},
    ),
    MailResource(
        name="reservations",
        template="mail://reservations/{project}",
        description="The live reservations of a project.",
        operation="list_file_reservations",
        arguments=lambda part: {"project_key": part["project"], "limit": 1000},
    ),
    MailResource(
        name="project",
        template="mail://project/{project}",
        description="A project: its agents, newest threads and live reservations.",
        operation="show_project",
        arguments=lambda part: {"project_key": part["project"]},
    ),
)


def kind_of(uri: str) -> tuple[MailResource, dict[str, str]] | None:
    """Return which kind of resource has an address, and the parts of that; None when no kind has."""
    for kind in RESOURCES:
        if match := kind.pattern.match(uri):
            return kind, {name: unquote(value) for name, value in match.groupdict().items()}
    return None


async def read(mail: Mail, uri: str, caller: Caller) -> Any:
    """Return the plain value of a resource; of an attachment, the record and the bytes.

    Raises:
        InvalidArgument: no kind of resource has such an address.
        PostroomError: as the operation behind it.
    """
    if (found := kind_of(uri)) is not None:
        kind, parts = found
        operation = WHOLE_ATTACHMENT if kind.name == "attachment" else OPERATIONS[kind.operation]
        command = read_command(operation.command, kind.arguments(parts))
        return await mail.perform(operation, command, caller=caller)
    raise InvalidArgument(
        f"no resource has the address {uri[:200]!r}",
        value=uri[:200],
        remedy="the addresses are: " + ", ".join(kind.template for kind in RESOURCES),
    )
