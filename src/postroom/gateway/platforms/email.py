"""E-mail: a mailbox that is polled by IMAP, and answers by SMTP.

`token` is the password of the mailbox, `api_key` the password for SMTP if that differs.

A mail is marked as read when its message is stored. A mail from a machine or a list, and a bounce, is stored
as rejected and gets no answer; our own mail is ignored. A message's `metadata["verified"]` says whether the
sender's domain sent it. Without `authserv_id` it is always False, because anybody can write any sender.
"""

import asyncio
import smtplib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, ClassVar, TypeVar
from uuid import uuid4

from msgspec import Meta

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import (
    ConfigError,
    CredentialRefused,
    PostroomError,
    ServerUnavailable,
)
from postroom.contracts.files import FileContent
from postroom.contracts.records import replace
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import FILES, Attachment, MessageEvent, SendErrorKind, SendResult
from postroom.gateway.platforms import email_post as post
from postroom.gateway.platforms import email_wire as wire
from postroom.gateway.platforms.base import AdapterState, BasePlatformAdapter, Metadata
from postroom.gateway.platforms.email_post import (
    NETWORK,
    LoginRefused,
    Mailbox,
    Security,
    Server,
    check,
    deliver,
)
from postroom.gateway.platforms.email_wire import ADDRESS
from postroom.gateway.platforms.options import LOOPBACK, FilePath, Line, secret_remedy
from postroom.gateway.platforms.safe_text import to_html
from postroom.gateway.session import Platform, SessionSource
from postroom.log import get_logger

_IMAP_PORTS = {Security.SSL: 993, Security.STARTTLS: 143, Security.PLAIN: 143}
_SMTP_PORTS = {Security.SSL: 465, Security.STARTTLS: 587, Security.PLAIN: 25}
Port = Annotated[int, Meta(ge=1, le=65_535)]


class EmailOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.email]."""

    ALSO: ClassVar = {"password": "token", "smtp_password": "api_key"}
    address: str
    """Our own address."""
    imap_host: Line
    smtp_host: Line
    name: str | None = None
    """Our own name, as the readers of our mail see it."""
    user: Line | None = None
    """The user of the mailbox; None: the address."""
    smtp_user: Line | None = None
    """The user of the server for outgoing mail; None: that of the mailbox."""
    imap_port: Port | None = None
    """None: the usual port of `imap_security`."""
    smtp_port: Port | None = None
    """None: the usual port of `smtp_security`."""
    imap_security: Security = Security.SSL
    smtp_security: Security = Security.STARTTLS
    allow_plain: bool = False
    """Whether `plain` may be used beyond this machine."""
    ca_file: FilePath | None = None
    """Certificates that are trusted instead of the system's."""
    authserv_id: Line | None = None
    """The server whose `Authentication-Results` are trusted."""
    folder: Line = "INBOX"
    """The folder that receives mail."""
    subject: Line = "your message"
    """The subject of answers to mail that is gone."""
    poll_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 15_000
    """The pause between two polls of the folder."""
    max_age_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    """Unread mail that is older is left alone."""
    max_bytes: Annotated[int, Meta(ge=10_000, le=200_000_000)] = 25_000_000
    """Maximum bytes of a mail that are read; the metadata `truncated` is true if the mail is longer."""
    timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] = 30_000
    """How long a server may take for one step."""

    def __post_init__(self) -> None:
        if ADDRESS.fullmatch(self.address) is None:
            raise ValueError("`address` must be an address such as agent@example.org")
        if not (self.name or "").isprintable():
            raise ValueError("`name` must be one line of text")
        for name, host in (("imap_security", self.imap_host), ("smtp_security", self.smtp_host)):
            plain = (self.imap_security if name == "imap_security" else self.smtp_security) is Security.PLAIN
            if plain and host not in LOOPBACK and not self.allow_plain:
                raise ValueError(
                    f"`{name}`: the password would travel unencrypted; set ssl or starttls, or "
                    "allow_plain if the network is trusted"
                )

    @property
    def domain(self) -> str:
        """The domain of our address."""
        return self.address.rpartition("@")[2].lower()

    def imap(self, password: str) -> Server:
        """Return the server that has the mailbox."""
        return Server(
            host=self.imap_host,
            port=self.imap_port or _IMAP_PORTS[self.imap_security],
            security=self.imap_security,
            user=self.user or self.address,
            password=password,
            timeout=self.timeout_ms / 1000,
            ca_file=self.ca_file,
        )

    def smtp(self, password: str) -> Server:
        """Return the server that takes our mail."""
        return Server(
            host=self.smtp_host,
            port=self.smtp_port or _SMTP_PORTS[self.smtp_security],
            security=self.smtp_security,
            user=self.smtp_user or self.user or self.address,
            password=password,
            timeout=self.timeout_ms / 1000,
            ca_file=self.ca_file,
        )


def _password(secret: str | None, name: str) -> str:
    if not secret or not secret.isascii() or not secret.isprintable():
        raise ConfigError(f"e-mail: {name} is missing or not ASCII", remedy=secret_remedy(name, "it"))
    return secret


_LOG = get_logger(__name__)
_BATCH = 50
"""Maximum mails of one poll; if there are more, the next poll follows soon."""
_SHORT_PAUSE = 100
_REMEMBERED = 1_000
"""Mails with cached subject and references; others are read again."""
_MOST_LOOKED_UP = 20
"""References of a mail, the newest, that are looked up."""
_PATIENCE = 10.0
"""Seconds that a stop waits for a step on its way."""
T = TypeVar("T")


class EmailAdapter(BasePlatformAdapter):
    """One mailbox.

    Raises:
        ConfigError: something is missing or wrong.
    """

    platform = Platform.EMAIL
    options = EmailOptions
    passing = NETWORK
    capabilities = ChannelCapabilities(limit=50_000, threads=True, media=FILES)

    def __init__(
        self, config: EmailOptions, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = options = config
        self._address = options.address.lower()
        self._me = wire.Ourselves(address=self._address, authserv_id=options.authserv_id)
        password = _password(config.token, "password")
        self._imap = options.imap(password)
        self._smtp = options.smtp(_password(config.api_key, "smtp_password") if config.api_key else password)
        self._mailbox = Mailbox(self._imap, options.folder)
        self._is_open = False
        """Whether the mailbox is open; it is opened again after a failure of the network."""
        self._thread: ThreadPoolExecutor | None = None
        self._threads: OrderedDict[str, wire.Thread] = OrderedDict()

    @property
    def account(self) -> str:
        """Our address."""
        return self._address

    def lock_identity(self) -> str | None:
        """Return the name of the mailbox: two readers of it would each answer."""
        imap = self._imap
        return f"imap {imap.user} {imap.host}:{imap.port} {self._options.folder}"

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Log in to both servers and start to poll for mail."""
        await self.disconnect()
        self._tasks = Tasks(f"channel {self.platform.value}")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="postroom-imap")
        self.liveness.state = AdapterState.CONNECTING
        try:
            await self._on_thread(self._mailbox.open)
            await asyncio.to_thread(check, self._smtp, self._options.domain)
        except BaseException as error:
            await self.disconnect()
            if (told := _told(error)) is not None:
                raise told from None
            raise
        self._connected()
        self._is_open = True
        self._tasks.start(self._receive(self._look), name="receive")

    async def disconnect(self) -> None:
        """End looking for mail; a step on its way ends or is broken off."""
        await self._tasks.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._mailbox.break_off()
            thread.submit(self._mailbox.close)
            ended = asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
            await asyncio.wait((ended,), timeout=_PATIENCE)
        self.liveness.state = AdapterState.STOPPED

    async def _on_thread(self, step: Callable[[], T]) -> T:
        """Do one step with the mailbox, after those before it."""
        if self._thread is None:
            raise ServerUnavailable("the mailbox is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    # What comes in.

    async def _look(self, _: int) -> int:
        """Process the unread mails, in order; return the pause before the next poll."""
        options, now = self._options, self._clock.now()
        try:
            if not self._is_open:
                await self._on_thread(self._mailbox.open)
                self._is_open = True
            found = await self._on_thread(lambda: self._mailbox.unread(now, options.max_age_days, _BATCH))
            self._heard()
            for uid in found:
                await self._take(uid)
        except PostroomError:
            raise
        except Exception as error:
            self._is_open = False
            if (told := _told(error)) is not None:
                raise told from error
            raise
        return _SHORT_PAUSE if len(found) == _BATCH else options.poll_ms

    async def _take(self, uid: int) -> None:
        """Hand over one mail, and mark it as read when its message is kept or never will be."""
        found = await self._on_thread(lambda: self._mailbox.fetch(uid, most=self._options.max_bytes))
        if found is not None:
            await self.take_in(found[0], partial(self._hand_over, uid, *found))
        await self._on_thread(lambda: self._mailbox.mark_read(uid))

    async def _hand_over(self, uid: int, raw: bytes, is_cut: bool) -> None:
        event = await self._on_thread(lambda: self._read(uid, raw, is_cut=is_cut))
        if event is not None and event.source is not None and event.message_id is not None:
            references = self._threads[event.message_id].references
            event.source = replace(event.source, thread_id=await self._root_of(event.source, references))
            await self.handle_message(event)

    async def _root_of(self, source: SessionSource, references: Sequence[str]) -> str | None:
        """Return the id of the first mail in the conversation of a mail with these references.

        The newest reference to a mail from postroom, or to a stored mail of the same sender, decides: some
        mail programs name only the answered mail.
        """
        for message_id in reversed(references[-_MOST_LOOKED_UP:]):
            if (root := post.root_in(message_id, self._address)) is not None:
                return root
            known = None if self._inbound is None else await self._inbound.look_up(source, message_id)
            if known is not None and known.event.source is not None:
                return known.event.source.thread_id
        return source.thread_id

    def _read(self, uid: int, raw: bytes, *, is_cut: bool) -> MessageEvent | None:
        """Understand a mail, on the thread: large mails take their time."""
        mail = wire.parsed(raw)
        event = wire.understood(mail, self._mailbox.where(uid), self._me)
        if event is not None and event.message_id is not None:
            self._remember(event.message_id, wire.thread_of(mail))
            if is_cut:
                event.metadata["truncated"] = True
                event.unread += (f"a mail beyond its first {self._options.max_bytes} bytes",)
        return event

    def _remember(self, message_id: str, thread: wire.Thread) -> None:
        self._threads[message_id] = thread
        self._threads.move_to_end(message_id)
        if len(self._threads) > _REMEMBERED:
            self._threads.popitem(last=False)

    # What goes out.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send a mail to an address, as an answer if there is a mail to answer."""
        return await self._write(chat_id, content, reply_to, metadata or {}, None)

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Write a mail with a file."""
        async with self._file_turn:
            file = (attachment, await data.whole())
            return await self._write(chat_id, caption or "", None, metadata or {}, file)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a file that came in, from our own mailbox only."""
        try:
            data = await self._on_thread(lambda: self._mailbox.part(attachment.ref, most=max_bytes))
        except NETWORK as error:
            raise ServerUnavailable("the mailbox does not answer") from error
        if data is None:
            raise ServerUnavailable(
                "the file is no longer in the mailbox", remedy="ask the sender to send the file again"
            )
        yield data

    async def _write(
        self,
        to: str,
        text: str,
        reply_to: str | None,
        metadata: Metadata,
        file: tuple[Attachment, bytes] | None,
    ) -> SendResult:
        if self.capabilities.unit.measure(text) > self.capabilities.limit:
            return SendResult.failed(
                SendErrorKind.TOO_LONG, f"more than {self.capabilities.limit} characters"
            )
        root = metadata.get("thread_id")
        thread = await self._thread_of(reply_to or root)
        key, options = metadata.get("dedupe_key"), self._options
        answered = reply_to or root
        try:
            heading = post.Heading(
                sender=self._address,
                sender_name=options.name,
                to=to,
                subject=_subject(thread, metadata, options.subject, is_answer=answered is not None),
                message_id=post.message_id_from(str(key) if key else uuid4().hex, root, self._address),
                now=self._clock.now(),
                references=post.references_of(root, thread, answered),
                answers=answered if answered and wire.MESSAGE_ID.fullmatch(answered) else None,
            )
        except ValueError as error:
            return SendResult.failed(SendErrorKind.BAD_FORMAT, f"this mail cannot be sent: {error}")
        message = await asyncio.to_thread(lambda: post.written(heading, text, to_html(text), file))
        result = await asyncio.to_thread(deliver, self._smtp, options.domain, message)
        if result.success:
            self._said()
        return result

    async def _thread_of(self, message_id: str | None) -> wire.Thread | None:
        """Return the subject and the references of a mail: from the cache, else from the mailbox."""
        if message_id is None or wire.MESSAGE_ID.fullmatch(message_id) is None:
            return self._threads.get(message_id or "")
        if message_id in self._threads or self._thread is None:
            return self._threads.get(message_id)
        try:
            raw = await self._on_thread(lambda: self._mailbox.headers(message_id))
            thread = None if raw is None else wire.thread_of(wire.parsed(raw))
        except (*NETWORK, wire.Malformed, ServerUnavailable):
            return None  # the answer matters more than its subject
        if thread is not None:
            self._remember(message_id, thread)
        return thread


def _subject(thread: wire.Thread | None, metadata: Metadata, fallback: str, *, is_answer: bool) -> str:
    told = metadata.get("subject")
    if isinstance(told, str) and told:
        return told
    return post.subject_of(thread, fallback) if is_answer else fallback


def _told(error: BaseException) -> PostroomError | None:
    """Return the meaning of a failed connection for the operator; None when it means nothing to them."""
    if isinstance(error, LoginRefused) and not error.passing:
        return CredentialRefused(
            f"e-mail: {error}",
            remedy="check `user` and the password; many providers require an app password",
        )
    if isinstance(error, FileNotFoundError):
        return ConfigError(
            "e-mail: the file in `ca_file` does not exist",
            remedy="set it to the file with the trusted certificates",
        )
    if isinstance(error, (*NETWORK, smtplib.SMTPException, LoginRefused)):
        return ServerUnavailable(
            f"e-mail: no connection: {type(error).__name__}",
            remedy="check `imap_host`, `smtp_host`, their ports and security, and `folder`",
        )
    return None
