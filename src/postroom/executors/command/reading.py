"""Reads the output of one execution in limited memory, with the `reader` of the client."""

import codecs
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from postroom.contracts.messages import storable
from postroom.executors.clients.client import CodingClient, Said, Shape
from postroom.executors.processes.output import MIN_LINE_BYTES, Lines, Tail

_MAX_TRIES: Final = 20
_MAX_NAMES_SHOWN: Final = 80


class Reading:
    """Reads the output of one execution of a program."""

    def __init__(self, client: CodingClient, *, most: int) -> None:
        self._client = client
        self._most = most
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = Lines(most)
        self.raw = Tail(most if client.shape is not Shape.WHOLE else max(most, MIN_LINE_BYTES))
        self._text = Tail(most)
        self.said = Said()
        self.heard: Callable[[Mapping[str, Any]], None] | None = None
        """A further function that is called with each line that is a JSON object."""
        self._unknown: dict[str, None] = {}

    def take(self, chunk: bytes) -> str:
        """Read a piece of output, and return the text to stream."""
        self.raw.add(chunk)
        if self._client.shape is Shape.TEXT:
            return self._decoder.decode(chunk)
        if self._client.shape is Shape.WHOLE:
            return ""
        return "".join(self._read(line) for line in self._lines.add(chunk))

    def end(self) -> str:
        """Read the end of the output, and return the remaining text to stream."""
        if self._client.shape is Shape.TEXT:
            return self._decoder.decode(b"", final=True)
        if self._client.shape is Shape.LINES:
            return "".join(self._read(line) for line in self._lines.end())
        # The JSON object of the answer may follow other lines.
        output = self.raw.bytes()
        end = output.rfind(b"}") + 1
        begins = islice(re.finditer(rb"^\{", output, re.MULTILINE), _MAX_TRIES)
        return next((text for at in begins if (text := self._read(output[at.start() : end]))), "")

    def answer(self) -> str:
        """Return the program's answer, or the program's whole text if no answer was found."""
        if self.said.answer is not None:
            tail = Tail(self._most)
            tail.add(storable(self.said.answer).encode())
            return tail.text()
        if self._text.total or self.said.is_ended:
            return self._text.text()
        return self.raw.text()

    def list_unknown_types(self) -> str | None:
        """Return the types of all output lines, or None if at least one type is known."""
        is_known = self.said.is_begun or self.said.is_ended or self.said.error or self.said.answer
        return None if is_known or not self._unknown else ", ".join(f"`{kind}`" for kind in self._unknown)

    def _read(self, line: bytes) -> str:
        stripped = line.strip()
        if self._client.reader is None or not stripped.startswith(b"{"):
            return ""
        try:
            fields = json.loads(stripped.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return ""
        before = replace(self.said)
        if self.heard is not None:
            self.heard(fields)
        text = self._client.reader(self.said, fields)
        is_reply = self.heard is not None and "id" in fields
        if fields and not text and not is_reply and self.said == before and len(self._unknown) < _MAX_TRIES:
            self._unknown[str(fields.get("type", ", ".join(map(str, fields))))[:_MAX_NAMES_SHOWN]] = None
        self._text.add(storable(text).encode())
        return text


def refuses_session(client: CodingClient, reading: Reading, words: str) -> bool:
    """Return whether a program failed because it did not know the session to resume."""
    text = f"{words}\n{reading.said.error or ''}".lower()
    return not reading.said.is_begun and any(refusal in text for refusal in client.refusals)
