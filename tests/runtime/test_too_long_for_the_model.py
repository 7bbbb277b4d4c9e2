"""Sixteen ways in which endpoints report that a conversation is too long: each conversation continues."""

import asyncio
import json
from typing import Any

from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.runtime import OpenAICompatibleModel
from runtime.endpoint import CUT, FakeEndpoint, chunk, refusal
from runtime.room import Room, bounded
from table_rows import each_row

LONGEST = 6_000
"""The bytes of messages that the endpoint takes."""
OPENAI = "This model's maximum context length is 1500 tokens. However, your messages resulted in 9000 tokens."
OPENROUTER = (
    "This endpoint's maximum context length is 1500 tokens. However, you requested about 9000 tokens (9000 of "
    'text input). Please reduce the length of either one, or use the "middle-out" transform.'
)
VLLM = (
    "This model's maximum context length is 1500 tokens. However, you requested 9000 tokens in the messages"
)
VLLM_OUTPUT = (
    "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 1500 "
    "tokens and your request has 7000 input tokens"
)
LM_STUDIO = (
    "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with "
    "context length of only 1500 tokens, which is not enough."
)
GROQ = (
    "Request too large for model `x` in organization `org_secret` on tokens per minute (TPM): Limit 6000, "
    "Requested 9000, please reduce your message size and try again."
)
LITELLM = "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - too long"
TGI = (
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 1500. Given: 9000 `inputs` tokens"
)
QWEN = "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 1500]"
LLAMA = "the request exceeds the available context size, try increasing it"


def said(message: str, **more: Any) -> Any:
    return {"error": {"message": message, **more}}


class Strict:
    """Answers for an endpoint that refuses requests over its bound, and takes all others."""

    def __init__(self, endpoint: FakeEndpoint, status: int, body: Any) -> None:
        self._endpoint, self._status, self._body = endpoint, status, body
        self.refused = 0

    def pop(self, _: int) -> Any:
        asked = self._endpoint.bodies[-1]["messages"]
        if sum(len(json.dumps(one)) for one in asked) > LONGEST:
            self.refused += 1
            return refusal(self._status, self._body)
        is_summary = any("summary" in str(one["content"]) for one in asked if one["role"] == "system")
        return [chunk("stop", content="a summary" if is_summary else "the answer"), CUT]


@each_row("status, body", [
        (400, said(OPENAI, type="invalid_request_error", code="context_length_exceeded")),
        (400, {"type": "error", **said("prompt is too long: 9000 tokens > 1500 maximum", type="invalid_request_error")}),
        (400, said("prompt is too long: 9000 tokens > 1500 maximum", code="invalid_request_error", param=None)),
        (400, {"object": "error", "message": VLLM, "type": "BadRequestError", "param": None, "code": 400}),
        (400, said(VLLM_OUTPUT, type="BadRequestError", param="max_tokens", code=400)),
        (500, said("input length exceeds maximum context length", type="api_error", code=None)),
        (400, {"error": "prompt too long; exceeded max context length by 120 tokens"}),
        (400, said(LLAMA, code=400, type="exceed_context_size_error", n_prompt_tokens=9000, n_ctx=1500)),
        (500, said(LLAMA, code=500, type="server_error")),
        (400, {"error": LM_STUDIO}),
        (400, [said("The input token count (9000) exceeds the maximum number of tokens allowed (1500).", code=400, status="INVALID_ARGUMENT")]),
        (400, said(LITELLM, type=None, param=None, code="400")),
        (400, said(OPENROUTER, code=400)),
        (422, {"error": TGI, "error_type": "validation"}),
        (413, said(GROQ, type="tokens", code="rate_limit_exceeded")),
        (400, said(QWEN, type="invalid_request_error", code="invalid_parameter_error")),
        (400, said("the wording of tomorrow")),
    ])  # fmt: skip
async def test_a_conversation_that_is_too_long_goes_on(status: int, body: Any) -> None:
    async with FakeEndpoint().serving() as endpoint:
        endpoint.answers = strict = Strict(endpoint, status, body)  # type: ignore[assignment]
        model = await asyncio.to_thread(OpenAICompatibleModel, endpoint.url, "key")
        room = Room()
        room.agent = replace(room.agent, model=model)
        room.runtime = room.another_runtime()
        told = [f"message {number} " + "boats " * 40 for number in range(60)]
        messages = [Message.assistant(one) if n % 2 else Message.user(one) for n, one in enumerate(told)]
        named = tuple(one.with_id(f"m{number}") for number, one in enumerate(messages))
        await room.stores.coordinator.commit(
            ThreadCommit(thread_id=room.thread_id, messages=named, expected_message_count=0)
        )
        try:
            result = await bounded(room.runtime.run(await room.prepared("now"), room.sink))
        finally:
            await model.close()
        assert result.response.startswith("the answer")  # a note may follow about messages that are left out
        assert 0 < strict.refused < 12
        assert endpoint.bodies[-1]["messages"][-1]["content"] == "now"
