"""What `postroom setup` tells people."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroom.app import places
from postroom.app.clients.config_paths import SetupScope
from postroom.app.clients.status import ClientStatus
from postroom.app.clients.table import TOKEN_NAME
from postroom.cli import show


def notes_of(results: Sequence[Mapping[str, Any]], target: SetupScope, *, dry_run: bool) -> list[str]:
    """Return what a person should do or know after clients were set up or taken out."""
    if dry_run:
        return ["nothing was written"]
    if not results:
        return ["no client was found; name one, for example `claude`"]
    notes = []
    if any(one["change"] != "none" for result in results for one in result["files"]):
        notes.append("open a new session of each client: they read their files when a session begins")
    if any(result.get("way") == "http" and "error" not in result for result in results):
        file = places.token_file(places.data_dir(target.environment))
        notes.append(f"clients over HTTP read the token: export {TOKEN_NAME}=\"$(cat '{file}')\"")
    named = [name for name in (places.DATA_DIR_NAME, "POSTROOM_URL") if target.environment.get(name)]
    if named and any(result.get("way") == "stdio" for result in results):
        notes.append(f"{' and '.join(named)} must be set where the client is started, as here")
    return notes


def done_text(document: Mapping[str, Any]) -> str:
    """Return what was done to each client's files as lines."""
    lines: list[str] = []
    for result in document["clients"]:
        lines.append(_headline(result, dry_run=bool(document["dry_run"])))
        for one in result["files"]:
            lines += _file_lines(one)
        if trial := result.get("trial"):
            lines.append(f"  call: {show.line(trial['state'])}: {show.line(trial['detail'])}")
            lines += [f"  remedy: {show.line(trial['remedy'])}"] if trial["remedy"] else []
    return "\n".join([*lines, *(show.line(note) for note in document["notes"])])


def _headline(result: Mapping[str, Any], *, dry_run: bool) -> str:
    title = show.line(result["title"])
    if error := result.get("error"):
        remedy = f"\n  remedy: {show.line(error['remedy'])}" if error["remedy"] else ""
        return f"{title}: failed\n  {show.line(error['message'])}{remedy}"
    if way := result.get("way"):
        return f"{title}: {'would be ' if dry_run else ''}set up over {way} ({show.line(result['why'])})"
    if all(one["change"] == "none" for one in result["files"]):
        return f"{title}: nothing of setup's is left to take out"
    return f"{title}: {'would be ' if dry_run else ''}taken out"


def _file_lines(one: Mapping[str, Any]) -> list[str]:
    told = {"none": "as it should be", "changed": "changed", "made": "made", "removed": "removed"}
    lines = [f"  {show.line(one['path'])}: {told[one['change']]}"]
    if one["backup"]:
        lines.append(f"  backup: {show.line(one['backup'])}")
    if one.get("diff"):
        lines.append(show.plain(one["diff"]).rstrip("\n"))
    return lines


def status_document(found: ClientStatus) -> dict[str, Any]:
    """Return how a client stands as plain data."""
    return {
        "client": found.client,
        "state": found.state,
        "way": found.way,
        "hooks": found.hooks,
        "findings": [
            {"drift": one.drift, "file": str(one.file), "detail": one.detail, "remedy": one.remedy}
            for one in found.findings
        ],
    }


def statuses_text(found: Sequence[ClientStatus]) -> str:
    """Return how clients stand: a row each, then what is wrong."""
    rows = [(one.client, one.state, one.way or "", "yes" if one.hooks else "") for one in found]
    lines = [show.table(("CLIENT", "STATE", "WAY", "HOOKS"), rows, none="no clients")]
    for one in found:
        for finding in one.findings:
            lines.append(
                f"{one.client}: {finding.drift}: {show.line(finding.detail)} ({show.line(finding.file)})"
            )
            lines.append(f"  remedy: {show.line(finding.remedy)}")
    return "\n".join(lines)
