"""Runners: what is started when an agent has work, and the port that says which agent has which.

A runner of the kind `command` is a program that is started once for each run: it is given what the run was
asked, and what it puts out is the answer. The recipe says how its output is read. One of the kind `acp` is a
program too, that is spoken to while it works. The kinds that start no program are in `remote_runners`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import PurePath
from typing import Protocol

from postroom.contracts.mail import AddressedAgent
from postroom.contracts.messages import Json
from postroom.contracts.remote_runners import HttpRunner, ModelRunner
from postroom.contracts.runner_fields import (
    DEFAULT_TIMEOUT,
    KIND,
    MAX_RUNS_AT_ONCE,
    RunnerKind,
    can_be_given,
    one_of,
    refuse_number,
    refuse_switch,
    refuse_time,
    refuse_variable,
    refused,
    told_fields,
    words,
)

PROMPT = "{prompt}"
"""As a whole argument: the prompt is put in its place, where it is given by argument."""
PROMPT_FILE = "{prompt_file}"
"""Within any argument: the path of the file that holds the prompt is put in its place."""
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,253}")
RESERVED_ENV = frozenset(f"POSTROOM_{name}" for name in ("AGENT", "PROJECT", "THREAD", "RUN", "DISPATCH"))
"""Variables that the server sets for each program."""
PROGRAMS = (RunnerKind.COMMAND, RunnerKind.ACP)
"""The kinds of runner that are programs."""
STEERED = {"claude": "--input-format", "codex": "app-server", "opencode": "run"}
"""By recipe, the word of a command of one's own that says that the program takes messages while it works."""
DEFAULT_OUTPUT_BYTES = 1 << 20
MOST_OUTPUT_BYTES = 16 << 20
"""An answer is a message of the thread; a longer one belongs in a file."""


class Recipe(StrEnum):
    """Which program it is, as far as its output and its sessions are concerned; shell is any other."""

    SHELL = "shell"
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    COPILOT = "copilot"
    CLINE = "cline"


WITHOUT_SESSIONS = (Recipe.SHELL, Recipe.CLINE)
"""Recipes of programs that go on with no session of theirs."""


class SessionPer(StrEnum):
    """Which runs of an agent go on with one session of its client: those of a mail thread, or all."""

    THREAD = "thread"
    AGENT = "agent"


class PromptWay(StrEnum):
    """How the program is given what it was asked."""

    ARGUMENT = "argument"
    STDIN = "stdin"
    FILE = "file"


def is_place(name: object) -> bool:
    """Say whether this can be a host's name, or a label: what a runner may be said to run on."""
    return isinstance(name, str) and _PLACE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How an agent's runs are executed by a program; of the kind `command` or `acp`.

    `argv` is executed as it is, never by a shell; a recipe that knows its command does without. `env` is
    given literally, `pass_env` names what is taken from the server's environment. Of its answer the last
    `max_output_bytes` are kept. With `resume` the program goes on with its own session, one for each mail
    thread or, where `session_per` says so, one for the agent. Of several servers on one database those start
    it that are `runs_on`, a host's name or a label; without it each may. Up to `runs_at_once` runs execute at
    once, each of another mail thread.
    A program of the kind `acp` speaks the Agent Client Protocol; its recipe is its command, and nothing more.
    """

    cwd: str
    kind: RunnerKind = RunnerKind.COMMAND
    recipe: Recipe = Recipe.SHELL
    argv: tuple[str, ...] = ()
    prompt: PromptWay = PromptWay.STDIN
    env: dict[str, str] = field(default_factory=dict, repr=False)
    pass_env: tuple[str, ...] = ()
    timeout: timedelta = DEFAULT_TIMEOUT
    idle_timeout: timedelta | None = None
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    resume: bool = False
    session_per: SessionPer = SessionPer.THREAD
    runs_on: str = ""
    runs_at_once: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be run, and keep an environment that nobody else can change.

        Raises:
            InvalidRunner: a field breaks its rule; the message names it.
        """
        object.__setattr__(self, "kind", one_of(RunnerKind, self.kind, "kind"))
        if self.kind not in PROGRAMS:
            raise refused("kind", self.kind.value, "a runner of this kind has no command")
        object.__setattr__(self, "recipe", one_of(Recipe, self.recipe, "recipe"))
        object.__setattr__(self, "prompt", one_of(PromptWay, self.prompt, "prompt"))
        object.__setattr__(self, "session_per", one_of(SessionPer, self.session_per, "session_per"))
        object.__setattr__(self, "argv", words(self.argv, "argv"))
        object.__setattr__(self, "pass_env", words(self.pass_env, "pass_env"))
        object.__setattr__(self, "env", _environment(self.env))
        self._refuse_command()
        self._refuse_places()
        self._refuse_limits()

    @property
    def is_steered(self) -> bool:
        """Whether its runs are told of messages that come for them while they work."""
        word = STEERED.get(self.recipe)
        can_be = self.kind is RunnerKind.COMMAND and self.prompt is PromptWay.STDIN and word is not None
        return can_be and (not self.argv or word in self.argv)

    def _refuse_command(self) -> None:
        if self.argv and not self.argv[0].strip():
            raise refused("argv", self.argv[0], "the first word must be the program, and is empty")
        if self.recipe is Recipe.SHELL and not self.argv:
            known = ", ".join(one.value for one in Recipe if one is not Recipe.SHELL)
            remedy = f"give the program and its arguments, or a recipe with a command: {known}"
            raise refused(
                "argv", (), "no command is given, and the recipe 'shell' has no default command", remedy
            )
        if self.kind is RunnerKind.ACP:
            if self.recipe is Recipe.CLINE and not self.argv:
                remedy = "give the command in argv, or leave out --kind acp"
                raise refused("recipe", "cline", "this recipe has no command that supports ACP", remedy)
            self._refuse_prompt()
            return
        if any(PROMPT in word and word != PROMPT for word in self.argv):
            remedy = "pass {prompt} as a separate argument: part of a longer argument could be read as code"
            raise refused("argv", self.argv, "{prompt} is part of a longer argument", remedy)
        if PROMPT in self.argv and self.prompt is not PromptWay.ARGUMENT:
            raise refused("argv", self.argv, "{prompt} requires the prompt 'argument'")
        is_named = any(PROMPT_FILE in word for word in self.argv)
        if is_named != (self.prompt is PromptWay.FILE):
            raise refused("argv", self.argv, "{prompt_file} and the prompt 'file' require each other")
        if self.resume and self.recipe in WITHOUT_SESSIONS:
            raise refused("resume", True, f"the recipe {self.recipe.value!r} does not support sessions")

    def _refuse_prompt(self) -> None:
        """Refuse another way to be told than the protocol."""
        what, remedy = "an ACP agent gets its prompt through the protocol", "leave this field out"
        if self.prompt is not PromptWay.STDIN:
            raise refused("prompt", self.prompt.value, what, remedy)
        if any(PROMPT in word or PROMPT_FILE in word for word in self.argv):
            raise refused("argv", self.argv, what, "remove {prompt} and {prompt_file} from the command")

    def _refuse_places(self) -> None:
        if (
            not isinstance(self.cwd, str)
            or not can_be_given(self.cwd)
            or not PurePath(self.cwd).is_absolute()
        ):
            raise refused("cwd", self.cwd, "the working folder must be an absolute path")
        if self.runs_on != "" and not is_place(self.runs_on):
            raise refused("runs_on", self.runs_on, "this is neither a host name nor a label")
        for name in self.pass_env:
            _refuse_name(name, "pass_env")

    def _refuse_limits(self) -> None:
        refuse_time(self.timeout, "timeout")
        if self.idle_timeout is not None:
            refuse_time(self.idle_timeout, "idle_timeout")
        refuse_number(self.max_output_bytes, "max_output_bytes", most=MOST_OUTPUT_BYTES)
        refuse_switch(self.resume, "resume")
        refuse_number(self.runs_at_once, "runs_at_once", most=MAX_RUNS_AT_ONCE)
        if self.runs_at_once > 1 and self.resume and self.session_per is SessionPer.AGENT:
            remedy = "leave out session_per: then each mail thread has its own session"
            raise refused(
                "runs_at_once", self.runs_at_once, "one session cannot execute two runs at once", remedy
            )

    def to_dict(self) -> dict[str, Json]:
        """Return it as plain JSON data; durations in seconds. `env` is in it, secrets and all."""
        idle = self.idle_timeout
        return {
            "kind": self.kind.value,
            "recipe": self.recipe.value,
            "argv": list(self.argv),
            "prompt": self.prompt.value,
            "cwd": self.cwd,
            "env": dict(self.env),
            "pass_env": list(self.pass_env),
            "timeout": self.timeout.total_seconds(),
            "idle_timeout": None if idle is None else idle.total_seconds(),
            "max_output_bytes": self.max_output_bytes,
            "resume": self.resume,
            "session_per": self.session_per.value,
            **({"runs_on": self.runs_on} if self.runs_on else {}),
            **({"runs_at_once": self.runs_at_once} if self.runs_at_once > 1 else {}),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Json]) -> "Runner":
        """Return the runner that plain data tell; what is left out has its default.

        Raises:
            InvalidRunner: a field is unknown, missing or breaks its rule.
        """
        needed = {"cwd": "the working folder"}
        return cls(**told_fields(plain, cls, times=("timeout", "idle_timeout"), needed=needed))


AnyRunner = Runner | ModelRunner | HttpRunner
"""How an agent is run."""


def runner_of(plain: Mapping[str, Json], *, home: str | None = None) -> AnyRunner:
    """Return the runner that plain data tell; what is left out has its default.

    `home` is where a program works that does not say.

    Raises:
        InvalidRunner: its kind is not known; a field is unknown, missing or breaks its rule.
    """
    if not isinstance(plain, Mapping):
        raise refused("runner", type(plain).__name__, "a runner must be a table of fields")
    match one_of(RunnerKind, plain.get(KIND, RunnerKind.COMMAND.value), KIND):
        case RunnerKind.MODEL:
            return ModelRunner.from_dict(plain)
        case RunnerKind.HTTP:
            return HttpRunner.from_dict(plain)
        case RunnerKind.COMMAND | RunnerKind.ACP:
            return Runner.from_dict(plain if home is None else {"cwd": home, **plain})


class Runners(Protocol):
    """Says how an agent is run."""

    async def runner_of(self, agent_id: str, agent: AddressedAgent | None = None) -> AnyRunner | None:
        """Return the agent's runner, or None when none is declared; `agent_id` is the activation's.

        `agent` is the agent, if it was read for the same run already.

        Raises:
            AgentNotFound: there is no such agent.
            InvalidRunner: what is kept of it cannot be read any more.
        """
        ...


def _environment(value: object) -> dict[str, str]:
    """Return a copy; a refusal names the variable and never its value, which may be a secret."""
    if not isinstance(value, Mapping):
        raise refused("env", type(value).__name__, "the environment must be a table of texts")
    for name, content in value.items():
        if not isinstance(name, str) or not isinstance(content, str) or not can_be_given(content):
            raise refused("env", str(name), "a name or value is not text that a program accepts")
        _refuse_name(name, "env")
    return dict(value)


def _refuse_name(name: str, of: str) -> None:
    refuse_variable(name, of)
    if name in RESERVED_ENV:
        raise refused(of, name, f"the server sets {name} itself", "use another name")
