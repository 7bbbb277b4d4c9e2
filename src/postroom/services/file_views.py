"""Decides whether a write would overwrite another agent's edit that the writer has not seen.

For each file and each session of an agent (the viewer), the store has the version that the session last read,
and the version that it last wrote. Hooks report reads and writes with a version, which is Git's hash of the
content. The server never receives the content of a file. Each decision compares these versions with the one
on the disk.

    seen_blob ≠ version on the disk      the session does not know this version: hold its write, or tell it
    written_blob = version on the disk   this session wrote the version; if none did, no hook reported it
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from postroom.contracts.mail import Agent
from postroom.contracts.waking import GONE, HUGE, UNKNOWN, FileView, agent_of_viewer, is_sibling
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.subscriptions import is_watched_file
from postroom.services import notices

TOGETHER: Final = 60_000
"""The maximum number of milliseconds between two agents' writes of one file after which both are notified."""
TOLD_WITHIN: Final = 7 * 24 * 3_600_000
"""A session is notified of a change if it used the file within this number of milliseconds before.

A session that was away for longer finds the change itself at its next step.
"""
RENEWED: Final = 24 * 3_600_000
"""After this number of milliseconds, a repeated read is stored again, so that the view does not expire."""
SHOWN: Final = 3
"""Maximum number of files that one notice names."""
_WRITES: Final = ("whole", "part", "shell")

How = Literal["read", "late", "glance", "unsure", "whole", "part", "shell", "named", "found"]
"""The way in which a tool uses a file.

`late` is a read, of a version that the file no longer has, which an earlier hook could not report. `glance`
is a read of a part. `unsure` is a read of a file that changed at about the same time. `named` is a file in a
shell command that may write it. `found` is a file that was read before and has changed since.
"""
Mode = Literal["warn", "block", "off"]
Note = Callable[[WriteContext], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """A file that a tool reads or writes, reported by a hook before or after the tool's use."""

    file: str
    """The machine and the absolute path, as in `FileView`."""
    path: str
    """The absolute path that the hook reported."""
    shown: str
    """The path of the file within its project."""
    project_id: int
    blob: str
    how: How


@dataclass(slots=True, kw_only=True)
class Findings:
    """The file changes to report to an agent, and the records to store."""

    held: str = ""
    """The reason why a write is held; empty if it may proceed."""
    text: str = ""
    """The notice for the agent; empty if there is none."""
    changed: list[list[str]] = field(default_factory=list)
    """The path, the known version and the new version of each file whose changed lines the hook can show."""
    notes: list[Note] = field(default_factory=list)


def check_writes(
    context: ReadContext, viewer_id: int, reports: Sequence[FileReport], *, whole: Mode, other: Mode
) -> Findings:
    """Decide about the writes of a session before a tool is used.

    `whole` is the mode for writes that replace a whole file.
    """
    findings, held = Findings(), list[tuple[FileReport, FileView]]()
    views = _views(context, viewer_id, reports)
    for report in reports:
        rows = views.get(report.file, {})
        mine = rows.get(viewer_id) or FileView(file=report.file, viewer_id=viewer_id)
        others = [view for view in rows.values() if view.viewer_id != viewer_id and view.written_at]
        mode = whole if report.how == "whole" else other
        if mode == "off" or not _is_unknown(report, mine, others):
            continue
        view = _changed_view(mine, report.blob, others, context.now)
        if mode == "block" and report.how != "named" and report.blob not in (GONE, HUGE):
            held.append((report, replace(view, notice=2)))
        elif view.notice == 1:
            findings.notes.append(_put(view))
    if held:
        authors = _authors(context, [view.changed_by for _, view in held])
        lines = [
            notices.change(report.shown, view, authors.get(view.changed_by), context.now)
            for report, view in held[:SHOWN]
        ]
        more = f" {len(held) - SHOWN} more files have changed." if len(held) > SHOWN else ""
        findings.held = notices.held_write_line(f"{' '.join(lines)}{more}")
        findings.changed = [[report.path, view.known_blob, report.blob] for report, view in held[:SHOWN]]
        findings.notes += [_put(view) for _, view in held]
    return findings


def note_files(
    context: ReadContext, agent: Agent, viewer_id: int, reports: Sequence[FileReport], home: str
) -> Findings:
    """Store which files a session has read and written, and return the changes to report.

    `home` is the folder of the agent's project, to which reported paths are relative.
    """
    findings = Findings()
    due = {view.file: view for view in context.tx.due_file_views(viewer_id, limit=SHOWN * 10)}
    names = {report.file: (report.shown, report.path) for report in reports}
    views, pending, sentences = _views(context, viewer_id, reports), dict(due), list[str]()
    for report in reports:
        rows = views.setdefault(report.file, {})
        mine = rows.get(viewer_id)
        others = [view for view in rows.values() if view.viewer_id != viewer_id and view.written_at]
        after = _after(report, mine or FileView(file=report.file, viewer_id=viewer_id), others, context.now)
        if after is None:
            continue
        is_by_nobody = after.notice == 1 and after.changed_by is None and report.blob not in (GONE, HUGE)
        if is_by_nobody and mine is not None and mine.notice == 1 and mine.changed_by is not None:
            # An agent changed the file, and then it changed once more without a report by a hook.
            after = replace(after, changed_by=mine.changed_by, changed_at=mine.changed_at)
            sentences.append(notices.CHANGED_AGAIN)
        rows[viewer_id] = after
        if not after.notice and report.how in ("read", "late", "found"):
            pending.pop(report.file, None)  # the session has read this version
        if after.notice == 1 and (report.how in ("late", "found") or report.file not in pending):
            pending[report.file] = after
        if report.how == "unsure" and after.seen_blob == UNKNOWN:
            sentences.append(notices.unsure_read(report.shown))
        if after.written_at == context.now and after.written_blob == report.blob:
            findings.notes.append(_tell_others(report, viewer_id))
            if is_watched_file(context, report.project_id, agent, report.shown):
                findings.notes.append(_note_change(report, agent.id))
            since = max(mine.written_at if mine else 0, context.now - TOGETHER)
            near = [view for view in others if view.written_at > since]
            authors = _authors(context, [view.viewer_id for view in near])
            for view in near:
                if author := authors.get(view.viewer_id):
                    age = (context.now - view.written_at) // 1000
                    is_same = is_sibling(viewer_id, view.viewer_id)
                    wrote = notices.wrote_too(report.shown, author, age, is_sibling=is_same)
                    sentences += [] if report.file in pending else [wrote]
                    sentences.append(notices.edited_at_once(author, is_sibling=is_same))
        findings.notes.append(_put(replace(after, notice=2) if after.notice == 1 else after))
    if due:
        findings.notes.insert(0, lambda writing: writing.tx.mark_file_views_told(viewer_id))
    _tell(context, findings, pending, names, sentences, home)
    return findings


def _tell(
    context: ReadContext,
    found: Findings,
    told: Mapping[str, FileView],
    names: Mapping[str, tuple[str, str]],
    sentences: list[str],
    home: str,
) -> None:
    shown = list(told.values())[:SHOWN]
    authors = _authors(context, [view.changed_by for view in shown])
    lines = list[str]()
    for view in shown:
        path = view.file.partition(":")[2]
        name = names.get(view.file, (path.removeprefix(f"{home}/"), path))[0]
        author = authors.get(view.changed_by)
        lines.append(notices.change(name, view, author, context.now))
        found.changed.append([path, view.known_blob, view.changed_blob])
        if author is not None and 0 <= view.changed_at - view.written_at < TOGETHER and view.written_at:
            lines.append(
                notices.edited_at_once(author, is_sibling=is_sibling(view.viewer_id, view.changed_by))
            )
    if len(told) > SHOWN:
        lines.append(f"{len(told) - SHOWN} more files that you have read were changed.")
    if lines or sentences:
        found.text = notices.changed_files_line(" ".join(dict.fromkeys((*lines, *sentences))))


def _views(
    context: ReadContext, viewer_id: int, reports: Sequence[FileReport]
) -> dict[str, dict[int, FileView]]:
    views: dict[str, dict[int, FileView]] = {}
    files = sorted({report.file for report in reports})
    for view in context.tx.file_views(files, viewer_id=viewer_id) if files else ():
        views.setdefault(view.file, {})[view.viewer_id] = view
    return views


def _authors(context: ReadContext, viewers: Sequence[int | None]) -> dict[int | None, Agent]:
    agents = context.tx.agents_by_id([agent_of_viewer(viewer) for viewer in viewers if viewer is not None])
    authors = {viewer: agents.get(agent_of_viewer(viewer)) for viewer in viewers if viewer is not None}
    return {viewer: agent for viewer, agent in authors.items() if agent is not None}


def _is_unknown(report: FileReport, mine: FileView, others: Sequence[FileView]) -> bool:
    """Return whether a write would overwrite a file version that the agent does not know."""
    if report.blob == GONE:
        return report.how == "whole" and mine.seen_blob not in ("", GONE)
    if report.blob == HUGE:
        return mine.changed_blob != HUGE and bool(mine.seen_blob or others)
    if not mine.seen_blob:  # never read, so only a reported change can be lost
        return bool(others) and report.how != "named"
    if report.how == "whole" and others and mine.is_part:
        return True
    return report.blob != mine.known_blob


def _changed_view(mine: FileView, blob: str, others: Sequence[FileView], now: int) -> FileView:
    """Return an agent's view after an unknown file version was found."""
    author = _author(others, blob)
    if author is None and blob == mine.written_blob:  # its own write replaced a version that it did not know
        author = max(others, key=lambda one: one.written_at, default=None)
    is_told = mine.notice == 2 and mine.changed_blob == blob
    return replace(
        mine,
        changed_blob=blob,
        changed_by=None if author is None else author.viewer_id,
        changed_at=now if author is None else author.written_at,
        notice=2 if is_told else 1,
        used_at=now,
    )


def _author(others: Iterable[FileView], blob: str) -> FileView | None:
    wrote = [view for view in others if view.written_blob == blob]
    return max(wrote, key=lambda one: one.written_at, default=None)


def _after(report: FileReport, mine: FileView, others: Sequence[FileView], now: int) -> FileView | None:
    """Return an agent's view after the use of a file, or None for an unchanged view."""
    blob, author = report.blob, _author(others, report.blob)
    is_foreign = author is not None and author.written_at >= mine.used_at
    if report.how in _WRITES and not (report.how == "shell" and is_foreign):
        knew = not mine.notice and (mine.seen_blob not in ("", UNKNOWN) or not others)
        if report.how == "whole" or knew:
            seen = f"{UNKNOWN}{blob}" if report.how != "whole" and mine.is_part and mine.known_blob else blob
            return replace(mine, seen_blob=seen, written_blob=blob, written_at=now, notice=0, used_at=now)
        return replace(mine, written_blob=blob, written_at=now, used_at=now)
    if report.how == "late":
        seen_view = replace(mine, seen_blob=blob, used_at=now)
        if mine.notice and mine.changed_blob != blob:
            return seen_view
        newest = max(others, key=lambda view: view.written_at, default=None)
        if newest is None or newest.written_blob == blob or newest.written_at < mine.used_at:
            return replace(seen_view, notice=0)
        return _changed_view(seen_view, newest.written_blob, others, now)
    is_known = blob in (mine.known_blob, mine.written_blob)
    is_first_part = report.how == "glance" and (not mine.seen_blob or mine.is_part)
    if report.how == "read" or is_first_part or (report.how == "unsure" and (is_known or not others)):
        seen = f"{UNKNOWN}{blob}" if is_first_part else blob
        is_stored = mine.seen_blob == seen and not mine.notice and now - mine.used_at < RENEWED
        return None if is_stored else replace(mine, seen_blob=seen, notice=0, used_at=now)
    if report.how == "unsure":
        return replace(_changed_view(mine, blob, others, now), seen_blob=UNKNOWN, notice=2)
    if is_known and mine.notice and blob == mine.known_blob:
        return replace(mine, notice=0)  # the change was reverted
    if not mine.seen_blob or is_known or mine.notice == 2:
        return None
    return _changed_view(mine, blob, others, now)


def _put(view: FileView) -> Note:
    return lambda writing: writing.tx.put_file_view(view)


def _note_change(report: FileReport, agent_id: int) -> Note:
    return lambda writing: writing.tx.note_changed_file(
        report.project_id, agent_id, report.shown, writing.now
    )


def _tell_others(report: FileReport, viewer_id: int) -> Note:
    return lambda writing: writing.tx.note_file_change(
        report.file, report.blob, viewer_id=viewer_id, now=writing.now, since=writing.now - TOLD_WITHIN
    )
