"""Adds the files of a conversation to model requests, images and documents as parts, text files as text.

The newest files are added first, up to a limit. Older files are only mentioned by name, so that they are not
sent with every request. The model sends files through a tool.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from postroom.contracts.files import MAX_LEFT, ChatFile, RunFiles, is_readable_text
from postroom.contracts.messages import ContentBlock, Json, Message, storable
from postroom.contracts.quoting import in_code_fence, one_line, quoted
from postroom.contracts.records import replace
from postroom.contracts.tools import ToolDescriptor, ToolResult
from postroom.runtime.tools import ToolContext

SEND_FILE: Final = "send_file"
MAX_PARTS = 8
MAX_BYTES = 8_000_000
"""Maximum total size of the file parts of a request, in bytes before encoding."""
MAX_WORDS = 200_000
"""Maximum number of bytes of text files in one request."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DOCUMENTS = ("application/pdf",)


@dataclass(slots=True)
class _Room:
    takes_parts: bool
    most_words: int
    words: int
    parts: int = MAX_PARTS
    bytes: int = MAX_BYTES
    sent: list[ChatFile] = field(default_factory=list)


async def with_files(
    messages: Sequence[Message], files: RunFiles, *, most_words: int = MAX_WORDS, takes_parts: bool = True
) -> tuple[tuple[Message, ...], tuple[ChatFile, ...]]:
    """Return the messages with the content of their files, and a list of the included files.

    Files that exceed a limit are only mentioned by name.

    Raises:
        ServerUnavailable: A file could not be fetched now.
    """
    room = _Room(takes_parts, most_words, most_words)
    shown: list[Message] = []
    for message in reversed(messages):
        chat_files = await files.of(message)
        if not chat_files:
            shown.append(message)
            continue
        blocks: list[ContentBlock] = []
        seen: dict[str, ChatFile] = {}
        for file in chat_files:
            before = file if file.sha256 is None else seen.setdefault(file.sha256, file)
            same = f"[The file {file.name} is the same as {before.name}]"
            blocks.append(await _block(file, files, room) if before is file else ContentBlock(text=same))
        words = [block.text for block in blocks if block.type == "text"]
        space = "\n\n" if message.text().strip() and words else ""
        content = [block for block in message.content if "ref" not in block.data]
        content += [ContentBlock(text=space + "\n\n".join(words))] if words else []
        content += [block for block in blocks if block.type != "text"]
        shown.append(replace(message, content=tuple(content)))
    return tuple(reversed(shown)), tuple(room.sent)


async def _block(file: ChatFile, files: RunFiles, room: _Room) -> ContentBlock:
    if file.transcript is not None:
        return ContentBlock(text=f"Transcript of {quoted(file.name)}:\n{in_code_fence(file.transcript)}")
    if file.missing is not None:
        what = "is missing" if file.sha256 is None else "cannot be shown to you"
        return ContentBlock(text=f"[The file {file.described} {what}: {one_line(file.missing)}]")
    if is_readable_text(file.media_type):
        # A text file, in a code fence that does not occur in the file.
        if file.size > room.most_words:
            why = f"the file has {file.size:,} bytes; the limit for text is {room.most_words:,}"
            await files.not_taken(file, why)
            return ContentBlock(text=f"[The file {file.described} cannot be shown to you: {why}]")
        if file.size > room.words:
            return ContentBlock(text=f"[The file {file.described} was sent earlier and is not shown again]")
        room.words -= file.size
        text = storable((await _whole(file, files)).decode("utf-8", "replace"))
        return ContentBlock(text=f"File {quoted(file.name)}:\n{in_code_fence(text)}")
    kind = "image" if file.media_type in _PICTURES else "document" if file.media_type in _DOCUMENTS else None
    if kind is None or file.size > MAX_BYTES:
        if kind is not None:
            why = f"the file has {file.size:,} bytes; the limit for a model is {MAX_BYTES:,}"
        elif file.media_type.startswith("audio/"):
            why = "the server has no transcription endpoint, which would turn audio into text"
        else:
            why = f"the model does not accept {one_line(file.media_type)}"
        await files.not_taken(file, why)
        return ContentBlock(text=f"[The file {file.described} cannot be shown to you: {why}]")
    if not room.takes_parts:
        return ContentBlock(text=f"[The file {file.described} cannot be shown to you]")
    if not room.parts or file.size > room.bytes:
        return ContentBlock(text=f"[The file {file.described} was sent earlier and is not shown again]")
    room.parts, room.bytes = room.parts - 1, room.bytes - file.size
    room.sent.append(file)
    content = b64encode(await _whole(file, files)).decode()
    return ContentBlock(
        type=kind, data={"url": f"data:{file.media_type};base64,{content}", "name": file.name}
    )


async def _whole(file: ChatFile, files: RunFiles) -> bytes:
    return b"".join([piece async for piece in files.content(file)])


class SendFileTool:
    """A tool that sends a text file to the run's chat after the run's answer."""

    descriptor = ToolDescriptor(
        id=SEND_FILE,
        name=SEND_FILE,
        description=(
            "Send a text file to the chat. It arrives after your answer. A file of the same name "
            f"replaces the earlier file; you can send {MAX_LEFT} files."
        ),
        parameters={
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The file's name, such as table.csv."},
                "text": {"type": "string", "description": "The whole content of the file."},
            },
            "required": ["name", "text"],
            "additionalProperties": False,
        },
    )

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Store a text file, which is sent to the chat after the run's answer.

        A repeated call with the same name replaces the file.

        Raises:
            InvalidArgument: The file has no name or no text.
            TooLarge: The file is too large, or the run has too many files.
        """
        if context.files is None:
            return ToolResult.error(SEND_FILE, "this chat accepts no files: write the content in your answer")
        file = await context.files.leave_text(str(arguments["name"]), str(arguments["text"]))
        return ToolResult.success(SEND_FILE, f"The file {file.described} will be sent after your answer.")
