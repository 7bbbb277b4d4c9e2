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
    """A test model that answers with the lines of a script in order, and with "done" after the last line."""

    def __init__(self, script: Iterable[Line] = (), *, name: str = "scripted") -> None:
        self._script = list(script)
        self.name = name
        self.requests: list[InferenceRequest] = []
        """The requests that the model has received, in order."""

    def add(self, *lines: Line) -> None:
        """Append lines to the script of the model."""
        self._script.extend(lines)

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferencePiece]:
        """Answer with the next line of the script."""
        self.requests.append(request)
        line = self._script.pop(0) if self._script else InferenceResult.text("done")
        if isinstance(line, InferenceResult):
            text = "".join(block.text for block in line.content if block.type == "text")
            if text:
                yield InferenceTextDelta(delta=text)
            for call in line.tool_calls:
                yield InferenceToolCallStart(id=call.id, name=call.name)
            yield InferenceStop(result=line)
            return
        for piece in [line] if isinstance(line, Exception) else line:
            if isinstance(piece, Exception):
                raise piece
            yield piece
