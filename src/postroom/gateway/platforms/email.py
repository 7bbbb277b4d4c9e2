"""E-mail: a mailbox that is looked into again and again by IMAP, and answers that go out by SMTP.

`token` is the mailbox's password, `api_key` another one for SMTP. What stands in `extra`:

| name | default | meaning |
|---|---|---|
| `address`, `name` | (needed), None | who we are |
| `user`, `smtp_user` | the address | whom we log in as |
| `imap_host`, `imap_port`, `imap_security` | (needed), by security, `ssl` | `ssl`, `starttls` or `plain` |
| `smtp_host`, `smtp_port`, `smtp_security` | (needed), by security, `starttls` | as above |
| `allow_plain` | False | whether `plain` may be used beyond this machine |
| `ca_file` | None | certificates that are believed, instead of the system's |
| `authserv_id` | None | the server whose `Authentication-Results` are trusted |
| `folder` | `INBOX` | where mail comes in |
| `poll_ms` | 15000 | the pause between two looks |
| `max_age_days` | 7 | unread mail that came earlier is left alone |
| `max_bytes` | 25000000 | how much of a mail is read; metadata `truncated`: it was more |
| `subject` | `your message` | of answers to mail that is not there any more |
| `timeout_ms` | 30000 | how long a server may take for one step |

A mail is marked as read when its message is kept, and so is one that is passed over: machines, lists, bounces
and we ourselves get no answer. A message's `metadata["verified"]` says whether the sender's domain sent it;
without `authserv_id` it is always False, for anybody can write any sender.
"""

import asyncio
import random
import smtplib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from postroom.concurrency import Tasks
from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import ConfigError, InputError, PostroomError, ServerUnavailable
from postroom.contracts.messages import Json
from postroom.gateway.capabilities import CAPABILITIES
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import Attachment, MessageEvent, SendErrorKind, SendResult
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
from postroom.gateway.platforms.safe_text import to_html
from postroom.gateway.session import Platform
from postroom.log import get_logger

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KNOWN = {
    *("address", "name", "user", "authserv_id", "folder", "subject", "ca_file"),
    *("imap_host", "imap_port", "imap_security", "smtp_host", "smtp_port", "smtp_security"),
    *("smtp_user", "poll_ms", "max_age_days", "max_bytes", "timeout_ms", "allow_plain"),
}
_IMAP_PORTS = {Security.SSL: 993, Security.STARTTLS: 143, Security.PLAIN: 143}
_SMTP_PORTS = {Security.SSL: 465, Security.STARTTLS: 587, Security.PLAIN: 25}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything, with its defaults."""

    address: str
    name: str | None
    authserv_id: str | None
    folder: str
    subject: str
    poll_ms: int
    max_age_days: int
    max_bytes: int
    imap: Server
    smtp: Server

    @property
    def domain(self) -> str:
        """What stands behind the @ of our address."""
        return self.address.rpartition("@")[2]


def options_of(config: PlatformConfig) -> Options:
    """Return what a configuration says.

    Raises:
        ConfigError: something is missing, unknown, malformed, or would show the password on the way.
    """
    extra = config.extra
    if unknown := sorted(set(extra) - _KNOWN):
        raise _wrong(f"unknown settings {', '.join(unknown)}", f"known are {', '.join(sorted(_KNOWN))}")
    address = _text(extra, "address") or ""
    if ADDRESS.fullmatch(address) is None:
        raise _wrong("no address of our own", "set `address`, such as agent@example.org")
    if not config.token or not _is_plain(config.token):
        raise _wrong("no password", "set the mailbox's password as `token`, in ASCII")
    user = _text(extra, "user") or address
    return Options(
        address=address.lower(),
        name=_text(extra, "name"),
        authserv_id=_text(extra, "authserv_id"),
        folder=_text(extra, "folder") or "INBOX",
        subject=_text(extra, "subject") or "your message",
        poll_ms=_number(extra, "poll_ms", 15_000, 100, 3_600_000),
        max_age_days=_number(extra, "max_age_days", 7, 1, 3_650),
        max_bytes=_number(extra, "max_bytes", 25_000_000, 10_000, 200_000_000),
        imap=_server(extra, "imap", Security.SSL, _IMAP_PORTS, (user, config.token)),
        smtp=_server(
            extra,
            "smtp",
            Security.STARTTLS,
            _SMTP_PORTS,
            (_text(extra, "smtp_user") or user, _plain(config.api_key) or config.token),
        ),
    )


def _server(
    extra: Mapping[str, Any],
    kind: str,
    usual: Security,
    ports: Mapping[Security, int],
    credentials: tuple[str, str],
) -> Server:
    host = _text(extra, f"{kind}_host")
    if host is None:
        raise _wrong(f"no {kind.upper()} server", f"set `{kind}_host`")
    told = _text(extra, f"{kind}_security") or usual.value
    if told not in set(Security):
        raise _wrong(f"`{kind}_security` is none", "give ssl, starttls or plain")
    security = Security(told)
    if security is Security.PLAIN and host not in _LOOPBACK and extra.get("allow_plain") is not True:
        raise _wrong(
            f"the {kind.upper()} password would go over the net in clear",
            f"set `{kind}_security` to ssl or starttls, or `allow_plain` if the way is safe",
        )
    return Server(
        host=host,
        port=_number(extra, f"{kind}_port", ports[security], 1, 65_535),
        security=security,
        user=credentials[0],
        password=credentials[1],
        timeout=_number(extra, "timeout_ms", 30_000, 100, 600_000) / 1000,
        ca_file=_text(extra, "ca_file"),
    )


def _text(extra: Mapping[str, Any], name: str) -> str | None:
    value = extra.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isprintable() or (name != "name" and not value.isascii()):
        raise _wrong(f"`{name}` is no text of one line", f"give `{name}` in ASCII, or leave it out")
    return value


def _number(extra: Mapping[str, Any], name: str, usual: int, least: int, most: int) -> int:
    value = extra.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(f"`{name}` is out of its range", f"give a number from {least} to {most}")
    return value


def _plain(secret: str | None) -> str | None:
    if secret and not _is_plain(secret):
        raise _wrong("the SMTP password cannot be sent", "set it as `api_key`, in ASCII")
    return secret


def _is_plain(secret: str) -> bool:
    return secret.isascii() and secret.isprintable()


def _wrong(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"e-mail: {what}", remedy=remedy)


_LOG = get_logger(__name__)
_CHANCE = random.SystemRandom()
_BATCH = 50
"""Mails that one look takes; the next follows soon when there are more."""
_SHORT_PAUSE = 100
_REMEMBERED = 1_000
"""Mails whose subject and references are known without asking; what is forgotten is looked up."""
_PATIENCE = 10.0
"""Seconds that a stop waits for a step on its way."""
T = TypeVar("T")


class EmailAdapter(BasePlatformAdapter):
    """One mailbox.

    Raises:
        ConfigError: something is missing or wrong.
    """

    platform = Platform.EMAIL
    capabilities = CAPABILITIES["email"]

    def __init__(
        self, config: PlatformConfig, *, clock: Clock | None = None, timer: Timer | None = None
    ) -> None:
        super().__init__(config, clock=clock, timer=timer)
        self._options = options_of(config)
        self._me = wire.Ourselves(address=self._options.address, authserv_id=self._options.authserv_id)
        self._mailbox = Mailbox(self._options.imap, self._options.folder)
        self._thread: ThreadPoolExecutor | None = None
        self._threads: OrderedDict[str, wire.Thread] = OrderedDict()

    @property
    def account(self) -> str:
        """Our address."""
        return self._options.address

    def lock_identity(self) -> str | None:
        """Return the mailbox: two who look into it would each answer."""
        imap = self._options.imap
        return f"imap {imap.user} {imap.host}:{imap.port} {self._options.folder}"

    # Its life.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Log in to both servers and begin to look for mail."""
        await self.disconnect()
        self._tasks = Tasks(f"channel {self.platform.value}")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="postroom-imap")
        self.liveness.state = AdapterState.CONNECTING
        try:
            await self._on_thread(self._mailbox.open)
            await asyncio.to_thread(check, self._options.smtp, self._options.domain)
        except BaseException as error:
            await self.disconnect()
            if (told := _told(error)) is not None:
                raise told from None
            raise
        self._connected()
        self._tasks.start(self._receive(), name="receive")

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

    async def _receive(self) -> None:
        failures, is_open = 0, True
        while True:
            try:
                if not is_open:
                    await self._on_thread(self._mailbox.open)
                    is_open = True
                more = await self._look()
            except PostroomError as error:
                _LOG.warning("email.message_not_kept", code=error.code)
            except NETWORK as error:
                is_open = False
                _LOG.warning("email.mailbox_unreachable", reason=type(error).__name__)
            except LoginRefused as error:
                is_open = False
                _LOG.warning("email.login_refused")
                if not error.passing:
                    self._fail("unauthorized", f"{error}: the password is no good any more", retryable=False)
                    return
            except Exception:
                self._fail("failed", "a mail could not be taken; see the log", retryable=True)
                raise
            else:
                failures, self.liveness.state = 0, AdapterState.CONNECTED
                await self._timer.sleep(_SHORT_PAUSE if more else self._options.poll_ms)
                continue
            failures += 1
            self.liveness.state = AdapterState.RECONNECTING
            longest = min(60_000, 500 * 2 ** min(failures, 10))
            await self._timer.sleep(_CHANCE.randint(longest // 2, longest))

    async def _look(self) -> bool:
        """Take what is unread, in order; say whether there is more."""
        options = self._options
        now = self._clock.now()
        found = await self._on_thread(lambda: self._mailbox.unread(now, options.max_age_days, _BATCH))
        self._heard()
        for uid in found:
            await self._take(uid)
        return len(found) == _BATCH

    async def _take(self, uid: int) -> None:
        """Hand over one mail, and mark it as read when its message is kept or never will be."""
        try:
            event = await self._on_thread(lambda: self._read(uid))
            if event is not None:
                await self.handle_message(event)
        except (wire.Malformed, InputError) as error:
            self.liveness.refused += 1
            _LOG.warning("email.refused", uid=uid, reason=type(error).__name__)
        await self._on_thread(lambda: self._mailbox.mark_read(uid))

    def _read(self, uid: int) -> MessageEvent | None:
        """Fetch a mail and understand it, on the thread: large ones take their time."""
        found = self._mailbox.fetch(uid, most=self._options.max_bytes)
        if found is None:
            return None
        mail = wire.parsed(found[0])
        event = wire.understood(mail, self._mailbox.where(uid), self._me)
        if event is not None and event.message_id is not None:
            self._remember(event.message_id, wire.thread_of(mail))
            if found[1]:
                event.metadata["truncated"] = True
        return event

    def _remember(self, message_id: str, thread: wire.Thread) -> None:
        self._threads[message_id] = thread
        self._threads.move_to_end(message_id)
        if len(self._threads) > _REMEMBERED:
            self._threads.popitem(last=False)

    # What goes out.

    async def send(
        self,
        chat_id: str,
        content: str,
        reply_to: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Write a mail to an address, as an answer where there is something to answer."""
        return await self._write(chat_id, content, reply_to, metadata or {}, None)

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: bytes,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Write a mail with a file."""
        return await self._write(chat_id, caption or "", None, metadata or {}, (attachment, data))

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> bytes:
        """Return a file that came in, from our own mailbox only."""
        try:
            data = await self._on_thread(lambda: self._mailbox.part(attachment.ref, most=max_bytes))
        except NETWORK as error:
            raise ServerUnavailable("the mailbox does not answer") from error
        if data is None:
            raise ServerUnavailable("the file is not in the mailbox any more", remedy="ask for it once more")
        return data

    async def get_chat_info(self, chat_id: str) -> dict[str, Json]:
        """Return the address: nothing else is known of it."""
        return {"name": chat_id, "type": "dm"}

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
                sender=options.address,
                sender_name=options.name,
                to=to,
                subject=_subject(thread, metadata, options.subject, is_answer=answered is not None),
                message_id=post.message_id_from(str(key) if key else uuid4().hex, options.address),
                now=self._clock.now(),
                references=post.references_of(root, thread, answered),
                answers=answered if answered and wire.MESSAGE_ID.fullmatch(answered) else None,
            )
        except ValueError as error:
            return SendResult.failed(SendErrorKind.BAD_FORMAT, f"this cannot be written: {error}")
        message = await asyncio.to_thread(lambda: post.written(heading, text, to_html(text), file))
        result = await asyncio.to_thread(deliver, options.smtp, options.domain, message)
        if result.success:
            self._said()
        return result

    async def _thread_of(self, message_id: str | None) -> wire.Thread | None:
        """Return the subject and the references of a mail: as remembered, else as it lies in the mailbox."""
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
    """Return what a failure to connect means to the operator; None when it means nothing to them."""
    if isinstance(error, LoginRefused) and not error.passing:
        return ConfigError(
            f"e-mail: {error}",
            remedy="check `user` and the password in `token`; many providers want a password for programs",
        )
    if isinstance(error, FileNotFoundError):
        return ConfigError(
            "e-mail: `ca_file` is not there", remedy="give the file with the certificates that are believed"
        )
    if isinstance(error, (*NETWORK, smtplib.SMTPException, LoginRefused)):
        return ServerUnavailable(
            f"e-mail: no connection: {type(error).__name__}",
            remedy="check `imap_host`, `smtp_host`, their ports and security, and `folder`",
        )
    return None
