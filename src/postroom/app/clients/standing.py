"""How a client's set-up stands: whether what should be in its files is there, and what differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from postroom.app.clients import files, json_edit, toml_edit
from postroom.app.clients.jsonc import Node, NotJson, nodes, read
from postroom.app.clients.records import Records
from postroom.app.clients.spots import Place, Scene, hooks_place, is_installed, servers_place
from postroom.app.clients.table import Client, Way
from postroom.app.clients.toml_edit import NotToml
from postroom.app.clients.wants import HTTP_KEYS, NAME, Want, fits
from postroom.contracts.errors import ClientFileRefused

Drift = Literal[
    "missing", "changed", "old_address", "hooks_missing", "hooks_changed", "duplicate", "unreadable"
]
State = Literal["not installed", "not set up", "set up", "drifted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    drift: Drift
    file: Path
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one client stands."""

    client: str
    state: State
    way: Way | None = None
    hooks: bool = False
    findings: tuple[Finding, ...] = ()


def standing(client: Client, scene: Scene, address: str, records: Records) -> Standing:
    """Return how a client stands; looks only, and fails at no file.

    Raises:
        InvalidArgument: the client has no configuration for the scope.
    """
    servers = servers_place(client, scene)
    hooks = hooks_place(client, scene)
    found, findings = _entry(client, servers, address)
    way: Way | None = None
    if isinstance(found, Mapping):
        way = "http" if HTTP_KEYS & found.keys() - {"oauth"} else "stdio"
    recorded = [place for place in (servers, hooks) if place and _is_recorded(client, place, records)]
    if found is None and not findings and servers in recorded:
        findings = [_finding("missing", servers.path, f"there is no entry {NAME}", f"setup {client.name}")]
    present = 0
    if hooks is not None:
        expected = bool(records.get(_real(hooks)).of(client.name)) and _wrote_hooks(client, hooks, records)
        present, more = _hooks(client, hooks, expected=expected)
        findings += more
    if findings:
        state: State = "drifted"
    elif found is not None:
        state = "set up"
    else:
        state = "not set up" if is_installed(client, scene) else "not installed"
    return Standing(client=client.name, state=state, way=way, hooks=present > 0, findings=tuple(findings))


def _finding(drift: Drift, file: Path, detail: str, command: str) -> Finding:
    return Finding(drift=drift, file=file, detail=detail, remedy=f"postroom {command}")


def _real(place: Place) -> Path:
    return place.path.resolve()


def _is_recorded(client: Client, place: Place, records: Records) -> bool:
    return client.name in records.get(_real(place)).clients


def _wrote_hooks(client: Client, place: Place, records: Records) -> bool:
    return any(mark.path[:1] == ("hooks",) for mark in records.get(_real(place)).of(client.name))


def _entry(client: Client, place: Place, address: str) -> tuple[object, list[Finding]]:
    """Return our entry in the file of servers, and what is wrong with it."""
    try:
        text = files.look(place.path, place.base).text
        path = (*client.path, NAME)
        is_toml = place.path.suffix == ".toml"
        if is_toml:
            found = toml_edit.find(text, path)
        else:
            node = json_edit.find(text, path)
            found = None if node is None else node.value()
        twice = not is_toml and _stands_twice(text, client.path)
    except (ClientFileRefused, NotJson, NotToml) as error:
        return None, [_unreadable(place.path, error)]
    if found is None:
        return None, []
    if twice:
        detail = f"the entry {NAME} stands there twice, and the last one counts"
        return found, [
            _finding("duplicate", place.path, detail, f"setup remove {client.name}, then set it up")
        ]
    problem = _differs(client, found, address)
    if problem is None:
        return found, []
    drift: Drift = "old_address" if problem == "address" else "changed"
    detail = {
        "address": f"the entry {NAME} leads to {_address(found)}, and the server is at {address}",
        "form": f"the entry {NAME} was changed: it is neither of the forms that setup writes",
    }[problem]
    http = " --http" if drift == "old_address" else ""
    return found, [_finding(drift, place.path, detail, f"setup {client.name}{http}")]


def _unreadable(path: Path, error: Exception) -> Finding:
    detail = str(error)
    return Finding(
        drift="unreadable", file=path, detail=detail, remedy="mend the file, then run `postroom setup status`"
    )


def _stands_twice(text: str, path: tuple[str, ...]) -> bool:
    holder = json_edit.find(text, path)
    return holder is not None and [child.key for child in holder.children].count(NAME) > 1


def _differs(client: Client, found: object, address: str) -> Literal["address", "form"] | None:
    ways: list[Way] = ["stdio"] if client.http is None else ["stdio", "http"]
    for way in ways:
        if fits(found, client.wants(way, address)[0]):
            return None
    named = _address(found)
    if client.http is not None and named and fits(found, client.wants("http", named)[0]):
        return "address"
    return "form"


def _address(found: object) -> str:
    if not isinstance(found, Mapping):
        return ""
    return next((str(found[key]) for key in ("url", "httpUrl", "serverUrl") if key in found), "")


def _hooks(client: Client, place: Place, *, expected: bool) -> tuple[int, list[Finding]]:
    """Return how many of a client's hooks are there, and what is wrong with them."""
    wanted = [want for want in client.hook_wants() if want.sign]
    try:
        text = files.look(place.path, place.base).text
        found = {want.sign: json_edit.items(text, want.path, want.sign) for want in wanted}
        counts = {want.sign: _count(text, want.sign) for want in wanted}
    except (ClientFileRefused, NotJson) as error:
        return 0, [_unreadable(place.path, error)] if expected else []
    present = sum(1 for nodes_ in found.values() if nodes_)
    if not present and not expected:
        return 0, []
    lost = [want.path[-1] for want in wanted if not found[want.sign]]
    changed = [want.path[-1] for want in wanted if found[want.sign] and not _any_fits(found[want.sign], want)]
    doubled = [want.path[-1] for want in wanted if counts[want.sign] > 1]
    command = f"setup {client.name}"
    told: list[tuple[Drift, list[str], str, str]] = [
        ("hooks_missing", lost, "no hook of ours is at", command),
        ("hooks_changed", changed, "our hook was changed at", command),
        (
            "duplicate",
            doubled,
            "our hook stands more than once at",
            f"setup remove {client.name}, then set it up",
        ),
    ]
    return present, [
        _finding(drift, place.path, f"{words} {', '.join(events)}", what)
        for drift, events, words, what in told
        if events
    ]


def _any_fits(found: list[Node], want: Want) -> bool:
    return any(fits(one.value(), want) for one in found)


def _count(text: str, sign: str) -> int:
    document = read(text)
    if document is None:
        return 0
    return sum(1 for node in nodes(document) if isinstance(node.plain, str) and sign in node.plain)
