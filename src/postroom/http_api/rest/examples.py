"""An example of each call: a value for each field that must be given, the same wherever the field stands."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from postroom.mail.commands import Command

VALUES: Final[Mapping[str, Any]] = {
    "accept": True,
    "agent_name": "BlueLake",
    "body_md": "Please look at the lock of `src/harbour.py`.",
    "human_key": "/home/me/harbour",
    "message_id": 1,
    "model": "opus",
    "paths": ["src/**"],
    "policy": "open",
    "program": "claude-code",
    "project_key": "/home/me/harbour",
    "query": "harbour",
    "question": "May I push?",
    "reason": "its holder has ended",
    "requester": "GreenHill",
    "reservation_id": 1,
    "run_id": "00f1c9",
    "sender_name": "BlueLake",
    "subject": "Review",
    "thread_id": "1",
    "to": "GreenHill",
}
_OF_ONE_COMMAND: Final[Mapping[str, Mapping[str, Any]]] = {"SendMessage": {"to": ["GreenHill"]}}
"""What is good to see beside what must be given, or has another form there."""


def example_of(command: type[Command]) -> dict[str, Any]:
    """Return the arguments of a call that can be read."""
    needed = [field.name for field in msgspec.structs.fields(command) if field.required]
    return {**{name: VALUES[name] for name in needed}, **_OF_ONE_COMMAND.get(command.__name__, {})}
