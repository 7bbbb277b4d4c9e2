"""Operations on reservations: advisory leases on paths and globs, which are granted despite conflicts."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NotRequired, Protocol, TypedDict, TypeVar

from postroom.contracts.clock import iso, milliseconds
from postroom.contracts.errors import InvalidArgument, NotHolder, StateError, UnknownReservation
from postroom.contracts.mail import Agent, Project, Reservation
from postroom.mail.commands import (
    CheckReservations,
    ForceReleaseReservation,
    ListReservations,
    ReleaseReservations,
    RenewReservations,
    ReservePaths,
)
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.globs import (
    Pattern,
    covers,
    folded,
    list_prefixes,
    matches,
    overlapping,
    parse_pattern,
    spelled,
)
from postroom.mail.identity import acting, acting_active, find_agent
from postroom.mail.outgoing import to_archive
from postroom.mail.projects import find_project
from postroom.mail.sending import Addressee, NewMessage, post, refusals
from postroom.mail.views import ReservationView, reservation_view


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two overlapping active reservations of different agents, the older reservation first."""

    first: Reservation
    second: Reservation


class Numbered(Protocol):
    """A record with a number as id."""

    @property
    def id(self) -> int:
        """The number of the record."""
        ...


N = TypeVar("N", bound=Numbered)


def together(pairs: Iterable[tuple[N, N]]) -> list[list[N]]:
    """Combine pairs of records into groups: pairs with a common record are in one group.

    Groups and records are ordered by id.
    """
    groups: dict[int, list[N]] = {}
    for first, second in pairs:
        ns, other = groups.get(first.id, [first]), groups.get(second.id, [second])
        joined = ns if ns is other else [*ns, *other]
        groups |= dict.fromkeys((each.id for each in joined), joined)
    fields = {id(group): sorted(group, key=lambda each: each.id) for group in groups.values()}
    return sorted(fields.values(), key=lambda group: group[0].id)


def conflicts(live: Sequence[Reservation]) -> list[Overlap]:
    """Return each pair of conflicting reservations once, oldest first."""
    ordered = sorted(live, key=lambda one: one.id)
    patterns = [parse_pattern(reservation.pattern) for reservation in ordered]
    results = []
    for number, reservation in enumerate(ordered):
        later = ordered[number + 1 :]
        for position in overlapping(patterns[number], patterns[number + 1 :]):
            other = later[position]
            if other.agent_id != reservation.agent_id and (reservation.exclusive or other.exclusive):
                results.append(Overlap(reservation, other))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A file that another agent has reserved exclusively."""

    path: str
    reservation: Reservation


def held_by_others(context: ReadContext, project: Project, agent: Agent, paths: Sequence[str]) -> list[Held]:
    """Return the files that other agents have reserved exclusively, each with the oldest reservation.

    Paths are relative to the project's folder. A file that the agent itself reserved first is omitted.
    """
    sensitive = context.rules.case_sensitive_paths
    composed = {path: unicodedata.normalize("NFC", path) for path in paths if path}
    wanted = {path: text if sensitive else folded(text) for path, text in composed.items()}
    near = next(iter(wanted.values())) if len(wanted) == 1 else ""
    theirs = context.tx.live_patterns(
        project.id, now=context.now, near=near, but=agent.id, exclusive_only=True
    )
    covering = _oldest_covering(composed, wanted, theirs, sensitive=sensitive)
    if not covering:
        return []
    own = [
        (reservation.id, reservation.pattern)
        for reservation in context.tx.live_reservations(
            project.id, now=context.now, near=near, agent_id=agent.id
        )
    ]
    earlier = _oldest_covering(composed, wanted, own, sensitive=sensitive)
    held = {path: number for path, number in covering.items() if number < earlier.get(path, number + 1)}
    by_id = {
        reservation.id: reservation
        for reservation in context.tx.reservations_by_id(sorted(set(held.values())))
    }
    return [Held(path=path, reservation=by_id[number]) for path, number in held.items()]


def _oldest_covering(
    composed: Mapping[str, str],
    wanted: Mapping[str, str],
    live: Iterable[tuple[int, str]],
    *,
    sensitive: bool,
) -> dict[str, int]:
    by_prefix: dict[str, list[tuple[int, Pattern]]] = {}
    for number, text in live:
        pattern = parse_pattern(text, case_sensitive=sensitive)
        if not pattern.is_resource:
            by_prefix.setdefault(pattern.prefix, []).append((number, pattern))
    covering = {
        path: [
            number
            for prefix in list_prefixes(compared)
            for number, pattern in by_prefix.get(prefix, ())
            if matches(pattern, composed[path])
        ]
        for path, compared in wanted.items()
    }
    return {path: min(numbers) for path, numbers in covering.items() if numbers}


MAX_HOLDERS_SHOWN = 50


class Conflict(TypedDict):
    """A pattern that other agents have reserved, and the reservations of those agents."""

    path: str
    holders: list[ReservationView]


class GrantedView(ReservationView):
    """A reservation that was created or renewed.

    `held` is true if no other agent has an older conflicting reservation.
    """

    held: bool


class ReservationAnswer(TypedDict):
    """The result of a reservation, with the conflicts.

    Reservations are advice unless `enforced_by` names hooks that enforce them.
    """

    granted: list[GrantedView]
    conflicts: list[Conflict]
    enforced_by: list[str]
    unmatched: NotRequired[list[str]]
    """The reserved patterns that match no file: they are of new files, or misspelled."""


class CheckAnswer(TypedDict):
    """The conflicts that a reservation would have."""

    conflicts: list[Conflict]
    enforced_by: list[str]


class ReleaseAnswer(TypedDict):
    """The released reservations.

    `not_found` lists the given paths and ids for which the agent has no reservation.
    """

    released: list[ReservationView]
    not_found: NotRequired[list[str | int]]


class RenewAnswer(TypedDict):
    """The renewed reservations.

    `not_found` lists the given paths and ids for which the agent has no reservation.
    """

    renewed: list[ReservationView]
    not_found: NotRequired[list[str | int]]


class ReservationsView(TypedDict):
    """The active reservations of a project, oldest first."""

    reservations: list[ReservationView]
    conflicts: list[list[int]]
    """Pairs of ids of listed reservations that conflict: of different agents, and at least one exclusive."""
    enforced_by: list[str]


def file_reservation_paths(context: WriteContext, asked: ReservePaths) -> ReservationAnswer:
    """Reserve paths.

    With the mode `refuse`, nothing is reserved if another agent holds one of the paths.

    Raises:
        NotHolder: Another agent holds a path, and the mode is `refuse`. Nothing was reserved.
    """
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    return reserve_all(
        context,
        project,
        agent,
        asked.paths,
        ttl_seconds=asked.ttl_seconds,
        exclusive=asked.exclusive,
        reason=asked.reason,
        refuses=asked.mode == "refuse",
    )


def reserve_all(  # noqa: PLR0913 - the terms of a reservation
    context: WriteContext,
    project: Project,
    agent: Agent,
    paths: Sequence[str],
    *,
    ttl_seconds: int | None,
    exclusive: bool = True,
    reason: str = "",
    refuses: bool = False,
    place: str = "",
) -> ReservationAnswer:
    """Reserve paths for an agent of a project, or renew the agent's existing reservations of the paths.

    `place` names the run, session or task that uses the reservations; the default is the caller's run.

    Raises:
        NotHolder: `refuses` is true, and another agent holds one of the paths.
    """
    ttl = checked_ttl(context, ttl_seconds)
    patterns = _parse_patterns(context, project, paths)
    for over in context.tx.expire_reservations(project.id, context.now):
        to_archive(context, "reservation", over.id, project.id)
    own = {
        reservation.pattern: reservation
        for reservation in context.tx.live_reservations(project.id, now=context.now, agent_id=agent.id)
    }
    renewed = {path: known for path, known in own.items() if known.exclusive or not exclusive}
    holders = {
        pattern.text: _holders(context, project, agent, pattern, exclusive=exclusive) for pattern in patterns
    }
    answer: ReservationAnswer = {
        "granted": [],
        "conflicts": [_conflict(path, others) for path, others in holders.items() if others],
        "enforced_by": list(context.rules.enforced_by),
    }
    older = {
        path: [held for held in others if path not in renewed or held.id < renewed[path].id]
        for path, others in holders.items()
    }
    if refuses and (path := next(filter(older.get, older), None)):
        first = older[path][0]
        raise NotHolder(
            f"{first.holder} holds {first.pattern} until {iso(first.expires_at)}; nothing was reserved",
            value=path,
            remedy="write to the holder, or reserve other paths",
            details={"conflicts": answer["conflicts"]},
        )
    for pattern in patterns:
        earlier = own.get(pattern.text)
        if earlier and pattern.text in renewed:
            granted = context.tx.extend_reservation(
                earlier.id,
                expires_at=context.now + ttl,
                ttl=ttl,
                exclusive=exclusive,
                reason=reason or earlier.reason,
                now=context.now,
            )
        else:
            if earlier:
                ended = "raised to exclusive"
                context.tx.release_reservation(earlier.id, now=context.now, by=agent.name, reason=ended)
                to_archive(context, "reservation", earlier.id, project.id)
            granted = context.tx.insert_reservation(
                agent,
                pattern=pattern.text,
                prefix=pattern.prefix,
                exclusive=exclusive,
                reason=reason or (earlier.reason if earlier else ""),
                ttl=ttl,
                now=context.now,
            )
            run_id = context.caller.run_id
            if place or run_id is not None:
                context.tx.note_reserved_in(granted.id, agent.id, place or in_run(run_id or ""))
        to_archive(context, "reservation", granted.id, project.id)
        answer["granted"].append({**reservation_view(granted), "held": not older[pattern.text]})
    return answer


def in_run(run_id: str) -> str:
    """Return the `place` of reservations that belong to a run."""
    return f"run {run_id}"


def release_reserved_in(context: WriteContext, place: str, *, reason: str) -> None:
    """Release the reservations that were made for a run, session or task."""
    for reservation in context.tx.reserved_in(place, now=context.now):
        context.tx.release_reservation(reservation.id, now=context.now, by=reservation.holder, reason=reason)
        to_archive(context, "reservation", reservation.id, reservation.project_id)


def check_file_reservations(context: ReadContext, asked: CheckReservations) -> CheckAnswer:
    """Return the conflicts that a reservation of the given paths would have."""
    project, agent = acting(context, asked.project_key, asked.agent_name)
    conflicts = [
        _conflict(pattern.text, holders)
        for pattern in _parse_patterns(context, project, asked.paths)
        if (holders := _holders(context, project, agent, pattern, exclusive=asked.exclusive))
    ]
    return {"conflicts": conflicts, "enforced_by": list(context.rules.enforced_by)}


def find_holder(
    context: ReadContext, project: Project, agent: Agent, paths: Sequence[str], *, own: Sequence[str] = ()
) -> str:
    """Return the name of an agent that holds one of the paths, or "" if all paths are free.

    Reservations of the agent itself count only if their patterns are listed in `own`.
    """
    sensitive = context.rules.case_sensitive_paths
    taken = [parse_pattern(text, case_sensitive=sensitive) for text in own]
    for pattern in _parse_patterns(context, project, paths):
        if overlapping(pattern, taken):
            return agent.name
        if reservations := _holders(context, project, agent, pattern, exclusive=True):
            return reservations[0].holder
    return ""


def normal_paths(context: ReadContext, project: Project, paths: Sequence[str]) -> tuple[str, ...]:
    """Return patterns in the normalised form in which reservations store patterns.

    Raises:
        InvalidPattern: A pattern is invalid, or leaves the project.
    """
    return tuple(pattern.text for pattern in _parse_patterns(context, project, paths))


def _parse_patterns(context: ReadContext, project: Project, paths: Sequence[str]) -> list[Pattern]:
    """Parse the patterns of a call, and remove duplicates."""
    sensitive = context.rules.case_sensitive_paths
    folder = f"{unicodedata.normalize('NFC', project.human_key)}/"
    patterns = (
        parse_pattern(
            "." if f"{text.rstrip('/')}/" == folder else text.removeprefix(folder), case_sensitive=sensitive
        )
        for path in paths
        for text in spelled(path)
    )
    return list({pattern.text: pattern for pattern in patterns}.values())


def _holders(
    context: ReadContext, project: Project, agent: Agent, pattern: Pattern, *, exclusive: bool
) -> list[Reservation]:
    others = context.tx.live_patterns(
        project.id, now=context.now, near=pattern.prefix, but=agent.id, exclusive_only=not exclusive
    )
    sensitive = context.rules.case_sensitive_paths
    theirs = [parse_pattern(text, case_sensitive=sensitive) for _, text in others]
    meeting = sorted(others[index][0] for index in overlapping(pattern, theirs))
    return context.tx.reservations_by_id(meeting[:MAX_HOLDERS_SHOWN]) if meeting else []


def _conflict(path: str, holders: Sequence[Reservation]) -> Conflict:
    return {"path": path, "holders": [reservation_view(reservation) for reservation in holders]}


def checked_ttl(context: WriteContext, seconds: int | None) -> int:
    """Return the duration of a reservation in milliseconds.

    The default is a setting of the installation.
    """
    if seconds is None:
        return milliseconds(min(context.rules.default_reservation_ttl, context.rules.max_reservation_ttl))
    longest = context.rules.max_reservation_ttl
    if timedelta(seconds=seconds) > longest:
        raise InvalidArgument(
            f"{seconds} s is longer than the maximum reservation time",
            value=seconds,
            remedy=f"use at most {int(longest.total_seconds())} s, and renew the reservation while you work",
        )
    return seconds * 1000


def release_file_reservations(context: WriteContext, asked: ReleaseReservations) -> ReleaseAnswer:
    """Release reservations of the agent.

    Reservations that have already ended do not change.
    """
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    chosen, missing = _own(context, project, agent, asked.paths, asked.ids)
    released = [
        context.tx.release_reservation(reservation.id, now=context.now, by=agent.name, reason="released")
        for reservation in chosen
    ]
    for reservation in released:
        to_archive(context, "reservation", reservation.id, project.id)
    return {"released": [reservation_view(reservation) for reservation in released], "not_found": missing}


def renew_file_reservations(context: WriteContext, asked: RenewReservations) -> RenewAnswer:
    """Extend the agent's reservations to the requested time from now.

    A reservation that already lasts longer does not change.
    """
    ttl = checked_ttl(context, asked.ttl_seconds)
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    chosen, missing = _own(context, project, agent, asked.paths, asked.ids)
    renewed = [
        context.tx.extend_reservation(
            reservation.id,
            expires_at=max(reservation.expires_at, context.now + ttl),
            ttl=ttl,
            exclusive=reservation.exclusive,
            reason=reservation.reason,
            now=context.now,
        )
        for reservation in chosen
    ]
    for reservation in renewed:
        to_archive(context, "reservation", reservation.id, project.id)
    return {"renewed": [reservation_view(reservation) for reservation in renewed], "not_found": missing}


def _own(
    context: WriteContext,
    project: Project,
    agent: Agent,
    paths: Sequence[str] | None,
    ids: Sequence[int] | None,
) -> tuple[list[Reservation], list[str | int]]:
    """Return the agent's active reservations with the given paths or ids, and the unmatched paths and ids.

    Raises:
        UnknownReservation, NotHolder: An id belongs to no reservation of the project, or to another agent's.
    """
    for reservation_id in ids or ():
        known_reservation = context.tx.reservation(reservation_id)
        if known_reservation is None or known_reservation.project_id != project.id:
            raise UnknownReservation(
                f"project {project.slug} has no reservation {reservation_id}", value=reservation_id
            )
        if known_reservation.agent_id != agent.id:
            raise NotHolder(
                f"reservation {reservation_id} belongs to {known_reservation.holder}", value=reservation_id
            )
    live = context.tx.live_reservations(project.id, now=context.now, agent_id=agent.id)
    if paths is None and ids is None:
        return live, []
    sensitive, chosen, missing = context.rules.case_sensitive_paths, set[int](), list[str | int]()
    held = [
        (reservation, parse_pattern(reservation.pattern, case_sensitive=sensitive))
        for reservation in live
        if paths
    ]
    for path in paths or ():
        named = {reservation.id for reservation in live if reservation.pattern == path}
        patterns = [] if named else _parse_patterns(context, project, [path])
        named |= {
            reservation.id for reservation, pattern in held if any(covers(item, pattern) for item in patterns)
        }
        chosen |= named
        missing += [] if named else [path]
    own = {reservation.id for reservation in live}
    missing += [number for number in ids or () if number not in own]
    chosen |= own & set(ids or ())
    return [reservation for reservation in live if reservation.id in chosen], missing


def force_release_file_reservation(context: WriteContext, asked: ForceReleaseReservation) -> ReservationView:
    """End another agent's reservation, and notify that agent of the reason."""
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    if not asked.reason.strip():
        raise InvalidArgument(
            "a reason is required", value=asked.reason, remedy="state why the holder must release the path"
        )
    return reservation_view(
        end_reservation(context, project, asked.reservation_id, home=project, by=agent, reason=asked.reason)
    )


def end_reservation(
    context: WriteContext, project: Project, reservation_id: int, *, home: Project, by: Agent, reason: str
) -> Reservation:
    """End a reservation on behalf of an agent or person of the project `home`, and notify the holder.

    Raises:
        UnknownReservation, StateError: The project has no such reservation, or it has ended.
    """
    known_reservation = live_reservation(context, project, reservation_id)
    ended = context.tx.release_reservation(known_reservation.id, now=context.now, by=by.name, reason=reason)
    to_archive(context, "reservation", known_reservation.id, project.id)
    holder = context.tx.agents_by_id([known_reservation.agent_id])[known_reservation.agent_id]
    addressees = [Addressee(project=project, agent=holder, kind="to")]
    reach = context.tx.reach(by.id, [holder.id])
    if holder.id != by.id and not refusals(context, home, by, addressees, reach=reach):
        pattern = known_reservation.pattern
        what = f"`{pattern}` (id {known_reservation.id})"
        notice = NewMessage(
            project=home,
            sender=by,
            addressees=addressees,
            subject=f"Your reservation of {pattern} was ended"[: context.rules.max_subject_chars],
            body_md=f"{by.name} ended your reservation of {what}.\n\nReason: {reason}",
            importance="high",
        )
        post(context, notice, bad=[], skipped=[])
    return ended


def share_reservation(context: WriteContext, project: Project, reservation_id: int) -> None:
    """Change an exclusive reservation to a shared reservation.

    Raises:
        UnknownReservation, StateError: The project has no such reservation, or it has ended.
    """
    known_reservation = live_reservation(context, project, reservation_id)
    context.tx.extend_reservation(
        known_reservation.id,
        expires_at=known_reservation.expires_at,
        ttl=known_reservation.ttl,
        exclusive=False,
        reason=known_reservation.reason,
        now=context.now,
    )
    to_archive(context, "reservation", known_reservation.id, project.id)


def live_reservation(context: WriteContext, project: Project, reservation_id: int) -> Reservation:
    """Return an active reservation of a project.

    Raises:
        UnknownReservation, StateError: The project has no such reservation, or it has ended.
    """
    known_reservation = context.tx.reservation(reservation_id)
    if known_reservation is None or known_reservation.project_id != project.id:
        raise UnknownReservation(
            f"project {project.slug} has no reservation {reservation_id}", value=reservation_id
        )
    if known_reservation.released_at is not None or known_reservation.expires_at <= context.now:
        raise StateError(
            f"reservation {known_reservation.id} has ended",
            value=known_reservation.id,
            remedy="reserve the path now; no agent holds it",
        )
    return known_reservation


def list_file_reservations(context: ReadContext, asked: ListReservations) -> ReservationsView:
    """Return the active reservations of a project or of one agent."""
    project = find_project(context.projects, asked.project_key)
    agent_id = None if asked.agent_name is None else find_agent(context.tx, project, asked.agent_name).id
    reservations = context.tx.live_reservations(
        project.id, now=context.now, agent_id=agent_id, limit=asked.limit
    )
    return {
        "reservations": [reservation_view(reservation) for reservation in reservations],
        "conflicts": [[pair.first.id, pair.second.id] for pair in conflicts(reservations)],
        "enforced_by": list(context.rules.enforced_by),
    }
