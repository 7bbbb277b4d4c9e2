"""An archive that is rebuilt while the relay writes it: messages deleted during it do not come back."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from machine import PATIENCE
from postroom.contracts.mail import KeepRule
from postroom.contracts.outbox import OutboxStatus
from postroom.mail import retention as rules_of_mail
from postroom.mail.archive.archive import Archive, Author, Batch
from postroom.mail.outgoing import ARCHIVE
from postroom.mail.service import Mail
from postroom.relay import Relay
from postroom.stores.mail.access import MailReads
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

PROJECT, SLUG = "/srv/lighthouse", "srv-lighthouse"
AUTHOR = Author(name="postroom", email="postroom@example.org")
TURNS = 50
"""Turns of the loop in which a task that got its result asks the store for the next one."""


class Deleting:
    """A store in which a message is deleted as soon as it was read; then the relay has its turn."""

    def __init__(self, mail: Mail, number: int) -> None:
        self._mail, self._number = mail, number
        self.relay: Relay | None = None
        self.drained: asyncio.Task[int] | None = None
        self._looks = asyncio.Event()

    async def read(self, look: Callable[[Any], Any]) -> Any:
        if self.drained is not None:
            self._looks.set()
        seen = await self._mail.store.read(look)
        has_it = isinstance(seen, Batch) and any(one.id == self._number for one in seen.messages)
        if has_it and self.drained is None:
            await self._delete()
        return seen

    async def _delete(self) -> None:
        self._mail.clock.advance(timedelta(days=2))  # type: ignore[attr-defined]
        rules = rules_of_mail.ProjectRules([KeepRule(keep=timedelta(days=1), unread_stays=False)])
        delete = partial(rules_of_mail.delete_some, project_id=1, ids=[self._number], rules=rules)
        assert await self._mail.store.write(delete) == 1
        assert self.relay is not None
        self.drained = asyncio.create_task(self.relay.drain())
        while OutboxStatus.CLAIMED not in await self._mail.store.read(_statuses):
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self._looks.is_set():  # nothing keeps the relay from being first
            await self.drained


def _statuses(tx: MailReads) -> set[OutboxStatus]:
    return {row.status for row in tx.outbox.open(ARCHIVE, limit=9)}


async def paths(archive: Archive) -> list[str]:
    return await asyncio.to_thread(lambda: archive.repository(SLUG).paths("messages/"))


async def sent(mail: Mail) -> int:
    asked = {"project_key": PROJECT, "sender_name": "Ada", "to": ["Ben"], "subject": "Gone", "body_md": "b"}
    told = await mail.call("send_message", asked)
    return int(told["deliveries"][0]["payload"]["id"])


async def test_a_message_that_is_deleted_while_its_archive_is_written_anew_stays_deleted(
    sqlite_store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    mail = Mail(sqlite_store, clock)
    await mail.call("ensure_project", {"human_key": PROJECT})
    for name in ("Ada", "Ben"):
        await mail.call(
            "register_agent", {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
        )
    number = await sent(mail)
    store = Deleting(mail, number)
    archive = Archive(tmp_path / "archive", store, clock, AUTHOR)  # type: ignore[arg-type]
    store.relay = Relay(sqlite_store.store, {ARCHIVE: archive})
    [project] = await mail.store.read(lambda tx: tx.projects(limit=9))
    await Relay(sqlite_store.store, {ARCHIVE: Archive(archive.root, sqlite_store, clock, AUTHOR)}).drain()
    assert len(await paths(archive)) == 1
    await mail.store.settle()
    async with asyncio.timeout(PATIENCE):
        await archive.rebuild(project)
    assert store.drained is not None
    await store.drained
    assert await paths(archive) == []
    assert await archive.differing(project) == []
