"""Files of a run, as executors are given them: a fake, for what no chat is needed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from postroom.contracts.files import ChatFile
from postroom.contracts.messages import Message
from postroom.contracts.records import replace

PNG = b"\x89PNG\r\n\x1a\n"


class Files:
    """A fake: files by message, as the chats would give them."""

    can_send = True

    def __init__(self, *files: tuple[ChatFile, bytes]) -> None:
        self.kept = {file.message_id: file for file, _ in files}
        self.bytes = {file.message_id: content for file, content in files}
        self.refused: list[tuple[str, str]] = []
        self.left: list[tuple[int, str, bytes]] = []

    async def of(self, message: Message) -> tuple[ChatFile, ...]:
        return tuple(file for file in (self.kept.get(message.id or ""),) if file is not None)

    async def not_taken(self, file: ChatFile, why: str) -> ChatFile:
        self.refused.append((file.name, why))
        self.kept[file.message_id] = replace(file, missing=why)
        return self.kept[file.message_id]

    async def content(self, file: ChatFile) -> AsyncIterator[bytes]:
        yield self.bytes[file.message_id]

    async def leave(self, path: Path, position: int) -> ChatFile:
        self.left.append((position, path.name, await asyncio.to_thread(path.read_bytes)))
        return file(0, "text/plain")[0]


def file(number: int, media_type: str, content: bytes = PNG, **more) -> tuple[ChatFile, bytes]:
    given = {"name": f"f{number}", "size": len(content), "sha256": "5" * 64, **more}
    made = ChatFile(thread_id="t", message_id=f"m{number}", position=1, media_type=media_type, **given)
    return made, content
