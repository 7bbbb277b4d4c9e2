"""The threads on which the agents of a project are run, and the newest runs on them."""

from postroom.contracts.run_stores import RunQuery, RunStores, ThreadQuery
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.mail.waking.prompts import AGENT_THREAD, agent_of

OPEN_STATUSES = (RunStatus.CREATED, RunStatus.RUNNING, RunStatus.WAITING)


def project_threads(slug: str) -> str:
    """Return how the names of the threads begin on which agents of a project, or with "" of all, are run."""
    return f"{AGENT_THREAD}{slug}/" if slug else AGENT_THREAD


def whose(thread_id: str) -> tuple[str, str]:
    """Return slug and name of the agent whose runs a thread holds; empty for another thread."""
    return agent_of(thread_id) or ("", "")


async def threads_of(stores: RunStores, slug: str) -> list[str]:
    """Return the threads on which agents of a project, or of all, were ever run."""
    found: list[str] = []
    prefix = project_threads(slug)
    after = ""
    while page := await stores.threads.list_threads(ThreadQuery(id_prefix=prefix, after=after)):
        after = page[-1].id
        found += [one.id for one in page]
    return found


async def newest_runs(stores: RunStores, slug: str, *, each: int) -> list[RunRecord]:
    """Return the newest runs of each agent of a project, or of all, the last changed first."""
    found: list[RunRecord] = []
    for thread_id in await threads_of(stores, slug):
        found += await stores.threads.latest_runs(thread_id, limit=each)
    return sorted(found, key=lambda run: run.updated_at, reverse=True)


async def open_runs(
    stores: RunStores, slug: str | None, statuses: tuple[RunStatus, ...] = OPEN_STATUSES
) -> list[RunRecord]:
    """Return the runs that are not done, by run id: of a project's agents, with "" of all agents, or all."""
    prefix = "" if slug is None else project_threads(slug)
    found: list[RunRecord] = []
    after = ""
    while page := await stores.threads.list_runs(RunQuery(statuses=statuses, after=after)):
        after = page[-1].run_id
        found += [run for run in page if run.thread_id.startswith(prefix)]
    return found
