"""The row that describes an operation: its name, command, function, callers, URL and command line.

Routes, permissions, the OpenAPI document, MCP tools, reference pages and commands are generated from these
rows. `postroom.mail.operations` lists the operations of mail, `postroom.app.operations` all of them.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_type_hints

from postroom.contracts.errors import InsufficientScope, NotPermitted
from postroom.contracts.tokens import SCOPES, Grant, Scope


class Who(StrEnum):
    """The callers that may use a URL."""

    ANYONE = "anyone"
    PROVED_THERE = "callers that the path authenticates itself"
    """A channel, or a server that reports a result and proves itself by its signature."""
    PEOPLE = "people"
    """People who are logged in, and callers with the server's token."""
    LOOKERS = "agents, programs and people"
    """Callers with a named token, within the limits of the token's scopes."""
    CALLERS = "agents and programs"
    HOOKS = "the operator and runs"
    ADMINS = "the operator and `admin`"
    OPERATOR = "the operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The way in which a command-line option sets one field. An empty text means the field's default.

    It is stored in the row of the operation, or in the `extra` of the field's type.
    """

    name: str = ""
    """The option, such as `--all`. Default: the name of the field."""
    help: str = ""
    """Default: the description of the field."""
    metavar: str = ""
    complete: str = ""
    """The kind of names or ids that a shell suggests as completions."""
    kind: str = ""
    """An option shared by many commands, or a conversion of its value: see `postroom.cli.call`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One action that callers may perform.

    The function of a mail operation takes the context and the command. The function of an administration
    operation belongs to its service. It takes the fields of the command as parameters, or `command` as a
    whole, and `request` if it needs the HTTP request.
    """

    name: str
    command: Any
    """The struct with its parameters."""
    run: Callable[..., Any]
    changes: bool
    needs: frozenset[Scope]
    """All scopes that a named token must have; agents and the operator need no scopes.

    Operations for `Who.OPERATOR` are closed to named tokens.
    """
    is_of_one_project: bool = False
    """Whether a token that is bound to a project may perform it in that project."""
    destructive: bool = False
    repeatable: bool = False
    """Whether the operation can be repeated with the same fields without any further effect."""
    settled: bool = False
    """Whether the operation reads indexes that a store may update with a delay, as searches and lists of
    threads do.
    """
    service: type[Any] | None = None
    """The service that performs it; None for the mail room."""
    address: str = ""
    """HTTP method and path. Default: `GET` or `POST` below /v1, followed by the name."""
    who: Who = Who.LOOKERS
    answer_key: str = ""
    """The key in a JSON object under which the result is returned; "" if the result is itself an object."""
    status: int = 200
    doc: str = ""
    """The description of the operation.

    Default: that of the command; several operations may share a command.
    """
    doing: str = ""
    """The text shown during long work until progress is known; "" for short work."""
    line: str = ""
    """The words after `postroom`, followed in capitals by the fields that are positional arguments.

    All other fields are options. If the line is empty, no command is made from this row.
    """
    options: Mapping[str, Option] = field(default_factory=dict, hash=False)
    """The command-line options for the fields whose types do not define one."""
    line_help: str = ""
    """The help text of the command. Default: the description of the operation."""

    def __post_init__(self) -> None:
        if not self.needs or not self.needs <= set(SCOPES):
            raise ValueError(f"operation {self.name} declares an unknown scope: {sorted(self.needs)}")

    def check(self, grant: Grant | None, *, slug: str | None = None) -> None:
        """Raise unless a named token with this grant may perform it; without a grant, everything may.

        Raises:
            InsufficientScope: The token lacks a required scope.
            NotPermitted: The token is bound to a project, and the operation concerns more than one.
        """
        if grant is not None:
            grant.check(self.needs, self.name, is_of_one_project=self.is_of_one_project, slug=slug)

    def is_open_to(self, grant: Grant | None) -> bool:
        """Return whether a named token with this grant may perform it."""
        try:
            self.check(grant)
        except (InsufficientScope, NotPermitted):
            return False
        return True

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.address.split()[0] if self.address else "POST" if self.changes else "GET"

    @property
    def path(self) -> str:
        """The path of its URL."""
        return self.address.split()[1] if self.address else f"/v1/{self.name}"

    @property
    def description(self) -> str:
        """The description for a model, in one line: the effect, when to use it, and the next step."""
        return " ".join(self._doc.split())

    @property
    def words(self) -> str:
        """The words of the command, after `postroom`."""
        return " ".join(part for part in self.line.split() if not part.isupper())

    @property
    def places(self) -> tuple[str, ...]:
        """The fields that the command takes as positional arguments, in order."""
        return tuple(part.lower() for part in self.line.split() if part.isupper())

    @property
    def help(self) -> str:
        """The text of `--help`."""
        return self.line_help or inspect.cleandoc(self._doc)

    @property
    def answer(self) -> Any:
        """The type of the result, as its function declares it."""
        return get_type_hints(self.run)["return"]

    @property
    def summary(self) -> str:
        """The effect in one sentence."""
        return self._doc.partition("\n")[0]

    @property
    def _doc(self) -> str:
        return self.doc or self.command.__doc__ or ""
