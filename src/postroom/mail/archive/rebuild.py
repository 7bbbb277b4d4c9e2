"""Rebuilds an empty database from the archive.

The archive does not contain blind-copy recipients, read and acknowledgement marks, contacts, tokens and
idempotency keys, so these cannot be restored. All messages are unread in the new database.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from postroom.contracts import progress
from postroom.contracts.errors import InvalidPath, StoreCorrupt
from postroom.mail.archive import layout
from postroom.mail.archive.archive import read_mark
from postroom.mail.archive.repository import ArchiveRepository
from postroom.stores.mail.store import MailStore

Row = dict[str, Any]


_TOLD: Final = 500
"""The number of files between two reports of the progress."""


@dataclass(slots=True)
class _Found:
    """The database rows that were read from an archive."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    """The ids of agents, keyed by `<name key>@<slug>`."""
    blobs: set[str] = field(default_factory=set)
    moved: list[Row] = field(default_factory=list)
    """The projects that were merged into other projects."""
    messages: list[tuple[Row, Mapping[str, Any], str]] = field(default_factory=list)

    def add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)


def read_archive(repositories: Mapping[str, ArchiveRepository]) -> dict[str, list[Row]]:
    """Return the rows of all repositories, keyed by table.

    The order of the tables respects references between rows.

    Raises:
        StoreCorrupt: A file has the wrong format. The error names the file.
    """
    value = _Found()
    for slug, repository in sorted(repositories.items()):
        _read_project(value, slug, repository)
    _tie_messages(value)
    _tie_aliases(value)
    order = (
        "projects",
        "project_aliases",
        "agents",
        "messages",
        "recipients",
        "blobs",
        "attachments",
        "file_reservations",
    )
    return {table: value.rows.get(table, []) for table in order}


async def read_root(root: Path, author: tuple[str, str]) -> dict[str, list[Row]]:
    """Return the rows of all repositories under the folder `root`, keyed by table.

    Raises:
        InvalidPath: The folder contains no archive of a project.
        StoreCorrupt: A file of the archive cannot be read.
    """
    rows = await asyncio.to_thread(lambda: read_archive(_repositories(root, author)))
    if not rows["projects"]:
        raise no_archive(root)
    return rows


async def write_rows(rows: Mapping[str, list[Row]], root: Path, store: MailStore) -> dict[str, int]:
    """Insert the rows of an archive into an empty store, and return the number of rows per table.

    Raises:
        StateError: The store contains mail already. Nothing was changed.
        ConfigError: The mark file of the archive cannot be read. Nothing was changed.
    """
    mark = await asyncio.to_thread(read_mark, root)
    progress.tell(f"writing {sum(map(len, rows.values())):,} rows into the database")
    await store.write(lambda tx: tx.restore_rows(rows, mark.logs if mark else {}))
    return {table: len(records) for table, records in rows.items()}


def no_archive(root: Path) -> InvalidPath:
    """Return the error for a folder that contains no archive."""
    return InvalidPath(
        f"no archive at {root}: it has no folder <project>.git that postroom wrote",
        value=str(root),
        remedy="name the folder of the archive with --from: it is the folder `archive` in the data folder",
    )


def holds_archive(root: Path) -> bool:
    """Return whether a folder contains files that may be an archive."""
    return any(path.is_dir() and any(path.iterdir()) for path in root.glob("*.git"))


def read_creation_times(root: Path, slugs: Sequence[str], *, author: tuple[str, str]) -> dict[str, int]:
    """Return the creation times in the archives of projects, keyed by slug.

    Raises:
        ArchiveUnavailable: A repository cannot be read.
        StoreCorrupt: The record of a project cannot be read.
    """
    made = {}
    for slug, repository in _repositories(root, author).items():
        if slug in slugs and (data := repository.read(layout.PROJECT_FILE)) is not None:
            made[slug] = layout.parse_time(_parse(slug, layout.PROJECT_FILE, data).get("created_at"))
    return {slug: at for slug, at in made.items() if at is not None}


def _repositories(root: Path, author: tuple[str, str]) -> dict[str, ArchiveRepository]:
    return {
        path.stem: ArchiveRepository.open(path, author_name=author[0], author_email=author[1])
        for path in sorted(root.glob("*.git"))
    }


def _read_project(found: _Found, slug: str, repository: ArchiveRepository) -> None:
    head = repository.read(layout.PROJECT_FILE)
    if head is None:
        return
    project = _parse(slug, layout.PROJECT_FILE, head)
    if "merged_into" in project:
        found.moved.append(project)
        return
    found.add(
        "projects",
        {
            "id": project["id"],
            "slug": project["slug"],
            "human_key": project["human_key"],
            "created_at": layout.parse_time(project["created_at"]),
            "spelling": project["spelling"],
            "git_identity": project["git_identity"],
            "owner": project["owner"],
        },
    )
    for path, content in repository.walk("agents/"):
        _read_agent(found, project, _parse(slug, path, content))
    for path, content in repository.walk("reservations/"):
        _read_reservation(found, project, _parse(slug, path, content))
    total = len(repository.paths("messages/"))
    for done, (path, content) in enumerate(repository.walk("messages/")):
        if not done % _TOLD:
            progress.tell(f"reading the archive of {slug}: files", done, total)
        if layout.parse_message_path(path) is not None:
            _read_message(found, project, f"{slug}:{path}", content)
    for path, content in repository.walk("attachments/"):
        sha256 = path.rsplit("/", 1)[-1]
        if hashlib.sha256(content).hexdigest() != sha256:
            raise StoreCorrupt(f"{slug}:{path} does not match its file name", value=path)
        if sha256 not in found.blobs:
            found.blobs.add(sha256)
            found.add("blobs", {"sha256": sha256, "content": content})


def _parse(slug: str, path: str, content: bytes) -> Row:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise StoreCorrupt(f"{slug}:{path} is not JSON: {error}", value=path) from error
    if not isinstance(value, dict):
        raise StoreCorrupt(f"{slug}:{path} is not a JSON object", value=path)
    return value


def _read_agent(found: _Found, project: Row, profile: Row) -> None:
    key = profile["name"].casefold()
    found.agents[f"{key}@{project['slug']}"] = profile["id"]
    created = layout.parse_time(profile["created_at"])
    found.add(
        "agents",
        {
            "id": profile["id"],
            "project_id": project["id"],
            "name": profile["name"],
            "name_key": key,
            "program": profile["program"],
            "model": profile["model"],
            "task_description": profile["task_description"],
            "contact_policy": profile["contact_policy"],
            "created_at": created,
            "last_active_at": created,
            "retired_at": layout.parse_time(profile["retired_at"]),
        },
    )


def _read_reservation(found: _Found, project: Row, record: Row) -> None:
    found.add(
        "file_reservations",
        {
            "id": record["id"],
            "project_id": project["id"],
            "agent_id": found.agents[f"{record['agent'].casefold()}@{project['slug']}"],
            "pattern": record["pattern"],
            "prefix": record["prefix"],
            "exclusive": record["exclusive"],
            "reason": record["reason"],
            "created_at": layout.parse_time(record["created_at"]),
            "expires_at": layout.parse_time(record["expires_at"]),
            "ttl": record["ttl_ms"],
            "released_at": layout.parse_time(record["released_at"]),
            "released_by": record["released_by"],
            "release_reason": record["release_reason"],
        },
    )


def _read_message(found: _Found, project: Row, where: str, content: bytes) -> None:
    try:
        head, body = layout.read_message_file(content)
    except ValueError as error:
        raise StoreCorrupt(f"{where} cannot be read: {error}", value=where) from error
    row = {
        "id": head["id"],
        "project_id": project["id"],
        "sender_id": found.agents.get(f"{head['from'].casefold()}@{project['slug']}", 0),
        "subject": head["subject"],
        "body_md": body,
        "importance": head["importance"],
        "ack_required": head["ack_required"],
        "created_ts": layout.parse_time(head["created"]),
        "sender_name": head["from"],
        "thread_id": head["thread"],
        "topic": head.get("topic", ""),
        "broadcast": head.get("broadcast", False),
        "reply_to": head.get("reply_to"),
        "recalled_at": layout.parse_time(head.get("recalled")),
    }
    found.messages.append((row, head, str(project["slug"])))


def _tie_aliases(found: _Found) -> None:
    """Make the name of each merged project an alias of the project into which it was merged."""
    ids = {project["slug"]: project["id"] for project in found.rows.get("projects", [])}
    into = {project["slug"]: project["merged_into"] for project in found.moved}
    for project in found.moved:
        target = project["merged_into"]
        for _ in found.moved:
            target = into.get(target, target)
        if target in ids:
            for name in (project["human_key"], project["slug"]):
                found.add("project_aliases", {"human_key": name, "project_id": ids[target]})


def _tie_messages(found: _Found) -> None:
    """Number the messages in each recipient's inbox in the order of sending."""
    seqs: dict[int, int] = {}
    for row, head, slug in sorted(found.messages, key=lambda message: message[0]["id"]):
        found.add("messages", row)
        for position, (agent_id, kind) in enumerate(_recipients(found, head, slug)):
            seqs[agent_id] = seqs.get(agent_id, 0) + 1
            found.add(
                "recipients",
                {
                    "message_id": row["id"],
                    "agent_id": agent_id,
                    "kind": kind,
                    "seq": seqs[agent_id],
                    "position": position,
                },
            )
        for position, item in enumerate(head["attachments"]):
            found.add("attachments", {"message_id": row["id"], "position": position, **item})
    for agent in found.rows.get("agents", []):
        agent["inbox_seq"] = seqs.get(agent["id"], 0)


def _recipients(found: _Found, head: Mapping[str, Any], slug: str) -> Iterator[tuple[int, str]]:
    seen: set[int] = set()
    for kind in ("to", "cc"):
        for address in head[kind]:
            name, _, away = address.partition("@")
            agent_id = found.agents.get(f"{name.casefold()}@{away or slug}")
            if agent_id is not None and agent_id not in seen:
                seen.add(agent_id)
                yield agent_id, kind
