"""Fetches and stores the files of a stored message when a run first needs them.

    fetched, up to the limit ─▶ private file ─▶ type detected from its bytes ─▶ scanned ─▶ stored by its hash
       │ temporary failure: the run is retried a few times
       └ permanent failure: its record contains the reason, and its sender gets a notice

Archives are not unpacked. File names that a sender chose are never used as paths.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from typing_extensions import override

from postroom.contracts.activation import RunActivation
from postroom.contracts.errors import (
    InputError,
    InvalidArgument,
    PostroomError,
    ServerUnavailable,
    StoreError,
    TooLarge,
    UnknownMessage,
)
from postroom.contracts.files import (
    MAX_LEFT,
    SNIFFED_BYTES,
    ChatFile,
    FileContent,
    RunFiles,
    SpooledFile,
    detect_media_type,
    plain_name,
    safe_name,
)
from postroom.contracts.mail import Attachment as MailAttachment
from postroom.contracts.messages import ContentBlock, Message, storable
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import GatewayConfig
from postroom.gateway.events import Attachment, MessageType
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.replies import Reply, ReplyKind, build_outbox_target
from postroom.gateway.spooling import MAX_FILES, read_head, read_pieces, spooled, too_large, yield_content
from postroom.log import get_logger
from postroom.ports import get_claim
from postroom.stores.chats.files import FileStore

_LOG = get_logger(__name__)
MAX_TRANSCRIPT_LENGTH = 100_000
"""Maximum characters of a transcript."""
_TRIES = 3
"""The attempt at which a run continues without a file that is unavailable.

If the file is unavailable at an earlier attempt, the attempt fails and is retried.
"""
_TRIES_UNCONNECTED = 12
"""The attempt at which a run continues without a file whose channel is not connected."""
_CONNECTED_SECONDS = 20.0
"""How long an execution waits until the channel of a file is connected."""
_SCAN_SECONDS = 120.0
_TRANSCRIBE_SECONDS = 600.0
"""The time limit for a transcription, also if the endpoint keeps sending data."""
Transcribe = Callable[[Path, ChatFile], Awaitable[str]]


class ChatFiles:
    """The files that chat runs read and send."""

    def __init__(
        self,
        config: GatewayConfig,
        store: FileStore,
        adapters: Sequence[BasePlatformAdapter],
        *,
        transcribe: Transcribe | None = None,
    ) -> None:
        self._config = config
        self.store = store
        self.transcribe = transcribe
        self._adapters = {adapter.platform.value: adapter for adapter in adapters}

    def of_run(self, activation: RunActivation) -> RunFiles:
        """Return the object through which the executor of a run reads and sends files."""
        return FilesOfRun(self, activation)

    def find_adapter(self, thread_id: str) -> BasePlatformAdapter | None:
        """Return the adapter of a thread's chat, or None if this process has no such adapter."""
        return self._adapters.get(unquote(build_outbox_target(thread_id).partition("/")[0]))

    def most(self, media_type: str = "") -> int:
        """Return the maximum size, in bytes, of a file with the given media type."""
        most, kind = self._config.max_media_bytes, media_type.partition("/")[0]
        return min(most, self._config.max_media_bytes_by_kind.get(kind, most))

    async def scan(self, path: Path) -> str | None:
        """Return the reason why the scanner refuses a file, or None if the scanner accepts the file.

        A file that cannot be scanned is refused.
        """
        if not self._config.scan_command:
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                *self._config.scan_command,
                str(path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            _LOG.error("file.not_scanned", reason=error.strerror or type(error).__name__)
            return "the virus scanner failed"
        try:
            async with asyncio.timeout(_SCAN_SECONDS):
                code = await process.wait()
        except TimeoutError:
            return "the virus scanner did not finish in time"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return None if code == 0 else "the virus scanner rejected the file"


class FilesOfRun(RunFiles):
    """The files that one run reads and sends."""

    def __init__(self, files: ChatFiles, activation: RunActivation) -> None:
        self._files = files
        self._store = files.store
        self._thread_id = activation.thread_id
        self._run_id = activation.run_id or ""
        self._attempt = activation.attempt
        self._claim = get_claim(activation)
        self._naming = asyncio.Lock()
        """A lock that gives concurrent calls different positions."""

    @override
    async def of(self, message: Message) -> tuple[ChatFile, ...]:
        blocks = [(n, block) for n, block in enumerate(message.content) if "ref" in block.data]
        if not blocks or message.id is None:
            return ()
        stored = await self._store.files(self._thread_id, [message.id])
        by_position = {file.position: file for file in stored}
        return tuple([by_position.get(n) or await self._take(message.id, n, block) for n, block in blocks])

    @override
    async def not_taken(self, file: ChatFile, why: str) -> ChatFile:
        missing = replace(file, missing=why)
        await self._keep(missing, wording.file_not_read(file.name, why))
        return missing

    @override
    def content(self, file: ChatFile) -> AsyncIterator[bytes]:
        return self._store.content(file.sha256 or "")

    @override
    async def leave(self, path: Path, position: int) -> ChatFile:
        return await self._spool_left(path.name, read_pieces(path), position)

    @property
    @override
    def can_send(self) -> bool:
        adapter = self._files.find_adapter(self._thread_id)
        return adapter is not None and MessageType.DOCUMENT in adapter.capabilities.media

    @override
    async def leave_text(self, name: str, text: str) -> ChatFile:
        content = storable(text).encode()
        if not plain_name(name):
            raise InvalidArgument(
                "the file's name cannot be used", value=name[:200], remedy="use a name such as notes.txt"
            )
        if not content:
            raise InvalidArgument(
                "the file is empty", value=name[:200], remedy="send a text of 1 byte or more"
            )
        media_type = detect_media_type(content[:SNIFFED_BYTES], name)
        if len(content) > (most := self._files.most(media_type)):
            raise too_large(len(content), most)
        async with self._naming:
            left = await self._store.files(self._thread_id, [self._run_id])
            file_name = safe_name(name, media_type, 0)
            position = next((file.position for file in left if file.name == file_name), len(left))
            if position >= MAX_LEFT:
                raise TooLarge(
                    f"this run has already sent {MAX_LEFT} files, the maximum",
                    value=MAX_LEFT,
                    remedy="put several files into one archive file before you send them",
                )
            file = await self._spool_left(name, yield_content(content), position)
        if file.missing is not None:
            raise InvalidArgument(
                f"{file.name} cannot be sent: {file.missing}",
                value=file.name,
                remedy="write the content in your answer",
            )
        return file

    async def _spool_left(self, name: str, pieces: AsyncIterator[bytes], position: int) -> ChatFile:
        async with spooled(pieces, most=self._files.most()) as spool:
            head = await asyncio.to_thread(read_head, spool.path)
            media_type = detect_media_type(head, name)
            refusal = await self._files.scan(spool.path)
            file = ChatFile(
                thread_id=self._thread_id,
                message_id=self._run_id,
                position=position,
                name=safe_name(name, media_type, position),
                media_type=media_type,
                size=spool.size,
                sha256=None if refusal else spool.sha256,
                missing=refusal,
            )
            if refusal is None:
                await self._store.put_bytes(spool)
        await self._store.put(file, claim=self._claim)
        return file

    async def _take(self, message_id: str, position: int, block: ContentBlock) -> ChatFile:
        """Fetch and store a file, or store the reason why the file cannot be fetched."""
        stated_name, mime, size = (block.data.get(name) for name in ("name", "mime", "size"))
        file = ChatFile(
            thread_id=self._thread_id,
            message_id=message_id,
            position=position,
            name=safe_name(stated_name, mime or "", position),
            media_type=mime or "application/octet-stream",
            size=size or 0,
        )
        try:
            if file.position > MAX_FILES:
                raise TooLarge(f"a message has more than {MAX_FILES} files", value=file.position)
            adapter = self._files.find_adapter(self._thread_id)
            if adapter is None:
                raise ServerUnavailable(
                    "the chat's channel is not connected to this server",
                    remedy="see `postroom gateway status`",
                )
            most = self._files.most()
            if file.size > most:
                raise too_large(file.size, most)
            # Wait for a channel that is about to be connected.
            liveness = adapter.liveness
            try:
                async with asyncio.timeout(_CONNECTED_SECONDS if liveness.may_come_back else 0):
                    await liveness.reached()
            except TimeoutError:
                raise ServerUnavailable(
                    "the chat's channel is not connected", remedy="see `postroom gateway status`"
                ) from None
            attachment = Attachment(
                kind=MessageType.of_file(block.type),
                ref=block.data["ref"],
                mime=block.data.get("mime"),
                name=block.data.get("name"),
                size=block.data.get("size"),
            )
            pieces = adapter.fetch_media(attachment, max_bytes=most)
            async with spooled(pieces, most=most) as spool:
                return await self._check_file(file, block, spool)
        except StoreError:
            raise
        except InputError as error:
            why = error.message
        except PostroomError as error:
            adapter = self._files.find_adapter(self._thread_id)
            is_away = adapter is not None and adapter.liveness.may_come_back
            if error.retryable and self._attempt < (_TRIES_UNCONNECTED if is_away else _TRIES):
                raise  # later, the run continues without an unavailable file
            why = f"the file could not be downloaded: {error.message}"
        except Exception as error:
            # adapters must not raise this; process the message without its file
            _LOG.exception("file.adapter_broke", message_id=message_id)
            why = f"the file could not be downloaded: {type(error).__name__}"
        record = replace(file, missing=why)
        await self._keep(record, wording.file_missing(file.name, why))
        return record

    async def _check_file(self, file: ChatFile, block: ContentBlock, found: SpooledFile) -> ChatFile:
        """Detect the type of a file from its bytes, and store the file."""
        if not found.size:
            raise InvalidArgument("the file is empty")
        head = await asyncio.to_thread(read_head, found.path)
        media_type = detect_media_type(head, block.data.get("name"), is_sound=block.type == "audio")
        most = self._files.most(media_type)
        if found.size > most:
            raise too_large(found.size, most)
        if (refusal := await self._files.scan(found.path)) is not None:
            raise TooLarge(refusal)
        record = replace(
            file,
            name=safe_name(block.data.get("name"), media_type, file.position),
            media_type=media_type,
            size=found.size,
            sha256=found.sha256,
        )
        transcript, why = await self._written_down(found.path, record)
        notice = None
        if why is not None:
            record = replace(record, missing=f"the recording could not be transcribed: {why}")
            notice = wording.not_transcribed(record.name, why)
        record = replace(record, transcript=transcript)
        await self._store.put_bytes(found)
        await self._keep(record, notice)
        return record

    async def _written_down(self, path: Path, file: ChatFile) -> tuple[str | None, str | None]:
        """Return the transcript of a sound file, or the reason why there is no transcript."""
        if self._files.transcribe is None or not file.media_type.startswith("audio/"):
            return None, None
        try:
            async with asyncio.timeout(_TRANSCRIBE_SECONDS):
                transcript = await self._files.transcribe(path, file)
        except PostroomError as error:
            _LOG.warning("file.not_transcribed", reason=error.describe())
            return None, error.message
        except TimeoutError:
            _LOG.warning("file.not_transcribed", reason="the transcription took too long")
            return None, "the transcription took too long"
        if not transcript.strip():
            return None, "the recording contains no spoken words"
        return storable(transcript.replace("\0", ""))[:MAX_TRANSCRIPT_LENGTH], None

    async def _keep(self, file: ChatFile, notice: str | None) -> None:
        adapter = self._files.find_adapter(self._thread_id)
        # an open request gets only one answer, so it gets no notice
        holds = adapter is not None and adapter.capabilities.holds_requests
        if notice is None or holds:
            return await self._store.put(file, claim=self._claim)
        reply = Reply(kind=ReplyKind.NOTICE, thread_id=self._thread_id, text=notice)
        key = sha256(notice.encode("utf-8", "replace")).hexdigest()[:16]
        draft = reply.draft(f"file/{self._thread_id}/{file.message_id}/{file.position}/{key}")
        return await self._store.put(file, notices=(draft,), claim=self._claim)


async def attached(one: MailAttachment, thread_id: str, position: int, store: FileStore) -> ChatFile:
    """Convert a mail attachment to a chat file, with the media type detected from the content."""
    file = ChatFile(
        thread_id=thread_id,
        message_id="",
        position=position,
        name=safe_name(one.name, one.media_type, position + 1),
        media_type=one.media_type,
        size=one.size,
        sha256=one.sha256,
    )
    head = b""
    try:
        async for piece in store.content(one.sha256):  # the type needs only the first bytes
            head = head or piece[:SNIFFED_BYTES]
    except UnknownMessage:
        return replace(file, missing="the message with this file was deleted")
    return replace(file, media_type=detect_media_type(head, one.name))


def to_attachment(file: ChatFile) -> Attachment:
    """Convert a stored file to an attachment that channels can send."""
    kind = MessageType.of_file(file.media_type)
    if file.media_type == "image/svg+xml":  # a page that shows the file would run the scripts in it
        kind = MessageType.DOCUMENT
    return Attachment(kind=kind, ref=file.sha256 or "", mime=file.media_type, name=file.name, size=file.size)


def read_content(file: ChatFile, store: FileStore) -> FileContent:
    """Return the content of a stored file."""
    sha256 = file.sha256 or ""
    return FileContent(size=file.size, sha256=sha256, pieces=lambda: store.content(sha256))
