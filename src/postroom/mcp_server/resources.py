"""The resources: views with `mail://` addresses, which clients can read and subscribe to.

Each view is also a tool.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from postroom.contracts.errors import InvalidArgument
from postroom.mail.commands import read_command
from postroom.mail.context import Caller
from postroom.mail.operations import OPERATIONS, WHOLE_ATTACHMENT
from postroom.mail.service import Mail

_LISTED: Final = 1_000
"""Maximum number of projects, and of agents, that are searched for suggestions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailResource:
    """A kind of MCP resource with its URI template and the operation that returns the content."""

    name: str
    template: str
    description: str
    operation: str
    arguments: Callable[[dict[str, str]], dict[str, Any]]

    @property
    def pattern(self) -> re.Pattern[str]:
        """The regular expression for the URIs of this kind of resource."""
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
        description="A file of a message of an agent.",
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
        description="The summary of a thread.",
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
        description="The active reservations of a project.",
        operation="list_file_reservations",
        arguments=lambda part: {"project_key": part["project"], "limit": 1000},
    ),
    MailResource(
        name="project",
        template="mail://project/{project}",
        description="A project: its agents, newest threads and active reservations.",
        operation="show_project",
        arguments=lambda part: {"project_key": part["project"]},
    ),
)


def match_resource(uri: str) -> tuple[MailResource, dict[str, str]] | None:
    """Return the kind of an MCP resource and the parts of its URI, or None for an unknown URI."""
    for kind in RESOURCES:
        if match := kind.pattern.match(uri):
            return kind, {name: unquote(value) for name, value in match.groupdict().items()}
    return None


async def suggested(
    mail: Mail, template: str, argument: str, begin: str, known: Mapping[str, str], caller: Caller
) -> list[str]:
    """Return suggestions for a part of a resource URI that begin with the text `begin`.

    `known` contains the values of the earlier parts of the URI.

    Raises:
        InvalidArgument: No kind of resource has this template, or the template has no such part.
        PostroomError: As the operation that lists them.
    """
    kind = next((mail_resource for mail_resource in RESOURCES if mail_resource.template == template), None)
    if kind is None or f"{{{argument}}}" not in kind.template:
        raise InvalidArgument(
            f"no resource template {template[:200]!r} has a part {argument[:64]!r}",
            value=template[:200],
            remedy="the templates are: " + ", ".join(kind.template for kind in RESOURCES),
        )
    OPERATIONS[kind.operation].check(caller.grant)
    value: Iterable[str] = ()
    if argument == "project":
        value = await mail.slugs(caller, limit=_LISTED)
    elif argument == "agent" and "project" in known:
        arguments = {"project_key": known["project"], "limit": _LISTED}
        value = [
            agent["name"] for agent in (await mail.call("list_agents", arguments, caller=caller))["agents"]
        ]
    elif argument == "thread" and "project" in known:
        arguments = {"project_key": known["project"]}
        shown = await mail.call("show_project", arguments, caller=caller)
        value = [thread["thread_id"] for thread in shown["threads"]]
    return [item for item in value if item.casefold().startswith(begin.casefold())]


async def read(mail: Mail, uri: str, caller: Caller) -> Any:
    """Return the content of an MCP resource as plain data.

    Raises:
        InvalidArgument: No kind of resource has such an address.
        PostroomError: As for the operation of the resource.
    """
    if (value := match_resource(uri)) is not None:
        kind, parts = value
        operation = WHOLE_ATTACHMENT if kind.name == "attachment" else OPERATIONS[kind.operation]
        command = read_command(operation.command, kind.arguments(parts))
        return await mail.perform(operation, command, caller=caller)
    raise InvalidArgument(
        f"no resource has the URI {uri[:200]!r}",
        value=uri[:200],
        remedy="the URIs are: " + ", ".join(kind.template for kind in RESOURCES),
    )
