"""`postroom setup`: connects client programs to the server, shows their status, and disconnects them."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from postroom.app import places
from postroom.app.clients.config_edits import Records
from postroom.app.clients.config_paths import (
    ConfigFile,
    SetupScope,
    chosen,
    command_path,
    own_files,
    servers_file,
)
from postroom.app.clients.plugins import forget, form_in_place, form_to_write, forms, load_marketplace
from postroom.app.clients.readiness import find_release, refuse_unfit, to_do
from postroom.app.clients.setting_up import Change, give_back, parts, plan, plan_removal, steadily
from postroom.app.clients.status import ClientStatus, extras_in_place, is_recorded, status_of
from postroom.app.clients.table import CLIENTS, TOKEN_NAME, Client, Extra, Scope, Tools, Way
from postroom.app.clients.trust import HOW_TO_TRUST
from postroom.cli import show
from postroom.cli.client import Server, locate
from postroom.cli.exit_codes import CONFIGURATION, FAILED, exit_code
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ConfigError, PostroomError, ServerUnavailable

DEFAULT: Final = "add"
_PROBE: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Served:
    """The address of the server to which commands connect, and whether the server is running."""

    address: str
    """The address of the server's MCP endpoint.

    A server that does not run will have this address.
    """
    runs: bool

    def trial(self, client: Client, file: ConfigFile, environment: Mapping[str, str]) -> dict[str, Any]:
        """Call the server through a client's configuration file, and return the result."""
        if not self.runs:
            return {
                "state": "not tried",
                "detail": "no server is running",
                "remedy": (
                    "start the server with `postroom up`; a client that is set up with --stdio "
                    "starts the server itself"
                ),
            }
        from postroom.app.clients.trial import try_out

        try:
            return asdict(try_out(client, file, environment))
        except PostroomError as error:
            return {"state": "failed", "detail": error.message, "remedy": error.remedy}


def served(environment: Mapping[str, str]) -> Served:
    """Return the address of the server to which commands connect, even if the server is not running.

    Raises:
        ConfigError: The address, the note or a setting cannot be read.
    """
    try:
        endpoint = locate(environment)
    except ServerUnavailable:
        from postroom.app.config import load_settings

        settings = load_settings(environment=environment)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return Served(f"http://{host}:{settings.port}{settings.mcp_path}", runs=False)
    runs = Server(endpoint, timeout=_PROBE).is_ready()
    return Served(f"{endpoint.url}{endpoint.mcp_path}", runs=runs)


QUESTIONS: Final[Mapping[Extra, str]] = {
    "skill": "a skill (SKILL.md), from which a model learns when and how to use postroom",
    "rules": "a block of rules about mail and reservations in AGENTS.md",
    "extension": (
        "an extension that starts a turn of an idle session when a message comes, and the setting "
        "`experimental`, which Copilot CLI needs for extensions"
    ),
}
"""The parts that are written only if a person agrees, with a description of each part."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Decides which optional parts `setup` writes for a client."""

    given: Mapping[Extra, bool | None]
    yes: bool
    asks: bool

    def answered(
        self, client: Client, target: SetupScope, records: Records, *, hooks: bool
    ) -> dict[Extra, bool]:
        """Return for each optional part of a client whether to write the part; ask a person if necessary.

        Without a command-line option, existing parts are kept, and a person is asked about missing parts.
        Without a terminal, missing parts are not written.
        """
        in_place = extras_in_place(client, target, records)
        offered = [own.extra for own, _ in own_files(client, target) if own.extra]
        answers = dict[Extra, bool]()
        for extra in offered:
            if extra == "extension" and not hooks:  # the extension waits in a hook
                continue
            answer = self.given[extra]
            if answer is None:
                answer = self.yes or extra in in_place
            if not answer and self.given[extra] is None and self.asks:
                answer = typer.confirm(f"{client.title}: write {QUESTIONS[extra]}?", default=False, err=True)
            answers[extra] = answer
        return answers


class SetupGroup(TyperGroup):
    """A command group with the default command `add`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command `add` if the arguments name no command."""
        first = next((arg for arg in args if not arg.startswith("-")), "")
        if first not in self.commands and args[:1] != ["--help"]:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=SetupGroup,
    help="Connect clients to the server. `postroom setup claude` is short for `postroom setup add claude`.",
    epilog=examples("setup add claude", "setup status", "setup remove"),
    rich_markup_mode=None,
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLIENT",
        help=f"{', '.join(item.name for item in CLIENTS)}. Default: all installed clients.",
        show_default=False,
    ),
]
Known = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLIENT",
        help="The clients to change. Default: all clients whose files setup has written to.",
        show_default=False,
    ),
]
ScopeOption = Annotated[
    Scope,
    typer.Option(
        "--scope",
        case_sensitive=False,
        help="Set up all of this user's projects, or only the project in this folder.",
    ),
]
FilesScope = Annotated[
    Scope,
    typer.Option(
        "--scope",
        case_sensitive=False,
        help="user: the client's files in your account; project: its files in this folder.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without writing anything.")]


@app.callback()
def group() -> None:
    """Connect clients to the server."""


@app.command()
def add(  # noqa: PLR0913 - the options of the command
    clients: Names = None,
    dry_run: DryRun = False,
    scope: ScopeOption = "user",
    http: Annotated[
        bool | None,
        typer.Option(
            "--http/--stdio",
            help="Connect to the server's HTTP address, or let the client start `postroom mcp`.",
            show_default="--stdio",
        ),
    ] = None,
    tools: Annotated[
        Tools,
        typer.Option(
            "--tools",
            case_sensitive=False,
            help="Offer the client the core tools, or all tools.",
        ),
    ] = "core",
    no_hooks: Annotated[bool, typer.Option("--no-hooks", help="Do not write hooks.")] = False,
    no_plugin: Annotated[
        bool, typer.Option("--no-plugin", help="Write settings even for clients that would use a plugin.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not test the new settings with a call to the server.")
    ] = False,
    skill: Annotated[
        bool | None,
        typer.Option("--skill/--no-skill", help=f"Write {QUESTIONS['skill']}.", show_default="ask"),
    ] = None,
    rules: Annotated[
        bool | None,
        typer.Option("--rules/--no-rules", help=f"Write {QUESTIONS['rules']}.", show_default="ask"),
    ] = None,
    extension: Annotated[
        bool | None,
        typer.Option(
            "--extension/--no-extension", help=f"Write {QUESTIONS['extension']}.", show_default="ask"
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to every question.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add the server and its hooks to the clients' files. Exit code 78 if a file fails, 1 if a call fails."""
    target = SetupScope(environment=places.environment(), scope=scope, is_dry_run=dry_run)
    given_fields: dict[Extra, bool | None] = {"skill": skill, "rules": rules, "extension": extension}
    results = set_up(
        chosen(clients or [], target),
        target,
        way=None if http is None else ("http" if http else "stdio"),
        tools=tools,
        hooks=not no_hooks,
        plugin=not no_plugin,
        verify=not no_verify,
        questions=Questions(given=given_fields, yes=yes or dry_run, asks=sys.stdin.isatty() and not as_json),
    )
    document = {
        "dry_run": dry_run,
        "clients": results,
        "notes": collect_notes(results, target, dry_run=dry_run),
    }
    show.answer(document, as_json=as_json, text=lambda: done_text(document))
    end(results)


def set_up(  # noqa: PLR0913 - each is a choice of its own
    clients: Sequence[Client],
    target: SetupScope,
    *,
    questions: Questions,
    way: Way | None = None,
    tools: Tools = "core",
    hooks: bool = True,
    plugin: bool = True,
    verify: bool = True,
) -> list[dict[str, Any]]:
    """Write the server's entry and hooks to the files of each client, and return the results.

    Raises:
        ConfigError: The command `postroom` is not on the PATH. Nothing was written.
    """
    server = served(target.environment)
    needs_command = not target.is_dry_run and not (way == "http" and not hooks)
    if needs_command and command_path(target.environment) is None:
        raise ConfigError(
            "the command `postroom` is not on the PATH, so clients could not start it",
            value=target.environment.get("PATH", ""),
            remedy=(
                "install it for your account (`uv tool install .` or `pipx install .` in the clone), or "
                "add the folder of this command to the PATH"
            ),
        )
    records = Records(target.environment)
    results = []
    for client in clients:
        form, why = form_to_write(client, target, no_plugin=not plugin)
        extras = questions.answered(form, target, records, hooks=hooks)
        arguments = (tools, hooks, target.is_dry_run, extras)
        result = _set_up(form, target, way or "stdio", server, records, arguments)
        result["form"] = "settings" if form.switched_on_in is None else "plugin"
        if not target.is_dry_run and "error" not in result:
            result["refusal"] = load_marketplace(form, target) if form.switched_on_in is not None else why
            if verify:
                result["trial"] = server.trial(form, servers_file(form, target), target.environment)
        results.append(result)
    return results


@app.command()
def remove(
    clients: Known = None, dry_run: DryRun = False, scope: FilesScope = "user", as_json: AsJson = False
) -> None:
    """Remove what setup wrote from the clients' files. Exit code 78 if a client fails."""
    target = SetupScope(environment=places.environment(), scope=scope)
    records = Records(target.environment)
    # Show only clients to whose files `setup` has written. Entries under postroom's name that somebody else
    # has written do not change.
    taken = (
        chosen(clients, target)
        if clients
        else [
            client
            for client in _fitting(target)
            if any(is_recorded(form, target, records) for form in forms(client, target))
        ]
    )
    results = []
    for client in taken:
        try:
            form = form_in_place(client, target, records)
            changes = _remove_parts(form, target, records, dry_run=dry_run)
            if form.switched_on_in is not None and not dry_run:
                forget(form, target)
            results.append({**_head(client), "files": _files(changes, dry_run=dry_run)})
        except PostroomError as error:
            results.append({**_head(client), **_print_failure(error)})
    document = {
        "dry_run": dry_run,
        "clients": results,
        "notes": collect_notes(results, target, dry_run=dry_run),
    }
    show.answer(document, as_json=as_json, text=lambda: done_text(document))
    end(results)


def end(results: Sequence[Mapping[str, Any]]) -> None:
    """Exit with code 78 if a client cannot be set up, or with code 1 after another error."""
    if any(result.get("refused") for result in results):
        raise typer.Exit(CONFIGURATION)
    if any("error" in result or result.get("trial", {}).get("state") == "failed" for result in results):
        raise typer.Exit(FAILED)


@app.command()
def status(scope: FilesScope = "user", as_json: AsJson = False) -> None:
    """Show each client's setup and version, with remedies. Exit code 1 if a setup needs repair."""
    target = SetupScope(environment=places.environment(), scope=scope)
    records = Records(target.environment)
    address = served(target.environment).address
    clients = [form_in_place(client, target, records) for client in _fitting(target)]
    with ThreadPoolExecutor() as pool:  # a client takes a second to report its version
        list(pool.map(lambda one: find_release(one, target), clients))
    statuses = [status_of(client, target, address, records) for client in clients]
    ok = all(status.state != "drifted" for status in statuses)
    document = {"ok": ok, "clients": [status_document(status) for status in statuses]}
    show.answer(document, as_json=as_json, text=lambda: statuses_text(statuses))
    if not ok:
        raise typer.Exit(FAILED)


def _fitting(target: SetupScope) -> list[Client]:
    return [client for client in CLIENTS if target.scope == "user" or client.project is not None]


def _set_up(
    client: Client,
    target: SetupScope,
    way: Way,
    server: Served,
    records: Records,
    asked: tuple[Tools, bool, bool, Mapping[Extra, bool]],
) -> dict[str, Any]:
    tools, hooks, dry_run, extras = asked
    chosen_extras = [extra for extra, is_chosen in extras.items() if is_chosen]
    try:
        wanted = parts(client, target, way, server.address, tools=tools, hooks=hooks, extras=chosen_extras)
        plan(client, wanted, records)  # before the other form is removed, report files that cannot be written
        unclear = refuse_unfit(client, target, hooks=hooks and client.hooks is not None)
        # Write the parts of a client, and remove its other form. If a step fails, undo all steps.
        if dry_run:
            changes = plan(client, wanted, records)
        else:
            taken_out: list[Change] = []
            other = form_in_place(client, target, records)
            if other.switched_on_in != client.switched_on_in:
                taken_out = _remove_parts(other, target, records, dry_run=False)
            with records.kept():
                try:
                    changes = steadily(lambda: plan(client, wanted, records), records, SystemClock().now())
                except PostroomError:
                    give_back(taken_out, records)
                    raise
        return {
            **_head(client),
            "way": way,
            "tools": tools,
            "extras": dict(extras),
            "why": client.why if way == "stdio" else "as requested",
            "files": _files(changes, dry_run=dry_run),
            "to_do": [asdict(item) for item in (*unclear, *to_do(client, target))],
        }
    except PostroomError as error:
        return {**_head(client), "way": way, **_print_failure(error)}


def _print_failure(error: PostroomError) -> dict[str, Any]:
    return {"files": [], "error": error.as_dict(), "refused": exit_code(error) == CONFIGURATION}


def _remove_parts(client: Client, target: SetupScope, records: Records, *, dry_run: bool) -> list[Change]:
    wanted = parts(client, target, "http" if client.http else "stdio", "", hooks=True, extras=list(QUESTIONS))
    if dry_run:
        return plan_removal(client, wanted, records)
    with records.kept():
        return steadily(lambda: plan_removal(client, wanted, records), records, SystemClock().now())


def _head(client: Client) -> dict[str, Any]:
    return {"client": client.name, "title": client.title}


def _files(changes: Sequence[Change], *, dry_run: bool) -> list[dict[str, Any]]:
    files = []
    for change in changes:
        kind = "changed"
        if change.is_none and change.found.content is None:
            continue
        if change.is_none:
            kind = "none"
        elif change.found.content is None:
            kind = "made"
        elif change.after is None:
            kind = "removed"
        backup = None if change.backup is None else str(change.backup)
        result = {"path": str(change.path), "change": kind, "backup": backup}
        if dry_run:
            before = "" if change.found.content is None else change.found.text
            lines = difflib.unified_diff(
                before.splitlines(keepends=True),
                (change.after or "").splitlines(keepends=True),
                str(change.path),
                str(change.path),
            )
            result["diff"] = "".join(
                line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
            )
        files.append(result)
    return files


def collect_notes(results: Sequence[Mapping[str, Any]], target: SetupScope, *, dry_run: bool) -> list[str]:
    """Return notes for the user who has set up or removed clients."""
    unanswered = sorted(
        {
            extra
            for result in results
            for extra, is_chosen in result.get("extras", {}).items()
            if not is_chosen
        }
    )
    if dry_run:
        if any("to_do" in result for result in results):
            return ["nothing was written; a dry run does not check the login and trusted folders of clients"]
        return ["nothing was written"]
    if not results:
        return [
            "no installed client was found; install a client, such as Claude Code, and run this command again"
        ]
    notes = []
    if any(file["change"] != "none" for result in results for file in result["files"]):
        notes.append("open a new session of each client: clients read these files at the start of a session")
    if any(result.get("way") == "http" and "error" not in result for result in results):
        file = places.token_file(places.data_dir(target.environment))
        notes.append(f"clients that use HTTP read the token: export {TOKEN_NAME}=\"$(cat '{file}')\"")
    if unanswered:
        options = " ".join(f"--{extra}" for extra in unanswered)
        notes.append(f"not written without your consent: {', '.join(unanswered)}; add {options}, or --yes")
    asking = {client.name: client for client in CLIENTS if client.hooks and client.hooks.asks_trust}
    for result in results:
        client = asking.get(result["client"])
        if client is not None and result.get("way") and len(result["files"]) > 1:
            notes.append(
                f"{client.title} runs hooks only after you trust them: "
                f"{HOW_TO_TRUST.format(client.programs[0])}"
            )
    named = [name for name in (places.DATA_DIR_NAME, "POSTROOM_URL") if target.environment.get(name)]
    if named and any(result.get("way") == "stdio" for result in results):
        notes.append(
            f"set {' and '.join(named)} in the environment in which the client starts, as in this shell"
        )
    return notes


def done_text(document: Mapping[str, Any]) -> str:
    """Return the changes of the clients' files as text."""
    lines: list[str] = []
    for result in document["clients"]:
        dry_run = bool(document["dry_run"])
        title = show.line(result["title"])
        if error := result.get("error"):
            remedy = f"\n  remedy: {show.line(error['remedy'])}" if error["remedy"] else ""
            headline = f"{title}: failed\n  {show.line(error['message'])}{remedy}"
        elif way := result.get("way"):
            headline = (
                f"{title}: {'would be ' if dry_run else ''}set up over {way} ({show.line(result['why'])})"
            )
        elif all(file["change"] == "none" for file in result["files"]):
            headline = f"{title}: setup has written nothing that could be removed"
        else:
            headline = f"{title}: {'would be ' if dry_run else ''}removed"
        lines.append(headline)
        unchanged = "up to date" if "way" in result else "unchanged: it has no entry from setup"
        words = {"none": unchanged, "changed": "changed", "made": "made", "removed": "removed"}
        for file in result["files"]:
            lines.append(f"  {show.line(file['path'])}: {words[file['change']]}")
            if file["backup"]:
                lines.append(f"  backup: {show.line(file['backup'])}")
            if file.get("diff"):
                lines.append(show.plain(file["diff"]).rstrip("\n"))
        lines += [
            f"  {show.line(item['detail'])}\n  remedy: {show.line(item['remedy'])}"
            for item in result.get("to_do", ())
        ]
        if refusal := result.get("refusal"):
            lines.append(f"  note: {show.line(refusal)}")
        if trial := result.get("trial"):
            lines.append(f"  call: {show.line(trial['state'])}: {show.line(trial['detail'])}")
            lines += [f"  remedy: {show.line(trial['remedy'])}"] if trial["remedy"] else []
    return "\n".join([*lines, *(show.line(note) for note in document["notes"])])


def status_document(found: ClientStatus) -> dict[str, Any]:
    """Return the set-up status of a client as plain data."""
    return {
        "client": found.client,
        "state": found.state,
        "way": found.way,
        "tools": found.tools,
        "hooks": found.hooks,
        "extras": list(found.extras),
        "release": None if found.release is None else asdict(found.release),
        "findings": [
            {
                "drift": finding.drift,
                "file": str(finding.file),
                "detail": finding.detail,
                "remedy": finding.remedy,
            }
            for finding in found.findings
        ],
    }


def statuses_text(found: Sequence[ClientStatus]) -> str:
    """Return a table with the status of each client, followed by the problems."""
    waits = {"logged_out": "written, logged out", "folder_untrusted": "written, folder not trusted"}
    rows = []
    for status in found:
        drifts = [finding.drift for finding in status.findings]
        # The step that the user must take stands in place of the state, if no other finding does.
        steps = [waits.get(drift, "") for drift in drifts if drift != "hooks_untrusted"]
        state = steps[0] if steps and all(steps) else status.state
        hooks = "yes" if status.hooks else ""
        if "hooks_untrusted" in drifts:  # written hooks need not be active
            hooks = "written, not trusted"
        installed = status.release.installed if status.release else ""
        rows.append((status.client, state, installed, status.way or "", status.tools or "", hooks))
    columns = ("CLIENT", "STATE", "RELEASE", "WAY", "TOOLS", "HOOKS")
    lines = [show.table(columns, rows, none="No clients.")]
    for status in found:
        if status.release and status.release.warning:
            lines.append(f"{status.client}: warning: {show.line(status.release.warning)}")
            lines.append(f"  remedy: {show.line(status.release.remedy)}")
        for finding in status.findings:
            lines.append(
                f"{status.client}: {finding.drift}: {show.line(finding.detail)} ({show.line(finding.file)})"
            )
            lines.append(f"  remedy: {show.line(finding.remedy)}")
    return "\n".join(lines)
