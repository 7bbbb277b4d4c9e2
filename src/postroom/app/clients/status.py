"""The status of a client's set-up: whether its files have the content that postroom expects."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from postroom.app.clients import files, json_edit, toml_edit
from postroom.app.clients.config_edits import HTTP_KEYS, ConfigEdit, Records, fits
from postroom.app.clients.config_paths import (
    ConfigFile,
    SetupScope,
    hooks_file,
    is_installed,
    own_files,
    servers_file,
    switch,
)
from postroom.app.clients.readiness import Release, find_release, to_do
from postroom.app.clients.table import Client, Extra, Tools, Way
from postroom.app.clients.toml_edit import NotToml
from postroom.app.clients.trust import HOW_TO_TRUST, hook_trust
from postroom.contracts.client_programs import NAME
from postroom.contracts.errors import ClientFileRefused
from postroom.jsonc import NotJson, nodes, read, require_form

Drift = Literal[
    "missing",
    "changed",
    "old_address",
    "hooks_missing",
    "hooks_changed",
    "hooks_untrusted",
    "hooks_unknown",
    "logged_out",
    "folder_untrusted",
    "client_unknown",
    "duplicate",
    "unreadable",
]
State = Literal["not installed", "not set up", "set up", "drifted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem with the set-up of a client, such as an unexpected difference in a file."""

    drift: Drift
    file: Path
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """The set-up status of one client."""

    client: str
    state: State
    way: Way | None = None
    tools: Tools | None = None
    """The set of tools that the entry selects, or None if there is no entry, or if it selects none."""
    hooks: bool = False
    extras: tuple[Extra, ...] = ()
    """The optional parts that a person accepted."""
    release: Release | None = None
    """The release of the client, or None if the client is not installed or does not report its version."""
    findings: tuple[Finding, ...] = ()


def status_of(client: Client, target: SetupScope, address: str, records: Records) -> ClientStatus:
    """Return the status of a client, without changing any file.

    An unreadable file is reported as a finding.

    Raises:
        InvalidArgument: The client has no configuration for the scope.
    """
    look = _Look(client, target, records)
    fields, findings = look.entry(address)
    hooks, more = look.hooks(fields)
    findings += more or (look.trust() if hooks else [])
    serves, more = look.own()
    hooks, findings = hooks or serves, findings + more
    is_told = any(finding.drift == "hooks_unknown" for finding in findings)
    findings += look.to_do() if fields is not None and not is_told else []
    state: State = "not set up" if is_installed(client, target) else "not installed"
    if findings and (fields is not None or hooks or is_recorded(client, target, records)):
        state = "drifted"
    elif fields is not None:
        state = "set up"
    return ClientStatus(
        client=client.name,
        state=state,
        way=None if fields is None else "http" if HTTP_KEYS & fields.keys() else "stdio",
        tools=None if fields is None else read_tools(fields),
        hooks=hooks,
        extras=extras_in_place(client, target, records),
        release=find_release(client, target),
        findings=tuple(findings),
    )


def extras_in_place(client: Client, target: SetupScope, records: Records) -> tuple[Extra, ...]:
    """Return the optional parts that `setup` has written for a client."""
    return tuple(
        own.extra
        for own, where in own_files(client, target)
        if own.extra and client.name in records.get(files.real(where.path)).clients
    )


def is_recorded(client: Client, target: SetupScope, records: Records) -> bool:
    """Return whether `setup` has written to a file of the client.

    Raises:
        InvalidArgument: The client has no configuration for the scope.
    """
    config_files = [servers_file(client, target), hooks_file(client, target)]
    config_files += [where for _, where in own_files(client, target)]
    paths = [files.real(file.path) for file in config_files if file is not None]
    return any(client.name in records.get(path).clients for path in paths)


def find_entry(client: Client, file: ConfigFile) -> Mapping[str, object] | None:
    """Return postroom's entry in a client's file, or None if the file has no entry of postroom.

    Raises:
        ClientFileRefused: The file cannot be read, or its entry is not a table.
    """
    path = (*client.path, NAME)
    text = files.look(file.path, file.base).text
    try:
        if file.path.suffix == ".toml":
            result = toml_edit.find(text, path)
        else:
            require_form(text, client.json_form, client.title)
            node = json_edit.find(text, path)
            result = None if node is None else node.value()
    except (NotJson, NotToml) as error:
        raise files.refused(file.path, str(error)) from error
    if result is None or isinstance(result, Mapping):
        return result
    raise files.refused(file.path, f"`{'.'.join(path)}` is not a server entry")


def read_url(entry: Mapping[str, object]) -> str:
    """Return the URL of an entry, or "" for an entry that starts a command."""
    return next((str(entry[key]) for key in ("url", "httpUrl", "serverUrl") if key in entry), "")


def read_tools(entry: Mapping[str, object]) -> Tools | None:
    """Return the set of tools that an entry selects, or None if the entry selects no set."""
    words = [read_url(entry).rpartition("/")[2]]
    for value in (entry.get("command"), entry.get("args")):
        words += value if isinstance(value, list) else []
    return next((tools for tools in get_args(Tools) if tools in words), None)


def _tools_option(entry: Mapping[str, object] | None) -> str:
    return " --tools full" if entry is not None and read_tools(entry) == "full" else ""


@dataclass(frozen=True, slots=True)
class _Look:
    client: Client
    target: SetupScope
    records: Records

    def entry(self, address: str) -> tuple[Mapping[str, object] | None, list[Finding]]:
        file = servers_file(self.client, self.target)
        try:
            entry = find_entry(self.client, file)
        except ClientFileRefused as error:
            return None, [self._unreadable(file.path, error)]
        if entry is None:
            recorded = self.client.name in self.records.get(files.real(file.path)).clients
            detail = f"the entry {NAME} is missing"
            return None, [self._finding("missing", file.path, detail)] if recorded else []
        # Check whether postroom's name occurs twice. TOML does not allow this.
        if file.path.suffix == ".toml":
            stands_twice = False
        else:
            holder = json_edit.find(files.look(file.path, file.base).text, self.client.path)
            stands_twice = holder is not None and [child.key for child in holder.children].count(NAME) > 1
        if stands_twice:
            detail = f"the entry {NAME} exists twice, and the client uses the last one"
            return entry, [self._finding("duplicate", file.path, detail, _tools_option(entry))]
        if self._fits(entry, address):
            return entry, []
        named = read_url(entry)
        if named and self._fits(entry, named):
            detail = f"the entry {NAME} points to {named}, but the server is at {address}"
            return entry, [self._finding("old_address", file.path, detail, f"{_tools_option(entry)} --http")]
        detail = f"the entry {NAME} was changed and differs from what setup writes"
        return entry, [self._finding("changed", file.path, detail, _tools_option(entry))]

    def hooks(self, entry: Mapping[str, object] | None) -> tuple[bool, list[Finding]]:
        file = hooks_file(self.client, self.target)
        if file is None:
            return False, []
        applied_edits = self.records.get(files.real(file.path)).of(self.client.name)
        expected = any(applied.path[:1] == ("hooks",) for applied in applied_edits)
        wanted = [edit for edit in self.client.hook_edits() if edit.sign]
        try:
            text = files.look(file.path, file.base).text
            present = {(edit.path[-1], edit.sign): _hook_state(text, edit) for edit in wanted}
        except (ClientFileRefused, NotJson) as error:
            same = file == servers_file(self.client, self.target)  # then this has been reported already
            return False, [self._unreadable(file.path, error)] if expected and not same else []
        if set(present.values()) == {"lost"} and not expected:
            return False, []
        fields: dict[Drift, tuple[str, str]] = {
            "hooks_missing": ("lost", "no postroom hook for"),
            "hooks_changed": ("changed", "the postroom hook was changed for"),
            "duplicate": ("doubled", "the postroom hook exists more than once for"),
        }
        return set(present.values()) != {"lost"}, [
            self._finding(
                drift, file.path, f"{words} {', '.join(dict.fromkeys(events))}", _tools_option(entry)
            )
            for drift, (how, words) in fields.items()
            if (events := [event for (event, _), value in present.items() if value == how])
        ]

    def trust(self) -> list[Finding]:
        hook_state, file = hook_trust(self.client, self.target), hooks_file(self.client, self.target)
        if hook_state is None or file is None:
            return []
        if hook_state.trouble:
            remedy = f"check that `{self.client.programs[0]}` starts, and update it if it is old"
            return [Finding(drift="hooks_unknown", file=file.path, detail=hook_state.trouble, remedy=remedy)]
        if not hook_state.untrusted:
            return []
        detail = (
            f"written, not trusted: {self.client.title} does not run postroom's hooks for "
            f"{', '.join(hook_state.untrusted)}"
        )
        remedy = HOW_TO_TRUST.format(self.client.programs[0])
        return [Finding(drift="hooks_untrusted", file=file.path, detail=detail, remedy=remedy)]

    def to_do(self) -> list[Finding]:
        file = servers_file(self.client, self.target).path
        return [
            Finding(drift=item.kind, file=file, detail=item.detail, remedy=item.remedy)
            for item in to_do(self.client, self.target)
        ]

    def own(self) -> tuple[bool, list[Finding]]:
        serves, findings = False, []
        for own, where in own_files(self.client, self.target):
            expected = self.client.name in self.records.get(files.real(where.path)).clients
            try:
                value = files.look(where.path, where.base)
            except ClientFileRefused as error:
                findings += [self._unreadable(where.path, error)] if expected else []
                continue
            serves = serves or (own.is_hook and value.content is not None)
            if not expected or (own.text in value.text if own.is_block else value.text == own.text):
                continue
            gone = value.content is None
            detail = (
                "postroom's file is missing"
                if gone
                else "postroom's file was changed, or is from another release of postroom"
            )
            drifts: tuple[Drift, Drift] = ("hooks_missing", "hooks_changed")
            if own.extra:
                drifts = ("missing", "changed")
            findings.append(self._finding(drifts[0 if gone else 1], where.path, detail))
        if (switched := switch(self.client, self.target)) is not None:
            file, wanted = switched
            try:
                text = files.look(file.path, file.base).text
                found_nodes = [json_edit.find(text, (*edit.path, edit.key)) for edit in wanted]
            except (ClientFileRefused, NotJson) as error:
                findings.append(self._unreadable(file.path, error))
            else:
                if not all(
                    node and fits(node.value(), edit) for node, edit in zip(found_nodes, wanted, strict=True)
                ):
                    detail = "postroom's plugin is not enabled in the client"
                    findings.append(self._finding("missing", file.path, detail))
        return serves, findings

    def _fits(self, found: Mapping[str, object], address: str) -> bool:
        ways: list[Way] = ["stdio"] if self.client.http is None else ["stdio", "http"]
        forms: list[Tools | None] = [*get_args(Tools), None]
        wanted = [
            self.client.edits(way, address, tools, self.target.scope)[0] for way in ways for tools in forms
        ]
        return any(fits(found, edit) for edit in wanted)

    def _finding(self, drift: Drift, file: Path, detail: str, words: str = "") -> Finding:
        scope = " --scope project" if self.target.scope == "project" else ""
        named = f"{self.client.name}{scope}"
        remedy = f"postroom setup {named}{words}"
        if drift == "duplicate":
            remedy = f"postroom setup remove {named} && {remedy}"
        return Finding(drift=drift, file=file, detail=detail, remedy=remedy)

    def _unreadable(self, file: Path, error: Exception) -> Finding:
        remedy = "correct the file, then run `postroom setup status`"
        return Finding(drift="unreadable", file=file, detail=str(error), remedy=remedy)


def _hook_state(text: str, edit: ConfigEdit) -> Literal["lost", "changed", "doubled", "good"]:
    items = json_edit.items(text, edit.path, edit.sign)
    document = read(text)
    if not items or document is None:
        return "lost"
    words = [node.plain for node in nodes(document) if isinstance(node.plain, str)]
    if sum(edit.sign in word for word in words) > 1:
        return "doubled"
    return "good" if fits(items[0].value(), edit) else "changed"
