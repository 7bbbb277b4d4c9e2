"""Promises of the files of chats: bytes are stored once, and the data about a file is with its message."""

import asyncio
import os
import tempfile
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from conformance.boxes import on_both
from conformance.promises.chat_given import at_once
from conformance.promises.given import refused
from postroom.contracts.errors import UnknownMessage
from postroom.contracts.files import PIECE_BYTES, ChatFile, SpooledFile
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock


def _file(message_id: str = "m1", position: int = 1, **more: str | int | None) -> ChatFile:
    given = {"name": "a.png", "media_type": "image/png", "size": 3, "sha256": "5" * 64, **more}
    return ChatFile(thread_id="chat/x/bot/1", message_id=message_id, position=position, **given)


def _spooled(content: bytes) -> SpooledFile:
    handle, name = tempfile.mkstemp()
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return SpooledFile(path=Path(name), sha256=sha256(content).hexdigest(), size=len(content))


async def _stored(chats: ChatStores, content: bytes) -> str:
    spooled = await asyncio.to_thread(_spooled, content)
    try:
        await chats.files.put_bytes(spooled)
    finally:
        await asyncio.to_thread(spooled.path.unlink)
    return spooled.sha256


async def _whole(chats: ChatStores, hashed: str) -> list[bytes]:
    return [piece async for piece in chats.files.content(hashed)]


async def test_bytes_come_back_in_pieces(chats: ChatStores) -> None:
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES):
        content = os.urandom(size)
        pieces = await _whole(chats, await _stored(chats, content))
        assert b"".join(pieces) == content
        assert max(map(len, pieces)) <= PIECE_BYTES


@on_both
async def test_the_same_bytes_are_stored_once(chats: ChatStores) -> None:
    content = b"x" * (PIECE_BYTES + 7)
    hashed = await _stored(chats, content)
    assert await _stored(chats, content) == hashed
    other = os.urandom(PIECE_BYTES + 7)
    names, _ = await at_once([_stored(chats, other) for _ in range(8)])
    assert set(names) == {sha256(other).hexdigest()}
    assert b"".join(await _whole(chats, names[0])) == other
    assert b"".join(await _whole(chats, hashed)) == content


async def test_bytes_that_are_not_there_are_refused(chats: ChatStores) -> None:
    with refused(UnknownMessage):
        await _whole(chats, "0" * 64)


async def test_a_file_is_found_by_its_message(chats: ChatStores) -> None:
    first, second, other = _file(position=2), _file(position=10, transcript="hello"), _file("m2")
    for file in (second, other, first, _file("m3")):
        await chats.files.put(file)
    assert await chats.files.files(first.thread_id, ["m1"]) == (first, second)
    assert await chats.files.files(first.thread_id, ["m2", "m1", "m1"]) == (first, second, other)
    assert await chats.files.files("chat/x/bot/2", ["m1"]) == ()
    assert await chats.files.files(first.thread_id, []) == ()


async def test_bytes_that_nothing_has_are_removed(chats: ChatStores, clock: ManualClock) -> None:
    piece = os.urandom(PIECE_BYTES)
    used, unused, again = await _stored(chats, piece), await _stored(chats, piece + b"2"), b"3" * 9
    await _stored(chats, again)
    await chats.files.put(_file(sha256=used))
    clock.advance(timedelta(hours=1))
    before = clock.now()
    wanted, young = await _stored(chats, again), await _stored(chats, b"young")
    assert await chats.files.purge(before) == 1
    assert await chats.files.purge(before) == 0
    for hashed, content in ((used, piece), (wanted, again), (young, b"young")):
        assert b"".join(await _whole(chats, hashed)) == content
    with refused(UnknownMessage):
        await _whole(chats, unused)
