"""The data with which postroom runs a coding client. Each client has a module in this package.

Each module describes its client in one `CodingClient`: the command, the output format, the connection to this
server and, if the client supports them, messages during a run and the Agent Client Protocol.
"""

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from postroom import jsonc
from postroom.contracts.client_programs import NAME, ClientProgram
from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.executor import TOKEN_VARIABLE, RunAccess
from postroom.contracts.runners import PROMPT, Recipe
from postroom.contracts.runs import Usage

SESSION: Final = "{session}"
"""Placeholder in `CodingClient.resume` for the session to resume."""
Say = Callable[[Mapping[str, Any]], None]
"""Writes one JSON object as a line to a program."""


class Shape(StrEnum):
    """The structure of a client's output: plain text, one JSON object per line, or a single object."""

    TEXT = "text"
    LINES = "lines"
    WHOLE = "whole"


@dataclass(slots=True)
class Said:
    """The data that has been read from a program's output so far."""

    answer: str | None = None
    error: str | None = None
    session: str | None = None
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False
    """Whether the model has written output or called a tool."""
    is_ended: bool = False
    """Whether the program has reported its end. No answer can follow this report."""
    must_end: bool = False
    """Whether the program always reports its end, unless its output is cut off."""
    earlier: str = ""
    """The answers of earlier turns. A message that follows such an answer gets a separate answer."""
    last: str = ""
    """The last event in the output, as the program names it."""
    starts_anew: bool = False
    """Whether the next text starts another answer."""

    def keep_answer(self) -> None:
        """Record the answer as that of an earlier turn, because another turn follows."""
        self.earlier = f"{self.answer}\n\n" if self.answer else ""


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A client's connection to this server for one run: arguments, variables and private files.

    The user's own settings are not changed. The token is in an environment variable; arguments and files
    contain only the name of that variable.
    """

    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    links: Mapping[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Create the private folder with the files and links, accessible only to its owner.

        An existing folder is replaced. Blocks.
        """
        shutil.rmtree(folder, ignore_errors=True)  # links in the folder are removed, not followed
        folder.mkdir(mode=0o700)
        for name in (*self.files, *self.links):
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_private(folder / name, content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


NO_CONNECTION: Final = Connection()


class Steering(ABC):
    """Sends messages to a program while it works. The class does no I/O itself, but writes through `say`."""

    command: ClassVar[tuple[str, ...]] = ()
    """The command that accepts messages while it works; empty if it is the client's usual command."""
    more_words: ClassVar[tuple[str, ...]] = ()
    """Additional arguments with which the client accepts messages while it works."""

    def __init__(self, say: Say, said: Said, *, prompt: str, cwd: str, session: str | None) -> None:
        """Store the parts; `said` is what was read from the output so far, `session` a session to resume."""
        self._say = say
        self._said = said
        self._prompt = prompt
        self._cwd = cwd
        self._session = session
        self.is_over = False
        """Whether the program has finished its work, so that it gets no further messages."""

    @abstractmethod
    def begin(self) -> None:
        """Send the prompt."""

    @abstractmethod
    def tell(self, text: str) -> str | None:
        """Send a message.

        Return the program's name for it, or None if the program accepts no messages now.
        """

    @abstractmethod
    def heard(self, line: Mapping[str, Any]) -> str | None:
        """Process a line of output. Return the name of a message that the program reports as read, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverAcp:
    """How a client speaks the Agent Client Protocol."""

    command: tuple[str, ...] = ()
    """The command that speaks the protocol; empty if the client has none."""
    program: ClientProgram | None = None
    """The program that speaks the protocol for the client; None if the client itself speaks it."""
    in_session: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `session/new` that allow postroom's tools without permission requests in this session."""
    connects_by_settings: bool = False
    """Whether the client connects to this server through `CodingClient.connect` instead of `session/new`."""
    session_to_load: Callable[[str], str] = str
    """Returns the id with which the client loads a session, given the id that it reported."""
    replays_after_answer: bool = False
    """Whether the client replays the past of a session after its answer to `session/load`, not before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingClient:
    """A client that a runner names by its recipe.

    Arguments follow the command in this order: `resume`, then `with_stdin` or `with_argument`.
    """

    recipe: Recipe
    program: ClientProgram | None = None
    """The client's program; None if it is unknown."""
    command: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    with_stdin: tuple[str, ...] = ()
    with_argument: tuple[str, ...] = (PROMPT,)
    one_word_is_command: bool = False
    """Whether the client would interpret a prompt of one word as a command."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for this client, in addition to those for every program."""
    shape: Shape = Shape.TEXT
    reader: Callable[[Said, Mapping[str, Any]], str] | None = None
    """Reads a JSON object of the output, and returns the text to stream; it ignores unknown objects."""
    expects: str = ""
    """A description of the client's usual output."""
    refusals: tuple[str, ...] = ()
    """Lower-case phrases with which the client reports an unknown session."""
    connect: Callable[[RunAccess, Mapping[str, str], Path], Connection] | None = None
    """Returns the connection to this server.

    The arguments are the run's access, the client's environment, and the path of the private folder that will
    be created.
    """
    steering: type[Steering] | None = None
    """How the client gets messages while it works; None if it accepts none."""
    steering_plugin: Callable[[Mapping[str, str], str], Mapping[str, str]] | None = None
    """Returns the variables with which the client loads postroom's plugin.

    The arguments are the client's environment and the socket for messages.

    None for a client that reads the prompt and messages from its input.
    """
    expects_steered: str = ""
    """A description of the client's usual output if it accepts messages while it works."""
    acp: OverAcp = field(default_factory=OverAcp)


def text_in(table: object, name: str) -> str | None:
    """Return the value of a key if it is a non-empty text."""
    value = table.get(name) if isinstance(table, Mapping) else None
    return value if isinstance(value, str) and value else None


def table_in(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table under a key of a table; an empty table if there is none."""
    value = table.get(name)
    return value if isinstance(value, dict) else {}


def number_in(table: Mapping[str, Any], name: str) -> float:
    """Return the number under a key of a table; 0 if it is missing or not a valid amount."""
    value = table.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1e15 else 0  # type: ignore[operator,return-value]


def tokens_in(table: Mapping[str, Any], asked: str, answered: str) -> Usage:
    """Return the usage in a table. `asked` and `answered` are the keys of the input and the output tokens."""
    return Usage(input_tokens=int(number_in(table, asked)), output_tokens=int(number_in(table, answered)))


def micros_in(table: Mapping[str, Any], name: str) -> int:
    """Return an amount of dollars in a table, converted to millionths."""
    return round(number_in(table, name) * 1_000_000)


def run_headers(token: str, recipe: Recipe) -> dict[str, str]:
    """Return the headers that authenticate the run, and that name the client so that answers suit it."""
    return {"Authorization": f"Bearer {token}", CLIENT_HEADER: recipe.value}


def servers_argument(access: RunAccess, recipe: Recipe, **more: object) -> str:
    """Return this server as a JSON list of servers, into which the client inserts the token."""
    headers = run_headers(f"${{{TOKEN_VARIABLE}}}", recipe)
    server = {"type": "http", "url": access.mcp_url, "headers": headers, **more}
    return json.dumps({"mcpServers": {NAME: server}})


def settings_with_server(path: Path, server: Mapping[str, object]) -> bytes | None:
    """Return the settings in a file with this server added to `mcpServers`; None if they cannot be read."""
    try:
        read = jsonc.read(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        read = None
    except (OSError, ValueError):
        return None
    settings = {} if read is None else read.value()
    if not isinstance(settings, dict):
        return None
    servers = settings.get("mcpServers")
    return json.dumps(
        {**settings, "mcpServers": {**(servers if isinstance(servers, dict) else {}), NAME: server}}
    ).encode()
