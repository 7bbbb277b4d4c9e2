"""`postroom watch`: one line for each message as it comes, each once, also across absences of the server.

A message counts as announced when its line is written: the next question to the server says so.
"""

import json
import random
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.exit_codes import READER_GONE, TERMINATED
from postroom.cli.options import HERE, AsJson, Project, project_key
from postroom.contracts.errors import InvalidArgument, PostroomError

WAIT_SECONDS: Final = 25
SHORTEST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries to reach a server that is away."""

app = typer.Typer()


@app.command()
def watch(
    acting: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="The agent.", show_default="POSTROOM_AGENT")
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(min=0, metavar="SEQ", help="The last number seen.", show_default="the newest message"),
    ] = None,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """Print a line for each message as it comes.

    It has the number in the inbox, the id, the importance and the sender. With --json each line is a JSON
    object. Ends at Ctrl-C (130), SIGTERM (143) or when nobody reads (141).
    """
    name = acting or places.environment().get("POSTROOM_AGENT", "")
    if not name:
        raise InvalidArgument("no agent is named", remedy="name one with --as, or set POSTROOM_AGENT")
    signal.signal(signal.SIGTERM, terminate)
    for message in messages({"project_key": project_key(project), "agent_name": name}, after):
        show.print_line(_as_json(message) if as_json else _as_line(message))


def messages(who: Mapping[str, object], after: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield messages as they come, each once; a message is announced when the next one is asked for.

    Raises:
        PostroomError: the inbox cannot be followed, for a reason that will not pass.
    """
    patience = Patience()
    shown: list[int] = []
    while True:
        leave_when_unread()
        asked = {**who, "after": after, "shown": shown, "wait_seconds": WAIT_SECONDS}
        try:
            server = Server.find(timeout=timedelta(seconds=WAIT_SECONDS + 15))
            found = server.admin(
                "POST", "/watch", {name: one for name, one in asked.items() if one is not None}
            )
        except PostroomError as error:
            patience.wait_out(error)
            continue
        patience.reset()
        shown = []
        for message in show.items(found.get("events")):
            if message.get("recalled_at") is None:
                yield message
            shown.append(int(message["id"]))
            after = int(message["seq"])
        if after is None:
            after = int(str(found["next"]))


def _as_line(message: Mapping[str, Any]) -> str:
    words = (message["seq"], message["id"], message["importance"], message["from"])
    return "\t".join(show.line(word) for word in words)


def _as_json(message: Mapping[str, Any]) -> str:
    names = ("seq", "id", "from", "kind", "importance", "ack_required", "thread_id", "created_ts")
    return json.dumps({name: message[name] for name in names})


class Patience:
    """Waits for a server that is away, longer each time."""

    def __init__(self) -> None:
        self._pause = SHORTEST_PAUSE

    def reset(self) -> None:
        """Begin anew: the server has answered."""
        self._pause = SHORTEST_PAUSE

    def wait_out(self, error: PostroomError) -> None:
        """Let some time pass before the next try.

        Raises:
            PostroomError: this very error, for it will not pass.
        """
        if not error.retryable:
            raise error
        # A chance in it, so that a crowd of watchers does not come back at one instant.
        threading.Event().wait(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        self._pause = min(LONGEST_PAUSE, self._pause * 2)


def leave_when_unread() -> None:
    """End when the reader of a pipe has gone: the next message, which would say so, may be days away."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLERR)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise SystemExit(READER_GONE)


def terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End as who was told to by SIGTERM."""
    raise SystemExit(TERMINATED)
