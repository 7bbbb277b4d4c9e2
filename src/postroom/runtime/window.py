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
    """The known sizes of models' context windows, in tokens."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}
        self._ratios: dict[tuple[str, str], float] = {}
        self._largest: dict[tuple[str, str], int] = {}
        """The number of tokens in the largest request that succeeded."""

    def of(self, spec: AgentSpec, summary: Summary | None) -> int | None:
        """Return the size of the context window for an agent's model in tokens, or None if unknown."""
        kept_window = summary.window if summary is not None and summary.model == spec.model else None
        number = self._said.get(_key(spec), kept_window)
        known_ids = [item for item in (spec.context_window, number) if item is not None]
        return min(known_ids, default=None)

    def tokens(self, spec: AgentSpec, estimated: int) -> int:
        """Convert an estimated number of tokens to the number that the endpoint counts."""
        return int(estimated * self._ratios.get(_key(spec), 1.0))

    def estimated(self, spec: AgentSpec, tokens: float) -> int:
        """Convert a number of tokens that the endpoint counts to an estimated number."""
        return int(tokens / self._ratios.get(_key(spec), 1.0))

    def count(self, spec: AgentSpec, request: InferenceRequest, usage: Usage | None) -> None:
        """Record the size of a successful request in tokens.

        `usage` is the token usage that the endpoint reported, or None.
        """
        if usage is not None and usage.input_tokens > 0:
            self._correct(spec, request, usage.input_tokens)
        taken = self.tokens(spec, estimate_tokens(request))
        self._largest[_key(spec)] = max(taken, self._largest.get(_key(spec), 0))

    def refused(self, spec: AgentSpec, request: InferenceRequest, error: ContextOverflow) -> int | None:
        """Estimate the size of the context window in tokens from a rejected request.

        Return None if a request of the same size has succeeded before.
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
    """Return the estimated number of tokens of a list of messages."""
    return sum(map(_size, messages))


def _size(message: Message) -> int:
    calls = sum(_tokens(call.name) + _tokens(json.dumps(call.arguments)) for call in message.tool_calls)
    files = sum(block.type not in ("text", "thinking") for block in message.content)
    return _tokens(message.text()) + calls + files * _TOKENS_OF_FILE + _TOKENS_OF_MESSAGE


def _tokens(text: str) -> int:
    return -(-len(text.encode(errors="surrogatepass")) // _BYTES_OF_TOKEN)


def room_for_messages(window: int, besides: int) -> int:
    """Return how many tokens of a context window are left for messages.

    `besides` is the number of tokens of the rest of the request.
    """
    return max(int(window * _FULL) - besides, window // 10)


def kept_whole(room: int) -> int:
    """Return how many tokens of the newest messages must not be summarized."""
    return int(room * _KEPT)


def to_sum_up(
    messages: Sequence[Message], run_id: str, asked: Collection[str], most: int
) -> tuple[Message, ...]:
    """Return the older messages to summarize; the newer messages have at most `most` tokens.

    The input and the unanswered tool calls of the run `run_id` are never summarized.
    """
    units: list[list[Message]] = []
    unit_of: dict[str, list[Message]] = {}  # by the id of a call
    for message in messages:
        unit = unit_of.get(message.tool_call_id or "") if message.role is Role.TOOL else None
        if unit is None:
            unit = []
            units.append(unit)
        unit.append(message)
        unit_of.update({call.id: unit for call in message.tool_calls})
    size, cut = 0, len(units)
    while cut > 0 and (size + estimate_size(units[cut - 1]) <= most or cut == len(units)):
        cut -= 1
        size += estimate_size(units[cut])
    while 0 < cut < len(units) - 1 and not (
        units[cut][0].role is Role.USER or is_output_of(units[cut][0], run_id)
    ):
        cut += 1
    older: list[Message] = []
    for unit in units[:cut]:
        answered = {message.tool_call_id for message in unit}
        is_open = any(call.id not in answered for message in unit for call in message.tool_calls)
        is_asked = any(message.id in asked for message in unit)
        if not is_asked and not (is_open and is_output_of(unit[0], run_id)):
            older += unit
    return tuple(older)


def pieces(messages: Sequence[Message], most: int) -> Iterator[tuple[int, str]]:
    """Yield the text of messages in pieces of at most `most` tokens, each with the number of messages.

    A message that is longer than a piece is shortened in the middle.
    """
    held: list[str] = []
    size = 0
    for message in messages:
        files = [f"[{block.type}]" for block in message.content if block.type not in ("text", "thinking")]
        calls = [f"[calls {call.name} with {json.dumps(call.arguments)}]" for call in message.tool_calls]
        text = f"{message.role}: " + "\n".join([message.for_model().text(), *files, *calls]).strip()
        data = text.encode(errors="replace")
        if len(data) > most * _BYTES_OF_TOKEN:
            half = max(most * _BYTES_OF_TOKEN // 2 - 8, 8)
            start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
            text = f"{start}\n[...]\n{end}"
        if held and size + _tokens(text) > most:
            yield len(held), "\n\n".join(held)
            held, size = [], 0
        held.append(text)
        size += _tokens(text) + 1
    if held:
        yield len(held), "\n\n".join(held)
