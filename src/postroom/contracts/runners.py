"""Runners, which execute the runs of agents, and the port that returns the runner of an agent.

A runner of the kind `command` starts a program for each run: the program receives the prompt, and its output
is the answer. The recipe determines how the output is parsed. A runner of the kind `acp` starts a program,
and exchanges messages with it during the run. The other kinds start no program: `model` uses the built-in
agent loop with a model endpoint, and `http` sends runs to another server.

The fields of all kinds are checked in the same way. An error names the field and the remedy, and never
contains a value that may be secret. A runner does not store its key or secret, only the name of the server's
environment variable with that value. A run reads the variable when it needs the value.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, ClassVar, Final, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.mail import AddressedAgent
from postroom.contracts.messages import Json

MAX_RUNS_AT_ONCE: Final = 64
DEFAULT_TIMEOUT = timedelta(minutes=30)
MAX_TIMEOUT = timedelta(days=7)
_TIME_LIMITS: Final = "it must be longer than 0 and at most 7 days"
KIND: Final = "kind"

T = TypeVar("T", bound=StrEnum)


class RunnerKind(StrEnum):
    """The kind of a runner: a command, an ACP program, a model, or a remote server."""

    COMMAND = "command"
    ACP = "acp"
    MODEL = "model"
    HTTP = "http"


def refused(name: str, value: object, what: str, remedy: str | None = None) -> InvalidRunner:
    """Return the error for an invalid field of a runner."""
    return InvalidRunner(f"the runner's {name} is invalid: {what}", value=value, remedy=remedy)


def told_fields(
    plain: Mapping[str, Json], kind: type[Any], *, times: Collection[str] = (), needed: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of a runner from JSON-compatible data.

    `needed` maps each required field to a description of the field.

    Raises:
        InvalidRunner: A field is unknown or missing, or a duration is invalid.
    """
    if not isinstance(plain, Mapping):
        raise refused("runner", type(plain).__name__, "it must be a table of fields")
    known_names = {item.name for item in fields(kind)} | {KIND}
    if unknown := sorted(str(name) for name in plain if name not in known_names):
        raise refused(unknown[0], unknown, "unknown field", f"fields: {', '.join(sorted(known_names))}")
    for name, called in needed.items():
        if name not in plain:
            raise refused(name, None, f"{called} is missing")
    given_fields: dict[str, Any] = dict(plain)
    for name in times:
        if given_fields.get(name) is not None:
            given_fields[name] = duration(given_fields[name], name)
    return given_fields


def one_of(kind: type[T], value: object, name: str) -> T:
    """Return the member of the enum `kind` with a given value, or raise an error."""
    by_value = {item.value: item for item in kind}
    if not isinstance(value, str) or value not in by_value:
        raise refused(name, value, f"{value!r} is unknown", f"use one of: {', '.join(by_value)}")
    return by_value[value]


def words(value: object, name: str) -> tuple[str, ...]:
    """Return a list of texts, each of which can be an argument of a program, or raise an error."""
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise refused(name, value, "it must be a list of strings")
    if not all(can_be_given(item) for item in value):
        raise refused(
            name, value, "a string contains a zero byte or an unpaired surrogate, which no program accepts"
        )
    return tuple(value)


def can_be_given(text: str) -> bool:
    """Return whether a text can be passed to a program as an argument."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def refuse_variable(name: object, of: str) -> None:
    """Raise an error if the name of an environment variable is invalid."""
    if not isinstance(name, str) or not name or "=" in name or not can_be_given(name):
        raise refused(
            of, name if isinstance(name, str) else None, "it is not a valid environment variable name"
        )


def refuse_time(length: object, name: str) -> None:
    """Raise an error if a time limit for runs is invalid."""
    if not isinstance(length, timedelta) or not timedelta(0) < length <= MAX_TIMEOUT:
        raise refused(name, length, _TIME_LIMITS)


def refuse_number(value: object, name: str, *, most: int) -> None:
    """Raise an error unless a field is an integer from 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise refused(name, value, f"it must be an integer from 1 to {most}")


def refuse_switch(value: object, name: str) -> None:
    """Raise an error unless a field is true or false."""
    if not isinstance(value, bool):
        raise refused(name, value, "it must be true or false")


def duration(value: object, name: str) -> timedelta:
    """Convert a number of seconds to a duration."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(name, value, "it must be a number of seconds")
    try:
        return timedelta(seconds=value)
    except ValueError:  # the value is NaN
        raise refused(name, value, "it must be a number of seconds") from None
    except OverflowError:
        raise refused(name, value, _TIME_LIMITS) from None


DEFAULT_STEPS: Final = 32
MAX_STEPS: Final = 1_000
MAX_INSTRUCTIONS_LENGTH: Final = 100_000
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared, never bound
"""Listen addresses that mean all addresses of the machine."""
USUAL_TOOLS: Final = (
    "send_message",
    "reply_message",
    "fetch_inbox",
    "get_message",
    "search_messages",
    "fetch_thread",
    "summarize_thread",
    "list_agents",
    "whois",
    "ask_person",
)
_TOOL: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunner:
    """A runner that executes runs in the built-in agent loop, with a model that uses the OpenAI protocol.

    `api_key_env` names the environment variable that contains the API key. `tools` lists the mail operations
    that the model may call.
    """

    kind: ClassVar[RunnerKind] = RunnerKind.MODEL

    base_url: str
    model: str
    api_key_env: str | None = None
    instructions: str = ""
    max_steps: int = DEFAULT_STEPS
    timeout: timedelta = DEFAULT_TIMEOUT
    tools: tuple[str, ...] = USUAL_TOOLS
    runs_at_once: int = 1
    claims_tasks: bool = False

    def __post_init__(self) -> None:
        """Raise an error if a field of the runner is invalid.

        Raises:
            InvalidRunner: A field breaks its rule; the message names the field.
        """
        parts = _address(self.base_url, "base_url")
        if parts.query:
            raise refused("base_url", None, "the URL must not have a query", "end the URL with /v1")
        if not isinstance(self.model, str) or not self.model.strip() or not can_be_given(self.model):
            raise refused("model", None, "it must be a model name")
        if self.api_key_env is not None:
            refuse_variable(self.api_key_env, "api_key_env")
        if not isinstance(self.instructions, str) or not can_be_given(self.instructions):
            raise refused("instructions", None, "they must be text")
        if len(self.instructions) > MAX_INSTRUCTIONS_LENGTH:
            raise refused("instructions", None, f"they exceed {MAX_INSTRUCTIONS_LENGTH} characters")
        refuse_number(self.max_steps, "max_steps", most=MAX_STEPS)
        refuse_number(self.runs_at_once, "runs_at_once", most=MAX_RUNS_AT_ONCE)
        refuse_switch(self.claims_tasks, "claims_tasks")
        refuse_time(self.timeout, "timeout")
        object.__setattr__(self, "tools", words(self.tools, "tools"))
        if wrong := [tool for tool in self.tools if not _TOOL.fullmatch(tool)]:
            raise refused("tools", wrong, "it must be a list of operation names")
        if len(set(self.tools)) < len(self.tools):
            raise refused("tools", list(self.tools), "an operation is listed twice")

    def to_dict(self) -> dict[str, Json]:
        """Return the runner as JSON-compatible data without secrets.

        Durations are in seconds.
        """
        return {
            KIND: self.kind.value,
            "base_url": self.base_url,
            "model": self.model,
            "api_key_env": self.api_key_env,
            "instructions": self.instructions,
            "max_steps": self.max_steps,
            "timeout": self.timeout.total_seconds(),
            "tools": list(self.tools),
            **({"runs_at_once": self.runs_at_once} if self.runs_at_once > 1 else {}),
            **({"claims_tasks": True} if self.claims_tasks else {}),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Json]) -> "ModelRunner":
        """Create a runner from JSON-compatible data, with defaults for missing fields.

        Raises:
            InvalidRunner: A field is unknown, missing or breaks its rule.
        """
        needed = {"base_url": "the URL of the endpoint", "model": "the name of the model"}
        given_fields = told_fields(plain, cls, times=("timeout",), needed=needed)
        given_fields.pop(KIND, None)
        return cls(**given_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRunner:
    """A runner that sends each run to a remote server in a signed request.

    `secret_env` or `secret_file` names the variable or file with the shared secret. Plain http to a remote
    machine requires `allow_plain`. `callback_base` is the URL of the local server as seen from the remote
    server.
    """

    kind: ClassVar[RunnerKind] = RunnerKind.HTTP

    url: str
    secret_env: str | None = None
    secret_file: str | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    allow_plain: bool = False
    callback_base: str | None = None
    runs_at_once: int = 1
    claims_tasks: bool = False

    def __post_init__(self) -> None:
        """Raise an error if a field of the runner is invalid.

        Raises:
            InvalidRunner: A field breaks its rule; the message names the field.
        """
        refuse_switch(self.allow_plain, "allow_plain")
        self._refuse_plain(_address(self.url, "url"), "url")
        if (self.secret_env is None) == (self.secret_file is None):
            is_named = self.secret_env is not None
            what = "secret_env and secret_file are both set" if is_named else "no secret is set"
            remedy = "set secret_env to the variable that holds the secret, or secret_file to a private file"
            raise refused("secret_env", None, what, remedy)
        if self.secret_env is not None:
            refuse_variable(self.secret_env, "secret_env")
        elif (
            not isinstance(self.secret_file, str)
            or not can_be_given(self.secret_file)
            or not PurePath(self.secret_file).is_absolute()
        ):
            raise refused("secret_file", None, "secret_file must be an absolute path")
        refuse_time(self.timeout, "timeout")
        refuse_number(self.runs_at_once, "runs_at_once", most=MAX_RUNS_AT_ONCE)
        refuse_switch(self.claims_tasks, "claims_tasks")
        if self.callback_base is not None:
            parts = _address(self.callback_base, "callback_base")
            if parts.query:
                raise refused("callback_base", None, "the URL must not have a query")
            self._refuse_plain(parts, "callback_base")

    def _refuse_plain(self, parts: SplitResult, name: str) -> None:
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not self.allow_plain:
            remedy = "use https, or set allow_plain if the network is trusted"
            raise refused(name, None, "plain http is allowed only to this machine", remedy)

    def callback(self, address: str) -> str | None:
        """Return the URL to which the remote server sends results.

        Return None if the remote server cannot reach the local `address`.
        """
        if self.callback_base is not None:
            return self.callback_base.rstrip("/")
        is_far = urlsplit(self.url).hostname not in LOOPBACK
        is_hidden = urlsplit(address).hostname in (*LOOPBACK, *EVERYWHERE)
        return None if is_far and is_hidden else address.rstrip("/")

    def to_dict(self) -> dict[str, Json]:
        """Return the runner as JSON-compatible data without secrets.

        Durations are in seconds.
        """
        return {
            KIND: self.kind.value,
            "url": self.url,
            "secret_env": self.secret_env,
            "secret_file": self.secret_file,
            "timeout": self.timeout.total_seconds(),
            "allow_plain": self.allow_plain,
            "callback_base": self.callback_base,
            **({"runs_at_once": self.runs_at_once} if self.runs_at_once > 1 else {}),
            **({"claims_tasks": True} if self.claims_tasks else {}),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Json]) -> "HttpRunner":
        """Create a runner from JSON-compatible data, with defaults for missing fields.

        Raises:
            InvalidRunner: A field is unknown, missing or breaks its rule.
        """
        needed = {"url": "the URL of the other server"}
        given_fields = told_fields(plain, cls, times=("timeout",), needed=needed)
        given_fields.pop(KIND, None)
        return cls(**given_fields)


def _address(value: object, name: str) -> SplitResult:
    """Return the parts of an http URL, or raise an error that does not quote the URL."""
    remedy = "write a URL that begins with https:// or http://, without user name and password"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        raise refused(name, None, "it is not a valid URL", remedy)
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.fragment or parts.username is not None or parts.password is not None:
        raise refused(name, None, "it is not a valid URL", remedy)
    return parts


PROMPT = "{prompt}"
"""Placeholder for the prompt, if it is passed as an argument; the argument must contain nothing else."""
PROMPT_FILE = "{prompt_file}"
"""Placeholder for the path of the file with the prompt, which any part of an argument can contain."""
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,253}")
RESERVED_ENV = frozenset(f"POSTROOM_{name}" for name in ("AGENT", "PROJECT", "THREAD", "RUN", "DISPATCH"))
"""Names of the environment variables that the server sets for each program."""
PROGRAMS = (RunnerKind.COMMAND, RunnerKind.ACP)
"""The kinds of runners that start a program."""
STEERED = {"claude": "--input-format", "codex": "app-server", "opencode": "run"}
"""The argument in a custom command, for each recipe, that shows that the program accepts messages while it
works.
"""
DEFAULT_OUTPUT_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 16 << 20
"""Maximum size of an answer, which becomes a message; an agent must put longer content into a file."""


class Recipe(StrEnum):
    """The kind of client program, which decides how output and sessions are handled."""

    SHELL = "shell"
    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    COPILOT = "copilot"
    CLINE = "cline"


WITHOUT_SESSIONS = (Recipe.SHELL, Recipe.CLINE)
"""The recipes of programs that cannot resume a session."""


class SessionPer(StrEnum):
    """The scope of a client session: one per mail thread, or one per agent."""

    THREAD = "thread"
    AGENT = "agent"


class PromptWay(StrEnum):
    """The way in which a program receives the prompt."""

    ARGUMENT = "argument"
    STDIN = "stdin"
    FILE = "file"


def is_place(name: object) -> bool:
    """Return whether a text is a valid host name or label for `runs_on`."""
    return isinstance(name, str) and _PLACE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A program of the kind `command` or `acp` that executes an agent's runs.

    `argv` is executed without a shell. `env` sets environment variables, and `pass_env` names server
    variables that the program receives. Answers longer than `max_output_bytes` lose their beginning. With
    `resume`, the program continues the session of earlier runs. `runs_on` names the servers that may start
    the program; empty means any server. `runs_at_once` is the maximum number of concurrent runs, each on a
    separate mail thread. With `claims_tasks`, the server claims ready tasks for the agent.
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
        """Raise an error if a field of the runner is invalid.

        Raises:
            InvalidRunner: A field breaks its rule; the message names the field.
        """
        object.__setattr__(self, "kind", one_of(RunnerKind, self.kind, "kind"))
        if self.kind not in PROGRAMS:
            raise refused("kind", self.kind.value, "this kind of runner has no command")
        object.__setattr__(self, "recipe", one_of(Recipe, self.recipe, "recipe"))
        object.__setattr__(self, "prompt", one_of(PromptWay, self.prompt, "prompt"))
        object.__setattr__(self, "session_per", one_of(SessionPer, self.session_per, "session_per"))
        object.__setattr__(self, "argv", words(self.argv, "argv"))
        object.__setattr__(self, "pass_env", words(self.pass_env, "pass_env"))
        # A checked copy of the environment. Errors name a variable but not its value, which may be a secret.
        value = self.env
        if not isinstance(value, Mapping):
            raise refused("env", type(value).__name__, "it must be a table of strings")
        for name, content in value.items():
            if not isinstance(name, str) or not isinstance(content, str) or not can_be_given(content):
                raise refused("env", str(name), "a name or value is not text that a program accepts")
            _refuse_name(name, "env")
        object.__setattr__(self, "env", dict(value))
        self._refuse_command()
        if (
            not isinstance(self.cwd, str)
            or not can_be_given(self.cwd)
            or not PurePath(self.cwd).is_absolute()
        ):
            raise refused("cwd", self.cwd, "the working folder must be an absolute path")
        if self.runs_on != "" and not is_place(self.runs_on):
            raise refused("runs_on", self.runs_on, "it is neither a host name nor a label")
        for name in self.pass_env:
            _refuse_name(name, "pass_env")
        refuse_time(self.timeout, "timeout")
        if self.idle_timeout is not None:
            refuse_time(self.idle_timeout, "idle_timeout")
        refuse_number(self.max_output_bytes, "max_output_bytes", most=MAX_OUTPUT_BYTES)
        refuse_switch(self.resume, "resume")
        refuse_number(self.runs_at_once, "runs_at_once", most=MAX_RUNS_AT_ONCE)
        refuse_switch(self.claims_tasks, "claims_tasks")
        if self.runs_at_once > 1 and self.resume and self.session_per is SessionPer.AGENT:
            remedy = "leave out session_per to give each mail thread its own session"
            raise refused(
                "runs_at_once", self.runs_at_once, "one session cannot have two runs at once", remedy
            )

    @property
    def is_steered(self) -> bool:
        """Whether an active run of the runner receives new messages."""
        word = STEERED.get(self.recipe)
        can_be = self.kind is RunnerKind.COMMAND and self.prompt is PromptWay.STDIN and word is not None
        return can_be and (not self.argv or word in self.argv)

    def _refuse_command(self) -> None:
        if self.argv and not self.argv[0].strip():
            raise refused("argv", self.argv[0], "its first word must be the program, but is empty")
        if self.recipe is Recipe.SHELL and not self.argv:
            known_value = ", ".join(recipe.value for recipe in Recipe if recipe is not Recipe.SHELL)
            remedy = f"give the program and its arguments, or a recipe with a command: {known_value}"
            raise refused("argv", (), "it is missing, and the recipe 'shell' has no default command", remedy)
        if self.kind is RunnerKind.ACP:
            if self.recipe is Recipe.CLINE and not self.argv:
                remedy = "give the command in argv, or leave out --kind acp"
                raise refused("recipe", "cline", "this recipe has no command that supports ACP", remedy)
            what, remedy = "an ACP agent gets its prompt through the protocol", "leave this field out"
            if self.prompt is not PromptWay.STDIN:
                raise refused("prompt", self.prompt.value, what, remedy)
            if any(PROMPT in word or PROMPT_FILE in word for word in self.argv):
                raise refused("argv", self.argv, what, "remove {prompt} and {prompt_file} from the command")
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

    def to_dict(self) -> dict[str, Json]:
        """Return the runner as JSON-compatible data, including the secrets in `env`.

        Durations are in seconds.
        """
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
        """Create a runner from JSON-compatible data, with defaults for missing fields.

        Raises:
            InvalidRunner: A field is unknown, missing or breaks its rule.
        """
        needed = {"cwd": "the working folder"}
        return cls(**told_fields(plain, cls, times=("timeout", "idle_timeout"), needed=needed))


AnyRunner = Runner | ModelRunner | HttpRunner
"""A runner of any kind."""


def runner_of(plain: Mapping[str, Json], *, home: str | None = None) -> AnyRunner:
    """Create a runner of any kind from JSON-compatible data, with defaults for missing fields.

    `home` is the default working folder of a program.

    Raises:
        InvalidRunner: The kind is unknown, or a field is unknown, missing or breaks its rule.
    """
    if not isinstance(plain, Mapping):
        raise refused("runner", type(plain).__name__, "it must be a table of fields")
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
        """Return the runner of an agent, or None if the agent has no runner.

        `agent` is the record of the agent, if the caller has already read the record.

        Raises:
            AgentNotFound: The agent does not exist.
            InvalidRunner: The stored runner cannot be read.
        """
        ...


def _refuse_name(name: str, of: str) -> None:
    refuse_variable(name, of)
    if name in RESERVED_ENV:
        raise refused(of, name, f"the server sets {name}", "use another name")


@lru_cache(maxsize=1_024)
def read_runner(kept: str) -> AnyRunner:
    """Parse the stored form of a runner. The result is immutable and cached.

    Raises:
        InvalidRunner: The text cannot be parsed, or a field breaks its rule.
    """
    try:
        plain = json.loads(kept)
    except ValueError as error:
        raise InvalidRunner("the runner in the database cannot be read", value=kept[:80]) from error
    return runner_of(plain)


def written_runner(runner: AnyRunner) -> str:
    """Return a runner in the stored form."""
    return json.dumps(runner.to_dict(), ensure_ascii=False, separators=(",", ":"))


def place_of(runner: AnyRunner) -> str:
    """Return the host name or label of the servers that may start a program, or "" for any server."""
    return runner.runs_on if isinstance(runner, Runner) else ""


def reads_at_work(kept: str) -> bool:
    """Return whether an active run of the stored runner receives new messages."""
    try:
        runner = read_runner(kept)
    except InvalidRunner:
        return False
    return isinstance(runner, ModelRunner) or (isinstance(runner, Runner) and runner.is_steered)
