"""Reads the input that clients send to hooks, and extracts the small part that the server needs.

The module imports almost nothing.
"""

from __future__ import annotations

import os

from postroom.cli.hook_wire import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Values = Mapping[str, object]

LARGEST_INPUT = 64 * 1024 * 1024
PATIENCE = 2.0
"""The time limit in seconds for reading the input. Some clients do not close the pipe."""
MAX_IDS = 1_000
MAX_PATH_LENGTH = 4_096
DEEPEST = 6
"""The number of levels of a tool's answer that are searched for the name of an agent."""

EDIT_TOOLS = {
    "claude": ("Edit", "Write", "MultiEdit", "NotebookEdit"),
    "codex": ("apply_patch", "Edit", "Write"),
    "gemini": ("write_file", "replace", "edit"),
    "cursor": (
        "Write",
        "Edit",
        "MultiEdit",
        "StrReplace",
        "Delete",
        "edit_file",
        "search_replace",
        "delete_file",
    ),
    "copilot": ("create", "edit", "apply_patch"),
    "opencode": ("edit", "write", "multiedit", "patch", "apply_patch"),
    "cline": ("apply_patch", "editor"),
}
_SESSIONS = ("session_id", "conversation_id", "sessionId")
PATH_KEYS = ("file_path", "notebook_path", "path", "filePath", "target_file", "target_notebook")
PATCH_KEYS = ("command", "input", "patch", "patchText")
PATCHED = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")
_SENDING = ("send_message", "reply_message", "recall_message")
_REGISTERING = ("start_session", "register_agent", "create_agent_identity")
_ACTING = (
    "fetch_inbox",
    "fetch_inbox_events",
    "get_message",
    "get_attachment",
    "delivery_status",
    "mark_message_read",
    "acknowledge_message",
    "request_contact",
    "respond_contact",
    "list_contacts",
    "set_contact_policy",
    "file_reservation_paths",
    "check_file_reservations",
    "release_file_reservations",
    "renew_file_reservations",
    "force_release_file_reservation",
    "claim_task",
    "add_task",
    "update_task",
    "done_task",
    "add_note",
    "end_note",
    "subscribe",
    "end_subscription",
)
_ANSWERS = ("tool_response", "tool_output", "tool_result", "result_json", "toolResult")
_WRAPPINGS = (
    "structuredContent",
    "structured_content",
    "content",
    "text",
    "textResultForLlm",
    "llmContent",
    "returnDisplay",  # Gemini CLI shows the answer to the model between marks; this is the original
    "functionResponse",
    "response",
    "output",
    "result",
)


def read_input(descriptor: int) -> bytes:
    """Read the input that the client sends to the hook, until the client closes the pipe or a time limit.

    Raises:
        ValueError: The input exceeds `LARGEST_INPUT`.
    """
    import select
    import time

    pieces, size, until = [], 0, time.monotonic() + PATIENCE
    while select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            break
        size += len(piece)
        if size > LARGEST_INPUT:
            raise ValueError("the input is too large")
        pieces.append(piece)
    return b"".join(pieces)


def build_event_request(client: str, kind: str, sent: object) -> dict[str, object] | None:
    """Return the request that reports a client's event to the server, or None if no request is needed."""
    if not isinstance(sent, dict):
        return None
    call = read_place(sent)
    tool, given_fields = read_tool(sent)
    if kind == "edit":
        # For an unknown client, every call that names files counts as an edit, so that no edit is missed.
        is_edit = client not in EDIT_TOOLS or tool in EDIT_TOOLS[client]
        paths = list(_paths(given_fields)) if is_edit else list(_patched_by_shell(client, given_fields))
        spelled = dict.fromkeys(
            item for path in paths for item in _spellings(path, read_working_folder(sent))
        )
        return {**call, "paths": list(spelled)} if paths else None
    if kind == "tool":
        return {**call, **_caller_of_tool(tool, given_fields, sent)}
    if kind == "start" and sent.get("source") == "compact":
        return {**call, "compacted": True}
    if kind == "stop":
        if client == "cursor" and sent.get("status", "completed") != "completed":
            return None
        return {**call, "stop_active": bool(sent.get("stop_hook_active") or sent.get("loop_count"))}
    return call


def read_place(sent: Values) -> dict[str, object]:
    """Return the session id and the working folder of an event as request fields."""
    return {"session_id": read_session_id(sent), "cwd": read_working_folder(sent)}


def read_tool(sent: Values) -> tuple[str, Values]:
    """Return the name and the arguments of the tool in a hook event."""
    tool = to_sendable_text(sent.get("tool_name")) or to_sendable_text(sent.get("toolName"))
    return tool, _values(sent.get("tool_input", sent.get("toolArgs")))


def read_session_id(sent: Values) -> str:
    """Return the session id of an event; a subagent has a separate session id."""
    session = next((text for key in _SESSIONS if (text := to_sendable_text(sent.get(key)))), "")
    inner = to_sendable_text(sent.get("agent_id")) or to_sendable_text(sent.get("agentId"))
    return (f"{session}/{inner}" if session and inner else session)[:400]


def read_working_folder(sent: Values) -> str:
    """Return the client's working folder in a hook event."""
    roots = sent.get("workspace_roots")
    first = roots[0] if isinstance(roots, list) and roots else ""
    return (to_sendable_text(sent.get("cwd")) or to_sendable_text(first) or os.getcwd())[:MAX_PATH_LENGTH]  # noqa: PTH109 - no pathlib here


def _paths(given: Values) -> Iterator[str]:
    for key in PATH_KEYS:
        if path := to_sendable_text(given.get(key)):
            yield path
    for key in PATCH_KEYS:
        for line in join_patch(given.get(key)).splitlines():
            for lead in PATCHED:
                if line.lstrip().startswith(lead):  # Codex reads the line in the same way
                    yield line.lstrip()[len(lead) :].strip()


def _patched_by_shell(client: str, given: Values) -> Iterator[str]:
    words = join_patch(given.get("cmd", given.get("command"))) if client == "codex" else ""
    before, command, _ = words.partition("apply_patch")
    if not command:
        return
    moved = before.replace("&&", ";").partition("cd ")[2].partition(";")[0].strip().strip("'\"")
    for path in _paths({"patch": words}):
        yield path
        for folder in (moved, to_sendable_text(given.get("workdir"))):
            if folder:
                yield os.path.join(folder, path)  # noqa: PTH118 - no pathlib here


def _spellings(path: str, folder: str) -> Iterator[str]:
    yield path
    written = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - no pathlib here
    real = os.path.realpath(os.path.join(folder, path))  # noqa: PTH118 - as above
    base, texts = os.path.realpath(folder), [real]
    if os.path.splitdrive(real)[0] == os.path.splitdrive(base)[0]:
        texts.append(os.path.normpath(os.path.join(folder, os.path.relpath(real, base))))  # noqa: PTH118 - as above
    for value in texts:
        if value != written and to_sendable_text(value) and len(value) <= MAX_PATH_LENGTH:
            yield value


def join_patch(value: object) -> str:
    """Return a patch as one text, even if the client has sent a list of texts."""
    if isinstance(value, list):
        return "\n".join(word for word in value if isinstance(word, str))
    return to_sendable_text(value)


def _caller_of_tool(tool: str, given: Values, sent: Values) -> dict[str, object]:
    for names, key in ((_SENDING, "sender_name"), (_ACTING, "agent_name"), (_REGISTERING, "name")):
        if any(tool == name or tool.endswith(tuple(between + name for between in "_-:./")) for name in names):
            name = to_sendable_text(given.get(key))
            if names is _REGISTERING:
                name = next((value for item in _ANSWERS if (value := _name_in(sent.get(item)))), name)
            if name:
                acted: dict[str, object] = {
                    "acts_as": name[:400],
                    "acts_in": to_sendable_text(given.get("project_key"))[:MAX_PATH_LENGTH],
                }
                if tool.endswith("fetch_inbox"):
                    fetched = next((ids for item in _ANSWERS if (ids := _fetched_in(sent.get(item)))), [])
                    return acted | {"fetched": fetched} if fetched else acted
                reserved = next((ids for item in _ANSWERS if (ids := _reserved_in(sent.get(item)))), [])
                return acted | {"reserved": reserved} if reserved else acted
    return {}


def _name_in(answer: object, depth: int = 0) -> str:
    if depth > DEEPEST:
        return ""
    if isinstance(answer, str):
        return _name_in(_values(answer), depth + 1) if answer.lstrip()[:1] == "{" else ""
    if isinstance(answer, list):
        return next((name for item in answer[:20] if (name := _name_in(item, depth + 1))), "")
    if not isinstance(answer, dict):
        return ""
    agent = answer.get("agent", answer)
    if isinstance(agent, dict) and "program" in agent and (name := to_sendable_text(agent.get("name"))):
        return name
    return next((name for key in _WRAPPINGS if (name := _name_in(answer.get(key), depth + 1))), "")


def _reserved_in(answer: object, depth: int = 0) -> list[int]:
    if depth > DEEPEST:
        return []
    if isinstance(answer, str):
        return _reserved_in(_values(answer), depth + 1) if answer.lstrip()[:1] == "{" else []
    if isinstance(answer, list):
        return next((ids for item in answer[:20] if (ids := _reserved_in(item, depth + 1))), [])
    if not isinstance(answer, dict):
        return []
    granted = answer.get("granted")
    if isinstance(granted, list):
        items: list[object] = [item.get("id") for item in granted[:MAX_IDS] if isinstance(item, dict)]
        return [item for item in items if isinstance(item, int) and item > 0]
    wrapped = ("reservations", *_WRAPPINGS)
    return next((ids for key in wrapped if (ids := _reserved_in(answer.get(key), depth + 1))), [])


def _fetched_in(answer: object, depth: int = 0) -> list[int]:
    if depth > DEEPEST:
        return []
    if isinstance(answer, str):
        if answer.lstrip()[:1] not in ("{", "["):
            return []
        try:
            return _fetched_in(read(answer.encode("utf-8", "replace")), depth + 1)
        except ValueError:
            return []
    if isinstance(answer, list):
        listed: list[object] = [item.get("id") for item in answer[:MAX_IDS] if isinstance(item, dict)]
        ids = [item for item in listed if isinstance(item, int) and item > 0]
        return ids or next((ids for item in answer[:20] if (ids := _fetched_in(item, depth + 1))), [])
    if not isinstance(answer, dict):
        return []
    wrapped = ("messages", *_WRAPPINGS)
    return next((ids for key in wrapped if (ids := _fetched_in(answer.get(key), depth + 1))), [])


def _values(given: object) -> Values:
    if isinstance(given, str):
        try:
            given = read(given.encode("utf-8", "replace"))
        except ValueError:
            return {"patch": given}
    return given if isinstance(given, dict) else {}


def to_sendable_text(value: object) -> str:
    """Return the value if it is a valid text without null characters, or "" for any other value."""
    if not isinstance(value, str) or "\0" in value or value.encode("utf-8", "ignore").decode() != value:
        return ""
    return value
