"""What the pages on which people work ask of the house; `app` answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from postroom.contracts.mail import Importance
from postroom.contracts.work import GivenAnswer, OpenQuestion, Output, Waiting, Work
from postroom.web.forms import Visitors


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a message may hold."""

    subject_chars: int
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message as a person wrote it. Under one key it is sent once, however often the form comes."""

    name: str
    """The person who writes it."""
    body: str
    key: str
    to: tuple[str, ...] = ()
    subject: str = ""
    importance: Importance = "normal"
    ack_required: bool = False
    answers: int | None = None
    """The message that it answers; then it has no recipients and no subject of its own."""
    to_all: bool = False
    """Whether the answer goes to all who have the message that it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A message that is stored, and the project whose pages show it: where it was written, if they can."""

    message: int
    slug: str


class MessageService(Protocol):
    """Names people and writes their messages."""

    @property
    def limits(self) -> Limits:
        """How much a message may hold."""
        ...

    async def people(self) -> Sequence[str]:
        """Return the names of those who may write, by when they were named."""
        ...

    async def name(self, name: str) -> str:
        """Name a person, and return the name; one who is named stays as they are.

        Raises:
            InvalidName, NameTaken: nobody can be called that.
        """
        ...

    async def send(self, slug: str, draft: Draft) -> Posted:
        """Send a message of a person from a project's pages. Recipients without a project are its agents.

        Raises:
            UnknownAgent: nobody is named so.
            PostroomError: it was refused; no message was stored.
        """
        ...

    async def mark(self, name: str, message: int, *, acknowledge: bool) -> None:
        """Note that a person has read a message that came to them, or acknowledge it; the first mark stands.

        Raises:
            UnknownAgent, UnknownMessage: nobody is named so, or the message did not come to them.
        """
        ...


class QuestionService(Protocol):
    """Answers what runs wait to be told."""

    async def open_questions(self, slug: str) -> Sequence[OpenQuestion]:
        """Return what a project's agents wait to be told, the run that waits longest first."""
        ...

    async def given_answers(self, slug: str, *, limit: int) -> Sequence[GivenAnswer]:
        """Return what a project's agents were told lately, the newest answer first."""
        ...

    async def given_answer(self, slug: str, run_id: str, number: str) -> GivenAnswer | None:
        """Return the answer that a question of a project's run has; None when it has none that is known."""
        ...

    async def decide(
        self, slug: str, run_id: str, number: str, *, approved: bool, why: str, by: str
    ) -> GivenAnswer:
        """Answer a question.

        Raises:
            StaleDecision: it is not open, or not any more; no run is told anything.
        """
        ...


class WorkService(Protocol):
    """Looks at runs of agents, ends them, and has them tried again."""

    async def works(self, slug: str) -> Sequence[Work]:
        """Return the runs of a project's agents that are not done, and those that ended lately."""
        ...

    async def waiting(self, slug: str) -> Sequence[Waiting]:
        """Return the messages that wait for their reader's next run, those that wait longest first."""
        ...

    async def work(self, run_id: str) -> Work:
        """Return one run.

        Raises:
            UnknownRun: there is none, or it is no agent's.
        """
        ...

    async def output(self, run_id: str) -> Output:
        """Return what a run has put out so far."""
        ...

    async def at_work(self, slug: str) -> Mapping[str, int]:
        """Return which agents of a project have a run at work, by name in small letters, and since when."""
        ...

    async def cancel(self, run_id: str) -> None:
        """End a run that is queued or at work; whoever waits for it is told.

        Raises:
            UnknownRun: there is none.
            IllegalTransition: it can be cancelled no more.
        """
        ...

    async def replay(self, run_id: str) -> Work:
        """Have a run that was given up tried again, as a new run on the same messages; return the new one.

        Raises:
            UnknownRun: there is none.
            IllegalTransition: it is not among those that were given up.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServices:
    """Everything that the pages need so that people can work on them."""

    visitors: Visitors
    questions: QuestionService
    messages: MessageService
    runs: WorkService
