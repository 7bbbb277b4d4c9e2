"""The requests and answers of a model, whatever the client's wire format."""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Say:
    """The model says a text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallTool:
    """The model calls a tool, by the client's name for it or by ours: `send_message`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


Step = Say | CallTool


@dataclass(frozen=True, slots=True)
class Said:
    """A text of the conversation."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call that the model made before."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a call of the model."""

    id: str
    text: str


Turn = Said | Called | Returned


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that the client offers.

    `namespace` is where Codex keeps the tools of a server. A `custom` tool takes a text, `input`, and no document; with
    `tool_search` a model finds tools that are not in the request.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    namespace: str = ""
    kind: str = "function"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to the model."""

    wire: str
    """`anthropic`, `responses`, `chat` or `gemini`."""
    model: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[Offered, ...]
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    is_stream: bool = True

    @property
    def is_aside(self) -> bool:
        """Whether the client asks for itself (a title, a topic): no tools are offered then."""
        return not self.tools

    @property
    def text(self) -> str:
        """The whole conversation: texts, calls and results."""
        return "\n".join(
            f"{turn.name} {dict(turn.arguments)}" if isinstance(turn, Called) else turn.text
            for turn in self.turns
        )

    @property
    def returned(self) -> tuple[str, ...]:
        """The results of the calls, the oldest first."""
        return tuple(turn.text for turn in self.turns if isinstance(turn, Returned))

    @property
    def new_text(self) -> str:
        """The content after the model's last text: the prompt, a tool's result, a hook's addition."""
        last = max(
            (
                number
                for number, turn in enumerate(self.turns)
                if isinstance(turn, Called) or (isinstance(turn, Said) and turn.role == "assistant")
            ),
            default=-1,
        )
        return "\n".join(turn.text for turn in self.turns[last + 1 :] if not isinstance(turn, Called))

    def tool(self, name: str) -> Offered | None:
        """Return the offered tool of this name, ours before the client's own; clients put our name before it."""
        ours = next((tool for tool in self.tools if _bare(tool) == name), None)
        return ours or next((tool for tool in self.tools if tool.name == name), None)

    @property
    def ours(self) -> tuple[str, ...]:
        """Our tools among the offered ones, by our own names."""
        return tuple(sorted(_bare(tool) for tool in self.tools if _bare(tool)))


def _bare(tool: Offered) -> str:
    whole = f"{tool.namespace}__{tool.name}" if tool.namespace else tool.name
    _, ours, name = whole.rpartition("postroom")
    return name.lstrip("_-") if ours else ""


Script = Callable[[Asked], Step | Sequence[Step]]


def in_turn(*replies: Step | Sequence[Step]) -> Script:
    """Return a script that gives these replies, one for each request; afterwards it reports its end."""
    left = itertools.chain(replies, itertools.repeat(Say("The script has no more.")))
    lock = threading.Lock()

    def script(_asked: Asked) -> Step | Sequence[Step]:
        with lock:
            return next(left)

    return script


def steps_of(reply: Step | Iterable[Step]) -> list[Step]:
    """Return a reply as a list of steps."""
    return [reply] if isinstance(reply, Say | CallTool) else list(reply)
