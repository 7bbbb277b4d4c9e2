"""Builds requests of the OpenAI chat protocol as plain values, and assembles answers from chunks."""

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.contracts.errors import ContentFiltered, ProviderFailed, StreamInterrupted
from postroom.contracts.inference import (
    InferencePiece,
    InferenceReasoningDelta,
    InferenceRequest,
    InferenceResult,
    InferenceTextDelta,
    InferenceToolCallDelta,
    InferenceToolCallStart,
    StopReason,
)
from postroom.contracts.messages import ContentBlock, Json, Message, Role, ToolCall
from postroom.contracts.runs import Usage

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

_STOPS = {
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
}


def request_body(request: InferenceRequest, *, token_limit_field: str) -> dict[str, Json]:
    """Return the body of a request for a streamed chat completion."""
    wishes = request.overrides
    system = [{"role": "system", "content": request.system}] if request.system else []
    # Make user and assistant messages alternate, because several chat templates reject any other order. After
    # a failed or empty turn, two messages from the same side follow each other; they are merged into one. If
    # a message was sent again before it was answered, it is included once.
    turns: list[dict[str, Json]] = []
    newest: dict[str, Json] | None = None
    for message in request.messages:
        if (turn := _message(message)) is None:
            continue
        before = turns[-1] if turns else {}
        is_same_side = turn["role"] != "tool" and turn["role"] == before.get("role")
        if turn["role"] == "user" and before.get("role") == "tool":
            turns.append({"role": "assistant", "content": NO_ANSWER})
        if not is_same_side or "tool_calls" in before:
            turns.append(turn)
        elif turn != newest or turn["role"] != "user":
            sides = [before["content"], turn["content"]]
            content: Json = "\n\n".join(str(text) for text in sides if text)
            if any(isinstance(side, list) for side in sides):  # a text becomes a part among the files
                lists = (
                    side if isinstance(side, list) else [{"type": "text", "text": side}] for side in sides
                )
                content = [part for parts in lists for part in parts]
            turns[-1] = {**turn, "content": content}
        newest = turn
    body: dict[str, Json] = {
        "model": (wishes.upstream_model if wishes else None) or request.model,
        "messages": [*system, *turns],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if wishes:
        arguments = {
            "temperature": wishes.temperature,
            "top_p": wishes.top_p,
            "reasoning_effort": wishes.reasoning_effort,
            token_limit_field: wishes.max_tokens,
        }
        body |= {name: value for name, value in arguments.items() if value is not None}
        body |= wishes.more
    return body


NO_ANSWER = "(no answer)"
"""Replaces the missing answer between a tool result and the user's next message."""


def _message(message: Message) -> dict[str, Json] | None:
    text = _text(message)
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}
    if message.role is Role.ASSISTANT:
        if not text and not message.tool_calls:
            return None
        result: dict[str, Json] = {"role": "assistant", "content": text or None}
        if message.tool_calls:
            result["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments or {})},
                }
                for call in message.tool_calls
            ]
        return result
    # A message's content: text as a string, images and documents as parts with an address.
    files: list[Json] = []
    for block in message.content:
        url = block.data.get("url")
        if isinstance(url, str) and block.type == "image":
            files.append({"type": "image_url", "image_url": {"url": url}})
        elif isinstance(url, str):
            name = block.data.get("name") or "file"
            files.append({"type": "file", "file": {"filename": name, "file_data": url}})
    content = [*([{"type": "text", "text": text}] if text else []), *files] if files else text
    return {"role": str(message.role), "content": content} if content else None


def _text(message: Message) -> str:
    return _replace_invalid(message.text())


class _Text:
    def __init__(self) -> None:
        self._whole: list[str] = []
        self._held = ""

    def add(self, piece: str) -> str:
        piece = self._held + piece
        self._held = piece[-1] if piece and "\ud800" <= piece[-1] <= "\udbff" else ""
        shown = _replace_invalid(piece[: len(piece) - len(self._held)])
        self._whole.append(shown)
        return shown

    def whole(self) -> str:
        return "".join(self._whole) + _replace_invalid(self._held)


def _replace_invalid(text: str) -> str:
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_THINK, _END_OF_THOUGHT = "<think>", "</think>"
_LONE_END = re.compile(r"^</think>[ \t]*\n\s*", re.MULTILINE)
_LONE_END_FAMILIES = re.compile(r"qwq|deepseek-?r1|\br1\b|thinking", re.IGNORECASE)


def may_lack_opening_tag(model: str) -> bool:
    """Return whether models with this name are known to write `</think>` without an opening tag."""
    return bool(_LONE_END_FAMILIES.search(model))


class _Thoughts:
    """Separates the reasoning in `<think>` tags from the text of a model's answer."""

    def __init__(self, *, holds_beginning: bool) -> None:
        self.ended_alone = False
        """Whether the reasoning ended with `</think>` but did not begin with `<think>`."""
        self._holds_beginning = holds_beginning
        self._held = ""
        self._looked = 0
        """The position up to which the held text was searched for the end of the reasoning."""
        self._mark: str | None = _THINK
        """The tag that is expected next, or None if only text follows."""
        self._is_blank = False
        """Whether no text has followed the reasoning yet.

        White space at the beginning of that text is dropped.
        """

    def add(self, piece: str) -> tuple[str, str]:
        if self._mark is None:
            text = piece.lstrip() if self._is_blank else piece
            self._is_blank = self._is_blank and not text
            return "", text
        self._held += piece
        if self._mark == _THINK:
            begun = self._held.lstrip()
            if not begun.startswith(_THINK):
                if self._holds_beginning:
                    # Split the held text at a line `</think>`; until this line arrives, hold the text back.
                    while (at := self._held.find(_END_OF_THOUGHT, self._looked)) >= 0:
                        if (match := _LONE_END.match(self._held, at)) is not None:
                            self.ended_alone = True
                            return self._ended(self._held[:at].strip(), self._held[match.end() :])
                        if not self._held[at + len(_END_OF_THOUGHT) :].strip():
                            return "", ""  # the rest of the line may follow
                        self._looked = at + 1
                    self._looked = max(self._looked, len(self._held) - len(_END_OF_THOUGHT))
                    return "", ""
                return ("", "") if _THINK.startswith(begun) else ("", self.rest())
            self._mark, self._held = _END_OF_THOUGHT, begun.removeprefix(_THINK)
        if _END_OF_THOUGHT in self._held:
            thought, _, text = self._held.partition(_END_OF_THOUGHT)
            return self._ended(thought, text)
        kept_count = next(
            (n for n in range(len(_END_OF_THOUGHT) - 1, 0, -1) if self._held.endswith(_END_OF_THOUGHT[:n])), 0
        )
        split = len(self._held) - kept_count
        thought, self._held = self._held[:split], self._held[split:]
        return thought, ""

    def _ended(self, thought: str, text: str) -> tuple[str, str]:
        text = text.lstrip()
        self._held, self._mark, self._is_blank = "", None, not text
        return thought, text

    def release(self) -> str:
        self._holds_beginning = False
        begun = "" if self._mark != _THINK or _THINK.startswith(self._held.lstrip()) else self.rest()
        self._is_blank = self._is_blank or self._mark == _THINK
        return begun

    @property
    def is_text(self) -> bool:
        return self._mark != _END_OF_THOUGHT

    @property
    def is_held(self) -> bool:
        return self.is_text and bool(self._held.strip())

    def rest(self) -> str:
        held, self._held, self._mark = self._held.lstrip() if self._is_blank else self._held, "", None
        self._is_blank = self._is_blank and not held
        return held

    def part_whole(self, text: str) -> tuple[str, str]:
        if _THINK not in text and (lone := _LONE_END.search(text)):
            self.ended_alone = True
            return text[: lone.start()].strip(), text[lone.end() :]
        return "", text


@dataclass(slots=True)
class _Call:
    id: str
    name: str = ""
    arguments: _Text = field(default_factory=_Text)

    def whole(self) -> ToolCall:
        text = self.arguments.whole()
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            arguments = text
        return ToolCall(id=self.id, name=self.name, arguments=arguments)


class Assembly:
    """Assembles a model's answer from the chunks of a stream.

    If `holds_beginning` is True, the text is held back until the end of the reasoning is known.
    """

    def __init__(self, *, holds_beginning: bool = False) -> None:
        self._text = _Text()
        self._thoughts = _Thoughts(holds_beginning=holds_beginning)
        self._reasoning = _Text()
        self._calls: list[_Call] = []
        self._places: dict[int, _Call] = {}
        self._finish: str | None = None
        self._usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """Whether the endpoint has reported that the answer is complete."""
        return self._finish is not None

    @property
    def lacks_opening_tag(self) -> bool:
        """Whether the answer contained `</think>` without `<think>`."""
        return self._thoughts.ended_alone

    def add(self, chunk: "ChatCompletionChunk") -> list[InferencePiece]:
        """Add a chunk of the stream, and return the new pieces of the answer.

        Raises:
            ProviderFailed: The chunk is invalid.
        """
        pieces = list[InferencePiece]()
        try:
            if usage := chunk.usage:
                self._usage = Usage(
                    input_tokens=int(usage.prompt_tokens or 0),
                    output_tokens=int(usage.completion_tokens or 0),
                )
            for choice in chunk.choices or ():
                if choice.index not in (None, 0):
                    continue
                self._finish = choice.finish_reason or self._finish
                if not (delta := choice.delta):
                    continue
                more = delta.model_extra or {}
                thought = more.get("reasoning_content") or more.get("reasoning")
                begun = ""
                if isinstance(thought, str) and (shown := self._reasoning.add(thought)):
                    pieces.append(InferenceReasoningDelta(delta=shown))
                    begun = self._thoughts.release()
                thought, text = self._thoughts.add(delta.content or delta.refusal or "")
                text = begun + text
                if thought and (shown := self._reasoning.add(thought)):
                    pieces.append(InferenceReasoningDelta(delta=shown))
                if text and (shown := self._text.add(text)):
                    pieces.append(InferenceTextDelta(delta=shown))
                for fragment in delta.tool_calls or ():
                    function = fragment.function
                    name = (function and function.name) or ""
                    # The call that a fragment continues. Some endpoints number the calls, and some send the
                    # id of the call; without either, the fragment continues the last call. Some endpoints
                    # number every call 0, so a different id starts a new call.
                    index: int | None = fragment.index  # some endpoints omit it
                    id = fragment.id or ""
                    if index is not None:
                        call = self._places.get(index)
                    else:
                        call = next((call for call in self._calls if call.id == id), None) if id else None
                        if call is None and not id and not name and self._calls:
                            call = self._calls[-1]
                    if call is None or (id and call.id != id):
                        call = _Call(id=id or f"call_{len(self._calls)}", name=name)
                        self._calls.append(call)
                        self._places[len(self._calls) - 1 if index is None else index] = call
                        pieces.append(InferenceToolCallStart(id=call.id, name=call.name))
                    if shown := call.arguments.add((function and function.arguments) or ""):
                        pieces.append(InferenceToolCallDelta(id=call.id, args_delta=shown))
        except (AttributeError, TypeError, ValueError) as error:
            raise ProviderFailed("the model's endpoint sent an invalid chunk") from error
        return pieces

    def end(self) -> None:
        """Treat the answer as complete, because `[DONE]` has arrived."""
        if self._finish is None and self._calls:
            self._finish = "tool_calls"
        elif self._finish is None and (self._text.whole().strip() or self._thoughts.is_held):
            self._finish = "stop"

    def result(self) -> InferenceResult:
        """Return the complete answer.

        Raises:
            StreamInterrupted: The stream ended before the answer was complete.
            ContentFiltered: The provider withheld the answer.
        """
        if self._finish is None:
            raise StreamInterrupted("the stream ended before the answer was complete")
        if self._finish == "content_filter":
            raise ContentFiltered("the provider withheld the answer")
        if self._thoughts.is_text:
            self._text.add(self._thoughts.rest())  # the held text was not a tag
        else:
            self._reasoning.add(self._thoughts.rest())
        reasoning, text = self._reasoning.whole(), self._text.whole()
        if not reasoning:
            reasoning, text = self._thoughts.part_whole(text)
        blocks = (ContentBlock(type="thinking", text=reasoning), ContentBlock(text=text))
        return InferenceResult(
            content=tuple(block for block in blocks if block.text),
            tool_calls=tuple(call.whole() for call in self._calls),
            stop_reason=_STOPS.get(self._finish, StopReason.END_TURN),
            usage=self._usage,
        )
