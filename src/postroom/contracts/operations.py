"""Describes an operation: its name, command, function, callers, URL and command line.

Routes, permissions, the OpenAPI document, MCP tools, reference pages and commands are generated from
operations. `postroom.mail.operations` lists the operations of mail, and `postroom.app.operations` lists all
operations.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_type_hints

from postroom.contracts.errors import InsufficientScope, NotPermitted
from postroom.contracts.tokens import SCOPES, Grant, Scope


class Who(StrEnum):
    """The callers who may use a URL."""

    ANYONE = "anyone"
    PROVED_THERE = "callers that the path authenticates itself"
    """A chat channel, or a server that reports a result and proves its identity by a signature."""
    PEOPLE = "people"
    """People who are logged in, and programs with the server's token."""
    LOOKERS = "agents, programs and people"
    """Callers with a named token, within the limits of the token's scopes."""
    CALLERS = "agents and programs"
    HOOKS = "the operator and runs"
    ADMINS = "the operator and `admin`"
    OPERATOR = "the operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The command-line option for a field of an operation.

    An empty text means the default.
    """

    name: str = ""
    """The name of the option, such as `--all`. Default: the name of the field."""
    help: str = ""
    """The help text. Default: the description of the field."""
    metavar: str = ""
    complete: str = ""
    """The kind of names or ids that shell completion suggests."""
    kind: str = ""
    """The name of an option that many commands share, or of a conversion of the value: see
    `postroom.cli.call`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An action that callers may perform by MCP, HTTP or the command line.

    The function of a mail operation takes the context and the command. The function of an administration
    operation is a method of a service, whose parameters are the fields of the command.
    """

    name: str
    command: Any
    """The struct whose fields are the parameters."""
    run: Callable[..., Any]
    changes: bool
    needs: frozenset[Scope]
    """The scopes that a named token must have; agents and the operator need none.

    Named tokens cannot use operations for `Who.OPERATOR`.
    """
    is_of_one_project: bool = False
    """Whether a token that is bound to a project may use the operation in that project."""
    destructive: bool = False
    repeatable: bool = False
    """Whether repeating the operation with the same fields has no further effect."""
    settled: bool = False
    """Whether the operation reads indexes that a store may update late, like searches and lists of threads.
    """
    service: type[Any] | None = None
    """The service whose method is called, or None for mail operations."""
    address: str = ""
    """The HTTP method and path. Default: `GET` or `POST` of the name below /v1."""
    who: Who = Who.LOOKERS
    answer_key: str = ""
    """The key of the JSON object in which the result is returned, or "" if the result is itself an object."""
    status: int = 200
    doc: str = ""
    """The description of the operation.

    Default: the description of the command, which several operations may share.
    """
    doing: str = ""
    """The text that is shown during long work while the progress is unknown, or "" for short work."""
    line: str = ""
    """The words of the command after `postroom`, followed by the positional arguments in capitals.

    All other fields are options. If the line is empty, the operation has no command.
    """
    options: Mapping[str, Option] = field(default_factory=dict, hash=False)
    """The command-line options of fields whose types do not define an option."""
    line_help: str = ""
    """The help text of the command. Default: the description of the operation."""

    def __post_init__(self) -> None:
        if not self.needs or not self.needs <= set(SCOPES):
            raise ValueError(f"operation {self.name} declares an unknown scope: {sorted(self.needs)}")

    def check(self, grant: Grant | None, *, slug: str | None = None) -> None:
        """Raise an error if a named token lacks permission for the operation.

        Raises:
            InsufficientScope: The token lacks a required scope.
            NotPermitted: The token is bound to a project, and the operation concerns more than one.
        """
        if grant is not None:
            grant.check(self.needs, self.name, is_of_one_project=self.is_of_one_project, slug=slug)

    def is_open_to(self, grant: Grant | None) -> bool:
        """Return whether a named token may use the operation."""
        try:
            self.check(grant)
        except (InsufficientScope, NotPermitted):
            return False
        return True

    @property
    def method(self) -> str:
        """The HTTP method of the operation."""
        return self.address.split()[0] if self.address else "POST" if self.changes else "GET"

    @property
    def path(self) -> str:
        """The path of the operation's URL."""
        return self.address.split()[1] if self.address else f"/v1/{self.name}"

    @property
    def description(self) -> str:
        """The description of the operation for a model, in one line."""
        return " ".join(self._doc.split())

    @property
    def words(self) -> str:
        """The words after `postroom` in the command line of the operation."""
        return " ".join(part for part in self.line.split() if not part.isupper())

    @property
    def places(self) -> tuple[str, ...]:
        """The fields of the operation that are positional arguments on the command line, in order."""
        return tuple(part.lower() for part in self.line.split() if part.isupper())

    @property
    def help(self) -> str:
        """The help text of the operation on the command line."""
        return self.line_help or inspect.cleandoc(self._doc)

    @property
    def answer(self) -> Any:
        """The return type of the operation's function."""
        return get_type_hints(self.run)["return"]

    @property
    def summary(self) -> str:
        """The effect of the operation, in one sentence."""
        return self._doc.partition("\n")[0]

    @property
    def _doc(self) -> str:
        return self.doc or self.command.__doc__ or ""
