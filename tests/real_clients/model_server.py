"""A scripted model on loopback, in four wire formats; it keeps every request.

A script is a function of the request. It runs on a separate thread, so it may wait for acts of a test.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from machine import Bound
from real_clients import wires
from real_clients.asked import Asked, Say, Script, steps_of

PATIENCE = 60.0
AGAIN_AFTER = 5.0
"""Seconds."""
MODELS = ("claude-sonnet-4-5", "gpt-5.1-codex", "gemini-2.5-pro")


class ModelServer:
    """The scripted model; `script` may be replaced at any time."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or (lambda _asked: Say("Nothing is scripted."))
        self.asked: list[Asked] = []
        """Every request to the model, asides included, in the order of arrival."""
        self.failures: list[str] = []
        """Unknown requests, and errors of a script."""
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def conversation(self) -> list[Asked]:
        """The requests that offer tools: what the agent asked, without what its client asked for itself."""
        return [asked for asked in self.asked if not asked.is_aside]

    def wait_for(
        self,
        found: Callable[[Asked], bool],
        *,
        patience: float = PATIENCE,
        again: Callable[[], None] = lambda: None,
    ) -> Asked:
        """Return the first request that is so, when it has come; fail after a bound.

        Until then, `again` is called every few seconds.
        """
        bound, called = Bound(patience), time.monotonic()
        with self._news:
            while True:
                for asked in self.asked:
                    if found(asked):
                        return asked
                if bound.has_passed():
                    raise AssertionError(f"no such request in {patience} s of work; {self.story()}")
                self._news.wait(bound.wait())
                if time.monotonic() - called > AGAIN_AFTER:
                    again()
                    called = time.monotonic()

    def story(self) -> str:
        """Return the requests, in short, for the message of a failure."""
        rows = [
            f"{number}. {asked.wire} {asked.model}{' (aside)' if asked.is_aside else ''}: {asked.new_text[-600:]!r}"
            for number, asked in enumerate(self.asked, 1)
        ]
        return "\n".join(["the model was asked:", *(rows or ["nothing"]), *self.failures])

    def reply(self, asked: Asked) -> list[Any]:
        """Keep a request and return the script's steps."""
        with self._news:
            self.asked.append(asked)
            self._news.notify_all()
        if asked.is_aside:
            return [Say(_aside(asked))]
        try:
            return steps_of(self.script(asked))
        except Exception as error:  # a failing script must reach the test and end the client's turn
            self.failures.append(f"the script failed: {error!r}")
            return [Say(f"The script failed: {error!r}")]


def _aside(asked: Asked) -> str:
    """Return what pleases a client that asks for itself: a document of the form that it wants, or a word."""
    wanted = asked.body.get("generationConfig", {})
    schema = wanted.get("responseJsonSchema") or wanted.get("responseSchema")
    return json.dumps(_example(schema)) if schema else "Aside"


def _example(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][-1]
    match str(schema.get("type", "")).lower():
        case "object":
            return {name: _example(part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return []
        case "boolean":
            return False
        case "number" | "integer":
            return 1
        case _:
            return "aside"


def _handler(model: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Do not log: the requests are kept."""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionResetError):  # the client was killed between two requests
                super().handle()

        def do_GET(self) -> None:
            if urlsplit(self.path).path.endswith("/models"):
                data = [{"id": one, "object": "model", "display_name": one} for one in MODELS]
                self._document({"object": "list", "data": data, "models": []})
            else:
                self._unknown()

        def do_HEAD(self) -> None:
            self._document({})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            path = urlsplit(self.path).path
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                self._answer(path, json.loads(raw or b"{}"), headers)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client was ended while the model thought

        def _answer(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
            method = path.rpartition(":")[2]
            if path.endswith("/count_tokens"):
                self._document({"input_tokens": wires.USED})
            elif method == "countTokens":
                self._document({"totalTokens": wires.USED})
            elif path.endswith("/messages"):
                asked = wires.read_anthropic(body, headers)
                self._events(asked, wires.write_anthropic(asked, model.reply(asked)), is_typed=True)
            elif path.endswith("/responses"):
                asked = wires.read_responses(body, headers)
                self._events(asked, wires.write_responses(asked, model.reply(asked)), is_typed=True)
            elif path.endswith("/chat/completions"):
                asked = wires.read_chat(body, headers)
                self._events(asked, wires.write_chat(asked, model.reply(asked)), end="[DONE]")
            elif method in ("generateContent", "streamGenerateContent"):
                name = path.rpartition("/")[2].partition(":")[0]
                asked = wires.read_gemini(body, headers, name, method == "streamGenerateContent")
                self._events(asked, wires.write_gemini(asked, model.reply(asked)))
            else:
                self._unknown()

        def _events(
            self,
            asked: Asked,
            events: Iterator[tuple[str, Any]],
            *,
            is_typed: bool = False,
            end: str = "",
        ) -> None:
            if not asked.is_stream:
                return self._document(next(events)[1])
            rows = []
            for number, (kind, data) in enumerate(events):
                document = {"type": kind, **data, "sequence_number": number} if is_typed else data
                rows.append(f"event: {kind}\n" if kind else "")
                rows.append(f"data: {json.dumps(document)}\n\n")
            if end:
                rows.append(f"data: {end}\n\n")
            return self._send(200, "text/event-stream", "".join(rows).encode())

        def _document(self, document: Any) -> None:
            self._send(200, "application/json", json.dumps(document).encode())

        def _unknown(self) -> None:
            model.failures.append(f"not known here: {self.command} {self.path}")
            self._send(404, "application/json", b'{"error": {"message": "not known here"}}')

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
