"""The command `postroom demo`: creates a scratch repository, adds six tasks, and prints the events."""

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
_LOOK: Final = (
    "\nThe page shows each step live. {asked}\n`postroom top`, `postroom tasks list` and `postroom "
    "questions list` show the same in another terminal.\n"
)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Play:
    """One execution of the demo."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.slug = ""
        self.works: dict[int, repository.Work] = {}
        """The work for each task, keyed by the number of the task."""
        self._after = 0

    def call(self, tool: str, **arguments: object) -> Any:
        """Call a tool in the project of the demo."""
        return self.server.call_tool(tool, {"project_key": str(self.folder), **arguments})

    @property
    def timeline(self) -> str:
        """The URL of the page with the timeline of the demo."""
        return f"{self.server.endpoint.url}/p/{self.slug}/timeline"

    def link(self) -> str:
        """Return a one-time login URL for the page with the timeline of the demo."""
        path = urlsplit(self.timeline).path  # without a span, the page chooses a span that fits the data
        return str(perform(self.server, "make_login_link", path=path)["url"])

    def open(self) -> None:
        """Create the project of the demo."""
        made = self.server.call_tool("ensure_project", {"human_key": str(self.folder)})
        self.slug = show.fields(made)["slug"]

    def prepare(self) -> None:
        """Create the repository and register the agents of the demo."""
        repository.make(self.folder)
        for name, program in ((YOU, "person"), (agent.FIRST, "script"), (agent.SECOND, "script")):
            self.call("register_agent", name=name, program=program, model="none")

    def begin(self) -> None:
        """Make the server run the two demo agents, and add the tasks of the demo."""
        environment = {"POSTROOM_DATA_DIR": str(places.data_dir(places.environment()))}
        runner = {"argv": [sys.executable, "-m", agent.__name__], "env": environment, "timeout": 60}
        for name in (agent.FIRST, agent.SECOND):
            terms = {**runner, "claims_tasks": True}
            perform(self.server, "set_runner", project=str(self.folder), agent=name, runner=terms)
        assignees = {
            **dict.fromkeys((repository.COUNT, repository.REFUSE, repository.COMMIT), agent.FIRST),
            repository.SAVE: agent.SECOND,
        }
        for work in repository.WORKS:
            numbers = list(self.works)
            added = self.call(
                "add_task",
                agent_name=YOU,
                title=work.title,
                paths=[work.path] if work.path else [],
                depends_on=[numbers[place - 1] for place in work.before],
                assignee=assignees.get(work, ""),
                acceptance=work.check,
            )
            self.works[added["id"]] = work

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield each new event of the project once.

        Raises:
            ServerUnavailable: No event has happened for a long time.
        """
        waiting, waited = threading.Event(), 0.0
        while waited < PATIENCE.total_seconds():
            page = show.fields(self.call("fetch_events", after=self._after))
            self._after = page["next"]
            items = show.items(page["events"])
            yield from items
            waited = 0.0 if items else waited + _POLL_SECONDS
            if not items:
                waiting.wait(_POLL_SECONDS)
        raise ServerUnavailable(
            "nothing happened for 2 minutes", remedy="look for the cause in the server's log"
        )

    def task(self, number: int) -> dict[str, Any]:
        """Return the task with the number `number`."""
        return show.items(self.call("list_tasks", task_id=number)["tasks"])[0]

    def answer(self, word: str) -> None:
        """Answer the question of the demo agents; do nothing if another person has answered the question."""
        for question in show.items(perform(self.server, "list_questions", limit=500).get("questions")):
            if question["question"] == agent.MAY_I and self.slug in question["thread_id"]:
                with suppress(StaleDecision):
                    perform(self.server, "answer_question", number=question["number"], answer=word)

    def end(self) -> None:
        """Make the server stop running the agents."""
        for name in (agent.FIRST, agent.SECOND):
            perform(self.server, "remove_runner", project=str(self.folder), agent=name)


app = typer.Typer(rich_markup_mode=None)


@app.command()
def demo(
    yes: Annotated[
        bool, typer.Option("--yes", help="Answer yes to the question that the agents ask.")
    ] = False,
    no: Annotated[bool, typer.Option("--no", help="Answer no to the question that the agents ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch two programs do six tasks.

    The server claims the tasks for them. The agents reserve files, meet at one file, fail once, test, ask
    you, and commit. The demo needs no model and no key. The demo works in a scratch repository, and keeps the
    repository for you.
    """
    server = Server.find()
    if urlsplit(server.endpoint.url).hostname not in _LOOPBACK:
        raise ConfigError("the demonstration needs a server on this machine", value=server.endpoint.url)
    folder = places.data_dir(places.environment()) / "demo" / f"shop-{secrets.token_hex(3)}"
    play = Play(server, folder)
    steps: list[str] = []
    play.open()
    if not as_json:
        is_asked = sys.stdin.isatty() and not (yes or no)
        told_how = (
            "At the end it asks you here."
            if is_asked
            else f"At the end it asks, and the answer is {'no' if no else 'yes'}."
        )
        print(f"Watch it live:\n{play.link()}\n{_LOOK.format(asked=told_how)}", flush=True)
    try:
        play.prepare()
        if not as_json and not (yes or no) and sys.stdin.isatty():
            typer.prompt("Open the link, then press Enter to begin", default="", show_default=False)
        play.begin()
        outcome = "failed"
        for step, word in _play_person(play, as_json=as_json, word="yes" if yes else "no" if no else None):
            outcome = word or outcome
            steps += [step] if step else []
            if step and not as_json:
                print(show.line(step), flush=True)
    finally:
        play.end()
    answer = {"folder": str(folder), "timeline": play.timeline, "outcome": outcome, "steps": steps}
    show.answer(
        answer,
        as_json=as_json,
        text=lambda: (
            "\nSee the result, now or later:\n  the tasks       postroom tasks list --state done --project "
            f"{play.slug}\n  every run       postroom runs list --project {play.slug}\n  the change      "
            f"git -C {shlex.quote(str(play.folder))} log --patch\n  the page        {play.link()}\n"
            "The demo agents have stopped. You can delete the folder."
        ),
    )
    if outcome == "failed":
        raise typer.Exit(1)


def _play_person(play: Play, *, as_json: bool, word: str | None) -> Iterator[tuple[str, str]]:
    last, outcome, holders = max(play.works), "", dict[str, str]()
    names = [f"{number} {work.title}" for number, work in play.works.items()]
    yield f"{YOU} added {len(names)} tasks: {', '.join(names)}", ""
    for event in play.events():
        who, number = event["agent"], event["detail"].get("task_id")
        called = f"task {number}, {play.works[number].title}" if number in play.works else ""
        match event["kind"]:
            case "task.claimed":
                path = play.works[number].path
                holders[path] = who
                yield f"{who} has claimed {called}" + (f" ({path})" if path else ""), ""
            case "reservation.made" if (
                event["detail"].get("path") == repository.BASKET
                and holders.get(repository.BASKET, who) != who
            ):
                yield f"{who} wants {repository.BASKET}, but {holders[repository.BASKET]} holds it", ""
            case "task.blocked" if number == last:
                yield f"{who} has blocked {called}: {play.task(number)['reason']}", ""
                outcome = "declined"
            case "task.blocked":
                yield f"{who} failed at {called}: {play.task(number)['reason'].splitlines()[0]}", ""
                play.call("update_task", agent_name=YOU, task_id=number, state="ready")
                yield f"{YOU} let {who} try task {number} again", ""
            case "task.done":
                holders.pop(play.works[number].path)
                yield f"{who} has finished {called}: {play.task(number)['message']}", ""
                outcome = "committed" if number == last else ""
            case "run.waiting":
                yield f"{who} asks {YOU}: {agent.MAY_I}", ""
                text = word or "yes"  # without a terminal too, because this is a scratch repository
                if not word and not as_json and sys.stdin.isatty():
                    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # keys that were pressed before the question
                    text = "yes" if typer.confirm("  Your answer?", default=True) else "no"
                yield f"{YOU} to {who}: {text}", ""
                play.answer(text)
            case "run.ended" if outcome:
                yield "", outcome
                return
