"""Whole rows by table, stored with their ids when a store is rebuilt from an archive."""

from collections.abc import Mapping
from typing import Final, cast

from postroom.contracts.errors import StateError
from postroom.contracts.mail import check_value

_NEEDED: Final = None
"""The default of a column without one: the table refuses the row if it needs a value."""
TABLES: Final[Mapping[str, Mapping[str, object]]] = {
    "projects": {
        **dict.fromkeys(("id", "slug", "human_key", "created_at"), _NEEDED),
        **dict.fromkeys(("spelling", "git_identity", "owner"), ""),
    },
    "project_aliases": dict.fromkeys(("human_key", "project_id"), _NEEDED),
    "agents": {
        **dict.fromkeys(("id", "project_id", "name", "name_key", "program", "model"), _NEEDED),
        **dict.fromkeys(("created_at", "last_active_at", "retired_at", "token_hash"), _NEEDED),
        **{"task_description": "", "contact_policy": "open", "inbox_seq": 0, "inbox_floor": 0},
    },
    "messages": {
        **dict.fromkeys(("id", "project_id", "sender_id", "subject", "body_md", "created_ts"), _NEEDED),
        **dict.fromkeys(("reply_to", "recalled_at", "check_value"), _NEEDED),
        **{"importance": "normal", "ack_required": 0, "broadcast": 0},
        **dict.fromkeys(("sender_name", "thread_id", "topic"), ""),
    },
    "recipients": {
        **dict.fromkeys(("message_id", "agent_id", "kind", "seq", "read_at", "acked_at"), _NEEDED),
        **{"position": 0, "announced_at": _NEEDED, "announced_by": _NEEDED},
    },
    "blobs": dict.fromkeys(("sha256", "content"), _NEEDED),
    "attachments": dict.fromkeys(
        ("message_id", "position", "sha256", "name", "media_type", "size", "preview_sha256"), _NEEDED
    ),
    "file_reservations": {
        **dict.fromkeys(("id", "project_id", "agent_id", "pattern", "prefix", "exclusive"), _NEEDED),
        **dict.fromkeys(("created_at", "expires_at", "ttl", "released_at"), _NEEDED),
        **dict.fromkeys(("reason", "released_by", "release_reason"), ""),
    },
}
"""The tables of an archive, referenced tables first, and their columns with their defaults."""


def whole(table: str, record: Mapping[str, object]) -> Mapping[str, object]:
    """Return a row with every column of its table."""
    columns = TABLES[table]
    if unknown := record.keys() - columns.keys():
        raise StateError(
            f"{table} has no column {sorted(unknown)}",
            value=sorted(unknown),
            remedy="use the release of postroom that wrote the archive, or a newer one",
        )
    if table == "messages" and record.get("recalled_at") is None:
        texts = (str(record.get(name, "")) for name in ("subject", "body_md", "topic"))
        record = {**record, "check_value": check_value(cast("int", record["id"]), *texts)}
    return {**columns, **record}
