"""`postroom watch`: prints each new message once, in one line, even if the server is down for a while.

A message counts as announced when its line has been written. The next request reports this to the server.
"""

import fcntl
import json
import os
import random
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from hashlib import sha256
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.exit_codes import DONE, FAILED, READER_GONE, TERMINATED
from postroom.cli.options import HERE, ActingOrNone, AsJson, Project, project_key
from postroom.contracts.errors import InvalidArgument, PostroomError

WAIT_SECONDS: Final = 25
MIN_PAUSE: Final = 0.2
MAX_PAUSE: Final = 10.0
"""The longest pause between two attempts to reach the server, in seconds."""

WOKEN: Final = 2
"""The exit code by which a hook with `asyncRewake` makes Claude Code start a turn."""
WAKES: Final = "A message from {sender} came for {agent}: read it with the tool fetch_inbox."

app = typer.Typer()


@app.command()
def watch(
    acting: ActingOrNone = None,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SEQ",
            help="Start after this message number in the inbox.",
            show_default="the newest message",
        ),
    ] = None,
    wake: Annotated[
        bool, typer.Option("--wake", help="Wait for one message, report it on stderr, and exit with code 2.")
    ] = False,
    project: Project = HERE,
    as_json: AsJson = False,
) -> None:
    """Print a line for each new message.

    Each line shows the message's inbox number, id, importance and sender. With --json each line is a
    JSON object. The command ends at Ctrl-C (130), SIGTERM (143) or when the output is closed (141).

    With --wake it is a Claude Code hook with asyncRewake: a new message starts a turn of an idle session. If
    another such hook already waits for the agent, this one exits with 0.
    """
    signal.signal(signal.SIGTERM, terminate)
    if wake:
        try:
            wait_to_wake(_who(acting, project), after)
        except PostroomError as error:
            # With exit code 2, the session would start a turn for this failure, and another turn when that
            # turn ends.
            sys.stderr.write(f"{show.plain(error.describe())}\n")
            raise SystemExit(FAILED) from None
    for message in messages(_who(acting, project), after):
        if as_json:
            names = ("seq", "id", "from", "kind", "importance", "ack_required", "thread_id", "created_ts")
            show.print_line(json.dumps({name: message[name] for name in names}))
        else:
            words = (message["seq"], message["id"], message["importance"], message["from"])
            show.print_line("\t".join(show.line(word) for word in words))


def messages(
    who: Mapping[str, object], after: int | None, *, is_quiet: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Yield each new message once.

    A request for the next message marks the last message as announced. Unless `is_quiet` is True, an outage
    of the server is reported on stderr.

    Raises:
        PostroomError: The inbox cannot be followed, and a retry does not help.
    """
    patience = Patience(is_quiet=is_quiet)
    shown: list[int] = []
    while True:
        leave_when_unread()
        arguments = {**who, "after": after, "shown": shown, "wait_seconds": WAIT_SECONDS}
        try:
            server = Server.find(timeout=timedelta(seconds=WAIT_SECONDS + 15))
            answer = server.admin(
                "POST", "/watch", {name: item for name, item in arguments.items() if item is not None}
            )
        except PostroomError as error:
            patience.wait_out(error)
            continue
        patience.reset()
        shown = []
        for message in show.items(answer.get("events")):
            if message.get("recalled_at") is None:
                yield message
            shown.append(int(message["id"]))
            after = int(message["seq"])
        if after is None:
            after = int(str(answer["next"]))


def wait_to_wake(who: Mapping[str, str], after: int | None) -> NoReturn:
    """Wait for an unread message, announce the message once, and exit.

    Exit immediately if another process is waiting for the same agent.

    Raises:
        PostroomError: The inbox cannot be followed, and a retry does not help.
    """
    folder = places.data_dir(places.environment())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = sha256("\0".join(who.values()).encode()).hexdigest()[:16]
    with os.fdopen(
        os.open(folder / f"wake-{name}", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+"
    ) as kept_text:
        try:
            fcntl.flock(kept_text.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(DONE) from None
        kept_text.seek(0)
        last = kept_text.read()
        message = next(
            message
            for message in messages(who, int(last) if last.isdigit() else after, is_quiet=True)
            if message.get("read_at") is None
        )
        kept_text.truncate(0)
        kept_text.write(str(message["seq"]))
    names = {"agent": show.line(who["agent_name"]), "sender": show.line(message["from"])}
    sys.stderr.write(f"{WAKES.format(**names)}\n")
    raise SystemExit(WOKEN)


def _who(acting: str | None, project: str) -> dict[str, str]:
    if not acting:
        raise InvalidArgument("no agent was named", remedy="choose an agent with --as, or set POSTROOM_AGENT")
    return {"project_key": project_key(project), "agent_name": acting}


class Patience:
    """Waits for an unreachable server with growing pauses, and reports each outage once."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._pause, self._is_waiting = MIN_PAUSE, False

    def reset(self) -> None:
        """Reset the pause to the minimum after a response of the server."""
        if self._is_waiting:
            self._say("the server is back")
        self._pause, self._is_waiting = MIN_PAUSE, False

    def wait_out(self, error: PostroomError) -> None:
        """Pause after an error, before the next attempt to reach the server.

        Raises:
            PostroomError: The given error, if a retry does not help.
        """
        if not error.retryable:
            raise error
        if not self._is_waiting:
            self._say(f"{error.message}; waiting for the server")
        self._is_waiting = True
        # The pause is partly random, so that many watchers do not retry at the same moment.
        threading.Event().wait(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        self._pause = min(MAX_PAUSE, self._pause * 2)

    def _say(self, what: str) -> None:
        if not self._is_quiet:
            sys.stderr.write(f"{show.plain(what)}\n")


def leave_when_unread() -> None:
    """Exit if no program reads the output any longer."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLERR)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            raise SystemExit(READER_GONE)


def terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Exit with the exit code for SIGTERM."""
    raise SystemExit(TERMINATED)
