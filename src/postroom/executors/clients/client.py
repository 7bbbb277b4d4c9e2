"""The description of a coding client; each client has a module in this package.

A module describes its client in one `CodingClient`: the command, the output format, the connection to this
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
"""A function that writes one JSON object to a program, as a line."""


class Shape(StrEnum):
    """The format of a client's output: plain text, one JSON object per line, or a single JSON object."""

    TEXT = "text"
    LINES = "lines"
    WHOLE = "whole"


@dataclass(slots=True)
class Said:
    """The answer, error, session and usage that a program's output has reported."""

    answer: str | None = None
    error: str | None = None
    session: str | None = None
    usage: Usage = field(default_factory=Usage)
    is_begun: bool = False
    """Whether the model has written output or called a tool."""
    is_ended: bool = False
    """Whether the program has reported its end, after which no answer can follow."""
    must_end: bool = False
    """Whether the program always reports its end, unless its output was truncated."""
    earlier: str = ""
    """The answers of earlier turns; a message after such an answer gets a separate answer."""
    last: str = ""
    """The last event in the output, under the program's name for it."""
    starts_anew: bool = False
    """Whether the next text belongs to another answer."""

    def keep_answer(self) -> None:
        """Keep the answer of the current turn when another turn of the program begins."""
        self.earlier = f"{self.answer}\n\n" if self.answer else ""


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The arguments, variables and files with which a client connects to this server during one run.

    The user's own settings are not changed, and the token is only in an environment variable.
    """

    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    links: Mapping[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Create a private folder with the files and links of the connection.

        An existing folder is replaced. Blocks.
        """
        shutil.rmtree(folder, ignore_errors=True)  # links in the folder are deleted, not followed
        folder.mkdir(mode=0o700)
        for name in (*self.files, *self.links):
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_private(folder / name, content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


NO_CONNECTION: Final = Connection()


class Steering(ABC):
    """Sends messages to a client program during a run."""

    command: ClassVar[tuple[str, ...]] = ()
    """The command that accepts messages while it works; empty if the client's usual command does."""
    more_words: ClassVar[tuple[str, ...]] = ()
    """Additional arguments that make the client accept messages while it works."""

    def __init__(self, say: Say, said: Said, *, prompt: str, cwd: str, session: str | None) -> None:
        self._say = say
        self._said = said
        self._prompt = prompt
        self._cwd = cwd
        self._session = session
        self.is_over = False
        """Whether the program has finished its work, so that it gets no further messages."""

    @abstractmethod
    def begin(self) -> None:
        """Send the prompt to the program."""

    @abstractmethod
    def tell(self, text: str) -> str | None:
        """Send a message to the program, and return the program's id for the message.

        Return None if the program accepts no messages now.
        """

    @abstractmethod
    def process_line(self, line: Mapping[str, Any]) -> str | None:
        """Process a line of output, and return the id of a message that the program has read, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverAcp:
    """The commands and settings with which a client uses the Agent Client Protocol."""

    command: tuple[str, ...] = ()
    """The command that uses the protocol; empty if the client has none."""
    program: ClientProgram | None = None
    """The program that uses the protocol on behalf of the client, or None if the client itself does."""
    in_session: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `session/new` with which the session permits postroom's tools without asking."""
    connects_by_settings: bool = False
    """Whether `CodingClient.connect`, and not `session/new`, connects the client to this server."""
    session_to_load: Callable[[str], str] = str
    """Converts the session id that a client has reported to the id with which the client loads the session.
    """
    replays_after_answer: bool = False
    """Whether the client answers `session/load` before it replays the past of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingClient:
    """A coding client, such as Claude Code, that a runner names by its recipe.

    The command of a run consists of `command`, the arguments in `resume`, and the arguments in `with_stdin`
    or `with_argument`.
    """

    recipe: Recipe
    program: ClientProgram | None = None
    """The program of the client, or None if it is unknown."""
    command: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    with_stdin: tuple[str, ...] = ()
    with_argument: tuple[str, ...] = (PROMPT,)
    one_word_is_command: bool = False
    """Whether the client interprets a prompt of one word as a command."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for this client, in addition to those for all programs."""
    shape: Shape = Shape.TEXT
    reader: Callable[[Said, Mapping[str, Any]], str] | None = None
    """Parses a JSON object in the output, and returns the text to stream; unknown objects are ignored."""
    expects: str = ""
    """A description of the client's usual output."""
    refusals: tuple[str, ...] = ()
    """Phrases, in lower case, with which the client reports that it does not know a session."""
    connect: Callable[[RunAccess, Mapping[str, str], Path], Connection] | None = None
    """Returns how the client connects to this server.

    The arguments are the access of the run, the environment of the client, and the path of the private folder
    that will be created.
    """
    steering: type[Steering] | None = None
    """The way in which the client receives messages while it works, or None if it accepts none."""
    steering_plugin: Callable[[Mapping[str, str], str], Mapping[str, str]] | None = None
    """Returns the environment variables with which the client loads postroom's plugin.

    The arguments are the environment of the client and the socket for messages.

    The field is None if the client reads the prompt and messages from its standard input.
    """
    expects_steered: str = ""
    """A description of the client's usual output if it accepts messages while it works."""
    acp: OverAcp = field(default_factory=OverAcp)


def text_in(table: object, name: str) -> str | None:
    """Return the value of a key if the value is a non-empty text; return None for any other value."""
    value = table.get(name) if isinstance(table, Mapping) else None
    return value if isinstance(value, str) and value else None


def table_in(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table that is the value of a key, or an empty table for any other value."""
    value = table.get(name)
    return value if isinstance(value, dict) else {}


def number_in(table: Mapping[str, Any], name: str) -> float:
    """Return the number that is the value of a key, or 0 if the number is missing or invalid."""
    value = table.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1e15 else 0  # type: ignore[operator,return-value]


def tokens_in(table: Mapping[str, Any], asked: str, answered: str) -> Usage:
    """Return the token usage in a table; `asked` and `answered` are the keys of the token counts."""
    return Usage(input_tokens=int(number_in(table, asked)), output_tokens=int(number_in(table, answered)))


def micros_in(table: Mapping[str, Any], name: str) -> int:
    """Return an amount of dollars in a table, converted to millionths of a dollar."""
    return round(number_in(table, name) * 1_000_000)


def run_headers(token: str, recipe: Recipe) -> dict[str, str]:
    """Return the HTTP headers that contain a run's token and the name of the client."""
    return {"Authorization": f"Bearer {token}", CLIENT_HEADER: recipe.value}


def servers_argument(access: RunAccess, recipe: Recipe, **more: object) -> str:
    """Return this server as a JSON list of MCP servers; the token is a placeholder."""
    headers = run_headers(f"${{{TOKEN_VARIABLE}}}", recipe)
    server = {"type": "http", "url": access.mcp_url, "headers": headers, **more}
    return json.dumps({"mcpServers": {NAME: server}})


def settings_with_server(path: Path, server: Mapping[str, object]) -> bytes | None:
    """Return the settings in a file with this server added, or None for an unreadable file."""
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
