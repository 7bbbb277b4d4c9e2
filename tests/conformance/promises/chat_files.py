"""Promises of the files of chats: bytes are stored once, and what is known of a file is with its message."""

import asyncio
import os
import tempfile
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from conformance.promises.chat_given import ChatPromise, at_once
from conformance.promises.given import refused
from postroom.contracts.chat import CHAT_KIND
from postroom.contracts.errors import UnknownMessage
from postroom.contracts.files import PIECE_BYTES, ChatFile, SpooledFile
from postroom.contracts.outbox import OutboxDraft
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing.clock import ManualClock


def _file(message_id: str = "m1", position: int = 1, **more: str | int | None) -> ChatFile:
    given = {"name": "a.png", "media_type": "image/png", "size": 3, "sha256": "5" * 64, **more}
    return ChatFile(thread_id="chat/x/bot/1", message_id=message_id, position=position, **given)  # type: ignore[arg-type]


def _spooled(content: bytes) -> SpooledFile:
    handle, name = tempfile.mkstemp()
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return SpooledFile(path=Path(name), sha256=sha256(content).hexdigest(), size=len(content))


async def _stored(stores: ChatStores, content: bytes) -> str:
    spooled = await asyncio.to_thread(_spooled, content)
    try:
        await stores.files.put_bytes(spooled)
    finally:
        await asyncio.to_thread(spooled.path.unlink)
    return spooled.sha256


async def _whole(stores: ChatStores, hashed: str) -> list[bytes]:
    return [piece async for piece in stores.files.content(hashed)]


async def bytes_come_back_in_pieces(stores: ChatStores, clock: ManualClock) -> None:
    """None is larger than the bound, and together they are what was stored; nothing is a file too."""
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES):
        content = os.urandom(size)
        pieces = await _whole(stores, await _stored(stores, content))
        assert b"".join(pieces) == content
        assert max(map(len, pieces)) <= PIECE_BYTES


async def the_same_bytes_are_stored_once(stores: ChatStores, clock: ManualClock) -> None:
    """However many store them, one after another or together."""
    content = b"x" * (PIECE_BYTES + 7)
    hashed = await _stored(stores, content)
    assert await _stored(stores, content) == hashed
    other = os.urandom(PIECE_BYTES + 7)
    names, _ = await at_once([_stored(stores, other) for _ in range(8)])
    assert set(names) == {sha256(other).hexdigest()}
    assert b"".join(await _whole(stores, names[0])) == other
    assert b"".join(await _whole(stores, hashed)) == content


async def bytes_that_are_not_there_are_refused(stores: ChatStores, clock: ManualClock) -> None:
    """They are no empty file."""
    with refused(UnknownMessage):
        await _whole(stores, "0" * 64)


async def a_file_is_found_by_its_message(stores: ChatStores, clock: ManualClock) -> None:
    """In the order of the positions, and with those of other messages that were asked for."""
    first, second, other = _file(position=2), _file(position=10, transcript="hello"), _file("m2")
    for file in (second, other, first, _file("m3")):
        await stores.files.put(file)
    assert await stores.files.files(first.thread_id, ["m1"]) == (first, second)
    assert await stores.files.files(first.thread_id, ["m2", "m1", "m1"]) == (first, second, other)
    assert await stores.files.files("chat/x/bot/2", ["m1"]) == ()
    assert await stores.files.files(first.thread_id, []) == ()


async def what_is_known_of_a_file_may_change(stores: ChatStores, clock: ManualClock) -> None:
    """The last that was stored of a position counts."""
    missing = _file(sha256=None, missing="it is gone")
    await stores.files.put(missing)
    found = replace(missing, sha256="6" * 64, missing=None)
    await stores.files.put(found)
    assert await stores.files.files(found.thread_id, ["m1"]) == (found,)


async def what_is_said_of_a_file_is_kept_with_it(stores: ChatStores, clock: ManualClock) -> None:
    """Once a key, also when it is stored again."""
    draft = OutboxDraft(kind=CHAT_KIND, target="x/bot", dedupe_key="file/m1/1", payload={"text": "gone"})
    for _ in range(2):
        await stores.files.put(_file(sha256=None, missing="it is gone"), notices=(draft,))
    [file] = await stores.files.files("chat/x/bot/1", ["m1"])
    assert file.missing == "it is gone"


async def bytes_that_nothing_has_are_removed(stores: ChatStores, clock: ManualClock) -> None:
    """Not those of a file, nor a piece that two files have, nor what was stored or wanted lately."""
    piece = os.urandom(PIECE_BYTES)
    used, unused, again = await _stored(stores, piece), await _stored(stores, piece + b"2"), b"3" * 9
    await _stored(stores, again)
    await stores.files.put(_file(sha256=used))
    clock.advance(timedelta(hours=1))
    before = clock.now()
    wanted, young = await _stored(stores, again), await _stored(stores, b"young")
    assert await stores.files.purge(before) == 1
    assert await stores.files.purge(before) == 0
    for hashed, content in ((used, piece), (wanted, again), (young, b"young")):
        assert b"".join(await _whole(stores, hashed)) == content
    with refused(UnknownMessage):
        await _whole(stores, unused)


async def a_bound_holds_for_what_is_removed_at_once(stores: ChatStores, clock: ManualClock) -> None:
    """What is left is removed by the next."""
    for number in range(3):
        await _stored(stores, b"x" * (number + 1))
    clock.advance(timedelta(hours=1))
    assert [await stores.files.purge(clock.now(), limit=2) for _ in range(3)] == [2, 1, 0]


PROMISES: tuple[ChatPromise, ...] = (
    bytes_come_back_in_pieces,
    the_same_bytes_are_stored_once,
    bytes_that_are_not_there_are_refused,
    a_file_is_found_by_its_message,
    what_is_known_of_a_file_may_change,
    what_is_said_of_a_file_is_kept_with_it,
    bytes_that_nothing_has_are_removed,
    a_bound_holds_for_what_is_removed_at_once,
)
