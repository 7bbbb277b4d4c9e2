"""Whole rows by table, put back with their ids when a store is rebuilt from an archive."""

from collections.abc import Mapping, Sequence
from typing import Final

from typing_extensions import override

from postroom.contracts.errors import StateError
from postroom.contracts.store import MailWrites
from postroom.stores.mail.part import Part
from postroom.stores.mail.search_index import INDEXES

_NEEDED: Final = None
"""What a column is when the row lacks it: the table refuses it where it must be given."""
_TABLES: Final[Mapping[str, Mapping[str, object]]] = {
    "projects": {
        **dict.fromkeys(("id", "slug", "human_key", "created_at"), _NEEDED),
        **dict.fromkeys(("spelling", "git_identity", "owner"), ""),
    },
    "agents": {
        **dict.fromkeys(("id", "project_id", "name", "name_key", "program", "model"), _NEEDED),
        **dict.fromkeys(("created_at", "last_active_at", "retired_at", "token_hash"), _NEEDED),
        **{"task_description": "", "contact_policy": "open", "inbox_seq": 0, "inbox_floor": 0},
    },
    "messages": {
        **dict.fromkeys(("id", "project_id", "sender_id", "subject", "body_md", "created_ts"), _NEEDED),
        **dict.fromkeys(("reply_to", "recalled_at"), _NEEDED),
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
"""The tables of an archive, those that others refer to first, and their columns with their defaults."""


class Restoring(Part, MailWrites):
    """Fills an empty store."""

    @override
    def restore_rows(self, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        if self._tx.one("mail.any_project"):
            raise StateError("the database already holds mail", remedy="rebuild into a new, empty database")
        if unknown := rows.keys() - _TABLES.keys():
            raise StateError(f"{sorted(unknown)} can not be rebuilt", value=sorted(unknown))
        for table in _TABLES:
            records = [_whole(table, record) for record in rows.get(table, ())]
            self._tx.run_many(f"mail.restore_{table}", records)
        INDEXES[self._tx.dialect].fill(self._tx)


def _whole(table: str, record: Mapping[str, object]) -> Mapping[str, object]:
    columns = _TABLES[table]
    if unknown := record.keys() - columns.keys():
        raise StateError(f"{table} has no column {sorted(unknown)}", value=sorted(unknown))
    return {**columns, **record}
