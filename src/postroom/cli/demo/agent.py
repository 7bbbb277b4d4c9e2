"""The two agents of the demo. Each run starts this program, which gets its task on standard input.

The agents are scripts and not models: this file contains their actions. Everything else works as for any
agent. The server claims tasks for the agents and starts them. The agents call the server's tools over MCP,
and their output is sent as mail.
"""

import re
import sys
import threading
from pathlib import Path
from typing import Any, Final

from postroom.app import places
from postroom.cli import show
from postroom.cli.client import Server
from postroom.cli.demo import repository
from postroom.cli.exit_codes import exit_code
from postroom.contracts.errors import PostroomError

FIRST: Final = "Ada"
SECOND: Final = "Bo"
MAY_I: Final = "May I commit it?"
_ANSWER: Final = re.compile(r"^The answer is (yes|no)\.", re.MULTILINE)
_LOOKS: Final = 300
"""The number of times that Ada checks, every 0.1 seconds, whether Bo has met her reservation."""


class Assignment:
    """The assignment of an agent in the demo, with a client for the server."""

    def __init__(self, mail: str) -> None:
        environment = places.environment()
        self.name = environment["POSTROOM_AGENT"]
        self.run = environment["POSTROOM_RUN"]
        self.folder = Path.cwd()
        self.answer = match[1] if (match := _ANSWER.search(mail)) else None
        """The person's answer to the question of this run: yes or no, or None before the run has asked."""
        self._server = Server.find()

    def look(self, tool: str, **arguments: object) -> Any:
        """Call a tool in the project of the demo, without an agent name."""
        return self._server.call_tool(tool, {"project_key": str(self.folder), **arguments})

    def call(self, tool: str, **arguments: object) -> Any:
        """Call a tool in the project of the demo as the agent of the assignment."""
        return self.look(tool, agent_name=self.name, **arguments)

    def task(self) -> dict[str, Any] | None:
        """Return the task that the agent has claimed, or None if the agent has no task."""
        claimed = show.items(self.look("list_tasks", state="claimed")["tasks"])
        return next((item for item in claimed if item["holder"] == self.name), None)


def work(assignment: Assignment) -> str:
    """Do the claimed task, and return a report; repeated calls have no further effect."""
    task = assignment.task()
    if task is None:
        return "I hold no task."
    held = {"task_id": task["id"], "epoch": task["epoch"]}
    mine = next(work for work in repository.WORKS if work.title == task["title"])
    if mine is repository.COMMIT:
        # Ask the person whether to commit, and commit if the answer is yes.
        if assignment.answer is None:
            arguments = {"run_id": assignment.run, "idempotency_key": f"commit/{assignment.run}"}
            assignment.call("ask_person", question=MAY_I, **arguments)
            return "All tests pass, and I have asked."
        if assignment.answer == "no":
            assignment.call("update_task", **held, state="blocked", reason="You said no.")
            return "I have not committed it. The files are as they are."
        name = repository.commit(assignment.folder, "A shop with discounts and receipts")
        assignment.call("done_task", **held, commit=name, message=f"Committed as {name}.")
        return f"Committed as {name}."
    if mine is repository.SAVE and not (assignment.folder / mine.path).exists():
        # Try to reserve a file that the other agent has reserved, and do not touch it then.
        wanted = {"paths": [repository.BASKET], "reason": "the discount could be here, too"}
        answer = assignment.call("file_reservation_paths", **wanted)
        assignment.call("release_file_reservations", paths=[repository.BASKET])
        holders = [holder["agent"] for conflict in answer["conflicts"] for holder in conflict["holders"]]
        print(f"{', '.join(holders) or 'Nobody'} holds {repository.BASKET}: I work in my own file.")
    passes = repository.write(assignment.folder, mine)
    # After COUNT, wait until the second agent has reserved the same file: every demo shows a conflict.
    for _ in range(_LOOKS if mine is repository.COUNT else 0):
        made = assignment.look("fetch_events", kinds=["reservation.made"], limit=1000)["events"]
        if any(
            item["agent"] == SECOND and item["detail"].get("path") == repository.BASKET
            for item in show.items(made)
        ):
            break
        threading.Event().wait(0.1)
    if not passes:
        raise SystemExit(f"test_shop.{mine.test} fails: my change to {mine.path} is wrong")
    text = f"{mine.path} passes test_shop.{mine.test}." if mine.test else f"{mine.path} is written."
    output = "OK" if mine.test else ""
    assignment.call(
        "done_task", **held, output=output, message=text, idempotency_key=f"done/{assignment.run}"
    )
    return text


def main() -> int:
    """Do the task that is described in the mail on standard input, and return the exit code."""
    try:
        print(work(Assignment(sys.stdin.read())))
    except PostroomError as error:
        print(error.describe(), file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
