"""Answers hooks of client programs and of Git; each event gets one decision and one answer.

A hook reports what happened and where. This module finds the agent, decides on the answer, and stores the
changes that follow. The decision is first made in a read transaction. The decision is made again in a write
transaction only if something must be stored. Therefore most calls write nothing, and when a line is sent, its
messages are already marked as announced.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from postroom.contracts.clients import EVENTS, WAIT, WAKE, WAKING, unchecked
from postroom.contracts.errors import AccessError, InvalidArgument, InvalidPath, StoreError
from postroom.contracts.mail import Agent, Project
from postroom.contracts.subscriptions import SUBSCRIPTION_THREAD
from postroom.contracts.tokens import Grant
from postroom.contracts.waking import viewer
from postroom.log import get_logger
from postroom.mail.commands import Command, read_command
from postroom.mail.context import Caller, ReadContext, WriteContext
from postroom.mail.identity import ACTIVITY_INTERVAL, check_token
from postroom.mail.names import MAX_NAME_LENGTH
from postroom.mail.notes import notes_to_give
from postroom.mail.projects import checked_path
from postroom.mail.repositories import Location, list_locations, locate
from postroom.mail.reservations import held_by_others, in_run, release_reserved_in
from postroom.mail.service import Mail
from postroom.mail.subscriptions import is_watched
from postroom.services import notices
from postroom.services.file_views import FileReport, Findings, How, check_writes, note_files
from postroom.services.idling import Idling
from postroom.stores.mail.access import MailReads, MailWrites

_LOG = get_logger(__name__)

TOLD_INTERVAL = 30_000
"""Minimum number of milliseconds between two lines during a turn."""
SESSIONS_KEPT = 30 * 24 * 3_600_000
"""A session that has not ended is deleted after this number of milliseconds."""
PURGED_AT_ONCE = 100
MAX_PATHS = 5_000
MAX_FILES = 300
VIEWS_KEPT = 30 * 24 * 3_600_000
"""A session's view of a file is deleted this number of milliseconds after the last report."""
WAIT_SECONDS = 25.0
"""A request that waits for mail is answered after this number of seconds, and the caller asks again."""
BY = "hook"
_MACHINE = socket.gethostname()
"""The host name, which is a part of file names, since servers on several machines may share a store."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

_Path = Annotated[str, Meta(max_length=4096)]
_Blob = Annotated[str, Meta(pattern="^([0-9a-f]{40}|gone|huge)$")]
_Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Outcome = Literal["silent", "tell", "hold", "allow", "deny", "error", "unknown"]


class HookCall(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event in a client's session, reported by a hook."""

    session_id: Annotated[str, Meta(max_length=400)] = ""
    cwd: _Path = ""
    agent: Annotated[str, Meta(max_length=400, description="POSTROOM_AGENT of the client")] = ""
    guard: Literal["", "warn", "block", "off"] = ""
    stale: Annotated[
        Literal["", "warn", "block", "off"],
        Meta(
            description="POSTROOM_STALE of the client, for writes onto a version that the agent has not read"
        ),
    ] = ""
    paths: Annotated[tuple[_Path, ...], Meta(max_length=MAX_PATHS)] = ()
    files: Annotated[
        tuple[tuple[_Path, _Blob, How], ...],
        Meta(max_length=MAX_FILES, description="files that the tool uses, with their versions"),
    ] = ()
    compacted: Annotated[bool, Meta(description="whether the client has just compacted its context")] = False
    stop_active: Annotated[bool, Meta(description="whether the turn was held before")] = False
    acts_as: Annotated[
        str, Meta(max_length=400, description="the agent as which the client's last tool call acted")
    ] = ""
    acts_in: Annotated[str, Meta(max_length=4096, description="the project of that agent")] = ""
    waiting_since: Annotated[
        int,
        Meta(
            ge=0,
            le=2**63 - 1,
            description="when a hook began to wait for mail, by the clock of the client's machine",
        ),
    ] = 0
    reserved: Annotated[
        tuple[_Id, ...], Meta(max_length=MAX_PATHS, description="ids of the agent's reservations")
    ] = ()
    fetched: Annotated[
        tuple[_Id, ...], Meta(max_length=MAX_PATHS, description="ids of the messages that the agent fetched")
    ] = ()


class HookAnswer(TypedDict):
    """The action that a hook must take.

    `mode` decides what an `error` or `unknown` outcome means for the client.
    """

    outcome: Outcome
    text: str
    mode: str
    changed: NotRequired[list[list[str]]]
    """The path, the known version and the new version of changed files, whose lines the hook adds to the
    text.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The answer to a hook, and the changes to store in the same transaction."""

    answer: HookAnswer
    notes: tuple[Callable[[WriteContext], object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The call of a hook, with facts that were read from the disk."""

    kind: str
    client: str
    call: HookCall
    here: tuple[Location, ...]
    files: tuple[tuple[tuple[Location, ...], str], ...]
    """The locations of each file's folder, and the file's name there; no link remains to be resolved."""
    folders: Mapping[str, tuple[Location, ...]]
    """The locations of the folders of `call.files`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Actor:
    """The agent that makes a call, and the project of the agent."""

    project: Project
    agent: Agent


_Decide = Callable[[ReadContext, _Event, _Actor | None], _Decision]


class Hooks:
    """Answers the hooks of client programs."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._idling = Idling()

    async def answer(
        self,
        client: str,
        event: str,
        body: Mapping[str, Any],
        *,
        agent_token: str | None = None,
        grant: Grant | None = None,
    ) -> HookAnswer:
        """Return the answer to a hook event of a client.

        A caller that does not prove its identity acts as no agent.

        A caller without a proof of identity has no agent. If the store fails, a setting decides the answer to
        hooks that check files.

        Raises:
            InvalidArgument: The client or event is unknown, or the body is invalid.
            StoreError: The store failed, nothing was recorded, and the event does not check files.
        """
        waits = client in WAKING and event in (WAIT, WAKE)
        kind = event if waits else EVENTS.get(client, {}).get(event)
        if kind is None:
            raise InvalidArgument(
                f"unknown event {event[:60]!r} of client {client[:60]!r}",
                value=event[:60],
                remedy=f"use one of the clients {', '.join(EVENTS)}; see `postroom hook --help`",
            )
        call = read_command(HookCall, dict(body))
        session, since = f"{client}/{call.session_id}", call.waiting_since
        if kind == "end" and since and self._idling.waits_newer(session, since):
            return _answer("silent")  # the session was resumed, and another process now waits for it
        try:
            caller = Caller(
                agent_token=agent_token,
                operator=True,
                agent_id=None if grant is None else grant.agent_id,
                claim=None if grant is None else grant.claim,
                grant=grant,
            )
            answer = await self._decide_call(kind, client, call, caller)
        except StoreError as error:
            if kind not in _CHECKS:
                raise
            _LOG.error("hook.check_failed", client=client, hook_event=event, code=error.code)
            text = unchecked("the server's store failed")
            return _answer("error", text, mode=self._mode(call))
        self._idling.note(session, kind, answer["outcome"])
        if kind == "end":
            self._mail.changes.ring()  # the hook that waits for mail of this session returns now
        return answer

    async def _decide_call(self, kind: str, client: str, call: HookCall, caller: Caller) -> HookAnswer:
        if kind in _CHECKS and self._mode(call) == "off":
            return _answer("allow")
        event = await asyncio.to_thread(_prepare, kind, client, call)
        if kind == WAIT:
            session, since = f"{event.client}/{call.session_id}", call.waiting_since
            if self._idling.take_over(session, since):
                self._mail.changes.ring()  # the process that waited before stops now

            async def look() -> HookAnswer:  # `tell` for mail in an idle session; `unknown` ends the wait
                if not call.session_id or not self._idling.waits(session, since):
                    return _answer("unknown")
                answer = await self._mail.store.read(lambda tx: self._decide(tx, event, caller).answer)
                at_work = answer["outcome"] == "tell" and self._idling.is_at_work(session)
                return _answer("silent") if at_work else answer

            until = asyncio.get_running_loop().time() + WAIT_SECONDS
            return await self._mail.changes.awaited(
                look, lambda found: found["outcome"] != "silent", until=until
            )
        decision = await self._mail.store.read(lambda tx: self._decide(tx, event, caller))
        if not decision.notes:
            return decision.answer

        def change(tx: MailWrites) -> HookAnswer:
            decided = self._decide(tx, event, caller)
            context: WriteContext = self._mail.context(tx, caller)
            for note in decided.notes:
                note(context)
            return decided.answer

        return await self._mail.store.write(change)

    def _decide(self, tx: MailReads, event: _Event, caller: Caller) -> _Decision:
        context: ReadContext = self._mail.context(tx, caller)
        actor, binding = _who(context, event)
        decided = _DECIDE[event.kind](context, event, actor)
        answer: HookAnswer = {**decided.answer, "mode": self._mode(event.call)}
        return _Decision(answer=answer, notes=(*binding, *decided.notes))

    def _mode(self, call: HookCall) -> str:
        return call.guard or self._mail.rules.guard_mode


def _answer(outcome: Outcome, text: str = "", *, mode: str = "") -> HookAnswer:
    return {"outcome": outcome, "text": text, "mode": mode}


_SILENT = _Decision(answer=_answer("silent"))


def _prepare(kind: str, client: str, call: HookCall) -> _Event:
    """Resolve links and worktrees in the folders of a call, by reading the disk."""
    here = list_locations(call.cwd, "/") if call.cwd else ()
    if kind == "edit":
        files = tuple((list_locations(path, call.cwd), "") for path in call.paths)
    else:  # a commit contains the link itself, and thousands of files are in a few folders
        parts = [path.rpartition("/") for path in call.paths]
        folders = {folder: list_locations(folder or ".", call.cwd) for folder, _, _ in parts}
        files = tuple((folders[folder], name) for folder, _, name in parts)
    used = {path.rpartition("/")[0] for path, _, _ in call.files}
    around = {folder: list_locations(folder or "/", "/") for folder in used}
    return _Event(kind=kind, client=client, call=call, here=here, files=files, folders=around)


def _who(
    context: ReadContext, event: _Event
) -> tuple[_Actor | None, Sequence[Callable[[WriteContext], object]]]:
    """Return the agent that the call or the session names, and the changes that store a new agent."""
    call = event.call
    bound = context.tx.client_session(event.client, call.session_id) if call.session_id else None
    if call.agent:
        # The agent that the call names as `name` (in the project around its folder) or `name@project`.
        name, _, key = event.call.agent.partition("@")
        actor = _require_proof(context, _agent_in(context, event, name, key))
        is_shown = event.kind in ("start", "prompt", "tool") and not _in_run(context)
    else:
        # The agent for which the client has just called a tool of postroom.
        actor = (
            _require_proof(context, _agent_in(context, event, event.call.acts_as, event.call.acts_in))
            if event.kind == "tool" and call.acts_as
            else None
        )
        is_shown = actor is not None
        actor = actor or _require_proof(context, _actor(context, bound.agent_id) if bound else None)
        if actor is None and event.kind in ("start", "prompt") and not _in_run(context):
            actor = _require_proof(context, _agent_in(context, event, _name_from_folder(event), ""))
            is_shown = actor is not None
    if actor is None or not (is_shown and call.session_id) or (bound and bound.agent_id == actor.agent.id):
        return actor, ()
    new = actor.agent.id

    def bind(writing: WriteContext) -> None:
        writing.tx.bind_client_session(event.client, call.session_id, new, writing.now)
        writing.tx.purge_client_sessions(writing.now - SESSIONS_KEPT, limit=PURGED_AT_ONCE)

    return actor, (bind,)


def _require_proof(context: ReadContext, actor: _Actor | None) -> _Actor | None:
    """Return the actor, or None if the caller does not prove that it may act as the agent."""
    if actor is not None:
        try:
            check_token(context, actor.agent)
        except AccessError:
            return None
    return actor


def _name_from_folder(event: _Event) -> str:
    folder = _NOT_IN_NAMES.sub("-", PurePath(event.call.cwd).name).strip("-.")
    return f"{event.client}-{folder or 'work'}"[:MAX_NAME_LENGTH]


def _agent_in(context: ReadContext, event: _Event, name: str, key: str) -> _Actor | None:
    if key:
        project = context.projects.project(key)
        if project is None:
            with suppress(InvalidPath):
                project = context.projects.project(checked_path(key))
    else:
        place = locate(context.projects, event.here)
        project = place[0] if place else None
    agent = context.tx.agent(project.id, name) if project else None
    return _actor(context, agent.id) if agent else None


def _actor(context: ReadContext, agent_id: int) -> _Actor | None:
    agent = context.tx.agents_by_id([agent_id]).get(agent_id)
    project = context.tx.project_by_id(agent.project_id) if agent else None
    if agent is None or project is None or agent.retired_at is not None:
        return None
    return _Actor(project=project, agent=agent)


def _start(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    if actor is not None:
        decision = _prompt(context, event, actor)
        unread = context.tx.unread_count(actor.agent.id)
        if not decision.notes and unread and not _in_run(context):
            decision = _Decision(answer=_answer("tell", notices.unread_before_line(actor.agent.name, unread)))
        lines = [notices.COMPACTED_LINE] if event.call.compacted else []
        if not event.call.agent and not _in_run(context):  # no person chose the name, so show it
            lines.append(notices.identity_line(actor.agent.name))
        text = " ".join((*lines, decision.answer["text"])).rstrip()
        return replace(decision, answer=_answer("tell", text)) if lines else decision
    place = locate(context.projects, event.here)
    if place is None:
        return _SILENT
    name = _name_from_folder(event)
    return _Decision(answer=_answer("tell", notices.welcome_line(place[0].slug, name)))


def _begin_turn(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    prompt = _prompt(context, event, actor)
    return (
        prompt
        if actor is None or _in_run(context)
        else replace(prompt, notes=(*prompt.notes, _active(actor)))
    )


def _active(actor: _Actor) -> Callable[[WriteContext], object]:
    return lambda writing: writing.tx.touch_agent(actor.agent.id, writing.now)


def _prompt(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    del event
    if actor is None:
        return _SILENT
    agent = actor.agent
    arrivals = context.tx.unannounced(agent.id, limit=notices.COUNTED)
    if not arrivals:
        return _SILENT
    ids, newest = [arrival.message_id for arrival in arrivals], arrivals[-1]
    # Answers to questions, and messages of subscriptions, have their reader as their sender.
    is_from_server = newest.sender_id == agent.id and (
        context.tx.answering_run(newest.message_id) is not None
        or context.tx.messages(ids[-1:])[newest.message_id].thread_id.startswith(SUBSCRIPTION_THREAD)
    )
    line = notices.unread_line(agent.name, arrivals, is_from_server=is_from_server)
    return _Decision(
        answer=_answer("tell", line),
        notes=(lambda writing: writing.tx.mark_announced(agent.id, ids, by=BY, now=writing.now),),
    )


def _tool(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    if actor is None:
        return _SILENT
    nudges, active = context.tx.nudges(actor.agent.id), _activity(context, actor.agent)
    if event.call.reserved and event.call.session_id and not _in_run(context):

        def note(writing: WriteContext) -> None:  # the end of the session releases its new reservations
            for reservation_id in event.call.reserved:
                writing.tx.note_reserved_in(reservation_id, actor.agent.id, _in_session(event))

        active = (note, *active)
    if event.call.fetched:
        # The sequence number up to which the agent has fetched all unread messages.
        held_seq, ids = nudges.held_seq, set(event.call.fetched)
        for message_id, seq in reversed(context.tx.directed_unread(actor.agent.id, limit=notices.COUNTED)):
            if seq > held_seq and message_id not in ids:
                break
            held_seq = max(seq, held_seq)
        if held_seq > nudges.held_seq:
            nudges = replace(nudges, held_seq=held_seq)
            fetched = nudges
            active += (lambda writing: writing.tx.set_nudges(actor.agent.id, fetched),)
    if event.call.acts_as or 0 <= context.now - nudges.notified_at < TOLD_INTERVAL:
        return replace(_SILENT, notes=active)
    prompt = _prompt(context, event, actor)
    if not prompt.notes:
        return replace(_SILENT, notes=active)
    noted = replace(nudges, notified_at=context.now)
    return replace(
        prompt, notes=(*active, *prompt.notes, lambda writing: writing.tx.set_nudges(actor.agent.id, noted))
    )


def _with_notes(decide: _Decide, context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    decided, call = decide(context, event, actor), event.call
    grant = context.caller.grant
    place = _in_session(event) if grant is None or grant.run_id is None else in_run(grant.run_id)
    if actor is None or (event.kind == "tool" and not call.acts_as) or (not place and event.kind != "start"):
        return decided
    notes = notes_to_give(
        context.tx,
        actor.project,
        actor.agent,
        context.rules,
        place=place,
        again=call.compacted,
        with_own=event.kind == "start",
    )
    if notes is None:
        return decided

    def record(writing: WriteContext) -> None:
        if call.compacted:
            writing.tx.forget_given(place)
        notes.record(writing.tx, writing.now)

    text = f"{decided.answer['text']}\n{notes.text}".lstrip()
    return _Decision(answer=_answer("tell", text), notes=(*decided.notes, *((record,) if place else ())))


def _in_session(event: _Event) -> str:
    return f"session {event.client}/{event.call.session_id}" if event.call.session_id else ""


def _wait(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    if actor is None or _in_run(context):
        return _Decision(answer=_answer("unknown"))
    return _Decision(answer=_prompt(context, event, actor).answer)


def _wake(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    prompt = _prompt(context, event, actor)
    if actor is None or not prompt.notes:
        return prompt
    agent = actor.agent
    nudges = context.tx.nudges(agent.id)
    newest = max((seq for _, seq in context.tx.directed_unread(agent.id, limit=1)), default=0)
    noted = replace(nudges, held_seq=max(newest, nudges.held_seq))
    return replace(
        prompt,
        notes=(*prompt.notes, _active(actor), lambda writing: writing.tx.set_nudges(agent.id, noted)),
    )


def _stop(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    """Make the client continue its turn once if the agent has unread messages."""
    if actor is None:
        return _SILENT
    agent = actor.agent
    if event.call.stop_active:
        return _idle(context, agent)
    if _in_run(context) and context.tx.runner(agent.id) is not None:
        return _SILENT
    unread = context.tx.directed_unread(agent.id, limit=notices.COUNTED)
    nudges = context.tx.nudges(agent.id)
    if not unread or unread[0][1] <= nudges.held_seq:
        return _idle(context, actor.agent)
    newest = unread[0][1]
    directed = [
        arrival.message_id
        for arrival in context.tx.unannounced(agent.id, limit=notices.COUNTED)
        if arrival.kind == "to" and not arrival.broadcast
    ]

    def note(writing: WriteContext) -> None:
        writing.tx.set_nudges(agent.id, replace(nudges, held_seq=newest))
        writing.tx.mark_announced(agent.id, directed, by=BY, now=writing.now)

    return _Decision(answer=_answer("hold", notices.held_line(agent.name, len(unread))), notes=(note,))


def _idle(context: ReadContext, agent: Agent) -> _Decision:
    """Let a turn end, and record that the agent is idle if another agent has subscribed to the event."""
    if _in_run(context) or not is_watched(context, agent):
        return _SILENT
    return replace(_SILENT, notes=(lambda writing: writing.tx.note_idle(agent.id, writing.now),))


def _end(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    call = event.call

    def forget(writing: WriteContext) -> None:
        writing.tx.end_client_session(event.client, call.session_id)

    place = _in_session(event)

    def release(writing: WriteContext) -> None:
        release_reserved_in(writing, place, reason="session ended")

    has_session = (
        bool(call.session_id) and context.tx.client_session(event.client, call.session_id) is not None
    )
    held = actor is not None and bool(context.tx.reserved_in(place, now=context.now))
    notes = (*((forget,) if has_session else ()), *((release,) if held else ()))
    return replace(_SILENT, notes=notes)


def _check(context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    places = {path: locate(context.projects, path) for path, _ in event.files}
    by_project: dict[int, tuple[Project, list[str]]] = {}
    for known_path, name in event.files:
        if place := places[known_path]:
            _, paths = by_project.setdefault(place[0].id, (place[0], []))
            paths.append(f"{place[1]}/{name}".strip("/") if name else place[1])
    judged = list[tuple[Project, Agent, list[str]]]()
    for project, paths in by_project.values():
        at_home = actor is not None and actor.project.id == project.id
        name = event.call.agent or (actor.agent.name if actor is not None else "")
        owner = actor if at_home else _require_proof(context, _agent_in(context, event, name, project.slug))
        if owner is not None:
            judged.append((project, owner.agent, paths))
    # Whether the agent is about to overwrite file versions that it has not read.
    files, rules, stale = Findings(), context.rules, event.call.stale
    reports, writer = _reports(context, event, actor)
    if writer is not None:
        whole, other = stale or rules.stale_write_mode, stale or rules.stale_edit_mode
        files = check_writes(context, _viewer(event, writer), reports, whole=whole, other=other)
    if actor is None and not judged and not files.notes:
        where = (
            "no project belongs to this folder"
            if locate(context.projects, event.here) is None
            else "no agent belongs to this session"
        )
        return _Decision(answer=_answer("unknown", unchecked(where)))
    held = [
        conflict
        for project, agent, paths in judged
        for conflict in held_by_others(context, project, agent, paths)
    ]
    if held:
        return _Decision(answer=_answer("deny", notices.refusal(held)))
    if files.held:
        return _Decision(answer=_decision("deny", files.held, files), notes=tuple(files.notes))
    active = () if actor is None else _activity(context, actor.agent)
    return _Decision(answer=_answer("allow"), notes=(*active, *files.notes))


def _viewer(event: _Event, agent: Agent) -> int:
    return viewer(agent.id, _in_session(event))


def _reports(
    context: ReadContext, event: _Event, actor: _Actor | None
) -> tuple[list[FileReport], Agent | None]:
    agent = actor.agent if actor is not None else None
    places = {folder: locate(context.projects, path) for folder, path in event.folders.items()}
    reports = list[FileReport]()
    for path, blob, how in event.call.files:
        folder, _, name = path.rpartition("/")
        place = places[folder]
        if place is None:
            continue
        if agent is None and event.call.agent:
            owner = _require_proof(context, _agent_in(context, event, event.call.agent, place[0].slug))
            agent = owner.agent if owner is not None else None
        shown = f"{place[1]}/{name}".strip("/")
        reports.append(
            FileReport(
                file=f"{_MACHINE}:{path}",
                path=path,
                shown=shown,
                project_id=place[0].id,
                blob=blob,
                how=how,
            )
        )
    return reports, agent


def _decision(outcome: Outcome, text: str, found: Findings) -> HookAnswer:
    answer = _answer(outcome, text)
    return {**answer, "changed": found.changed} if found.changed else answer


def _with_files(decide: _Decide, context: ReadContext, event: _Event, actor: _Actor | None) -> _Decision:
    decided, findings = decide(context, event, actor), Findings()
    reports, agent = _reports(context, event, actor)
    if agent is not None:
        home = actor.project.human_key if actor is not None else ""
        findings = note_files(context, agent, _viewer(event, agent), reports, home)
    if not findings.notes and not findings.text:
        return decided
    purge = (lambda writing: writing.tx.purge_file_views(writing.now - VIEWS_KEPT, limit=PURGED_AT_ONCE),)
    notes = (*decided.notes, *findings.notes, *(purge if findings.notes else ()))
    text = "\n".join(text for text in (findings.text, decided.answer["text"]) if text)
    return _Decision(
        answer=_decision("tell" if text else decided.answer["outcome"], text, findings), notes=notes
    )


def _in_run(context: ReadContext) -> bool:
    return context.caller.grant is not None and context.caller.grant.run_id is not None


def _activity(context: ReadContext, agent: Agent) -> tuple[Callable[[WriteContext], object], ...]:
    if context.now - agent.last_active_at < ACTIVITY_INTERVAL:
        return ()
    return (lambda writing: writing.tx.touch_agent(agent.id, writing.now),)


_CHECKS = ("edit", "commit", "push")
"""The events that ask whether files may be changed."""
_DECIDE: Mapping[str, _Decide] = {
    "start": partial(_with_notes, _start),
    "prompt": partial(_with_files, partial(_with_notes, _begin_turn)),
    "tool": partial(_with_files, partial(_with_notes, _tool)),
    "stop": _stop,
    WAIT: _wait,
    WAKE: _wake,
    "end": _end,
    "edit": _check,
    "commit": _check,
    "push": _check,
}
