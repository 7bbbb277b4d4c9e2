"""`postroom events` prints the events of a project in order. `postroom catch-up` summarises them.

The number of an event is the cursor, so each event is printed once, even if the server is down for a while.
"""

import json
import signal
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.client import Server, with_query
from postroom.cli.options import HERE, AsJson, Project, project_key
from postroom.cli.watch import Patience, leave_when_unread, terminate
from postroom.contracts.catching_up import summary_lines
from postroom.contracts.errors import CursorExpired, InvalidArgument, PostroomError

WAIT_SECONDS: Final = 25
PAGE: Final = 500

app = typer.Typer()


@app.command()
def events(
    project: Project = HERE,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SEQ",
            help="Start after the event with this number.",
            show_default="the oldest stored event; the newest with --follow",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events as they happen.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help="Only this kind of event, such as message.sent. Repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the events of a project.

    Each line shows an event's number, time, kind, agent and subject. With --json each line is a JSON
    object. With --follow it also prints new events, and waits while the server is down, until Ctrl-C (exit
    code 130), SIGTERM (143) or until the output is closed (141).
    """
    from postroom.contracts.mail import EVENT_KINDS  # loaded here, because the help does not need it

    if unknown := [value for value in kind or () if value not in EVENT_KINDS]:
        raise InvalidArgument(
            f"unknown kind of event: {unknown[0]!r}", value=unknown[0], remedy=f"use {', '.join(EVENT_KINDS)}"
        )
    signal.signal(signal.SIGTERM, terminate)
    arguments = {"project_key": project_key(project), "kinds": kind or []}
    for item in _follow_events(arguments, after) if follow else _stored_events(arguments, after):
        show.print_line(json.dumps(item) if as_json else _as_line(item))


@shows(app, "catch_up")
def _(found: dict[str, Any]) -> str:
    lines = (*summary_lines(found), f"Next time: postroom catch-up --after {found['next']}")
    return "\n".join(show.folded(show.moment(line), "    ") for line in lines)


def _stored_events(asked: Mapping[str, object], after: int | None) -> Iterator[Mapping[str, Any]]:
    server = Server.find()
    if after is None:  # start with the oldest stored event
        try:
            answer = _ask(server, "fetch_events", {**asked, "after": 0, "limit": 1})
            after = int(str(answer["oldest"]))
        except CursorExpired as error:
            after = int(str(error.details["oldest"]))
    while True:
        answer = _ask(server, "fetch_events", {**asked, "after": after, "limit": PAGE})
        yield from show.items(answer.get("events"))
        after = int(str(answer["next"]))
        if after >= int(str(answer["newest"])):
            return


def _follow_events(asked: Mapping[str, object], after: int | None) -> Iterator[Mapping[str, Any]]:
    patience = Patience()
    while True:
        leave_when_unread()
        try:
            server = Server.find(timeout=timedelta(seconds=WAIT_SECONDS + 15))
            cursor = {} if after is None else {"after": after, "wait": WAIT_SECONDS}
            answer = _ask(server, "events", {**asked, **cursor, "limit": PAGE})
        except PostroomError as error:
            patience.wait_out(error)
            continue
        patience.reset()
        yield from show.items(answer.get("events"))
        after = int(str(answer["next"]))


def _ask(server: Server, name: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
    return server.admin("GET", with_query(f"/v1/{name}", arguments))


def _as_line(one: Mapping[str, Any]) -> str:
    about = (
        ("message", one["message_id"]),
        ("reservation", one["reservation_id"]),
        ("run", one["run_id"]),
        *one["detail"].items(),
    )
    words = [
        f"{name}={json.dumps(value) if isinstance(value, bool) else value}"
        for name, value in about
        if value is not None
    ]
    return "\t".join(
        show.moment(word)
        for word in (one["seq"], one["at"], one["kind"], one["agent"] or "-", " ".join(words))
    )
