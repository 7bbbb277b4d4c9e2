"""Merges two projects, and shows the effects and obstacles of a merge. Only the operator may merge.

All records of the source move to the target, and keep their ids. The path and the slug of the source become
names of the target, so that agents in the folder of the source can continue, and existing addresses still
work.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Final

from postroom.contracts.errors import InvalidArgument, StateError
from postroom.contracts.mail import Agent, Project, ProjectSize
from postroom.contracts.messages import Json
from postroom.contracts.outbox import NO_END, OutboxDraft
from postroom.mail.names import MAX_NAME_LENGTH, check_new_name, shown
from postroom.mail.outgoing import ARCHIVE, MOVED, RECORDS
from postroom.mail.projects import PEOPLE_KEY, find_project
from postroom.mail.reservations import Overlap, conflicts
from postroom.mail.waking.prompts import agent_thread
from postroom.stores.mail.access import MailReads, MailWrites

_RECORDS_A_ROW: Final = 20
"""Maximum number of records in an outbox row. The archive writes about 200 rows in a commit."""
_LIVE: Final = 1_000
"""Maximum number of active reservations of each project that are compared."""
_NAMED: Final = 20
"""Maximum number of names that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """The changes that a merge of two projects would make, and the reasons that prevent the merge."""

    source: Project
    target: Project
    size: ProjectSize
    """The number of records that move."""
    threads: tuple[str, ...]
    """Threads that exist in both projects. Each such pair becomes one thread."""
    conflicts: tuple[Overlap, ...]
    """Overlapping reservations of the two projects. The holders do not know of each other."""
    renames: tuple[tuple[Agent, str], ...]
    """The agents of the source that must be renamed, each with its new name."""
    refusals: tuple[str, ...]
    """The reasons why the merge is impossible, if it is."""


def plan_merge(
    tx: MailReads,
    source_key: str,
    target_key: str,
    *,
    renames: Mapping[str, str] | None = None,
    rename_equal: bool = False,
) -> MergePlan:
    """Plan a merge of two projects, without changing anything.

    `renames` maps names of agents in the source project to new names. With `rename_equal`, agents whose names
    exist in the target project get a number, as in `Ada-2`.

    Raises:
        UnknownProject: No project has one of these names.
        InvalidArgument: Both names belong to one project.
        InvalidName: A new name is invalid or reserved.
    """
    source, target = find_project(tx, source_key), find_project(tx, target_key)
    if source.id == target.id:
        raise InvalidArgument(
            f"{shown(source_key)} and {shown(target_key)} are the same project",
            value=source_key,
            remedy="choose two different projects",
        )
    new_names, refusals = dict(renames or {}), list(_refusals(tx, source, target))
    given = {old.casefold() for old in new_names}
    equal = [name for name in tx.shared_agents(source.id, target.id) if name.casefold() not in given]
    if rename_equal:
        taken = {name.casefold() for name in new_names.values()}
        for name in equal:
            new_names[name] = _free_name(tx, source, target, name, taken)
            taken.add(new_names[name].casefold())
    elif equal:
        # Write the error for agents whose names exist in both projects, with the options to use.
        more = f" and {len(equal) - _NAMED} more" if len(equal) > _NAMED else ""
        example = f"{equal[0]}={_free_name(tx, source, target, equal[0], set())}"
        equal_names = (
            f"both projects have an agent {', '.join(map(shown, equal[:_NAMED]))}{more}, but only one "
            f"agent of a project can have a name: rename the agents of {source.slug} with "
            f"`--rename {example}`, one option for each, or all of them with `--rename-equal`"
        )
        refusals.insert(0, equal_names)
    renamed = []
    for old, new in new_names.items():
        agent = tx.agent(source.id, old)
        refusal = _no_rename(tx, (source, target), agent, old, new)
        if sum(new.casefold() == other.casefold() for other in new_names.values()) > 1:
            refusal = f"two agents cannot both be named {shown(new)}"
        if agent is None or refusal:
            refusals.append(refusal)
        else:
            renamed.append((agent, new))
    live = [
        reservation
        for home in (source, target)
        for reservation in tx.live_reservations(home.id, now=tx.now(), limit=_LIVE)
    ]
    return MergePlan(
        source=source,
        target=target,
        size=tx.project_size(source.id),
        threads=tuple(tx.shared_threads(source.id, target.id)),
        conflicts=tuple(
            overlap for overlap in conflicts(live) if overlap.first.project_id != overlap.second.project_id
        ),
        renames=tuple(renamed),
        refusals=tuple(dict.fromkeys(refusals)),
    )


def _free_name(tx: MailReads, source: Project, target: Project, name: str, taken: Set[str]) -> str:
    tried = (f"{name[: MAX_NAME_LENGTH - 8]}-{number}" for number in count(2))
    return next(
        value
        for value in tried
        if value.casefold() not in taken and not any(tx.agent(home.id, value) for home in (source, target))
    )


def _no_rename(tx: MailReads, homes: Sequence[Project], agent: Agent | None, old: str, new: str) -> str:
    """Return the reason why an agent cannot get a name, or "" if the name is allowed.

    Raises:
        InvalidName: The name is invalid or reserved.
    """
    if agent is None:
        return f"{homes[0].slug} has no agent {shown(old)} to rename"
    check_new_name(new)
    holders = [(home, tx.agent(home.id, new)) for home in homes]
    holder = next((home for home, item in holders if item is not None and item.id != agent.id), None)
    return (
        f"{shown(old)} cannot be renamed to {shown(new)}: {holder.slug} has an agent of that name"
        if holder
        else ""
    )


def merge(
    tx: MailWrites,
    source_key: str,
    target_key: str,
    *,
    renames: Mapping[str, str] | None = None,
    rename_equal: bool = False,
) -> MergePlan:
    """Merge the source project into the target project, and return the executed plan.

    Raises:
        UnknownProject, InvalidArgument, InvalidName: As for `plan_merge`.
        StateError: There is an obstacle. Nothing was changed.
    """
    tx.lock_projects({find_project(tx, key).id for key in (source_key, target_key)})
    plan = plan_merge(tx, source_key, target_key, renames=renames, rename_equal=rename_equal)
    if plan.refusals:
        raise StateError(
            f"{plan.source.slug} cannot be merged into {plan.target.slug}: {'; '.join(plan.refusals)}",
            value=plan.source.slug,
            remedy="run `postroom projects merge --dry-run` for details; nothing was changed",
            details={"refusals": list(plan.refusals)},
        )
    records = tx.archived_records(plan.source.id)
    new_names = {agent.id: name for agent, name in plan.renames}
    tx.merge_projects(plan.source, plan.target, renames=new_names, now=tx.now())
    # Queue the moved and renamed records for the archive. The archive of the source then names the target.
    source, target = plan.source, plan.target
    for home, of_home in records.items():
        for at in range(0, len(of_home), _RECORDS_A_ROW):
            page: list[Json] = [*of_home[at : at + _RECORDS_A_ROW]]
            _put(tx, target.id if home == source.id else home, {"record": RECORDS, "records": page})
    former = {"slug": source.slug, "human_key": source.human_key, "merged_into": target.slug}
    _put(tx, target.id, {"record": MOVED, **former})
    return plan


def _refusals(tx: MailReads, source: Project, target: Project) -> Iterator[str]:
    if PEOPLE_KEY in (source.human_key, target.human_key):
        yield "the project that holds the mailboxes of people cannot be merged"
    if source.owner != target.owner:
        yield f"their owners are {shown(source.owner)} and {shown(target.owner)}"
    if tx.has_threads_of_runs(agent_thread(source.slug, "")):
        yield (
            f"runs of agents of {source.slug} are stored under its name: merge {target.slug} into "
            f"{source.slug} instead, if {target.slug} has no runs"
        )


def _put(tx: MailWrites, project_id: int, payload: dict[str, Json]) -> None:
    draft = OutboxDraft(kind=ARCHIVE, target=str(project_id), payload=payload, max_attempts=NO_END)
    tx.outbox.enqueue((draft,))
