"""Estimates how much of a context window a request takes, and selects the messages to summarize.

A token is estimated as four bytes, and the estimate is corrected by the endpoint's count for its last answer.
A tool call and its answers form one unit, which is never split.
"""

import json
from collections.abc import Collection, Iterator, Sequence

from postroom.contracts.errors import ContextOverflow
from postroom.contracts.inference import InferenceRequest
from postroom.contracts.messages import Message, Role
from postroom.contracts.runs import Summary, Usage
from postroom.runtime.agents import AgentSpec
from postroom.runtime.checkpoint import is_output_of

_BYTES_OF_TOKEN = 4
_TOKENS_OF_MESSAGE = 4
_TOKENS_OF_FILE = 1_000
_FULL = 0.75
"""Maximum share of the context window for a request; the rest is for the answer and for estimation errors."""
_KEPT = 0.5
"""After a summary, the unsummarized messages may take at most this share of the space for messages."""
_MIN_RATIO, _MAX_RATIO = 0.25, 4.0
_MIN_WINDOW = 256
_MIN_WINDOW_GUESSED = 4_000
"""Minimum size in tokens that is assumed for a context window if no rejection has stated its size."""


class Windows:
    """The known context windows, by agent and model, as endpoints have reported them."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}
        self._ratios: dict[tuple[str, str], float] = {}
        self._largest: dict[tuple[str, str], int] = {}
        """The number of tokens in the largest request that succeeded."""

    def of(self, spec: AgentSpec, summary: Summary | None) -> int | None:
        """Return the context window in tokens: the configured size, or the endpoint's if it is smaller."""
        kept_window = summary.window if summary is not None and summary.model == spec.model else None
        number = self._said.get(_key(spec), kept_window)
        known_ids = [item for item in (spec.context_window, number) if item is not None]
        return min(known_ids, default=None)

    def tokens(self, spec: AgentSpec, estimated: int) -> int:
        """Convert an estimated number of tokens to the number that the endpoint would count."""
        return int(estimated * self._ratios.get(_key(spec), 1.0))

    def estimated(self, spec: AgentSpec, tokens: float) -> int:
        """Convert the endpoint's number of tokens to an estimate of this module."""
        return int(tokens / self._ratios.get(_key(spec), 1.0))

    def count(self, spec: AgentSpec, request: InferenceRequest, usage: Usage | None) -> None:
        """Learn from a successful request how many tokens fit.

        If the endpoint reported the number, that number is used.
        """
        if usage is not None and usage.input_tokens > 0:
            self._correct(spec, request, usage.input_tokens)
        taken = self.tokens(spec, estimate_tokens(request))
        self._largest[_key(spec)] = max(taken, self._largest.get(_key(spec), 0))

    def refused(self, spec: AgentSpec, request: InferenceRequest, error: ContextOverflow) -> int | None:
        """Learn the context window from a rejected request, and return its size in tokens.

        If the rejection contains no number, the window is estimated from the request. The estimate is at
        least the largest request that succeeded, or 4,000 tokens if none has. If a request of this size has
        already succeeded, return None and learn nothing, so that other conversations are not summarized
        because of it.
        """
        tokens, window = error.details.get("asked"), error.details.get("window")
        taken = self.tokens(spec, estimate_tokens(request))
        if not isinstance(window, int):
            size = tokens if isinstance(tokens, int) else taken
            least = self._largest.get(_key(spec), _MIN_WINDOW_GUESSED)
            if size <= least:
                return None
            window = max(int(size * 0.9), least)
        if isinstance(tokens, int):
            self._correct(spec, request, tokens)
        elif taken <= window:
            self._correct(spec, request, int(window * 1.1))
        self._said[_key(spec)] = max(window, _MIN_WINDOW)
        return self._said[_key(spec)]

    def _correct(self, spec: AgentSpec, request: InferenceRequest, counted: int) -> None:
        ratio = counted / max(estimate_tokens(request), 1)
        if ratio <= _MAX_RATIO:  # no text has so many tokens, so something else was counted
            self._ratios[_key(spec)] = max(ratio, _MIN_RATIO)


def _key(spec: AgentSpec) -> tuple[str, str]:
    return spec.agent_id, spec.model


def estimate_tokens(request: InferenceRequest) -> int:
    """Return the estimated number of tokens of a request."""
    tools = sum(
        _tokens(tool.name) + _tokens(tool.description) + _tokens(json.dumps(tool.parameters))
        for tool in request.tools
    )
    return _tokens(request.system) + tools + estimate_size(request.messages)


def estimate_size(messages: Sequence[Message]) -> int:
    """Return the estimated number of tokens of messages."""
    return sum(map(_size, messages))


def _size(message: Message) -> int:
    calls = sum(_tokens(call.name) + _tokens(json.dumps(call.arguments)) for call in message.tool_calls)
    files = sum(block.type not in ("text", "thinking") for block in message.content)
    return _tokens(message.text()) + calls + files * _TOKENS_OF_FILE + _TOKENS_OF_MESSAGE


def _tokens(text: str) -> int:
    return -(-len(text.encode(errors="surrogatepass")) // _BYTES_OF_TOKEN)


def room_for_messages(window: int, besides: int) -> int:
    """Return how many tokens messages may take if the rest of the request takes `besides` tokens."""
    return max(int(window * _FULL) - besides, window // 10)


def kept_whole(room: int) -> int:
    """Return how many tokens of the newest messages are left unsummarized."""
    return int(room * _KEPT)


def to_sum_up(
    messages: Sequence[Message], run_id: str, asked: Collection[str], most: int
) -> tuple[Message, ...]:
    """Return the older messages to summarize, so that the newer messages take at most `most` tokens.

    The run's own input and unanswered calls are not summarized. The remaining part of earlier runs starts
    with a message from a person.
    """
    units = list(_units(messages))
    size, cut = 0, len(units)
    while cut > 0 and (size + estimate_size(units[cut - 1]) <= most or cut == len(units)):
        cut -= 1
        size += estimate_size(units[cut])
    while 0 < cut < len(units) - 1 and not _begins(units[cut][0], run_id):
        cut += 1
    older = (unit for unit in units[:cut] if not _must_stay(unit, run_id, asked))
    return tuple(message for unit in older for message in unit)


def _units(messages: Sequence[Message]) -> Iterator[list[Message]]:
    units: list[list[Message]] = []
    arguments: dict[str, list[Message]] = {}
    for message in messages:
        unit = arguments.get(message.tool_call_id or "") if message.role is Role.TOOL else None
        if unit is None:
            unit = []
            units.append(unit)
        unit.append(message)
        arguments.update({call.id: unit for call in message.tool_calls})
    yield from units


def _begins(message: Message, run_id: str) -> bool:
    return message.role is Role.USER or is_output_of(message, run_id)


def _must_stay(unit: Sequence[Message], run_id: str, asked: Collection[str]) -> bool:
    if any(message.id in asked for message in unit):
        return True
    answered = {message.tool_call_id for message in unit}
    is_open = any(call.id not in answered for message in unit for call in message.tool_calls)
    return is_open and is_output_of(unit[0], run_id)


def pieces(messages: Sequence[Message], most: int) -> Iterator[tuple[int, str]]:
    """Yield messages as text in pieces of at most `most` tokens, each with the number of its messages.

    If a message is longer than a piece, only its start and its end are included.
    """
    held: list[str] = []
    size = 0
    for message in messages:
        text = _shorten(message, most * _BYTES_OF_TOKEN)
        if held and size + _tokens(text) > most:
            yield len(held), "\n\n".join(held)
            held, size = [], 0
        held.append(text)
        size += _tokens(text) + 1
    if held:
        yield len(held), "\n\n".join(held)


def _shorten(message: Message, most_bytes: int) -> str:
    files = [f"[{block.type}]" for block in message.content if block.type not in ("text", "thinking")]
    calls = [
        f"[calls {tool_call.name} with {json.dumps(tool_call.arguments)}]" for tool_call in message.tool_calls
    ]
    text = f"{message.role}: " + "\n".join([message.for_model().text(), *files, *calls]).strip()
    data = text.encode(errors="replace")
    if len(data) <= most_bytes:
        return text
    half = max(most_bytes // 2 - 8, 8)
    return f"{data[:half].decode(errors='ignore')}\n[...]\n{data[-half:].decode(errors='ignore')}"
