"""Files of records from the import names: loosely structured mappings that are not from the database."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from postroom.contracts.choices import Importance
from postroom.contracts.errors import InvalidArgument
from postroom.contracts.mail import Message, Project, Recipient
from postroom.mail.archive import layout
from postroom.mail.names import check_name


def foreign_profile(profile: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the name and the file of a profile.

    Raises:
        InvalidName: The name is not valid for an agent.
    """
    name = check_name(str(profile.get("name", "")))
    return name, (json.dumps(dict(profile), ensure_ascii=False, indent=2, default=str) + "\n").encode()


def foreign_message(
    slug: str, message: Mapping[str, Any], *, body_md: str, sender: str, recipients: Sequence[str], now: int
) -> tuple[str, bytes]:
    """Return the path and the file of a message.

    Raises:
        InvalidArgument: The message has no integer `id`.
    """
    number = message.get("id")
    if not isinstance(number, int):
        raise InvalidArgument(
            f"a message needs an integer id, not {number!r}", value=number, remedy="give `id`"
        )
    stored = Message(
        id=number,
        project_id=0,
        sender_id=0,
        sender_name=sender,
        thread_id=str(message.get("thread_id") or f"msg-{number}"),
        subject=str(message.get("subject", "")),
        body_md=body_md,
        importance=cast(Importance, message.get("importance", "normal")),
        ack_required=bool(message.get("ack_required", False)),
        created_at=now,
    )
    project = Project(id=0, slug=slug, human_key="", created_at=now, spelling="")
    readers = [
        Recipient(message_id=number, agent_id=0, name=name, project_slug=slug, kind="to", seq=0)
        for name in recipients
    ]
    return layout.message_path(stored), layout.message_file(stored, project, readers, ())
