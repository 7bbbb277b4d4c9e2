"""Runners that start no program: the built-in loop with a model's endpoint, and another server.

A runner names the environment variable of the server that holds its key or secret. A run reads the variable
when it needs it; the value is stored nowhere.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from typing import ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from postroom.contracts.messages import Json
from postroom.contracts.runner_fields import (
    DEFAULT_TIMEOUT,
    KIND,
    MAX_RUNS_AT_ONCE,
    RunnerKind,
    can_be_given,
    refuse_number,
    refuse_switch,
    refuse_time,
    refuse_variable,
    refused,
    told_fields,
    words,
)

DEFAULT_STEPS: Final = 32
MOST_STEPS: Final = 1_000
LONGEST_INSTRUCTIONS: Final = 100_000
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, never bound
"""Listening addresses that stand for all addresses of the machine."""
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
    """A runner that executes runs in the built-in loop, with a model that speaks the OpenAI protocol.

    `api_key_env` names the variable with the key, if the endpoint needs one. `tools` are the mail operations
    that the model may call, always as the agent itself.
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
        """Refuse invalid fields.

        Raises:
            InvalidRunner: A field breaks its rule; the message names it.
        """
        parts = _address(self.base_url, "base_url")
        if parts.query:
            raise refused("base_url", None, "the URL has a query", "end the URL with /v1")
        if not isinstance(self.model, str) or not self.model.strip() or not can_be_given(self.model):
            raise refused("model", None, "a model name must be text that is not empty")
        if self.api_key_env is not None:
            refuse_variable(self.api_key_env, "api_key_env")
        if not isinstance(self.instructions, str) or not can_be_given(self.instructions):
            raise refused("instructions", None, "the instructions must be text")
        if len(self.instructions) > LONGEST_INSTRUCTIONS:
            raise refused("instructions", None, f"the instructions exceed {LONGEST_INSTRUCTIONS} characters")
        refuse_number(self.max_steps, "max_steps", most=MOST_STEPS)
        refuse_number(self.runs_at_once, "runs_at_once", most=MAX_RUNS_AT_ONCE)
        refuse_switch(self.claims_tasks, "claims_tasks")
        refuse_time(self.timeout, "timeout")
        object.__setattr__(self, "tools", words(self.tools, "tools"))
        if wrong := [one for one in self.tools if not _TOOL.fullmatch(one)]:
            raise refused("tools", wrong, "these are not names of operations")
        if len(set(self.tools)) < len(self.tools):
            raise refused("tools", list(self.tools), "an operation is listed twice")

    def to_dict(self) -> dict[str, Json]:
        """Return it as plain JSON data without secrets; durations in seconds."""
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
        """Return the runner that plain data describes; omitted fields get their defaults.

        Raises:
            InvalidRunner: A field is unknown, missing or breaks its rule.
        """
        needed = {"base_url": "the URL of the endpoint", "model": "the name of the model"}
        given = told_fields(plain, cls, times=("timeout",), needed=needed)
        given.pop(KIND, None)
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRunner:
    """A runner that sends each run, signed, to another server, which executes it.

    `secret_env` names the variable with the shared secret, `secret_file` the private file with it. Plain http
    is allowed to this machine only, unless `allow_plain` is set. `callback_base` is this server's address as
    the other server reaches it; a server on this machine needs none.
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
        """Refuse invalid fields.

        Raises:
            InvalidRunner: A field breaks its rule; the message names it.
        """
        refuse_switch(self.allow_plain, "allow_plain")
        self._refuse_plain(_address(self.url, "url"), "url")
        self._refuse_secret()
        refuse_time(self.timeout, "timeout")
        refuse_number(self.runs_at_once, "runs_at_once", most=MAX_RUNS_AT_ONCE)
        refuse_switch(self.claims_tasks, "claims_tasks")
        if self.callback_base is not None:
            parts = _address(self.callback_base, "callback_base")
            if parts.query:
                raise refused("callback_base", None, "the URL has a query")
            self._refuse_plain(parts, "callback_base")

    def _refuse_plain(self, parts: SplitResult, name: str) -> None:
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not self.allow_plain:
            remedy = "use https, or set allow_plain if the network is trusted"
            raise refused(name, None, "plain http is allowed to this machine only", remedy)

    def _refuse_secret(self) -> None:
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

    def callback(self, address: str) -> str | None:
        """Return the URL at which the other server reaches this one, which listens at `address`.

        None if it cannot.
        """
        if self.callback_base is not None:
            return self.callback_base.rstrip("/")
        is_far = urlsplit(self.url).hostname not in LOOPBACK
        is_hidden = urlsplit(address).hostname in (*LOOPBACK, *EVERYWHERE)
        return None if is_far and is_hidden else address.rstrip("/")

    def to_dict(self) -> dict[str, Json]:
        """Return it as plain JSON data without secrets; durations in seconds."""
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
        """Return the runner that plain data describes; omitted fields get their defaults.

        Raises:
            InvalidRunner: A field is unknown, missing or breaks its rule.
        """
        needed = {"url": "the URL of the other server"}
        given = told_fields(plain, cls, times=("timeout",), needed=needed)
        given.pop(KIND, None)
        return cls(**given)


def _address(value: object, name: str) -> SplitResult:
    """Return the parts of an http address; a refusal does not show it, because it may hold a password."""
    remedy = "write a URL that begins with https:// or http://, without user name and password"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        raise refused(name, None, "this is not a valid URL", remedy)
    try:
        parts = urlsplit(value)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.fragment or parts.username is not None or parts.password is not None:
        raise refused(name, None, "this is not a valid URL", remedy)
    return parts
