"""Runners, which execute the runs of agents, and the port that returns an agent's runner.

A runner of the kind `command` starts a program for each run: the program gets the prompt, and its output is
the answer. The recipe says how the output is read. A runner of the kind `acp` starts a program and talks with
it while it works. `remote_runners` has the kinds that start no program.
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
"""Placeholder for the prompt as a whole argument, if the prompt is passed by argument."""
PROMPT_FILE = "{prompt_file}"
"""Placeholder, within any argument, for the path of the file with the prompt."""
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,253}")
RESERVED_ENV = frozenset(f"POSTROOM_{name}" for name in ("AGENT", "PROJECT", "THREAD", "RUN", "DISPATCH"))
"""Variables that the server sets for each program."""
PROGRAMS = (RunnerKind.COMMAND, RunnerKind.ACP)
"""The kinds of runner that are programs."""
STEERED = {"claude": "--input-format", "codex": "app-server", "opencode": "run"}
"""By recipe, the word in a custom command which shows that the program accepts messages while it works."""
DEFAULT_OUTPUT_BYTES = 1 << 20
MOST_OUTPUT_BYTES = 16 << 20
"""Maximum size of an answer, which is a message of the thread; a longer one belongs in a file."""


class Recipe(StrEnum):
    """The program, which decides how output and sessions are read; shell is any other program."""

    SHELL = "shell"
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    COPILOT = "copilot"
    CLINE = "cline"


WITHOUT_SESSIONS = (Recipe.SHELL, Recipe.CLINE)
"""Recipes of programs that cannot resume a session."""


class SessionPer(StrEnum):
    """The runs of an agent that share a session of its client: those of a mail thread, or all."""

    THREAD = "thread"
    AGENT = "agent"


class PromptWay(StrEnum):
    """The way in which the program gets the prompt."""

    ARGUMENT = "argument"
    STDIN = "stdin"
    FILE = "file"


def is_place(name: object) -> bool:
    """Return whether a text is a valid host name or label, as in `runs_on`."""
    return isinstance(name, str) and _PLACE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A program that executes an agent's runs; of the kind `command` or `acp`.

    `argv` is executed without a shell; a recipe that knows its command needs none. `env` sets variables,
    `pass_env` names variables to copy from the server's environment. The last `max_output_bytes` of an answer
    are kept. With `resume` the program continues its session: one for each mail thread or, by `session_per`,
    one for the agent. If several servers share a database, only those with the host name or label `runs_on`
    start it; without it, any of them. Up to `runs_at_once` runs execute at once, each on another mail thread.
    With `claims_tasks` the server claims ready tasks for the agent, and runs it with each.

    A program of the kind `acp` speaks the Agent Client Protocol; its recipe only provides its command.
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
    claims_tasks: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid fields, and copy the environment so that no caller can change it.

        Raises:
            InvalidRunner: A field breaks its rule; the message names it.
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
        """Whether an active run of it receives new messages."""
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
        """Refuse a way of passing the prompt other than the protocol."""
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
        refuse_switch(self.claims_tasks, "claims_tasks")
        if self.runs_at_once > 1 and self.resume and self.session_per is SessionPer.AGENT:
            remedy = "leave out session_per: then each mail thread has its own session"
            raise refused(
                "runs_at_once", self.runs_at_once, "one session cannot execute two runs at once", remedy
            )

    def to_dict(self) -> dict[str, Json]:
        """Return it as plain JSON data; durations in seconds. `env` is included with its secrets."""
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
            **({"claims_tasks": True} if self.claims_tasks else {}),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Json]) -> "Runner":
        """Return the runner that plain data describes; omitted fields get their defaults.

        Raises:
            InvalidRunner: A field is unknown, missing or breaks its rule.
        """
        needed = {"cwd": "the working folder"}
        return cls(**told_fields(plain, cls, times=("timeout", "idle_timeout"), needed=needed))


AnyRunner = Runner | ModelRunner | HttpRunner
"""Any runner of an agent."""


def runner_of(plain: Mapping[str, Json], *, home: str | None = None) -> AnyRunner:
    """Return the runner that plain data describes; omitted fields get their defaults.

    `home` is the working folder of a program that sets none.

    Raises:
        InvalidRunner: Its kind is unknown, or a field is unknown, missing or breaks its rule.
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
    """Provides the runners of agents."""

    async def runner_of(self, agent_id: str, agent: AddressedAgent | None = None) -> AnyRunner | None:
        """Return the agent's runner, or None if it has none; `agent_id` is the activation's.

        `agent` is the agent, if it was already read for the same run.

        Raises:
            AgentNotFound: The agent does not exist.
            InvalidRunner: The stored runner cannot be read.
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
