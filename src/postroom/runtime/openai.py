"""A model, a transcriber and a speaker that use an endpoint with the OpenAI protocol."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from postroom.contracts.clock import Clock, SystemClock
from postroom.contracts.errors import InferenceTimeout, MissingExtra, StreamInterrupted
from postroom.contracts.files import ChatFile
from postroom.contracts.inference import InferencePiece, InferenceRequest, InferenceStop
from postroom.extras import install_command
from postroom.runtime.openai_wire import Assembly, may_lack_opening_tag, request_body


def check_sdk() -> None:
    """Check that the OpenAI SDK is installed, without loading the SDK.

    Raises:
        MissingExtra: The SDK is not installed.
    """
    if find_spec("openai") is None:
        raise sdk_missing("openai")


def sdk_missing(module: str | None) -> MissingExtra:
    """Return the error for a module of the SDK that is not installed."""
    return MissingExtra(
        f"the OpenAI-compatible model requires {module}, which is not installed",
        value=module,
        remedy=install_command("openai"),
    )


class OpenAICompatibleModel:
    """A model at an OpenAI-compatible endpoint.

    Create the object outside the event loop, and close the object after use. The model never repeats a
    request; the caller decides about retries. `silence_ms` is the maximum time between two pieces of the
    endpoint's output. `token_limit_field` is the name of the request field that limits the tokens of the
    answer.

    Raises:
        MissingExtra: The SDK is not installed.
        ConfigError: `base_url` is not a valid address.
    """

    def __init__(  # noqa: PLR0913 - the options of an endpoint, by name
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        name: str = "openai",
        silence_ms: int = 120_000,
        token_limit_field: str = "max_tokens",  # noqa: S107 - tokens of text, not secrets
        proxy: str | None = None,
        verify: ssl.SSLContext | bool = True,
        clock: Clock | None = None,
    ) -> None:
        from postroom.runtime.openai_endpoint import Endpoint  # an extra, and slow to import

        self.name = name
        self._endpoint = Endpoint(base_url, api_key, silence_ms=silence_ms, proxy=proxy, verify=verify)
        self._token_limit_field = token_limit_field
        self._clock = clock or SystemClock()
        self._lacks_opening_tag: dict[str, bool] = {}
        """For each model, whether its reasoning has been seen to contain `</think>` but no `<think>`."""

    def __repr__(self) -> str:
        return f"OpenAICompatibleModel({self.name!r}, {self._endpoint!r})"

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferencePiece]:
        """Yield the answer in pieces; the last piece is the complete answer.

        Raises:
            InferenceError: The call failed; StreamInterrupted means that the stream ended before the answer
                was complete.
        """
        body = request_body(request, token_limit_field=self._token_limit_field)
        model = str(body["model"])
        answer = Assembly(holds_beginning=self._lacks_opening_tag.get(model, may_lack_opening_tag(model)))
        try:
            async with self._endpoint.chunks(body, now=self._clock.now()) as (chunks, is_done):
                try:
                    async for chunk in chunks:
                        for piece in answer.add(chunk):
                            yield piece
                finally:
                    if is_done():
                        answer.end()
        except (StreamInterrupted, InferenceTimeout):
            if not answer.finished:
                raise
        result = answer.result()
        if answer.lacks_opening_tag:
            self._lacks_opening_tag[model] = True
        else:
            self._lacks_opening_tag.setdefault(model, False)
        yield InferenceStop(result=result)

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._endpoint.close()


class OpenAITranscriber:
    """Transcribes speech through an OpenAI-compatible endpoint.

    Create the object outside the event loop, and close the object after use.

    Raises:
        MissingExtra: The SDK is not installed.
        ConfigError: `base_url` is not a valid address.
    """

    def __init__(
        self, base_url: str, api_key: str | None, *, model: str, silence_ms: int, clock: Clock
    ) -> None:
        from postroom.runtime.openai_endpoint import Endpoint  # an extra, and slow to import

        self._endpoint = Endpoint(base_url, api_key, silence_ms=silence_ms)
        self._model = model
        self._clock = clock

    async def transcribe(self, path: Path, file: ChatFile) -> str:
        """Return the transcript of a sound file.

        Raises:
            InferenceError: The call failed.
        """
        sound = await asyncio.to_thread(path.read_bytes)
        now = self._clock.now()
        return await self._endpoint.transcribe(
            sound, name=file.name, media_type=file.media_type, model=self._model, now=now
        )

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._endpoint.close()


class OpenAISpeaker:
    """Converts text to speech through an OpenAI-compatible endpoint.

    Create the object outside the event loop, and close the object after use.

    Raises:
        MissingExtra: The SDK is not installed.
        ConfigError: `base_url` is not a valid address.
    """

    def __init__(
        self, base_url: str, api_key: str | None, *, model: str, voice: str, silence_ms: int, clock: Clock
    ) -> None:
        from postroom.runtime.openai_endpoint import Endpoint  # an extra, and slow to import

        self._endpoint = Endpoint(base_url, api_key, silence_ms=silence_ms)
        self._model, self._voice = model, voice
        self._clock = clock

    def speak(self, text: str, sound_format: str) -> AsyncGenerator[bytes]:
        """Yield the spoken text as pieces of audio, in a format such as `mp3`.

        Raises:
            InferenceError: The endpoint rejected the request, could not be reached, or ended the stream
                early.
        """
        return self._endpoint.speak(
            text, model=self._model, voice=self._voice, sound_format=sound_format, now=self._clock.now()
        )

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self._endpoint.close()
