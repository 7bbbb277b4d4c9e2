"""The two agents of the demo.

Each start of this program is one run, which receives its mail on standard input.

They are scripts, not models: this file contains their actions. Everything else works as for any agent: mail
starts them, they call the server's tools over MCP, and their output is mailed back.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from postroom.app import places
from postroom.cli.client import Server
from postroom.cli.demo import repository
from postroom.cli.exit_codes import exit_code
from postroom.contracts.errors import PostroomError

BUILDER: Final = "Ada"
REVIEWER: Final = "Bo"
MAY_I: Final = "May I commit it?"
COMMITTED: Final = "Committed as"
TAKEN_BACK: Final = "I have reverted it."
_FROM = re.compile(r"^From: (\S+) \((.*)\)$", re.MULTILINE)
_ANSWER = re.compile(r"^The answer is (yes|no)\.", re.MULTILINE)
_THREAD = re.compile(r"^Thread: (\S+)$", re.MULTILINE)


class Assignment:
    """The context of an agent of the demo."""

    def __init__(self, mail: str) -> None:
        environment = places.environment()
        self.name = environment["POSTROOM_AGENT"]
        self.run = environment["POSTROOM_RUN"]
        self.folder = Path.cwd()
        self.word = mail.rstrip().splitlines()[-2].strip().lower()
        """The last line of the message."""
        self.answer = found[1] if (found := _ANSWER.search(mail)) else None
        """The person's answer to this run's question, yes or no; None before it has asked."""
        self.thread = found[1] if (found := _THREAD.search(mail)) else None
        self.sender, self.kind = (found[1], found[2]) if (found := _FROM.search(mail)) else ("", "")
        self._server = Server.find()

    @property
    def is_answer(self) -> bool:
        """Whether the mail reports the end of a run."""
        return self.kind.startswith("the answer of a run")

    def call(self, tool: str, **arguments: object) -> object:
        """Call a tool as this agent, in this project."""
        named = "sender_name" if tool == "send_message" else "agent_name"
        return self._server.call_tool(tool, {"project_key": str(self.folder), named: self.name, **arguments})


def build(assignment: Assignment) -> str:
    """Fix the bug, get a review, ask the person, and commit if permitted. This can be repeated safely."""
    if assignment.is_answer and "do not agree" in assignment.word:
        return f"{assignment.sender} and I do not agree: {assignment.word}"
    if assignment.is_answer and assignment.answer is None:
        asked = {"run_id": assignment.run, "idempotency_key": f"commit/{assignment.run}"}
        assignment.call("ask_person", question=MAY_I, **asked)
        return f"{assignment.sender} has reviewed it and agrees: one line, and the test passes."
    assignment.call(
        "file_reservation_paths", paths=[repository.PROGRAM], reason="the first price is not counted"
    )  # for this run: its end releases it
    if assignment.answer == "yes":
        name = repository.commit(assignment.folder, "Count the first price as well")
        assignment.call("release_file_reservations")
        return f"{COMMITTED} {name}. {repository.PROGRAM} is free again."
    if assignment.answer == "no":
        repository.git(assignment.folder, "checkout", "--quiet", "--", repository.PROGRAM)
        assignment.call("release_file_reservations")
        return f"{TAKEN_BACK} {repository.PROGRAM} is unchanged and free."
    repository.fix(assignment.folder)
    if not repository.test_passes(assignment.folder):
        raise SystemExit("the test still fails")
    assignment.call(
        "send_message",
        to=[REVIEWER],
        subject="Please review",
        body_md=f"I have fixed `total`:\n\n```diff\n{repository.difference(assignment.folder)}```",
        thread_id=assignment.thread,
        idempotency_key=f"review/{assignment.run}",
    )
    return f"The first price was not counted. It is fixed and the test passes; {REVIEWER} reviews it now."


def review(assignment: Assignment) -> str:
    """Review a change: check that it is small and that the test passes."""
    if not repository.test_passes(assignment.folder):
        return "I do not agree: the test fails."
    return "I agree. One line is changed, and the test passes."


ROLES: Final[dict[str, Callable[[Assignment], str]]] = {BUILDER: build, REVIEWER: review}


def main() -> int:
    """Execute the request in the mail, once, and print the answer."""
    assignment = Assignment(sys.stdin.read())
    try:
        print(ROLES[assignment.name](assignment))
    except PostroomError as error:
        print(error.describe(), file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
