"""Errors over HTTP name addresses and fields: words of tools, of the library and of commands reach nobody there."""

import re

from postroom.contracts.errors import UnknownAgent, UnknownSchedule
from postroom.http_api.errors import to_problem
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from rest_room import Edge, arguments_of

OF_TOOLS = re.compile(rf"(?<!/v1/)\b({'|'.join(OPERATIONS)})\b|\barguments?\b(?! as)|timedelta|mailbox\.")


async def test_a_refused_field_is_named_in_words_of_http() -> None:
    edge, wrong, tried = Edge(), [], 0
    await edge.furnish()
    for operation in MAIL_OPERATIONS:
        for field in operation.command.__struct_fields__:
            for value in ({"a": [1]}, "\0", "x" * 10_000):
                if not operation.changes and not isinstance(value, str):
                    continue  # an address has text alone
                given = {**arguments_of(operation.name), field: value}
                reply = await edge.ask(operation.name, given)
                if reply.status_code in (200, 404):
                    continue
                problem, tried = reply.json(), tried + 1
                said = f"{problem['detail']}\n{problem['remedy']}"
                if OF_TOOLS.search(said):
                    wrong.append((operation.name, field, said))
    assert wrong == []
    assert tried > 200
    edge.close()


def test_a_tool_of_a_remedy_is_an_address() -> None:
    assert to_problem(UnknownAgent("no agent was named x")).remedy == (
        "call `POST /v1/register_agent`, or call `GET /v1/list_agents` to see the registered names"
    )
    assert to_problem(UnknownSchedule("no schedule is named x")).remedy == (
        "list the schedules: `postroom schedules list`"
    )
