"""A mailbox by IMAP and a mail server by SMTP: blocking, for threads. One `Mailbox` belongs to one thread.

Passwords are in no failure and no log; neither are the words of a mail.
"""

import base64
import binascii
import hashlib
import imaplib
import quopri
import re
import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import policy
from email.charset import QP, Charset
from email.header import Header
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime, formataddr
from enum import StrEnum
from smtplib import (
    SMTPAuthenticationError,
    SMTPDataError,
    SMTPException,
    SMTPNotSupportedError,
    SMTPRecipientsRefused,
    SMTPResponseException,
    SMTPSenderRefused,
)
from typing import Any
from urllib.parse import quote, unquote

from postroom.contracts.errors import TooLarge
from postroom.gateway.events import Attachment, SendErrorKind, SendResult
from postroom.gateway.platforms.email_wire import ADDRESS, MESSAGE_ID, Thread, Where
from postroom.gateway.platforms.safe_text import one_line

_LONGEST_LINE = 998
"""Characters of a line of a mail. Headers are not folded before: some programs lose a folded message id."""
_LONGEST_REFERENCES = 900
"""Characters of the header that names a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingEmail:
    """A mail to send."""

    sender: str
    to: str
    message_id: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The headers of a mail.

    Raises:
        ValueError: A value contains a line break or is not possible in its header.
    """

    sender: str
    sender_name: str | None
    to: str
    subject: str
    message_id: str
    now: int
    references: Sequence[str] = ()
    answers: str | None = None

    def __post_init__(self) -> None:
        told = (self.sender, self.sender_name or "", self.to, self.subject, self.message_id, *self.references)
        if not all(one.isprintable() for one in told):
            raise ValueError("a header contains a line break")
        if ADDRESS.fullmatch(self.to) is None:
            raise ValueError("the recipient is not a valid address")
        ids = (self.message_id, *self.references, *((self.answers,) if self.answers else ()))
        if not all(MESSAGE_ID.fullmatch(one) for one in ids):
            raise ValueError("a message id is invalid")


_OWN_ID = re.compile(r"<[0-9a-f]{40}\.(.+)\.postroom@([^@]+)>")
_ROOT = re.compile(rf"{MESSAGE_ID.pattern}|\d{{1,10}}-\d{{1,10}}", re.ASCII)
"""The id of the mail that begins a conversation: its own, or its `Where.name`."""


def message_id_from(key: str, root: str | None, address: str) -> str:
    """Return the id of a mail: the same for the same key.

    The id holds the root of its conversation, because a reply may name no other mail. A root of about 170
    characters or more is left out.
    """
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:40]
    end = f".postroom@{address.rpartition('@')[2]}>"
    whole = f"<{digest}.{quote(root or '', safe='')}{end}"
    return whole if root and MESSAGE_ID.fullmatch(whole) else f"<{digest}{end}"


def root_in(message_id: str, address: str) -> str | None:
    """Return the root that the id of one of our mails holds."""
    found = _OWN_ID.fullmatch(message_id)
    if found is None or found[2] != address.rpartition("@")[2]:
        return None
    root = unquote(found[1])
    return root if _ROOT.fullmatch(root) else None


def subject_of(thread: Thread | None, fallback: str) -> str:
    """Return the subject of an answer: the thread's own with one `Re: ` before it."""
    subject = one_line(thread.subject if thread is not None and thread.subject else fallback)
    subject = "".join(one if one.isprintable() else " " for one in subject)
    return subject if subject.lower().startswith("re:") else f"Re: {subject}"


def references_of(root: str | None, thread: Thread | None, answered: str | None) -> tuple[str, ...]:
    """Return the references of an answer: the root first, then the latest, as many as one line can hold."""
    known = [root or "", *(thread.references if thread else ()), answered or ""]
    found = list(dict.fromkeys(one for one in known if MESSAGE_ID.fullmatch(one)))
    while len(found) > 2 and sum(map(len, found)) + len(found) > _LONGEST_REFERENCES:
        del found[1]
    return tuple(found)


def written(
    heading: Heading, text: str, html: str, file: tuple[Attachment, bytes] | None = None
) -> OutgoingEmail:
    """Return a mail with the words plain and as HTML, and with a file when there is one."""
    words = MIMEMultipart("alternative")
    charset = Charset("utf-8")
    charset.body_encoding = QP
    for kind, body in (("plain", text), ("html", html)):
        part = MIMEText("", kind)
        del part["Content-Transfer-Encoding"], part["MIME-Version"]
        part.set_payload(body.encode("utf-8", "replace").decode("utf-8"), charset)
        words.attach(part)
    mail = words
    if file is not None:
        mail = MIMEMultipart("mixed")
        mail.attach(words)
        mail.attach(_part_of(*file))
    mail["From"] = formataddr((heading.sender_name or "", heading.sender))
    mail["To"] = heading.to
    mail["Subject"] = Header(heading.subject, header_name="Subject").encode()
    mail["Date"] = format_datetime(datetime.fromtimestamp(heading.now / 1000, tz=UTC))
    mail["Message-ID"] = heading.message_id
    if heading.answers:
        mail["In-Reply-To"] = heading.answers
    if heading.references:
        mail["References"] = " ".join(heading.references)
    mail["Auto-Submitted"] = "auto-replied" if heading.references else "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    raw = mail.as_bytes(policy=policy.compat32.clone(linesep="\r\n", max_line_length=_LONGEST_LINE))
    return OutgoingEmail(sender=heading.sender, to=heading.to, message_id=heading.message_id, raw=raw)


def _part_of(attachment: Attachment, data: bytes) -> MIMEApplication:
    part = MIMEApplication(data)
    mime = attachment.mime or ""
    main, _, sub = mime.partition("/")
    if main.isalnum() and sub.replace("-", "").replace(".", "").replace("+", "").isalnum() and mime.isascii():
        part.replace_header("Content-Type", mime)
    name = one_line((attachment.name or "file").replace("/", "_").replace("\\", "_"))
    part.add_header(
        "Content-Disposition", "attachment", filename=name if name.isascii() else ("utf-8", "", name)
    )
    return part


def refusal(error: SMTPException) -> SendResult:
    """Return the meaning of a refusal; the server had not accepted the mail."""
    if isinstance(error, SMTPNotSupportedError):
        return SendResult.failed(SendErrorKind.BAD_FORMAT, "the mail server cannot send this")
    if isinstance(error, SMTPRecipientsRefused):
        code, answered = next(iter(error.recipients.values()))
        words = answered.decode("ascii", "replace")
    elif isinstance(error, SMTPResponseException):
        code, said = error.smtp_code, error.smtp_error
        words = said.decode("ascii", "replace") if isinstance(said, bytes) else said
    else:
        return SendResult.failed(SendErrorKind.TRANSIENT, "the mail server closed the connection")
    extended = words.split(maxsplit=1)[0] if words[:1] in ("2", "4", "5") else ""
    told = (
        f"the mail server answered {code} {extended if extended.replace('.', '').isdigit() else ''}".strip()
    )
    if 400 <= code < 500 or code < 200:
        kind = SendErrorKind.RATE_LIMITED if extended.startswith("4.7.") else SendErrorKind.TRANSIENT
        return SendResult.failed(kind, told, retry_after_ms=60_000 if extended.startswith("4.7.") else None)
    if code == 552 or extended in ("5.3.4", "5.2.3"):
        return SendResult.failed(SendErrorKind.TOO_LONG, told)
    if isinstance(error, SMTPAuthenticationError | SMTPSenderRefused | SMTPDataError):
        return SendResult.failed(SendErrorKind.FORBIDDEN, told)
    forbidden = extended.startswith("5.7.") or code in (530, 535, 554)
    return SendResult.failed(SendErrorKind.FORBIDDEN if forbidden else SendErrorKind.NOT_FOUND, told)


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
_REF = re.compile(r"imap/(\d{1,10})/(\d{1,10})/(\d{1,4}(?:\.\d{1,4}){0,40})/(base64|quoted-printable|plain)")
_PERHAPS_LATER = re.compile(r"\[(UNAVAILABLE|LIMIT|INUSE|SERVERBUG|CONTACTADMIN)\]", re.IGNORECASE)
NETWORK = (OSError, EOFError, imaplib.IMAP4.error)
"""The errors of a mailbox whose connection is no longer usable."""


class Security(StrEnum):
    """How a connection is kept from others' eyes."""

    SSL = "ssl"
    STARTTLS = "starttls"
    PLAIN = "plain"


class LoginRefused(Exception):
    """A server refuses the user's name and password. `passing`: the refusal may be temporary."""

    def __init__(self, server: str, *, passing: bool = False) -> None:
        super().__init__(f"the {server} server rejected the login")
        self.passing = passing


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of a server, and our credentials."""

    host: str
    port: int
    security: Security
    user: str
    password: str = field(repr=False)
    timeout: float = 30.0
    ca_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the requirements for a trusted certificate."""
        return ssl.create_default_context(cafile=self.ca_file)


class Mailbox:
    """One folder of one user, reopened after each failure."""

    def __init__(self, server: Server, folder: str) -> None:
        self._server = server
        self._folder = '"' + folder.replace("\\", "\\\\").replace('"', '\\"') + '"'
        self._imap: imaplib.IMAP4 | None = None
        self.validity = 0

    def open(self) -> None:
        """Log in and choose the folder.

        Raises:
            LoginRefused: the name or the password is wrong.
            OSError, IMAP4.error: no connection, or no such folder.
        """
        self.close()
        server = self._server
        if server.security is Security.SSL:
            imap: imaplib.IMAP4 = imaplib.IMAP4_SSL(
                server.host, server.port, ssl_context=server.context(), timeout=server.timeout
            )
        else:
            imap = imaplib.IMAP4(server.host, server.port, timeout=server.timeout)
        self._imap = imap
        if server.security is Security.STARTTLS:
            imap.starttls(ssl_context=server.context())
        try:
            imap.login(server.user, server.password)
        except imaplib.IMAP4.abort:
            raise
        except imaplib.IMAP4.error as error:
            raise LoginRefused("IMAP", passing=bool(_PERHAPS_LATER.search(str(error)))) from None
        _done(imap.select(self._folder))
        told = imap.response("UIDVALIDITY")[1]
        self.validity = int(told[0]) if told and told[0] else 0

    def close(self) -> None:
        """Log out, as far as the connection still lets us."""
        imap, self._imap = self._imap, None
        if imap is not None:
            with suppress(*NETWORK):
                imap.logout()
            with suppress(*NETWORK):
                imap.shutdown()

    def break_off(self) -> None:
        """End the connection from another thread, so that waiting calls fail at once."""
        if (imap := self._imap) is not None:
            with suppress(OSError):
                imap.sock.shutdown(socket.SHUT_RDWR)

    def unread(self, now: int, days: int, most: int) -> list[int]:
        """Return the numbers of unread mails of the last days, the oldest first."""
        day = datetime.fromtimestamp(now / 1000, tz=UTC) - timedelta(days=days)
        imap = self._open()
        _done(imap.noop())
        since = f"{day.day:02d}-{_MONTHS[day.month - 1]}-{day.year}"
        found = _done(imap.uid("SEARCH", "UNSEEN", "SINCE", since))
        return sorted(int(one) for line in found if line for one in line.split())[:most]

    def fetch(self, uid: int, *, most: int) -> tuple[bytes, bool] | None:
        """Return a mail, cut off after `most` bytes, and whether it was cut; None if it is gone."""
        size = _SIZE.search(b" ".join(_flat(_done(self._open().uid("FETCH", str(uid), "(RFC822.SIZE)")))))
        if size is None:
            return None
        raw = self._bytes(uid, f"BODY.PEEK[]<0.{most}>")
        return None if raw is None else (raw[:most], int(size[1]) > most)

    def mark_read(self, uid: int) -> None:
        """Mark a mail as read."""
        _done(self._open().uid("STORE", str(uid), "+FLAGS.SILENT", r"(\Seen)"))

    def part(self, ref: str, *, most: int) -> bytes | None:
        """Return the file of a reference; None if the reference is invalid, or the file is gone.

        Raises:
            TooLarge: The file is larger; not much more than `most` bytes was read.
        """
        found = _REF.fullmatch(ref)
        if found is None or int(found[1]) != self.validity:
            return None
        limit = most if found[4] == "plain" else most * 3 + 1_000
        raw = self._bytes(int(found[2]), f"BODY.PEEK[{found[3]}]<0.{limit + 1}>")
        if raw is None:
            return None
        cut = len(raw) > limit
        data = raw
        if found[4] == "base64":
            whole = raw.translate(None, b"\r\n\t ")
            try:
                data = base64.b64decode(whole[: len(whole) - len(whole) % 4])
            except binascii.Error:
                data = whole
        elif found[4] == "quoted-printable":
            data = quopri.decodestring(raw)
        if cut or len(data) > most:
            raise TooLarge(f"the file exceeds {most} bytes", value=most)
        return data

    def headers(self, message_id: str) -> bytes | None:
        """Return the headers of a mail that an answer needs; None if it is no longer here."""
        imap = self._open()
        found = [
            one
            for line in _done(imap.uid("SEARCH", "HEADER", "Message-ID", f'"{message_id}"'))
            if line
            for one in line.split()
        ]
        if not found:
            return None
        return self._bytes(int(found[-1]), "BODY.PEEK[HEADER.FIELDS (SUBJECT REFERENCES IN-REPLY-TO)]")

    def where(self, uid: int) -> Where:
        """Return a mail's place."""
        return Where(validity=self.validity, uid=uid)

    def _bytes(self, uid: int, what: str) -> bytes | None:
        found = _done(self._open().uid("FETCH", str(uid), f"({what})"))
        return next((one[1] for one in found if isinstance(one, tuple) and len(one) == 2), None)

    def _open(self) -> imaplib.IMAP4:
        if self._imap is None:
            raise imaplib.IMAP4.abort("there is no connection")
        return self._imap


def _done(answer: tuple[str, Any]) -> list[Any]:
    """Return the answer of a server.

    Raises:
        IMAP4.error: it refused.
    """
    status, data = answer[0], list(answer[1])
    if status != "OK":
        raise imaplib.IMAP4.error("the IMAP server rejected a command")
    return data


def _flat(data: list[Any]) -> list[bytes]:
    return [
        one
        for item in data
        for one in (item if isinstance(item, tuple) else (item,))
        if isinstance(one, bytes)
    ]


def check(server: Server, domain: str) -> None:
    """Log in to a mail server and out again.

    Raises:
        LoginRefused: the name or the password is wrong.
        OSError, SMTPException: it could not be reached.
    """
    _quit(_connected(server, domain))


def deliver(server: Server, domain: str, message: OutgoingEmail) -> SendResult:
    """Hand a mail to the server, once. When the connection breaks at its end, nobody knows if it arrived."""
    try:
        smtp = _connected(server, domain)
    except LoginRefused as error:
        kind = SendErrorKind.TRANSIENT if error.passing else SendErrorKind.FORBIDDEN
        return SendResult.failed(kind, str(error))
    except smtplib.SMTPException as error:
        return refusal(error)
    except OSError as error:
        return SendResult.failed(
            SendErrorKind.TRANSIENT, f"cannot reach a mail server: {type(error).__name__}"
        )
    try:
        return _offered(smtp, message) or _given(smtp, message)
    finally:
        _quit(smtp)


def _offered(smtp: smtplib.SMTP, message: OutgoingEmail) -> SendResult | None:
    """Send the envelope; return the refusal, if any."""
    try:
        size = [f"size={len(message.raw)}"] if smtp.has_extn("size") else []
        code, said = smtp.mail(message.sender, size)
        if code != 250:
            return refusal(smtplib.SMTPSenderRefused(code, said, message.sender))
        code, said = smtp.rcpt(message.to)
        if code not in (250, 251):
            return refusal(smtplib.SMTPRecipientsRefused({message.to: (code, said)}))
    except (smtplib.SMTPException, OSError) as error:
        return SendResult.failed(
            SendErrorKind.TRANSIENT, f"the mail server closed the connection: {type(error).__name__}"
        )
    return None


def _given(smtp: smtplib.SMTP, message: OutgoingEmail) -> SendResult:
    try:
        code, said = smtp.data(message.raw)
    except smtplib.SMTPResponseException as error:
        return refusal(error)
    except (smtplib.SMTPException, OSError) as error:
        return SendResult.failed(SendErrorKind.UNKNOWN, f"the answer was lost: {type(error).__name__}")
    return SendResult.sent(message.message_id) if code == 250 else refusal(smtplib.SMTPDataError(code, said))


def _connected(server: Server, domain: str) -> smtplib.SMTP:
    if server.security is Security.SSL:
        smtp: smtplib.SMTP = smtplib.SMTP_SSL(
            server.host, server.port, domain, timeout=server.timeout, context=server.context()
        )
    else:
        smtp = smtplib.SMTP(server.host, server.port, domain, timeout=server.timeout)
    try:
        if server.security is Security.STARTTLS:
            smtp.starttls(context=server.context())
        if server.password:
            smtp.login(server.user, server.password)
        else:
            smtp.ehlo_or_helo_if_needed()
    except smtplib.SMTPAuthenticationError as error:
        smtp.close()
        raise LoginRefused("SMTP", passing=error.smtp_code < 500) from None
    except BaseException:
        smtp.close()
        raise
    return smtp


def _quit(smtp: smtplib.SMTP) -> None:
    with suppress(smtplib.SMTPException, OSError):
        smtp.quit()
    smtp.close()
