"""The demo as a command: it creates a scratch repository, writes a message, and prints the events."""

import secrets
import shlex
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.call import perform
from postroom.cli.client import Server
from postroom.cli.demo import agent, repository
from postroom.cli.options import AsJson
from postroom.contracts.errors import ConfigError, ServerUnavailable, StaleDecision

YOU: Final = "You"
PATIENCE: Final = timedelta(minutes=2)
_POLL_SECONDS: Final = 0.1
_ASKED: Final = "The total of a basket is too low, and `test_basket.py` fails. Please fix it."
_LOOK: Final = (
    f"\nThe page shows each step live. Your message starts a run of {agent.BUILDER}. It reserves\n"
    f"{repository.PROGRAM}, fixes the bug and writes to {agent.REVIEWER}; the reply starts "
    f"{agent.BUILDER} again.\n{{asked}} `postroom top` and `postroom questions list` show the same in "
    "another terminal.\n"
)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Play:
    """One run of the demo."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.thread = self.slug = ""
        self._after = 0

    def call(self, tool: str, **arguments: object) -> Any:
        """Call a tool in the scratch project."""
        return self.server.call_tool(tool, {"project_key": str(self.folder), **arguments})

    @property
    def timeline(self) -> str:
        """The address of the page that shows the demo."""
        return f"{self.server.endpoint.url}/p/{self.slug}/timeline"

    def link(self) -> str:
        """Return a one-time login address that leads to the live page of the demo."""
        path = urlsplit(self.timeline).path  # without a span: the page chooses the one that fits the data
        return str(perform(self.server, "make_login_link", path=path)["url"])

    def open(self) -> None:
        """Create the project, so that its page exists."""
        made = self.server.call_tool("ensure_project", {"human_key": str(self.folder)})
        self.slug = show.fields(made)["slug"]

    def prepare(self) -> None:
        """Create repository and agents, and set the agents' runners."""
        repository.make(self.folder)
        for name, program in ((YOU, "person"), (agent.BUILDER, "script"), (agent.REVIEWER, "script")):
            self.call("register_agent", name=name, program=program, model="none")
        environment = {"POSTROOM_DATA_DIR": str(places.data_dir(places.environment()))}
        runner = {"argv": [sys.executable, "-m", agent.__name__], "env": environment, "timeout": 60}
        for name in (agent.BUILDER, agent.REVIEWER):
            perform(self.server, "set_runner", project=str(self.folder), agent=name, runner=runner)

    def begin(self) -> None:
        """Send the message that starts the demo."""
        sent = self.call(
            "send_message",
            sender_name=YOU,
            to=[agent.BUILDER],
            subject="The total is wrong",
            body_md=_ASKED,
        )
        self.thread = show.items(sent.get("deliveries"))[0]["payload"]["thread_id"]

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages to the person, each once, as they arrive.

        Raises:
            ServerUnavailable: No message came for a long time.
        """
        waiting, waited = threading.Event(), 0.0
        while waited < PATIENCE.total_seconds():
            found = show.items(self.call("fetch_inbox", agent_name=YOU, after=self._after))
            for one in found:
                self._after, waited = one["seq"], 0.0
                self.call("mark_message_read", agent_name=YOU, message_id=one["id"])
                yield one
            if not found:
                waiting.wait(_POLL_SECONDS)
                waited += _POLL_SECONDS
        raise ServerUnavailable("no message came within 2 minutes", remedy="read the server's log")

    def answer(self, word: str) -> None:
        """Answer the agents' question, unless it has been answered elsewhere in the meantime."""
        for question in show.items(perform(self.server, "list_questions").get("questions")):
            if question["question"] == agent.MAY_I and self.slug in question["thread_id"]:
                with suppress(StaleDecision):
                    perform(self.server, "answer_question", number=question["number"], answer=word)

    def end(self) -> None:
        """Stop running the agents."""
        for name in (agent.BUILDER, agent.REVIEWER):
            perform(self.server, "remove_runner", project=str(self.folder), agent=name)


app = typer.Typer(rich_markup_mode=None)


@app.command()
def demo(
    yes: Annotated[bool, typer.Option("--yes", help="Answer the agents' question with yes.")] = False,
    no: Annotated[bool, typer.Option("--no", help="Answer the agents' question with no.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch two programs fix a bug.

    Messages start them. They reserve, edit, review, ask you, and finish. The demo needs no model and no key.
    It works in a scratch repository and keeps the repository for you.
    """
    server = Server.find()
    if urlsplit(server.endpoint.url).hostname not in _LOOPBACK:
        raise ConfigError("the demonstration needs a server on this machine", value=server.endpoint.url)
    folder = places.data_dir(places.environment()) / "demo" / f"basket-{secrets.token_hex(3)}"
    play = Play(server, folder)
    told: list[dict[str, str]] = []
    play.open()
    if not as_json:
        is_asked = sys.stdin.isatty() and not (yes or no)
        told_how = (
            "Then it asks you here."
            if is_asked
            else f"Then it asks, and the answer is {'no' if no else 'yes'}."
        )
        print(f"Watch it live:\n{play.link()}\n{_LOOK.format(asked=told_how)}", flush=True)
    try:
        play.prepare()
        if not as_json:
            if not (yes or no) and sys.stdin.isatty():
                typer.prompt("Open the link, then press Enter to begin", default="", show_default=False)
            print(f"\n{YOU} to {agent.BUILDER}: {_ASKED}", flush=True)
        play.begin()
        outcome = _played(play, told, as_json=as_json, word="yes" if yes else "no" if no else None)
    finally:
        play.end()
    answer = {
        "folder": str(folder),
        "timeline": play.timeline,
        "thread": play.thread,
        "outcome": outcome,
        "messages": told,
    }
    show.answer(answer, as_json=as_json, text=lambda: _closing(play))
    if outcome == "failed":
        raise typer.Exit(1)


def _played(play: Play, told: list[dict[str, str]], *, as_json: bool, word: str | None) -> str:
    """Follow the messages until the end, answer the question, and return the outcome."""
    for message in play.messages():
        text = message["body_md"].strip()
        told.append({"from": message["from"], "text": text})
        if not as_json:
            print(f"{show.line(message['from'])} to {YOU}: {show.line(text)}")
        if text.startswith(agent.COMMITTED):
            return "committed"
        if text.startswith(agent.TAKEN_BACK):
            return "taken back"
        if message["importance"] == "high" or "do not agree" in text:
            return "failed"
        if agent.MAY_I in text:
            said = word or _asked(as_json=as_json)
            if not as_json:
                print(f"{YOU} to {agent.BUILDER}: {show.line(said)}")
            play.answer(said)
    return "failed"


def _asked(*, as_json: bool) -> str:
    """Ask the person at the terminal; without a terminal, answer yes for this scratch repository."""
    if as_json or not sys.stdin.isatty():
        return "yes"
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # a key pressed before the question does not answer it
    return "yes" if typer.confirm("  Your answer?", default=True) else "no"


def _closing(play: Play) -> str:
    return (
        f"\nSee the result, now or later:\n  every message   postroom mail thread {play.thread} "
        f"--project {play.slug}\n  every run       postroom runs list --project {play.slug}\n  the "
        f"change      git -C {shlex.quote(str(play.folder))} log --patch\n  the page        "
        f"{play.link()}\nThe demo agents have stopped. You can delete the folder."
    )
