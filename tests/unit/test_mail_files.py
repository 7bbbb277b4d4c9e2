"""A recipient reads the files that came with a message: by tool, by resource, over REST and by command."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mail_room import HARBOR, SHORE, THE_PLAN, Room, room_in_memory
from postroom.contracts.errors import InvalidArgument, UnknownMessage
from rest_room import Edge
from table_rows import each_row

room = room_in_memory


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    edge = Edge()
    await edge.furnish()
    yield edge
    edge.close()


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def sent(room: Room, content: bytes, name: str = "file") -> tuple[int, str]:
    """Send a file from Ada to Ben; return the message's id and the file's sha256."""
    attached = [{"name": name, "content_base64": encoded(content)}]
    message = await room.send("Ada", "Ben", attachments=attached)
    shown = await room.call("get_message", agent_name="Ben", message_id=message)
    return message, shown["attachments"][0]["sha256"]


@each_row(
    "content",
    [
        *(b"the plan", b"", "zwölf Boote\n".encode() * 20_000, b'"\\\n' * 40_000, "🚢日本".encode() * 20_000),
        *(b"\x00\xff" * 100_000, b"\xff"),
    ],
)
async def test_a_file_is_read_in_parts_that_fit_an_answer(content: bytes) -> None:
    edge = Edge()
    await edge.furnish()
    message, sha256 = await sent(edge.room, content)
    found, offset = b"", 0
    while True:
        asked = {"agent_name": "Ben", "message_id": message, "sha256": sha256, "offset": offset}
        part = await edge.room.call("get_attachment", **asked)
        piece = part["text"].encode() if "text" in part else base64.b64decode(part["content_base64"])
        assert ("text" in part) is not ("content_base64" in part)
        assert len(part.get("text", "") or part.get("content_base64", "")) <= 40_000
        assert (part["name"], part["size"], part["sha256"]) == ("file", len(content), sha256)
        found += piece
        if "truncated" not in part:
            break
        assert part["bytes_left"] == len(content) - len(found)
        assert part["next_offset"] == len(found)
        offset = part["next_offset"]
    assert found == content
    edge.close()


async def test_over_rest_the_answer_is_the_file_that_a_browser_only_stores(edge: Edge) -> None:
    page = b"<script>alert(1)</script>"
    message, sha256 = await sent(edge.room, page, name='my "page".html')
    reader = await edge.named_token("reader", "mail:read")
    asked = {"project_key": HARBOR, "agent_name": "Ben", "message_id": message, "sha256": sha256}
    reply = await edge.ask("get_attachment", asked, headers=reader)
    assert (reply.status_code, reply.content) == (200, page)
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''my%20%22page%22.html"
    assert reply.headers["x-content-type-options"] == "nosniff"
    token = await edge.token_of("Ben")
    reply = await edge.ask("get_attachment", asked, headers={"Authorization": f"Bearer {token}"})
    assert (reply.status_code, reply.content) == (200, page)
    sender = await edge.named_token("sender", "mail:send")
    assert (await edge.ask("get_attachment", asked, headers=sender)).status_code == 403
    other = await edge.token_of("Cyd")
    reply = await edge.ask("get_attachment", asked, headers={"Authorization": f"Bearer {other}"})
    assert reply.status_code == 403


async def test_an_agent_abroad_reads_what_it_got_and_nothing_else(room: Room) -> None:
    await room.open()
    await room.open("Eve", "Fay", project=SHORE)
    attached = [{"name": "plan.txt", "content_base64": encoded(b"the plan")}]
    message = await room.send("Ada", "Eve@projects-shore", attachments=attached)
    asked: dict[str, Any] = {"project_key": SHORE, "message_id": message, "sha256": THE_PLAN}
    assert (await room.call("get_attachment", **asked, agent_name="Eve"))["text"] == "the plan"
    await room.refused(UnknownMessage, "get_attachment", **asked, agent_name="Fay")


async def test_a_file_that_the_message_does_not_have_is_refused_with_where_to_look(room: Room) -> None:
    await room.open()
    message, sha256 = await sent(room, b"the plan")
    other, _ = await sent(room, b"another")
    asked = {"agent_name": "Ben", "message_id": other, "sha256": sha256}
    error = await room.refused(UnknownMessage, "get_attachment", **asked)
    assert error.remedy == "pass the `name` of one of its files: 'file'"
    error = await room.refused(InvalidArgument, "get_attachment", **{**asked, "sha256": "plan.txt"})
    assert "64 hexadecimal digits" in error.message
    assert "the file's `name`" in error.remedy
    await room.call("recall_message", sender_name="Ada", message_id=message)
    await room.refused(UnknownMessage, "get_attachment", **{**asked, "message_id": message})


async def test_a_file_is_read_by_its_name_and_the_only_file_without_one(room: Room) -> None:
    await room.open()
    files = {"a.txt": b"a", "b.txt": b"b"}
    attached = [{"name": name, "content_base64": encoded(content)} for name, content in files.items()]
    asked: dict[str, Any] = {
        "agent_name": "Ben",
        "message_id": await room.send("Ada", "Ben", attachments=attached),
    }
    for name, content in files.items():
        assert (await room.call("get_attachment", **asked, name=name))["text"] == content.decode()
        assert (await room.call("get_attachment", **asked, filename=name))["text"] == content.decode()
    error = await room.refused(InvalidArgument, "get_attachment", **asked)
    assert "2 files" in error.message
    assert "a.txt: " in error.remedy
    error = await room.refused(UnknownMessage, "get_attachment", **asked, name="c.txt")
    assert error.remedy == "pass the `name` of one of its files: 'a.txt', 'b.txt'"
    only, _ = await sent(room, b"the plan")
    assert (await room.call("get_attachment", agent_name="Ben", message_id=only))["text"] == "the plan"
    bare = await room.send("Ada", "Ben")
    error = await room.refused(UnknownMessage, "get_attachment", agent_name="Ben", message_id=bare)
    assert "has no files" in error.message


async def test_two_files_of_one_name_are_told_apart_by_their_digests(room: Room) -> None:
    await room.open()
    attached = [{"name": "a.txt", "content_base64": encoded(content)} for content in (b"one", b"two")]
    message = await room.send("Ada", "Ben", attachments=attached)
    asked: dict[str, Any] = {"agent_name": "Ben", "message_id": message, "name": "a.txt"}
    error = await room.refused(InvalidArgument, "get_attachment", **asked)
    digests = [part.partition(": ")[2] for part in error.remedy.removeprefix("pass `sha256`: ").split("; ")]
    texts = [(await room.call("get_attachment", **asked, sha256=digest))["text"] for digest in digests]
    assert texts == ["one", "two"]


async def test_base64_with_line_breaks_is_taken(room: Room) -> None:
    await room.open()
    content = bytes(range(256))
    attached = [{"name": "x", "content_base64": base64.encodebytes(content).decode()}]
    message = await room.send("Ada", "Ben", attachments=attached)
    shown = await room.call("get_message", agent_name="Ben", message_id=message)
    assert shown["attachments"][0]["size"] == 256
