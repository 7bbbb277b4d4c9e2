"""What we write: mails whose headers nobody can add to, and what a server's refusal means. No I/O."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email import policy
from email.charset import QP, Charset
from email.header import Header
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime, formataddr
from smtplib import (
    SMTPAuthenticationError,
    SMTPDataError,
    SMTPException,
    SMTPNotSupportedError,
    SMTPRecipientsRefused,
    SMTPResponseException,
    SMTPSenderRefused,
)

from postroom.gateway.events import Attachment, SendErrorKind, SendResult
from postroom.gateway.platforms.email_wire import ADDRESS, MESSAGE_ID, Thread
from postroom.gateway.platforms.safe_text import one_line

_LONGEST_REFERENCES = 900
"""Characters of the header that names a thread; a line of a mail has 998 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingEmail:
    """A mail that is to be sent."""

    sender: str
    to: str
    message_id: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What stands above the words of a mail.

    Raises:
        ValueError: a value holds a line break or what its header cannot hold.
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
            raise ValueError("a header holds a line break")
        if ADDRESS.fullmatch(self.to) is None:
            raise ValueError("the recipient is no address")
        ids = (self.message_id, *self.references, *((self.answers,) if self.answers else ()))
        if not all(MESSAGE_ID.fullmatch(one) for one in ids):
            raise ValueError("a message id is none")


def message_id_from(key: str, address: str) -> str:
    """Return the id of a mail: the same for the same key."""
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:40]
    return f"<{digest}.postroom@{address.rpartition('@')[2]}>"


def subject_of(thread: Thread | None, fallback: str) -> str:
    """Return the subject of an answer: the thread's own with one `Re: ` before it."""
    subject = one_line(thread.subject if thread is not None and thread.subject else fallback)
    subject = "".join(one if one.isprintable() else " " for one in subject)
    return subject if subject.lower().startswith("re:") else f"Re: {subject}"


def references_of(root: str | None, thread: Thread | None, answered: str | None) -> tuple[str, ...]:
    """Return what an answer refers to: the root first, then the latest, as many as one line takes."""
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
    raw = mail.as_bytes(policy=policy.compat32.clone(linesep="\r\n"))
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
    """Return what a refusal means; the server had not taken the mail."""
    if isinstance(error, SMTPNotSupportedError):
        return SendResult.failed(SendErrorKind.BAD_FORMAT, "the mail server cannot send this")
    if isinstance(error, SMTPRecipientsRefused):
        code, answered = next(iter(error.recipients.values()))
        words = answered.decode("ascii", "replace")
    elif isinstance(error, SMTPResponseException):
        code, said = error.smtp_code, error.smtp_error
        words = said.decode("ascii", "replace") if isinstance(said, bytes) else said
    else:
        return SendResult.failed(SendErrorKind.TRANSIENT, "the mail server broke off")
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
