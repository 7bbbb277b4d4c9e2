"""The Git archive, for callers of `mcp_agent_mail.storage`. The functions do not use the database."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postroom.app.config import Settings
from postroom.contracts.clock import SystemClock
from postroom.mail.archive import layout
from postroom.mail.archive.layout import foreign_message, foreign_profile
from postroom.mail.archive.repository import ArchiveRepository

__all__ = [
    "ProjectArchive",
    "clear_repo_cache",
    "ensure_archive",
    "write_agent_profile",
    "write_message_bundle",
]

_repositories: dict[Path, ArchiveRepository] = {}


@dataclass(frozen=True, slots=True)
class ProjectArchive:
    """The archive of one project."""

    slug: str
    repository: ArchiveRepository


async def ensure_archive(settings: Settings, slug: str) -> ProjectArchive:
    """Open the repository of a project, and create it if it does not exist."""
    path = settings.storage_root / f"{slug}.git"
    if path not in _repositories:
        _repositories[path] = await asyncio.to_thread(
            ArchiveRepository.open,
            path,
            author_name=settings.git_author_name,
            author_email=settings.git_author_email,
        )
    return ProjectArchive(slug=slug, repository=_repositories[path])


async def write_agent_profile(archive: ProjectArchive, profile: Mapping[str, Any]) -> None:
    """Write an agent's profile to the archive.

    Raises:
        InvalidName: The name in the profile is not a valid agent name.
        ArchiveUnavailable: Git could not write it.
    """
    name, content = foreign_profile(profile)
    await _commit(archive, {layout.agent_path(name): content}, f"mail: profile of {name}")


async def write_message_bundle(
    archive: ProjectArchive,
    *,
    message: Mapping[str, Any],
    body_md: str,
    sender: str,
    recipients: Sequence[str],
) -> None:
    """Write a message.

    Raises:
        InvalidArgument: the message has no integer `id`.
        ArchiveUnavailable: Git could not write it.
    """
    path, content = foreign_message(
        archive.slug, message, body_md=body_md, sender=sender, recipients=recipients, now=SystemClock().now()
    )
    await _commit(archive, {path: content}, f"mail: 1 message, {message.get('subject', '')}")


def clear_repo_cache() -> None:
    """Forget opened repositories."""
    _repositories.clear()


async def _commit(archive: ProjectArchive, files: Mapping[str, bytes], subject: str) -> None:
    now = SystemClock().now()
    await asyncio.to_thread(lambda: archive.repository.write(files, subject=subject, now=now))
