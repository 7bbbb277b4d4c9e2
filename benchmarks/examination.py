"""What `doctor --full` costs those who send: every message compared with its file in the archive."""

import asyncio

from benchmarks.application import fill, fresh_application
from benchmarks.figures import Table, size
from benchmarks.upkeep import against_nothing
from postroom.app.admin_service import AdminService
from postroom.app.wiring import Application
from postroom.http_api.readiness import LagMeter

ARCHIVED = size(50_000, 50)
TOGETHER = size(50_000, 20)
"""Messages of a commit: each writes the list of all files of its month again."""


async def main(archived: int = ARCHIVED) -> None:
    """Print the table."""
    async with fresh_application(archive=True) as application:
        await fill(application, archived)
        await _examined(application, archived)


async def _examined(application: Application, archived: int) -> None:
    [project] = await application.store.read(lambda tx: tx.projects(limit=2))
    await application.archive.rebuild(project, page=TOGETHER)
    table = Table(f"Sends beside the examination of {archived:,} messages and their archive")
    admin = AdminService(application, LagMeter(), started_at=0)
    await against_nothing(application, table, "doctor --full", lambda: admin.doctor(full=True))


if __name__ == "__main__":
    asyncio.run(main())
