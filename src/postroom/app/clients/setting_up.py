"""Adds postroom's parts to a client's files, and removes them.

    read every file ─▶ compute every text ─▶ record, backup and draft of each ─▶ rename each
    (obstacles raise errors here, before anything is changed)

A full disk is noticed before the first rename. If a later rename fails, the files that were renamed before it
are restored.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from postroom.app.clients import files, json_edit, toml_edit
from postroom.app.clients.config_edits import AppliedEdit, ConfigEdit, Record, Records
from postroom.app.clients.config_paths import (
    ConfigFile,
    SetupScope,
    hooks_file,
    own_files,
    servers_file,
    switch,
)
from postroom.app.clients.files import Draft, Found
from postroom.app.clients.table import CLIENTS, Client, Extra, OwnFile, Tools, Way
from postroom.app.clients.toml_edit import NotToml
from postroom.contracts.errors import InvalidArgument, PostroomError, VersionConflict
from postroom.jsonc import NotJson, require_form

TRIES: Final = 3
"""How many times changes are planned if a running client changes a file in between."""
_OURS: Final = ("entry", "item", "table")
_CONTENT: Final = (*_OURS, "replaced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a configuration file that a client needs."""

    file: ConfigFile
    edits: tuple[ConfigEdit, ...] = ()
    own: OwnFile | None = None
    """The file that postroom owns, or the block in a file that it does not own."""
    is_wanted: bool = True
    """Whether the client needs the part. False for a part that only an earlier set-up may have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A planned or completed change of one file.

    `after` is the new text of the file, or None if the change removes the file.
    """

    path: Path
    """The path that the client uses. `found` contains the path with links followed."""
    found: Found
    after: str | None
    before_record: Record
    record: Record
    is_removal: bool = False
    backup: Path | None = None

    @property
    def is_none(self) -> bool:
        """Whether the change leaves the file unchanged."""
        return self.after == (None if self.found.content is None else self.found.text)


def parts(  # noqa: PLR0913 - each is a choice of its own
    client: Client,
    target: SetupScope,
    way: Way,
    address: str,
    *,
    tools: Tools = "core",
    hooks: bool,
    extras: Collection[Extra] = (),
) -> list[Part]:
    """Return the parts of configuration files that a client needs.

    `extras` are the optional parts that the user accepted.

    Raises:
        InvalidArgument: The client does not support the scope or the transport.
    """
    if way == "http" and client.http is None:
        raise InvalidArgument(
            f"{client.title} cannot use HTTP: {client.why}", value=client.name, remedy="use --stdio"
        )
    wanted = {servers_file(client, target): client.edits(way, address, tools, target.scope)}
    file = hooks_file(client, target)
    parts: list[Part] = []
    if hooks and file is not None:
        wanted.setdefault(file, []).extend(client.hook_edits())
        wanted[file] += [own.setting for own in client.own_files if own.setting and own.extra in extras]
    elif file is not None and file not in wanted:
        parts.append(Part(file=file, edits=tuple(client.hook_edits()), is_wanted=False))
    parts += [Part(file=file, edits=tuple(wants)) for file, wants in wanted.items()]
    parts += [
        Part(file=where, own=own, is_wanted=own.extra in extras if own.extra else hooks or not own.is_hook)
        for own, where in own_files(client, target)
    ]
    if switched := switch(client, target):
        parts.append(Part(file=switched[0], edits=tuple(switched[1])))
    return parts


def plan(client: Client, wanted: Iterable[Part], records: Records) -> list[Change]:
    """Plan the changes that set up a client, without writing to any file.

    Raises:
        ClientFileRefused: A file cannot be read or changed.
    """
    changes = []
    for part in wanted:
        if part.is_wanted:
            planned = _plan_part
            if part.own is not None:
                planned = _planned_block if part.own.is_block else _planned_whole
            changes.append(planned(client, part, records))
        elif client.name in records.get(files.real(part.file.path)).clients:
            changes += plan_removal(client, [part], records)
    return changes


def plan_removal(client: Client, wanted: Iterable[Part], records: Records) -> list[Change]:
    """Plan the changes that remove postroom's parts for a client, without writing to any file.

    Raises:
        ClientFileRefused: A file cannot be read or changed.
    """
    changes = []
    for part in wanted:
        planned = _planned_removal
        if part.own is not None:
            planned = _planned_block_removal if part.own.is_block else _planned_whole_removal
        changes.append(planned(client, part, records))
    return changes


def carry_out(changes: list[Change], records: Records, now: int) -> list[Change]:
    """Write all changes or no change, and return the changes with the backups of the files.

    Raises:
        ClientFileRefused: A file could not be written. No change was made.
        VersionConflict: Another process changed a file in between. No change was made.
    """
    drafts: list[Draft] = []
    ready: list[Change] = []
    done: list[Change] = []
    try:
        for change in changes:
            ready.append(_made_ready(change, records, now, drafts))  # noqa: PERF401 - known as far as it came
        for change in ready:
            draft = next((draft for draft in drafts if draft.found is change.found), None)
            if draft is not None:
                draft.put()
            elif not change.is_none:
                files.remove(change.found)
            if change.is_removal:
                # Update the record after parts of a file have been removed, and remove their backups and
                # folders.
                files.remove_drafts(change.found)
                content = None if change.after is None else change.after.encode("utf-8")
                backups = files.remove_same(change.record.backups, content)
                folders = records.get(change.found.path).folders
                records.put(change.found.path, replace(change.record, backups=backups, folders=folders))
                if change.after is None:
                    records.pass_on(files.remove_folders(folders))
            done.append(change)
    except PostroomError:
        for draft in reversed(drafts):
            draft.drop()
        for change in reversed(done):
            _give_back(change, records)
        for change in reversed(ready):
            files.remove_same([change.backup] if change.backup else [], change.found.content)
            records.put(change.found.path, change.before_record)
        raise
    return ready


def give_back(changes: list[Change], records: Records) -> None:
    """Undo changes that have been written to files.

    Raises:
        ClientFileRefused: A file could not be written.
        VersionConflict: Another process has changed a file since then.
    """
    for change in reversed(changes):
        _give_back(change, records)
        records.put(change.found.path, change.before_record)


def steadily(make: Callable[[], list[Change]], records: Records, now: int) -> list[Change]:
    """Plan and write changes; plan again if a client changes a file during the call.

    Raises:
        ClientFileRefused: A file cannot be read, changed or written. No change was made.
        VersionConflict: Another process changes a file repeatedly. No change was made.
    """
    for _ in range(TRIES - 1):
        try:
            return carry_out(make(), records, now)
        except VersionConflict:
            continue
    return carry_out(make(), records, now)


def _is_toml(path: Path) -> bool:
    return path.suffix == ".toml"


def _plan_part(client: Client, part: Part, records: Records) -> Change:
    value = files.look(part.file.path, part.file.base)
    text = value.text
    try:
        newer = next((other for other in CLIENTS if other.newer_than == client.name), None)
        if newer is not None and json_edit.find(text, newer.path) is not None:
            where = ".".join(newer.path)
            raise NotJson(
                f"the file contains `{where}`, a form that belongs to another version of {client.title}"
            )
        require_form(text, client.json_form, client.title)
        old = records.get(value.path)
        if value.content is None or not (
            any(_is_there(applied, value) for applied in old.applied_edits)
            or (old.clients and not old.applied_edits)
        ):
            old = Record(backups=old.backups, folders=[folder for folder in old.folders if folder.exists()])
        places = {
            (edit.path, edit.sign) if edit.sign else ((*edit.path, edit.key), "") for edit in part.edits
        }
        if any((edit.path, edit.sign) not in places for edit in old.of(client.name) if edit.kind in _OURS):
            # An earlier set-up has written parts that this one does not need.
            cleared = _planned_removal(client, part, records)
            text, old = cleared.after or "", replace(cleared.record, made_file=old.made_file)
        applied_edits: list[AppliedEdit] = []
        for edit in part.edits:
            put = toml_edit.put if _is_toml(part.file.path) else json_edit.put
            text, made = put(text, edit, client.name)
            applied_edits += made
    except (NotJson, NotToml) as error:
        remedy = error.remedy if isinstance(error, NotToml) else ""
        raise files.refused(part.file.path, str(error), remedy) from error
    known_values = {(applied.path, applied.sign) for applied in old.applied_edits if applied.kind in _CONTENT}
    fresh = [
        edit
        for edit in applied_edits
        if edit.kind != "replaced" or (edit.path, edit.sign) not in known_values
    ]
    record = replace(
        old,
        clients=list(dict.fromkeys([*old.clients, client.name])),
        applied_edits=[*old.applied_edits, *fresh],
        made_file=old.made_file or value.content is None,
    )
    after = None if value.content is None and not text else text
    return Change(
        path=part.file.path, found=value, after=after, before_record=records.get(value.path), record=record
    )


def _planned_block(client: Client, part: Part, records: Records) -> Change:
    assert part.own is not None  # noqa: S101 - the caller looked
    value = files.look(part.file.path, part.file.base)
    old, text = records.get(value.path), value.text
    begin, end = _block_in(text, part.own)
    applied = [edit for edit in old.applied_edits if edit.kind == "block"]
    if begin == end:
        before = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        applied = [AppliedEdit(client=client.name, kind="block", path=(), before=before)]
        text, begin, end = text + before, len(text + before), len(text + before)
    record = replace(
        old,
        clients=list(dict.fromkeys([*old.clients, client.name])),
        applied_edits=applied,
        made_file=old.made_file or value.content is None,
    )
    return Change(
        path=part.file.path,
        found=value,
        after=text[:begin] + part.own.text + text[end:],
        before_record=records.get(value.path),
        record=record,
    )


def _planned_block_removal(client: Client, part: Part, records: Records) -> Change:
    assert part.own is not None  # noqa: S101 - the caller looked
    value = files.look(part.file.path, part.file.base)
    old = records.get(value.path)
    others = [name for name in old.clients if name != client.name]
    text, applied = value.text, old.applied_edits
    if not others:
        begin, end = _block_in(text, part.own)
        above = text[:begin]
        if begin != end:
            above = above.removesuffix(next((edit.before for edit in applied if edit.kind == "block"), ""))
        text, applied = above + text[end:], []
    is_gone = value.content is None or (old.made_file and not others and not text)
    return Change(
        path=part.file.path,
        found=value,
        after=None if is_gone else text,
        before_record=old,
        record=replace(old, clients=others, applied_edits=applied),
        is_removal=True,
    )


def _block_in(text: str, own: OwnFile) -> tuple[int, int]:
    first, last = own.text.splitlines()[0], own.text.splitlines()[-1]
    begin = text.find(first)
    end = text.find(last, begin)
    if begin < 0 or end < 0:
        return len(text), len(text)
    end += len(last)
    return begin, end + text[end : end + 1].count("\n")


def _planned_whole(client: Client, part: Part, records: Records) -> Change:
    assert part.own is not None  # noqa: S101 - the caller looked
    value = files.look(part.file.path, part.file.base)
    old = records.get(value.path)
    record = replace(old, clients=[client.name])
    if not old.clients and value.content is None:
        record = replace(record, made_file=True)
    elif not old.clients and value.text != part.own.text:
        stood = AppliedEdit(client=client.name, kind="file", path=(), was=value.text)
        record = replace(record, applied_edits=[stood])
    return Change(path=part.file.path, found=value, after=part.own.text, before_record=old, record=record)


def _planned_whole_removal(client: Client, part: Part, records: Records) -> Change:
    assert part.own is not None  # noqa: S101 - the caller looked
    value = files.look(part.file.path, part.file.base)
    old = records.get(value.path)
    stood = next((edit.was for edit in old.of(client.name) if edit.kind == "file"), None)
    after = None if value.content is None else value.text
    if after is not None and (stood is not None or old.made_file or after == part.own.text):
        after = stood
    return Change(
        path=part.file.path,
        found=value,
        after=after,
        before_record=old,
        record=replace(old, clients=[], applied_edits=[]),
        is_removal=True,
    )


def _is_there(applied: AppliedEdit, found: Found) -> bool:
    if applied.kind not in _CONTENT:
        return False
    if _is_toml(found.path):
        return toml_edit.find(found.text, applied.path) is not None
    if applied.sign:
        return bool(json_edit.items(found.text, applied.path, applied.sign))
    return json_edit.find(found.text, applied.path) is not None


def _planned_removal(client: Client, part: Part, records: Records) -> Change:
    value = files.look(part.file.path, part.file.base)
    old = records.get(value.path)
    others = [name for name in old.clients if name != client.name]
    was_set_up = client.name in old.clients
    applied_edits = old.of(client.name)
    if not was_set_up:  # remove the entries with postroom's name
        named = [edit for edit in part.edits if not edit.only_new]
        is_toml = _is_toml(part.file.path)
        applied_edits = [
            AppliedEdit(
                client=client.name,
                kind="table" if is_toml else "item" if edit.sign else "entry",
                path=edit.path if edit.sign and not is_toml else (*edit.path, edit.key),
                sign="" if is_toml else edit.sign,
            )
            for edit in named
        ]
    text = value.text
    left: list[AppliedEdit] = []
    try:
        for applied in reversed(applied_edits) if value.content is not None else ():
            take = toml_edit.take if _is_toml(part.file.path) else json_edit.take
            text, stays = take(text, applied)
            if stays and others:
                left.insert(0, applied)
    except (NotJson, NotToml) as error:
        raise files.refused(part.file.path, str(error)) from error
    gone = value.content is None or (was_set_up and old.made_file and not others and text in ("", "\ufeff"))
    kept_applied_edits = [applied for applied in old.applied_edits if applied.client != client.name] + [
        replace(applied, client=others[0]) for applied in left
    ]
    record = replace(old, clients=others, applied_edits=kept_applied_edits)
    return Change(
        path=part.file.path,
        found=value,
        after=None if gone else text,
        before_record=old,
        record=record,
        is_removal=True,
    )


def _made_ready(change: Change, records: Records, now: int, drafts: list[Draft]) -> Change:
    if change.is_none or change.after is None:
        if not change.is_removal:
            records.put(change.found.path, change.record)
        return change
    backup = None
    if not change.is_removal:
        is_first = not change.record.made_file and not any(
            backup.exists() for backup in change.record.backups
        )
        backup = files.backup_place(change.found, now) if is_first else None
        record = replace(
            change.record,
            backups=[*change.record.backups, *([backup] if backup else [])],
            folders=[*change.record.folders, *files.missing_folders(change.found)],
        )
        records.put(change.found.path, record)
    try:
        if backup is not None:
            files.back_up(change.found, backup)
        drafts.append(files.write_draft(change.found, change.after))
    except PostroomError:
        files.remove_same([backup] if backup else [], change.found.content)
        records.put(change.found.path, change.before_record)
        raise
    return replace(change, backup=backup)


def _give_back(change: Change, records: Records) -> None:
    if change.is_none:
        return
    present = replace(change.found, content=None if change.after is None else change.after.encode("utf-8"))
    if change.found.content is None:
        files.remove(present)
        files.remove_folders(records.get(change.found.path).folders)
    else:
        files.replace(present, change.found.text)
