"""Accesses an endpoint through the OpenAI SDK; only this module imports the SDK and its HTTP client.

The SDK handles the connection, the request headers and the server-sent events. This module adds four
guarantees. The SDK's retries do not multiply postroom's. An endless line cannot fill the memory. Environment
variables cannot add a key. Every failure becomes a postroom error whose text does not contain the key.
"""

import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from postroom.contracts.errors import (
    ConfigError,
    ContentFiltered,
    ContextOverflow,
    InferenceError,
    InferenceTimeout,
    ModelNotFound,
    NoModelEndpoint,
    Overloaded,
    ProviderFailed,
    RateLimited,
    RequestRefused,
    StreamInterrupted,
    Unauthorized,
)
from postroom.contracts.retrying import retry_after_ms
from postroom.runtime.openai import sdk_missing

MAX_EXCERPT_LENGTH = 500

_BY_CODE: dict[str, type[InferenceError]] = {
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "string_above_max_length": ContextOverflow,
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
    "model_not_found": ModelNotFound,
    "invalid_api_key": Unauthorized,
    "insufficient_quota": Unauthorized,
    "billing_hard_limit_reached": Unauthorized,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "overloaded_error": Overloaded,
    "server_error": ProviderFailed,
}
_TOO_LARGE = 413
_BY_STATUS: dict[int, type[InferenceError]] = {
    400: RequestRefused,
    401: Unauthorized,
    402: Unauthorized,
    403: Unauthorized,
    404: ModelNotFound,
    408: InferenceTimeout,
    409: ProviderFailed,
    _TOO_LARGE: ContextOverflow,
    415: RequestRefused,
    422: RequestRefused,
    425: ProviderFailed,
    429: RateLimited,
    503: Overloaded,
    504: InferenceTimeout,
    529: Overloaded,
}


_TOO_LONG = re.compile(
    r"context ?(?:length|window|size)|(?:prompt|input|request) (?:is )?too (?:long|large)"
    r"|too many (?:input )?tokens|maximum number of (?:input )?tokens|max_new_tokens"
    r"|range of input length should be",
    re.IGNORECASE,
)
"""Phrases by which endpoints report, without a code, that a conversation is too long."""
_WINDOW = re.compile(
    r"context length (?:is|of) (?:only )?(\d+)|> (\d+) maximum|n_ctx\D{1,4}(\d+)"
    r"|tokens allowed \((\d+)\)|must be <= (\d+)|input length should be \[\d+, ?(\d+)\]",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"(?:resulted in|requested|too long:|given:|token count) (?:about )?\(?(\d+)", re.IGNORECASE
)


def build_error(
    status: int, headers: Mapping[str, str], said: object, *, now: int, endpoint: str = "the model's endpoint"
) -> InferenceError:
    """Return the error for a response that rejects a request.

    An error code in the body takes precedence over the HTTP status.
    """
    error = _error(said)
    kind = _kind_by_code(error) or _BY_STATUS.get(status, ProviderFailed)
    is_unclear = kind in (RequestRefused, ProviderFailed) or status == _TOO_LARGE
    if is_unclear and _TOO_LONG.search(_text(error)):
        kind = ContextOverflow
    return kind(
        f"{endpoint} answered {status}: {_text(error)}",
        value=status,
        retry_after_ms=retry_after_ms(headers, now=now),
        details=_read_token_counts(error) if kind is ContextOverflow else None,
    )


def _read_token_counts(error: dict[str, Any]) -> dict[str, int]:
    fields = {"window": _WINDOW.search(_text(error)), "asked": _ASKED.search(_text(error))}
    by_name = {name: int(next(filter(None, match.groups()))) for name, match in fields.items() if match}
    own = {"window": error.get("n_ctx"), "asked": error.get("n_prompt_tokens")}
    return by_name | {name: count for name, count in own.items() if isinstance(count, int)}


def failure_in_stream(said: object) -> InferenceError:
    """Return the error for a failure that the endpoint reports in the middle of an answer."""
    error = _error(said)
    code = error.get("code")
    kind = _kind_by_code(error) or (_BY_STATUS.get(code) if isinstance(code, int) else None)
    if kind in (None, RequestRefused, ProviderFailed) and _TOO_LONG.search(_text(error)):
        kind = ContextOverflow
    details = _read_token_counts(error) if kind is ContextOverflow else None
    text = f"the model's endpoint closed the connection: {_text(error)}"
    return (kind or ProviderFailed)(text, value=code, details=details)


def _error(said: object) -> dict[str, Any]:
    if isinstance(said, list) and said:  # Gemini wraps its error in a list
        said = said[0]
    if isinstance(said, dict) and isinstance(said.get("error"), dict | str):
        said = said["error"]
    return said if isinstance(said, dict) else {"message": said}


def _text(error: dict[str, Any]) -> str:
    return str(error.get("message") or "")[:MAX_EXCERPT_LENGTH] or "no reason given"


def _kind_by_code(error: dict[str, Any]) -> type[InferenceError] | None:
    named = (_BY_CODE.get(code) for code in (error.get("code"), error.get("type")) if isinstance(code, str))
    return next((kind for kind in named if kind), None)


try:
    import httpx2
    import openai
    from openai.types.chat import ChatCompletionChunk
except ImportError as error:
    raise sdk_missing(error.name) from error

_DONE = re.compile(rb"[\r\n]data: ?\[DONE\]")
_MAX_DONE_LENGTH = 13
"""Length in bytes of the longest possible match, minus one."""
LARGEST_LINE = 8 * 1024 * 1024
LARGEST_REFUSAL = 64 * 1024
CONNECT_SECONDS = 10.0


class Endpoint:
    """The connections to one model endpoint; errors never contain the endpoint's key."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        silence_ms: int,
        proxy: str | None = None,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        try:
            url = httpx2.URL(base_url.rstrip("/"))
        except httpx2.InvalidURL as error:
            raise ConfigError(f"{base_url!r} is not a valid endpoint URL", value=base_url) from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(f"{base_url!r} is not a valid endpoint URL", value=base_url)
        self._url = url
        self._key = api_key or ""
        self._client = openai.AsyncOpenAI(
            base_url=self._url,
            api_key=self._key or "none",
            admin_api_key="",  # an empty string keeps the SDK from reading the environment
            max_retries=0,
            http_client=httpx2.AsyncClient(
                timeout=httpx2.Timeout(silence_ms / 1000, connect=CONNECT_SECONDS),
                # No compression, because limits apply to the bytes as they are read.
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [_bound]},
                proxy=proxy,
                verify=verify,
                trust_env=False,
            ),
        )
        left_out = ["OpenAI-Organization", "OpenAI-Project", *([] if self._key else ["Authorization"])]
        self._headers = dict.fromkeys(left_out, openai.omit)

    def __repr__(self) -> str:
        return f"Endpoint({str(self._url)!r})"

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._client.close()

    @asynccontextmanager
    async def chunks(
        self, body: dict[str, Any], *, now: int
    ) -> AsyncIterator[tuple[AsyncIterator[ChatCompletionChunk], Callable[[], bool]]]:
        """Send a request to the endpoint.

        Yield the chunks of the answer, and a function that returns whether `[DONE]` has arrived.

        A complete chat completion is converted to a single chunk.

        Raises:
            NoModelEndpoint: The endpoint sent a web page, or JSON that is not a chat completion.
            InferenceError: The endpoint rejected the request, could not be reached, or ended the stream
                early.
        """
        begun = False
        try:
            stream: openai.AsyncStream[ChatCompletionChunk]
            stream = await self._client.chat.completions.create(**body, extra_headers=self._headers)
            async with stream:
                events, kind = stream.response.stream, stream.response.headers.get("content-type", "")
                begun = True
                if kind.startswith(("application/json", "text/html")):
                    yield _completion(await stream.response.aread(), kind), lambda: False
                else:
                    yield aiter(stream), lambda: isinstance(events, _Events) and events.is_done
        except openai.APITimeoutError as error:
            raise InferenceTimeout("the model's endpoint did not answer in time") from error
        except openai.APIConnectionError as error:
            if begun:
                raise StreamInterrupted("the connection was lost before the response was complete") from error
            cause = self._hidden(error.__cause__ or error)
            raise ProviderFailed(f"the model's endpoint cannot be reached: {cause}") from error
        except openai.APIStatusError as error:
            raise self._hide_key(
                build_error(error.status_code, error.response.headers, error.body, now=now)
            ) from None
        except openai.APIError as error:
            raise self._hide_key(failure_in_stream(error.body)) from None
        except InferenceError as error:
            raise self._hide_key(error) from None
        except (ValueError, RecursionError) as error:
            raise ProviderFailed("the model's endpoint returned invalid JSON") from error

    async def transcribe(self, sound: bytes, *, name: str, media_type: str, model: str, now: int) -> str:
        """Return the transcript of a sound file; a temporary failure is retried twice.

        Raises:
            InferenceError: The endpoint rejected the request, could not be reached, or sent an invalid
                answer.
        """
        with self._failures("the transcription endpoint", now=now):
            transcription = await self._client.with_options(max_retries=2).audio.transcriptions.create(
                model=model, file=(name, sound, media_type), extra_headers=self._headers
            )
        text = getattr(transcription, "text", None)
        if not isinstance(text, str):
            raise ProviderFailed("the transcription endpoint did not return a valid response")
        return text

    async def speak(
        self, text: str, *, model: str, voice: str, sound_format: str, now: int
    ) -> AsyncGenerator[bytes]:
        """Yield the spoken text as pieces of audio; a temporary failure is retried twice.

        Raises:
            InferenceError: The endpoint rejected the request, could not be reached, or ended the stream
                early.
        """
        create = self._client.with_options(max_retries=2).audio.speech.with_streaming_response.create
        format_: Any = sound_format
        with self._failures("the speech endpoint", now=now):
            async with create(
                input=text, model=model, voice=voice, response_format=format_, extra_headers=self._headers
            ) as answer:
                async for piece in answer.iter_bytes():
                    yield piece

    @contextmanager
    def _failures(self, endpoint: str, *, now: int) -> Iterator[None]:
        try:
            yield
        except (openai.APITimeoutError, httpx2.TimeoutException) as error:
            raise InferenceTimeout(f"{endpoint} did not answer in time") from error
        except openai.APIConnectionError as error:
            cause = self._hidden(error.__cause__ or error)
            raise ProviderFailed(f"{endpoint} cannot be reached: {cause}") from error
        except openai.APIStatusError as error:
            headers = error.response.headers
            raise self._hide_key(
                build_error(error.status_code, headers, error.body, now=now, endpoint=endpoint)
            ) from None
        except httpx2.RequestError as error:
            raise ProviderFailed(f"{endpoint} closed the connection: {self._hidden(error)}") from error
        except (openai.APIError, ValueError, RecursionError) as error:
            raise ProviderFailed(f"{endpoint} did not return a valid response") from error

    def _hide_key(self, failure: InferenceError) -> InferenceError:
        failure.message = self._hidden(failure.message)
        failure.args = (failure.message,)
        return failure

    def _hidden(self, text: object) -> str:
        return str(text).replace(self._key, "***") if self._key else str(text)


async def _completion(body: bytes, kind: str) -> AsyncIterator[ChatCompletionChunk]:
    """Yield a complete chat completion as the only chunk of a stream.

    Raises:
        InferenceError: The body contains an error of the provider, or is not a chat completion.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    document = document if isinstance(document, dict) else {}
    if isinstance(document.get("error"), dict):
        raise failure_in_stream(document)
    match document.get("choices"):
        case [{"message": {} as message} as choice, *_]:
            ended = choice.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop")
            whole = {"index": 0, "delta": message, "finish_reason": ended}
            yield ChatCompletionChunk.construct(**{**document, "choices": [whole]})
            return
    text = body.decode(errors="replace")[:MAX_EXCERPT_LENGTH]
    sent = "with a web page" if kind.startswith("text/html") else "without a stream or a chat completion"
    raise NoModelEndpoint(f"the model's endpoint answered 200 {sent}; check base_url: {text}")


async def _bound(response: httpx2.Response) -> None:
    is_sound = response.request.url.path.endswith("/audio/speech") and response.is_success
    if isinstance(response.stream, httpx2.AsyncByteStream) and not is_sound:
        # the reader of the sound limits its length
        kind = _Events if response.status_code == httpx2.codes.OK else _Refusal
        response.stream = kind(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream
        self._pieces = aiter(stream)

    async def aclose(self) -> None:
        if isinstance(self._pieces, AsyncGenerator):
            await self._pieces.aclose()
        await self._stream.aclose()


class _Events(_Bounded):
    is_done = False
    """Whether `[DONE]` has arrived, which the SDK does not report."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length, before = 0, b"\n"
        async for piece in self._pieces:
            self.is_done = self.is_done or _DONE.search(before + piece) is not None
            before = (before + piece)[-_MAX_DONE_LENGTH:]
            end = piece.rfind(b"\n")
            length = len(piece) - end - 1 if end >= 0 else length + len(piece)
            if length > LARGEST_LINE:
                raise ProviderFailed("the model's endpoint sent an event that is too large")
            yield piece
        yield b"\n\n"


class _Refusal(_Bounded):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for piece in self._pieces:
            yield piece[: LARGEST_REFUSAL - length]
            length += len(piece)
            if length >= LARGEST_REFUSAL:
                return
