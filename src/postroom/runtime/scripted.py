"""A model that returns scripted answers, for tests, demos and first steps with an agent."""

from collections.abc import AsyncIterator, Iterable, Sequence

from postroom.contracts.inference import (
    InferencePiece,
    InferenceRequest,
    InferenceResult,
    InferenceStop,
    InferenceTextDelta,
    InferenceToolCallStart,
)

Line = InferenceResult | Exception | Sequence[InferencePiece | Exception]
"""One scripted answer: a complete answer, a failure, or a list of pieces, which may contain a failure."""


class ScriptedModel:
    """A model that answers with the lines of a script in order, and then with "done"."""

    def __init__(self, script: Iterable[Line] = (), *, name: str = "scripted") -> None:
        self._script = list(script)
        self.name = name
        self.requests: list[InferenceRequest] = []
        """The requests that the model has received, in order."""

    def add(self, *lines: Line) -> None:
        """Append lines to the script."""
        self._script.extend(lines)

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferencePiece]:
        """Answer with the next line of the script."""
        self.requests.append(request)
        line = self._script.pop(0) if self._script else InferenceResult.text("done")
        pieces = [line] if isinstance(line, Exception) else line
        for piece in _pieces(pieces) if isinstance(pieces, InferenceResult) else pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def _pieces(result: InferenceResult) -> list[InferencePiece]:
    text = "".join(block.text for block in result.content if block.type == "text")
    inference_pieces: list[InferencePiece] = [InferenceTextDelta(delta=text)] if text else []
    calls = [InferenceToolCallStart(id=call.id, name=call.name) for call in result.tool_calls]
    return [*inference_pieces, *calls, InferenceStop(result=result)]
