"""Where each operation is: `/v1/<operation>`, GET for a look and POST for a change. A rule, no second table.

Addresses are fixed, with nothing of the caller's in them: a project's key may be the path of a folder, whose
slashes no path segment holds, and the door must know the addresses by heart, since a chat channel of the
OpenAI protocol lives below `/v1` as well.
"""

from typing import Final, Literal

from postroom.mail.operations import Operation

BASE: Final = "/v1"
DOCUMENT: Final = f"{BASE}/openapi.json"
EVENTS: Final = f"{BASE}/events"
"""Where what happens is waited for: the one address that is no operation."""

Method = Literal["GET", "POST"]


def address_of(operation: Operation) -> str:
    """Return the path of an operation."""
    return f"{BASE}/{operation.name}"


def method_of(operation: Operation) -> Method:
    """Return the one method by which an operation is asked."""
    return "POST" if operation.changes else "GET"
