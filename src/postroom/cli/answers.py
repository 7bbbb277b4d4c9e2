"""Reads what the server answered: event streams, tool results, and failures back into typed errors."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from postroom.cli.wire import LARGEST_ANSWER, Reply
from postroom.contracts import errors

_BY_CODE: Final = {kind.code: kind for kind in errors.all_errors()}

_BY_STATUS: Final[dict[int, type[errors.PostroomError]]] = {
    400: errors.InvalidArgument,
    401: errors.WrongToken,
    403: errors.NotPermitted,
    409: errors.StateError,
    413: errors.TooLarge,
    422: errors.InvalidArgument,
    429: errors.ServerUnavailable,
    502: errors.ServerUnavailable,
    503: errors.ServerUnavailable,
    504: errors.ServerUnavailable,
}
"""For answers that carry no error of ours: another program's page, or a proxy's."""


def events(read: Callable[[int], bytes]) -> Iterator[str]:
    """Yield the data of each event of a `text/event-stream` as it arrives, and pass over all else.

    Raises:
        TooLarge: one event is over `LARGEST_ANSWER`.
    """
    data: list[bytes] = []
    for line in _lines(read):
        if not line:
            if data:
                yield b"\n".join(data).decode("utf-8", "replace")
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    pending = bytearray()
    while chunk := read(65_536):
        pending += chunk
        if b"\n" in chunk:
            *whole, rest = pending.split(b"\n")
            yield from (bytes(line).removesuffix(b"\r") for line in whole)
            pending = rest
        if len(pending) > LARGEST_ANSWER:
            raise errors.TooLarge(f"one event of the stream is over {LARGEST_ANSWER} bytes")


def rebuilt(document: Mapping[str, object]) -> errors.PostroomError:
    """Return the failure a document describes, as the class that its code belongs to."""
    code = str(document.get("code", ""))
    details = document.get("details")
    known = dict(details) if isinstance(details, Mapping) else {}
    kind = _BY_CODE.get(code)
    if kind is None:  # a newer server's, or one of the HTTP edge alone
        kind, known = errors.PostroomError, {**known, "code": code}
    if request_id := document.get("request_id"):
        known["request_id"] = request_id
    remedy = document.get("remedy")
    return kind(
        str(document.get("message") or document.get("detail") or code),
        value=document.get("value"),
        remedy=str(remedy) if remedy else None,
        details=known,
    )


def refused(reply: Reply) -> errors.PostroomError:
    """Return the failure that an answer outside 200 to 299 stands for."""
    found = reply.json()
    if isinstance(found, Mapping):
        inner = found.get("error")
        document = inner if isinstance(inner, Mapping) else found
        if isinstance(document.get("code"), str):
            return rebuilt(document)
        if isinstance(inner, Mapping):
            return protocol_failure(inner)
    kind = _BY_STATUS.get(reply.status, errors.PostroomError)
    return kind(
        f"the server answered with HTTP status {reply.status}",
        value=reply.status,
        remedy="see that the address is a postroom server's: `postroom status`",
    )


def protocol_failure(error: Mapping[str, object]) -> errors.PostroomError:
    """Return the failure that a JSON-RPC error stands for."""
    data = error.get("data")
    if isinstance(data, Mapping):
        inner = data.get("error")
        document = inner if isinstance(inner, Mapping) else data
        if isinstance(document.get("code"), str):
            return rebuilt(document)
    return errors.PostroomError(
        f"the server refused the call: {error.get('message')}",
        value=error.get("code"),
        remedy="see that the server and this command have one version: `postroom version`",
    )


def tool_result(result: object) -> object:
    """Return what a tool answered; a list comes without its wrapping.

    Raises:
        PostroomError: the tool refused; of the class that the code belongs to.
    """
    if not isinstance(result, Mapping):
        raise errors.PostroomError("the server's answer holds no result", value=result)
    structured = result.get("structuredContent")
    if result.get("isError"):
        raise _tool_failure(structured, _text(result))
    if isinstance(structured, Mapping):
        return structured["result"] if set(structured) == {"result"} else dict(structured)
    return _text(result)


def _tool_failure(structured: object, text: str) -> errors.PostroomError:
    if isinstance(structured, Mapping) and isinstance(error := structured.get("error"), Mapping):
        return rebuilt(error)
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(error := document.get("error"), dict):
        return rebuilt(error)
    return errors.InvalidArgument(text or "the tool refused and said nothing")


def _text(result: Mapping[str, object]) -> str:
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
