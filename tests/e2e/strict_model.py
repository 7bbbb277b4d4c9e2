"""An endpoint that enforces its window and the order of turns, as real ones do.

It counts the tokens that it is sent and refuses larger requests. Like the templates of Gemma and Mistral it refuses a
conversation in which user and assistant do not take turns.

It remembers nothing: it answers a question by what it is shown, and sums up by keeping the facts. A token is four bytes of
text.
"""

import asyncio
import json
import re
from typing import Any

from runtime.endpoint import END, FakeEndpoint, chunk, refusal

FACT = re.compile(r"FACT: [^.\n]+\.")
REFUSED = "POISON"
EMPTY = "HUSH"
"""It answers this with nothing."""


def tokens_of(messages: list[dict[str, Any]]) -> int:
    return sum(
        len(json.dumps(one.get("content") or "", ensure_ascii=False).encode()) // 4 + 4 for one in messages
    )


class StrictModel(FakeEndpoint):
    """Answers like a model that reads all it is shown; sums up when its system message asks for a summary."""

    def __init__(self, window: int = 8_000) -> None:
        super().__init__()
        self.window = window
        self.refused = 0
        self.wrong_turns = 0
        """How often it was sent turns that do not alternate."""
        self.summaries = 0
        self.largest = 0
        self.status = 0
        """With it every request is answered by that status."""
        self.rambles = False
        """Whether summaries are longer than what they sum up."""
        self.summing_up: Any = None
        """Called when a summary is requested, before it is answered."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        try:
            if (answer := self._refusal(body)) is not None:
                writer.write(answer)
            else:
                await self._stream(reader, writer, await self._answer(body))
            await writer.drain()
        except ConnectionError:
            pass  # whoever asked was killed
        writer.close()

    def _refusal(self, body: Any) -> bytes | None:
        count = tokens_of(body["messages"])
        self.largest = max(self.largest, count)
        if self.status:
            return refusal(self.status, {"error": {"message": "Incorrect API key provided.", "type": "x"}})
        if any(REFUSED in json.dumps(one) for one in body["messages"]):
            return refusal(400, {"error": {"message": "Invalid content.", "type": "invalid_request_error"}})
        if count <= self.window:
            return self._wrong_turns(body)
        self.refused += 1
        said = (
            f"This model's maximum context length is {self.window} tokens. However, your messages resulted in "
            f"{count} tokens. Please reduce the length of the messages."
        )
        error = {"message": said, "type": "invalid_request_error", "param": "messages"}
        return refusal(400, {"error": {**error, "code": "context_length_exceeded"}})

    def _wrong_turns(self, body: Any) -> bytes | None:
        roles = [one["role"] for one in body["messages"] if one["role"] in ("user", "assistant")]
        if roles == (["user", "assistant"] * len(roles))[: len(roles)]:
            return None
        self.wrong_turns += 1
        said = "Conversation roles must alternate user/assistant/user/assistant/..."
        return refusal(400, {"object": "error", "message": said, "type": "BadRequestError", "code": 400})

    async def _answer(self, body: Any) -> list[str]:
        messages = body["messages"]
        told = [one["content"] or "" for one in messages]
        text = told[-1]
        facts = list(dict.fromkeys(FACT.findall("\n".join(told))))
        if messages[0]["role"] == "system" and "summary" in messages[0]["content"]:
            self.summaries += 1
            if self.summing_up is not None:
                await self.summing_up()
            said = " ".join(facts) or "Nothing much."
            said = said * 10_000 if self.rambles else said
        elif "which facts" in text:
            said = "I know: " + " ".join(facts)
        else:
            newest = text.rpartition("\n\n")[2]
            said = "" if EMPTY in newest else f"re: {newest[:40]}"
        usage = {"prompt_tokens": tokens_of(messages), "completion_tokens": len(said) // 4, "total_tokens": 0}
        return [
            chunk(content=said),
            chunk("stop"),
            f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n",
            END,
        ]
