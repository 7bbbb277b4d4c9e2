"""Runners: what is started when an agent has work, and the port that says which agent has which.

A runner of the kind `command` is a program that is started once for each run: it is given what the run was
asked, and what it puts out is the answer. The recipe says how its output is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.messages import Json

PROMPT = "{prompt}"
"""As a whole argument: the prompt is put in its place, where it is given by argument."""
PROMPT_FILE = "{prompt_file}"
"""Within any argument: the path of the file that holds the prompt is put in its place."""
RESERVED_ENV = frozenset(
    f"POSTROOM_{name}" for name in ("AGENT", "PROJECT", "THREAD", "RUN", "DISPATCH", "HOUSE", "INSTANCE")
)
"""What the house itself tells the program; its processes are found again by them."""
DEFAULT_TIMEOUT = timedelta(minutes=30)
LONGEST_TIMEOUT = timedelta(days=7)
DEFAULT_OUTPUT_BYTES = 1 << 20
MOST_OUTPUT_BYTES = 16 << 20
"""An answer is a message of the thread; a longer one belongs in a file."""

T = TypeVar("T", bound=StrEnum)


class RunnerKind(StrEnum):
    """How an agent is run."""

    COMMAND = "command"


class Recipe(StrEnum):
    """Which program it is, as far as its output and its sessions are concerned; shell is any other."""

    SHELL = "shell"
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"


class PromptWay(StrEnum):
    """How the program is given what it was asked."""

    ARGUMENT = "argument"
    STDIN = "stdin"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How an agent's runs are executed by a program.

    `argv` is executed as it is, never by a shell; a recipe that knows its command does without. `env` is
    given literally, `pass_env` names what is taken from the server's environment. Of its answer the last
    `max_output_bytes` are kept. With `resume` the program goes on with its own session of the thread.
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

    def __post_init__(self) -> None:
        """Refuse what cannot be run, and keep an environment that nobody else can change.

        Raises:
            InvalidRunner: a field breaks its rule; the message names it.
        """
        object.__setattr__(self, "kind", _one_of(RunnerKind, self.kind, "kind"))
        object.__setattr__(self, "recipe", _one_of(Recipe, self.recipe, "recipe"))
        object.__setattr__(self, "prompt", _one_of(PromptWay, self.prompt, "prompt"))
        object.__setattr__(self, "argv", _words(self.argv, "argv"))
        object.__setattr__(self, "pass_env", _words(self.pass_env, "pass_env"))
        object.__setattr__(self, "env", _environment(self.env))
        self._refuse_command()
        self._refuse_places()
        self._refuse_limits()

    def _refuse_command(self) -> None:
        if self.argv and not self.argv[0].strip():
            raise _invalid("argv", self.argv[0], "its first word is the program, and that is empty")
        if self.recipe is Recipe.SHELL and not self.argv:
            raise _invalid("argv", (), "the recipe 'shell' has no command of its own: name one")
        if any(PROMPT in word and word != PROMPT for word in self.argv):
            remedy = "make {prompt} an argument of its own: within a longer one it could be read as code"
            raise _invalid("argv", self.argv, "{prompt} stands within a longer argument", remedy)
        if PROMPT in self.argv and self.prompt is not PromptWay.ARGUMENT:
            raise _invalid("argv", self.argv, "it holds {prompt}, and the prompt is not given by argument")
        is_named = any(PROMPT_FILE in word for word in self.argv)
        if is_named != (self.prompt is PromptWay.FILE):
            raise _invalid("argv", self.argv, "{prompt_file} and the prompt 'file' need one another")
        if self.resume and self.recipe is Recipe.SHELL:
            raise _invalid("resume", True, "the recipe 'shell' knows no sessions")

    def _refuse_places(self) -> None:
        if (
            not isinstance(self.cwd, str)
            or not _can_be_given(self.cwd)
            or not PurePath(self.cwd).is_absolute()
        ):
            raise _invalid("cwd", self.cwd, "the working folder is no absolute path")
        for name in self.pass_env:
            _refuse_name(name, "pass_env")

    def _refuse_limits(self) -> None:
        for name in ("timeout", "idle_timeout"):
            length = getattr(self, name)
            if length is None and name == "idle_timeout":
                continue
            if not isinstance(length, timedelta) or not timedelta(0) < length <= LONGEST_TIMEOUT:
                raise _invalid(name, length, "it is no time above 0 and of at most 7 days")
        most = self.max_output_bytes
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST_OUTPUT_BYTES:
            raise _invalid("max_output_bytes", most, f"it is no number from 1 to {MOST_OUTPUT_BYTES}")
        if not isinstance(self.resume, bool):
            raise _invalid("resume", self.resume, "it is neither true nor false")

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
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Json]) -> "Runner":
        """Return the runner that plain data tell; what is left out has its default.

        Raises:
            InvalidRunner: a field is unknown, missing or breaks its rule.
        """
        if not isinstance(plain, Mapping):
            raise _invalid("runner", type(plain).__name__, "it is no table of fields")
        known = {one.name for one in fields(cls)}
        if unknown := sorted(str(name) for name in plain if name not in known):
            raise _invalid(
                unknown[0], unknown, "there is no such field", f"fields: {', '.join(sorted(known))}"
            )
        if "cwd" not in plain:
            raise _invalid("cwd", None, "the working folder is missing")
        given: dict[str, Any] = dict(plain)
        for name in ("timeout", "idle_timeout"):
            if given.get(name) is not None:
                given[name] = _duration(given[name], name)
        return cls(**given)


class Runners(Protocol):
    """Says how an agent is run."""

    async def runner_of(self, agent_id: str) -> Runner | None:
        """Return the agent's runner, or None when none is declared; `agent_id` is the activation's."""
        ...


def _invalid(name: str, value: object, what: str, remedy: str | None = None) -> InvalidRunner:
    return InvalidRunner(f"the runner's {name} is refused: {what}", value=value, remedy=remedy)


def _one_of(kind: type[T], value: object, name: str) -> T:
    known = {one.value: one for one in kind}
    if not isinstance(value, str) or value not in known:
        raise _invalid(name, value, f"{value!r} is not known", f"one of: {', '.join(known)}")
    return known[value]


def _words(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
        raise _invalid(name, value, "it is no list of texts")
    if not all(_can_be_given(one) for one in value):
        raise _invalid(
            name, value, "a text holds what no program can be given: a zero byte, half a character"
        )
    return tuple(value)


def _can_be_given(text: str) -> bool:
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _environment(value: object) -> dict[str, str]:
    """Return a copy; a refusal names the variable and never its value, which may be a secret."""
    if not isinstance(value, Mapping):
        raise _invalid("env", type(value).__name__, "it is no table of texts")
    for name, content in value.items():
        if not isinstance(name, str) or not isinstance(content, str) or not _can_be_given(content):
            raise _invalid("env", str(name), "a name or its content is no text that can be given")
        _refuse_name(name, "env")
    return dict(value)


def _refuse_name(name: str, of: str) -> None:
    if not name or "=" in name or not _can_be_given(name):
        raise _invalid(of, name, "an environment has no such name")
    if name in RESERVED_ENV:
        raise _invalid(of, name, f"{name} is set by the house", "give it another name")


def _duration(value: object, name: str) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(name, value, "it is no number of seconds")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise _invalid(name, value, "it is no number of seconds") from None
