"""The e-mail channel: polls an IMAP mailbox for mail, and answers by SMTP.

`token` is the password of the mailbox. `api_key` is the SMTP password, if the SMTP server has another one.

An e-mail is marked as read when its message is stored. Bounces and e-mails from programs or mailing lists are
stored as rejected, and get no answer. E-mails that the bot sent are ignored. `metadata["verified"]` of a
message is true if the domain of the sender really sent the e-mail. Without `authserv_id`, `verified` is
always False, because anybody can forge a sender.
"""

import asyncio
import base64
import binascii
import codecs
import hashlib
import imaplib
import quopri
import re
import smtplib
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import policy
from email.charset import QP, Charset
from email.errors import HeaderParseError, MessageError
from email.header import Header, decode_header, make_header
from email.message import Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.parser import BytesParser
from email.utils import format_datetime, formataddr, parsedate_to_datetime
from enum import StrEnum
from functools import partial
from html.parser import HTMLParser
from smtplib import (
    SMTPAuthenticationError,
    SMTPDataError,
    SMTPException,
    SMTPNotSupportedError,
    SMTPRecipientsRefused,
    SMTPResponseException,
    SMTPSenderRefused,
)
from typing import Annotated, Any, ClassVar, Final, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from msgspec import Meta

from postroom.contracts.clock import Clock, Timer
from postroom.contracts.errors import (
    ConfigError,
    CredentialRefused,
    InvalidArgument,
    PostroomError,
    ServerUnavailable,
    TooLarge,
)
from postroom.contracts.files import FileContent
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.gateway.capabilities import ChannelCapabilities
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import (
    FILES,
    Attachment,
    Forwarded,
    MessageEvent,
    MessageType,
    SendErrorKind,
    SendResult,
)
from postroom.gateway.platforms.base import AdapterState, BasePlatformAdapter, Metadata
from postroom.gateway.platforms.options import LOOPBACK, FilePath, Line, secret_remedy
from postroom.gateway.platforms.safe_text import clean, one_line, to_html
from postroom.gateway.session import Platform, SessionSource

# Functions without I/O that extract the text of an e-mail. They convert HTML to text, and remove the quoted
# history and the signature.


MAX_TEXT_LENGTH = 400_000
"""Maximum characters of an e-mail that are read. E-mails by people are shorter."""
_SILENT = re.compile(r"<(!--|(?:script|style|title|template|noscript|svg|object)\b)", re.IGNORECASE)
"""Matches the beginning of an HTML element whose content is not shown."""
_ADDRESS: Final = re.compile(r"\bhref\s*=\s*(?:\"([^\"<>]{1,2000})\"|'([^'<>]{1,2000})')", re.IGNORECASE)
_SHOWN: Final = re.compile(r"(?:https?|mailto|tel):\S+", re.IGNORECASE)
_TAG = re.compile(r"<(/?[A-Za-z][A-Za-z0-9]{0,20})(?:[\s/][^<>]*)?>")
_BLOCKS = {
    *("address", "article", "blockquote", "div", "dl", "dd", "dt", "fieldset", "figure", "footer", "form"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "ol", "p", "pre", "section", "table"),
    *("tr", "ul", "br"),
}
_WROTE = re.compile(
    r"^(?:on|am|le|el|il|op|den|em|w dniu)\b.{4,200}\b(?:wrote|schrieb|a écrit|escribió|ha scritto|schreef"
    r"|skrev|escreveu|napisał\S*)\b.{0,120}:\s*$",
    re.IGNORECASE,
)
_DIVIDER = re.compile(
    r"^\s*(?:-{3,}\s*(?:original message|ursprüngliche nachricht)\s*-{3,}|_{20,})\s*$", re.I
)
_HEADING = re.compile(r"^\s*\*?(?:from|von|de)\s*:\*?\s", re.IGNORECASE)
_SECOND_HEADING = re.compile(
    r"^\s*\*?(?:sent|date|to|gesendet|datum|an|envoyé|enviado)\s*:\*?\s", re.IGNORECASE
)
_FORWARD_MARK = re.compile(
    r"^\s*(?:-{2,}\s*)?(?:begin forwarded message|forwarded message|anfang der weitergeleiteten nachricht"
    r"|weitergeleitete nachricht|début du message (?:réexpédié|transféré)|message transféré"
    r"|inicio del mensaje reenviado|mensaje reenviado|inizio messaggio inoltrato|messaggio inoltrato"
    r"|doorgestuurd bericht|begin doorgestuurd bericht|mensagem encaminhada|vidarebefordrat meddelande"
    r"|videresendt (?:besked|melding)|przekazana wiadomość)\s*:?\s*(?:-{2,})?\s*:?\s*$",
    re.IGNORECASE,
)
"""Matches the line that mail programs put above a forwarded e-mail."""
_FORWARD_SUBJECT = re.compile(
    r"^\s*(?:fwd?|wg|tr|rv|enc|vb|vs|pd|i|doorst|fs|trs|转发|轉寄|転送)\s*:", re.IGNORECASE
)
_AUTHOR = re.compile(r"^[>\s]*\*?(?:from|von|de|da|van|od|från|fra)\s*:\*?\s*(\S.{0,200})$", re.IGNORECASE)
_MAX_HEADS = 12
"""The number of lines below the mark of a forward in which the author is searched for."""
_SHORT_SIGNATURE = 10
"""Two dashes without a trailing space begin a signature only within this number of last lines."""


class _Words(HTMLParser):
    """Collects the text of an HTML page, with `>` before quoted lines."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._line: list[str] = []
        self._quoted = 0
        self._pre = 0
        self._address: str | None = None
        """The address of the link whose text is being read."""
        self._label_at = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.end_line(is_break=tag == "br")
        if tag == "blockquote":
            self._quoted += 1
        elif tag == "pre":
            self._pre += 1
        elif tag == "li":
            self._line.append("- ")
        elif tag == "a":
            self._address = next((value for name, value in attrs if name == "href" and value), None)
            self._label_at = len(self._line)
        elif tag in ("td", "th") and self._line:
            self._line.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.end_line(is_break=True)

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.end_line()
        if tag == "a" and self._address is not None:
            label, address = "".join(self._line[self._label_at :]).strip(), self._address.strip()
            is_same = label.rstrip("/") in (address.rstrip("/"), address.partition(":")[2].strip("/"))
            if label and not is_same and _SHOWN.fullmatch(address):
                self._line.append(f" ({address})")
            self._address = None
        if tag == "blockquote":
            self._quoted = max(0, self._quoted - 1)
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6") and self.lines and self.lines[-1]:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self._pre:
            first, *more = data.split("\n")
            self._line.append(first)
            for line in more:
                self.end_line(is_break=True)
                self._line.append(line)
        else:
            self._line.append(re.sub(r"\s+", " ", data))

    def end_line(self, *, is_break: bool = False) -> None:
        """Begin a new line of text."""
        text = "".join(self._line)
        text = text.rstrip() if self._pre else text.strip()
        self._line = []
        if text or is_break:
            self.lines.append("> " * min(self._quoted, 5) + text)


def text_of_html(html: str) -> str:
    """Return the text of an HTML page, with the addresses of links but without scripts and styles."""
    words = _Words()
    words.feed(_plain_tags(_visible_html(html[:MAX_TEXT_LENGTH])))
    words.close()
    words.end_line()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(words.lines)).strip()


def _visible_html(html: str) -> str:
    """Remove comments, scripts and all invisible parts from a page."""
    kept_items, at = [], 0
    while match := _SILENT.search(html, at):
        kept_items.append(html[at : match.start()])
        end = "-->" if match[1] == "!--" else f"</{match[1]}"
        closing = re.compile(re.escape(end), re.IGNORECASE).search(html, match.end())
        if closing is None:
            return "".join(kept_items)
        at = closing.end() if end == "-->" else closing.start()
    return "".join((*kept_items, html[at:]))


def _plain_tags(html: str) -> str:
    """Remove the attributes from the tags of a page, except the addresses of links."""
    parts, at = [], 0
    for tag in _TAG.finditer(html):
        name = tag[1]
        if name.lower() == "a" and (match := _ADDRESS.search(tag[0])):
            name = f'a href="{(match[1] or match[2]).replace(chr(34), "%22")}"'
        parts += [html[at : tag.start()].replace("<", "&lt;"), f"<{name}>"]
        at = tag.end()
    return "".join((*parts, html[at:].replace("<", "&lt;")))


def unwrap_flowed_text(text: str) -> str:
    """Join the lines of each paragraph of a `format=flowed` text."""
    lines: list[str] = []
    joins = False
    for raw in text.split("\n"):
        line = raw.removeprefix(" ")
        if joins and not line.startswith(">") and line != "-- ":
            lines[-1] += line
        else:
            lines.append(line)
        joins = line.endswith(" ") and line != "-- " and not line.startswith(">")
    return "\n".join(lines)


def own_words(text: str) -> str:
    """Return the text of an e-mail without the signature and the quoted history.

    Return the whole text if the sender wrote below a quotation, or if the result would be empty.
    """
    whole = text[:MAX_TEXT_LENGTH].strip()
    lines = whole.split("\n")
    for at, line in enumerate(lines):
        if line == "-- " or (line == "--" and at >= len(lines) - _SHORT_SIGNATURE):  # the signature begins
            lines = lines[:at]
            break
    last_own = max((at for at, line in enumerate(lines) if line.strip() and line[0] != ">"), default=-1)
    for at, line in enumerate(lines):
        is_divided = _DIVIDER.match(line) and _is_heading(lines[at + 1 : at + 5])
        is_headed = at and not lines[at - 1].strip() and _is_heading(lines[at : at + 3])
        is_attributed = at <= last_own < _after_attribution(lines, at)
        if is_divided or is_headed or is_attributed or at > last_own:  # the quoted history begins
            lines = lines[:at]
            break
    return "\n".join(lines).strip() or whole


def split_forwarded_text(text: str, subject: str) -> tuple[str, Forwarded | None]:
    """Split the text of an e-mail into the sender's own text and the forwarded text."""
    whole = text[:MAX_TEXT_LENGTH].strip()
    lines = whole.split("\n")
    at = next((at for at, line in enumerate(lines) if _FORWARD_MARK.match(line)), None)
    if at is None and _FORWARD_SUBJECT.match(subject):
        at = next((at for at in range(len(lines)) if _begins_history(lines, at)), None)
        if at is None:
            return whole, None  # return the whole text, because it is unclear who wrote which part
    if at is None:
        return own_words(text), None
    below = lines[at:]
    if all(line.startswith(">") for line in below[1:] if line.strip()):
        below = [line.removeprefix(">").removeprefix(" ") for line in below]
    named = (_AUTHOR.match(line) for line in below[:_MAX_HEADS])
    author = next((match[1].strip().strip("*") for match in named if match), None)
    own = own_words("\n".join(lines[:at]))
    return own, Forwarded(text="\n".join(below).strip(), author=author)


def _begins_history(lines: list[str], at: int) -> bool:
    is_divided = bool(_DIVIDER.match(lines[at])) and _is_heading(lines[at + 1 : at + 5])
    is_headed = (at == 0 or not lines[at - 1].strip()) and _is_heading(lines[at : at + 3])
    return is_divided or is_headed or lines[at].startswith(">") or _after_attribution(lines, at) > at


def _is_heading(lines: list[str]) -> bool:
    """Return whether lines begin with the headers that mail programs put above an answered e-mail."""
    filled = [line[:200] for line in lines if line.strip()]
    return len(filled) >= 2 and bool(_HEADING.match(filled[0])) and bool(_SECOND_HEADING.match(filled[1]))


def _after_attribution(lines: list[str], at: int) -> int:
    """Return the index after an `On … wrote:` line at `at`, or `at` if there is no such line."""
    joined = ""
    for length, line in enumerate(lines[at : at + 3], start=1):
        joined = f"{joined} {line[:400].strip()}".strip()
        if len(joined) < 400 and joined.endswith(":") and _WROTE.match(joined):
            return at + length
    return at


# Functions without I/O that convert e-mails to messages, and do not trust their content. For an unreadable
# e-mail, they raise `Malformed`.


ADDRESS = re.compile(
    r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,200}[A-Za-z0-9])?", re.ASCII
)
MESSAGE_ID = re.compile(r"<[!#-;=?-\[\]-~]{1,250}>")
_FROM = re.compile(r'\s*(?:((?:"(?:[^"\\]|\\.)*"|[^"<>(),;:\\])*)<([^<>]+)>|([^\s"<>(),;:\\]+))\s*')
_MACHINES = ("mailer-daemon", "postmaster")
_BULK = ("bulk", "list", "junk", "auto_reply")
_MAX_PARTS = 200
_DEEPEST = 30
_MAX_REFERENCES = 100
_MAX_HEAD_LENGTH = 256_000
_MAX_FIELD_LENGTH = 8_000
_MAX_BORDERS = 10_000
_FIELD = re.compile(rb"^content-(?:type|disposition):(?:[^\n]+|\n[ \t])*", re.IGNORECASE | re.MULTILINE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_NO_CHARSETS = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem")
"""Codecs of Python that e-mails do not use. Some of these codecs are very slow."""
_RESULT = re.compile(r"\s*(dmarc|dkim|spf)\s*=\s*(\w+)", re.IGNORECASE)
_PROPERTY = re.compile(r'(header\.from|header\.d|smtp\.mailfrom)\s*=\s*"?([^\s";]+)', re.IGNORECASE)
_COMMENT = re.compile(r"\([^()]*\)")


class Malformed(InvalidArgument):
    """An e-mail cannot be parsed, or its author is ambiguous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ourselves:
    """The address of the bot, and the server whose `Authentication-Results` headers are trusted."""

    address: str
    authserv_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The position of an e-mail in a mailbox."""

    validity: int
    uid: int

    @property
    def name(self) -> str:
        """The id that replaces a missing message id."""
        return f"{self.validity}-{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """The subject and the references that a reply to an e-mail needs."""

    subject: str
    references: tuple[str, ...]


BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MessageError)
"""The errors that the parser of the standard library can raise for malicious e-mails."""


def parse_email(raw: bytes) -> Message:
    """Parse an e-mail.

    Raises:
        Malformed: The e-mail is nested too deeply, cannot be parsed, or would take very long to parse.
    """
    end = _HEAD_END.search(raw)
    if (end.start() if end else len(raw)) > _MAX_HEAD_LENGTH or raw.count(b"\n--") > _MAX_BORDERS:
        raise Malformed("the e-mail has too many headers or parts")
    if any(len(field[0]) > _MAX_FIELD_LENGTH for field in _FIELD.finditer(raw)):
        raise Malformed("a header of the e-mail is too long")
    try:
        return BytesParser(policy=policy.compat32).parsebytes(raw)
    except BROKEN as error:
        raise Malformed("the e-mail cannot be parsed") from error


def understood(mail: Message, where: Where, me: Ourselves) -> MessageEvent | None:
    """Convert an e-mail to an event, or return None if the bot itself sent the e-mail.

    Raises:
        Malformed: The author is ambiguous, or the e-mail has too many parts.
    """
    try:
        address, name = parse_sender(mail)
        if address == me.address:
            return None
        message_id = parse_message_id(mail) or where.name
        thread = parse_thread(mail)
        subject = thread.subject
        text, forwarded, media = _content(mail, where, subject)
        if not thread.references and subject and not text.startswith("/"):
            text = f"{subject}\n\n{text}".strip()
        source = SessionSource(
            platform=Platform.EMAIL,
            chat_id=address,
            chat_name=name,
            chat_topic=subject or None,
            chat_type="dm",
            user_id=address,
            user_name=name,
            thread_id=thread.references[0] if thread.references else message_id,
            account=me.address,
        )
        sent_at: int | None
        try:
            sent_at = int(parsedate_to_datetime(_line(mail.get("Date", ""))).timestamp() * 1000)
        except (ValueError, TypeError, IndexError, OverflowError):
            sent_at = None
        event = MessageEvent(
            text=text,
            source=source,
            message_id=message_id,
            media=media,
            reply_to_message_id=thread.references[-1] if thread.references else None,
            timestamp=sent_at,
            forwarded=() if forwarded is None else (forwarded,),
            metadata={
                "verified": is_verified(mail, address, me.authserv_id),
                **automatic_marks(mail, address),
            },
        )
        if event.is_command():
            event.message_type = MessageType.COMMAND
        elif not text and media:
            event.message_type = media[0].kind
        return event
    except BROKEN as error:
        raise Malformed("the parser cannot process the e-mail") from error


def parse_sender(mail: Message) -> tuple[str, str | None]:
    """Return the address of the sender in lower case, and the display name.

    Raises:
        Malformed: There is no sender or more than one, or the address is ambiguous.
    """
    lines = mail.get_all("From") or []
    match = _FROM.fullmatch(_line(lines[0])) if len(lines) == 1 else None
    if match is None:
        raise Malformed("the e-mail does not have exactly one sender")
    address = (match[2] or match[3]).strip()
    if ADDRESS.fullmatch(address) is None:
        raise Malformed("the sender's address is not valid")
    name = one_line(_decode_header((match[1] or "").strip().strip('"')))
    return address.lower(), name or None


def automatic_marks(mail: Message, address: str) -> dict[str, Json]:
    """Return metadata that marks an e-mail from a program or a mailing list.

    `automatic` names the header which shows that the e-mail is automatic. `may_be_a_person` is true if
    e-mails by people can also contain the header. The bot does not answer automatic e-mails, to prevent mail
    loops.
    """
    for name in ("List-Unsubscribe", "X-Auto-Response-Suppress"):
        value = _line(mail.get(name, "")).strip().lower()
        if value not in ("", "none") and not _machine(mail, address):
            return {"automatic": name, "may_be_a_person": True}
    result = _machine(mail, address)
    return {} if result is None else {"automatic": result}


def _machine(mail: Message, address: str) -> str | None:
    """Return the header which shows that a program or a mailing list sent the e-mail, or None."""
    fields = {
        name: _line(mail.get(name, "")).strip().lower()
        for name in ("Auto-Submitted", "Precedence", "Return-Path")
    }
    marks = {
        "Auto-Submitted": fields["Auto-Submitted"].partition(";")[0].strip() not in ("", "no"),
        "Precedence": fields["Precedence"] in _BULK,
        "Return-Path": fields["Return-Path"] == "<>",
        "List-Id": mail.get("List-Id") is not None,
        "X-Autoreply": mail.get("X-Autoreply") is not None,
        "multipart/report": mail.get_content_type() == "multipart/report",
        "From": address.partition("@")[0] in _MACHINES,
    }
    return next((name for name, is_there in marks.items() if is_there), None)


def is_verified(mail: Message, address: str, authserv_id: str | None) -> bool:
    """Return whether the trusted server has verified the domain of the sender.

    Only the first header of the trusted server counts, because anybody can have written the later headers. A
    DKIM or SPF result counts only for the domain of the sender.
    """
    if authserv_id is None:
        return False
    domain = address.rpartition("@")[2]
    for value in mail.get_all("Authentication-Results") or []:
        text = _line(value)
        for _ in range(5):
            text = _COMMENT.sub(" ", text)
        server, *results = text.split(";")
        if server.split()[:1] and server.split()[0].lower() == authserv_id.lower():
            passed = False
            for text in results:
                match = _RESULT.match(text)
                if match is None:
                    continue
                method, result = match[1].lower(), match[2].lower()
                about = {name.lower(): value.lower() for name, value in _PROPERTY.findall(text)}
                if method == "dmarc" and result != "none":
                    return result == "pass" and about.get("header.from", domain) == domain
                signed = about.get("header.d", "") if method == "dkim" else about.get("smtp.mailfrom", "")
                signer = signed.rpartition("@")[2]
                aligned = "." in signer and (domain == signer or domain.endswith(f".{signer}"))
                passed = passed or (method != "dmarc" and result == "pass" and aligned)
            return passed
    return False


def parse_message_id(mail: Message) -> str | None:
    """Return the message id of an e-mail, or None if the id is missing or invalid."""
    match = MESSAGE_ID.fullmatch(_line(mail.get("Message-ID", "")).strip())
    return match[0] if match else None


def parse_thread(mail: Message) -> Thread:
    """Return the subject and the references of an e-mail, oldest reference first."""
    references, answered = _message_ids(mail, "References"), _message_ids(mail, "In-Reply-To")
    known_values = [*references[:1], *references[1:][-_MAX_REFERENCES:]]
    known_values += [value for value in answered[:_MAX_REFERENCES] if value not in known_values]
    return Thread(
        subject=one_line(_decode_header(_line(mail.get("Subject", "")))), references=tuple(known_values)
    )


def _message_ids(mail: Message, name: str) -> list[str]:
    """Return the message ids in a header."""
    text = " ".join(_decode_header(_line(value)) for value in mail.get_all(name) or ())
    return MESSAGE_ID.findall("".join(text.split()))


def leaves(mail: Message) -> Iterator[tuple[str, Message]]:
    """Yield the innermost parts of an e-mail, each with its IMAP part number.

    Raises:
        Malformed: There are too many parts, or they are nested too deeply.
    """
    waiting = [("", mail)]
    seen = 0
    while waiting:
        section, part = waiting.pop()
        seen += 1
        if seen > _MAX_PARTS or section.count(".") > _DEEPEST:
            raise Malformed("the e-mail has too many parts")
        payload = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(payload, list):
            prefix = f"{section}." if section else ""
            inner = [(f"{prefix}{number}", item) for number, item in enumerate(payload, start=1)]
            waiting.extend((number, item) for number, item in reversed(inner) if isinstance(item, Message))
        else:
            yield section or "1", part


def _content(
    mail: Message, where: Where, subject: str
) -> tuple[str, Forwarded | None, tuple[Attachment, ...]]:
    """Return the text of the sender, the forwarded text, and the files."""
    plain: list[str] = []
    pages: list[str] = []
    media: list[Attachment] = []
    for section, part in leaves(mail):
        try:
            filename = part.get_filename()
        except (LookupError, ValueError, TypeError):
            filename = "file"
        name = None if filename is None else (one_line(_decode_header(_line(filename))) or "file")
        is_container = part.get_content_maintype() == "multipart"
        # a multipart without parts is treated as text
        kind = "text/plain" if is_container else part.get_content_type()
        is_text = kind in ("text/plain", "text/html") and name is None
        if (
            is_text
            and (_line(part.get("Content-Disposition", "")).partition(";")[0].strip().lower() or None)
            != "attachment"
        ):
            text = _text(part)
            (plain if kind == "text/plain" else pages).append(text)
        else:
            encoding = _line(part.get("Content-Transfer-Encoding", "7bit")).strip().lower()
            encoding = encoding if encoding in ("base64", "quoted-printable") else "plain"
            payload = part.get_payload()
            size = len(payload) if isinstance(payload, str) else None
            if size is not None and encoding == "base64":
                size = size * 3 // 4
            media.append(
                Attachment(
                    kind=MessageType.of_file(part.get_content_type()),
                    ref=f"imap/{where.validity}/{where.uid}/{section}/{encoding}",
                    mime=one_line(part.get_content_type()),
                    name=name,
                    size=size,
                )
            )
    text = "\n\n".join(value for value in plain if value.strip())
    if not text.strip():
        text = "\n\n".join(text_of_html(page) for page in pages)
    own, forwarded = split_forwarded_text(text, subject)
    if forwarded is None:
        return (
            own,
            None,
            tuple(
                replace(attachment, is_foreign=attachment.mime in ("message/rfc822", "message/global"))
                for attachment in media
            ),
        )
    # Mail programs mix the files of a forwarded e-mail with those of the sender, and nobody can tell which is
    # which.
    return own, forwarded, Attachment.foreign(media)


def _text(part: Message) -> str:
    raw = part.get_payload(decode=True)
    raw = raw[: MAX_TEXT_LENGTH * 4] if isinstance(raw, bytes) else b""
    try:
        codec = codecs.lookup(_param(part, "charset") or "utf-8").name
        text = raw.decode("utf-8" if codec in _NO_CHARSETS else codec, "replace")
    except (LookupError, ValueError, TypeError):
        text = raw.decode("utf-8", "replace")
    text = clean(text)
    if part.get_content_type() == "text/plain" and (_param(part, "format") or "").lower() == "flowed":
        return unwrap_flowed_text(text)
    return text


# Headers, which may be malicious.


def _line(value: object) -> str:
    """Return a header as one line."""
    return one_line(str(value), longest=20_000)


def _decode_header(text: str) -> str:
    """Return a decoded header."""
    try:
        return str(make_header(decode_header(text)))
    except (HeaderParseError, LookupError, ValueError):
        return text


def _param(part: Message, name: str) -> str | None:
    try:
        value = part.get_param(name)
    except (LookupError, ValueError, TypeError):
        return None
    return value if isinstance(value, str) else None


# Access to a mailbox by IMAP and to a mail server by SMTP. All calls block, so make them on a thread. Only
# one thread at a time may use a `Mailbox`. Errors and logs never contain passwords or the text of an e-mail.


_MAX_LINE_LENGTH = 998
"""Maximum characters of a header line.

Shorter headers are not folded, because some programs lose a folded message id.
"""
_MAX_REFERENCES_LENGTH = 900
"""Maximum characters of the header `References`, which names the e-mails of the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingEmail:
    """An e-mail to send."""

    sender: str
    to: str
    message_id: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The headers of an e-mail.

    Raises:
        ValueError: A value contains a line break, or is not allowed in its header.
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
        lines = (
            self.sender,
            self.sender_name or "",
            self.to,
            self.subject,
            self.message_id,
            *self.references,
        )
        if not all(value.isprintable() for value in lines):
            raise ValueError("a header contains a line break")
        if ADDRESS.fullmatch(self.to) is None:
            raise ValueError("the recipient is not a valid address")
        ids = (self.message_id, *self.references, *((self.answers,) if self.answers else ()))
        if not all(MESSAGE_ID.fullmatch(item) for item in ids):
            raise ValueError("a message id is invalid")


_OWN_ID = re.compile(r"<[0-9a-f]{40}\.(.+)\.postroom@([^@]+)>")
_ROOT = re.compile(rf"{MESSAGE_ID.pattern}|\d{{1,10}}-\d{{1,10}}", re.ASCII)
"""Matches the id of the e-mail that began a conversation: a message id or a `Where.name`."""


def message_id_from(key: str, root: str | None, address: str) -> str:
    """Return the message id of an outgoing e-mail. Equal keys have equal ids.

    The message id contains the id of the e-mail that began the conversation.
    """
    digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:40]
    end = f".postroom@{address.rpartition('@')[2]}>"
    whole = f"<{digest}.{quote(root or '', safe='')}{end}"
    return whole if root and MESSAGE_ID.fullmatch(whole) else f"<{digest}{end}"


def root_in(message_id: str, address: str) -> str | None:
    """Extract the id of a conversation's first e-mail from the id of a sent e-mail.

    Return None if postroom did not send the e-mail.
    """
    match = _OWN_ID.fullmatch(message_id)
    if match is None or match[2] != address.rpartition("@")[2]:
        return None
    root = unquote(match[1])
    return root if _ROOT.fullmatch(root) else None


def build_subject(thread: Thread | None, fallback: str) -> str:
    """Return the subject of an answer, which begins with a single `Re: `."""
    subject = one_line(thread.subject if thread is not None and thread.subject else fallback)
    subject = "".join(value if value.isprintable() else " " for value in subject)
    return subject if subject.lower().startswith("re:") else f"Re: {subject}"


def build_references(root: str | None, thread: Thread | None, answered: str | None) -> tuple[str, ...]:
    """Return the references of an answer: the first e-mail and the newest e-mails of the thread."""
    known_values = [root or "", *(thread.references if thread else ()), answered or ""]
    texts = list(dict.fromkeys(value for value in known_values if MESSAGE_ID.fullmatch(value)))
    while len(texts) > 2 and sum(map(len, texts)) + len(texts) > _MAX_REFERENCES_LENGTH:
        del texts[1]
    return tuple(texts)


def build_email(
    heading: Heading, text: str, html: str, file: tuple[Attachment, bytes] | None = None
) -> OutgoingEmail:
    """Build an e-mail from a plain text, an HTML text and an optional file."""
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
        attachment, data = file
        attached = MIMEApplication(data)
        mime = attachment.mime or ""
        main, _, sub = mime.partition("/")
        is_sub = sub.replace("-", "").replace(".", "").replace("+", "").isalnum()
        if main.isalnum() and is_sub and mime.isascii():
            attached.replace_header("Content-Type", mime)
        name = one_line((attachment.name or "file").replace("/", "_").replace("\\", "_"))
        filename = name if name.isascii() else ("utf-8", "", name)
        attached.add_header("Content-Disposition", "attachment", filename=filename)
        mail.attach(attached)
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
    raw = mail.as_bytes(policy=policy.compat32.clone(linesep="\r\n", max_line_length=_MAX_LINE_LENGTH))
    return OutgoingEmail(sender=heading.sender, to=heading.to, message_id=heading.message_id, raw=raw)


def refusal(error: SMTPException) -> SendResult:
    """Convert an SMTP error to the result of sending an e-mail."""
    if isinstance(error, SMTPNotSupportedError):
        return SendResult.failed(
            SendErrorKind.BAD_FORMAT, "the mail server does not support sending this e-mail"
        )
    if isinstance(error, SMTPRecipientsRefused):
        code, answered = next(iter(error.recipients.values()))
        words = answered.decode("ascii", "replace")
    elif isinstance(error, SMTPResponseException):
        code, reply = error.smtp_code, error.smtp_error
        words = reply.decode("ascii", "replace") if isinstance(reply, bytes) else reply
    else:
        return SendResult.failed(SendErrorKind.TRANSIENT, "the mail server closed the connection")
    extended = words.split(maxsplit=1)[0] if words[:1] in ("2", "4", "5") else ""
    text = (
        f"the mail server answered {code} {extended if extended.replace('.', '').isdigit() else ''}".strip()
    )
    if 400 <= code < 500 or code < 200:
        kind = SendErrorKind.RATE_LIMITED if extended.startswith("4.7.") else SendErrorKind.TRANSIENT
        return SendResult.failed(kind, text, retry_after_ms=60_000 if extended.startswith("4.7.") else None)
    if code == 552 or extended in ("5.3.4", "5.2.3"):
        return SendResult.failed(SendErrorKind.TOO_LONG, text)
    if isinstance(error, SMTPAuthenticationError | SMTPSenderRefused | SMTPDataError):
        return SendResult.failed(SendErrorKind.FORBIDDEN, text)
    forbidden = extended.startswith("5.7.") or code in (530, 535, 554)
    return SendResult.failed(SendErrorKind.FORBIDDEN if forbidden else SendErrorKind.NOT_FOUND, text)


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
_REF = re.compile(r"imap/(\d{1,10})/(\d{1,10})/(\d{1,4}(?:\.\d{1,4}){0,40})/(base64|quoted-printable|plain)")
_PERHAPS_LATER = re.compile(r"\[(UNAVAILABLE|LIMIT|INUSE|SERVERBUG|CONTACTADMIN)\]", re.IGNORECASE)
NETWORK = (OSError, EOFError, imaplib.IMAP4.error)
"""The errors after which the connection to a mailbox is no longer usable."""


class Security(StrEnum):
    """The encryption of the connection to a mail server."""

    SSL = "ssl"
    STARTTLS = "starttls"
    PLAIN = "plain"


class LoginRefused(Exception):
    """A mail server refused the user name or the password.

    `passing` is true if the refusal may be temporary.
    """

    def __init__(self, server: str, *, passing: bool = False) -> None:
        super().__init__(f"the {server} server rejected the login")
        self.passing = passing


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of a server, with the bot's credentials."""

    host: str
    port: int
    security: Security
    user: str
    password: str = field(repr=False)
    timeout: float = 30.0
    ca_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to the server.

        If `ca_file` is set, the context trusts the certificates in the file.
        """
        return ssl.create_default_context(cafile=self.ca_file)


class Mailbox:
    """Reads one folder of a mailbox by IMAP, and connects again after each failure."""

    def __init__(self, server: Server, folder: str) -> None:
        self._server = server
        self._folder = '"' + folder.replace("\\", "\\\\").replace('"', '\\"') + '"'
        self._imap: imaplib.IMAP4 | None = None
        self.validity = 0

    def open(self) -> None:
        """Log in to the IMAP server, and select the folder.

        Raises:
            LoginRefused: The user name or the password is wrong.
            OSError, IMAP4.error: The server is unreachable, or the folder does not exist.
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
        _response_data(imap.select(self._folder))
        values = imap.response("UIDVALIDITY")[1]
        self.validity = int(values[0]) if values and values[0] else 0

    def close(self) -> None:
        """Log out of the IMAP server if the connection still works."""
        imap, self._imap = self._imap, None
        if imap is not None:
            with suppress(*NETWORK):
                imap.logout()
            with suppress(*NETWORK):
                imap.shutdown()

    def break_off(self) -> None:
        """Close the connection from another thread, so that waiting calls fail at once."""
        if (imap := self._imap) is not None:
            with suppress(OSError):
                imap.sock.shutdown(socket.SHUT_RDWR)

    def unread(self, now: int, days: int, most: int) -> list[int]:
        """Return the UIDs of the unread e-mails of the last `days` days, oldest first."""
        day = datetime.fromtimestamp(now / 1000, tz=UTC) - timedelta(days=days)
        imap = self._open()
        _response_data(imap.noop())
        since = f"{day.day:02d}-{_MONTHS[day.month - 1]}-{day.year}"
        items = _response_data(imap.uid("SEARCH", "UNSEEN", "SINCE", since))
        return sorted(int(part) for line in items if line for part in line.split())[:most]

    def fetch(self, uid: int, *, most: int) -> tuple[bytes, bool] | None:
        """Return an e-mail, cut after `most` bytes, and whether the e-mail was cut.

        Return None if the e-mail no longer exists.
        """
        size = _SIZE.search(
            b" ".join(
                [
                    entry
                    for item in _response_data(self._open().uid("FETCH", str(uid), "(RFC822.SIZE)"))
                    for entry in (item if isinstance(item, tuple) else (item,))
                    if isinstance(entry, bytes)
                ]
            )
        )
        if size is None:
            return None
        raw = self._bytes(uid, f"BODY.PEEK[]<0.{most}>")
        return None if raw is None else (raw[:most], int(size[1]) > most)

    def mark_read(self, uid: int) -> None:
        """Mark an e-mail as read."""
        _response_data(self._open().uid("STORE", str(uid), "+FLAGS.SILENT", r"(\Seen)"))

    def part(self, ref: str, *, most: int) -> bytes | None:
        """Return the attached file that `ref` names, or None if the file does not exist.

        Raises:
            TooLarge: The file is larger than `most` bytes. Not much more was read.
        """
        match = _REF.fullmatch(ref)
        if match is None or int(match[1]) != self.validity:
            return None
        limit = most if match[4] == "plain" else most * 3 + 1_000
        raw = self._bytes(int(match[2]), f"BODY.PEEK[{match[3]}]<0.{limit + 1}>")
        if raw is None:
            return None
        cut = len(raw) > limit
        data = raw
        if match[4] == "base64":
            whole = raw.translate(None, b"\r\n\t ")
            try:
                data = base64.b64decode(whole[: len(whole) - len(whole) % 4])
            except binascii.Error:
                data = whole
        elif match[4] == "quoted-printable":
            data = quopri.decodestring(raw)
        if cut or len(data) > most:
            raise TooLarge(f"the file exceeds {most} bytes", value=most)
        return data

    def headers(self, message_id: str) -> bytes | None:
        """Return the headers needed to answer an e-mail, or None if the e-mail no longer exists."""
        imap = self._open()
        items = [
            part
            for line in _response_data(imap.uid("SEARCH", "HEADER", "Message-ID", f'"{message_id}"'))
            if line
            for part in line.split()
        ]
        if not items:
            return None
        return self._bytes(int(items[-1]), "BODY.PEEK[HEADER.FIELDS (SUBJECT REFERENCES IN-REPLY-TO)]")

    def where(self, uid: int) -> Where:
        """Return the position of an e-mail."""
        return Where(validity=self.validity, uid=uid)

    def _bytes(self, uid: int, what: str) -> bytes | None:
        items = _response_data(self._open().uid("FETCH", str(uid), f"({what})"))
        return next((item[1] for item in items if isinstance(item, tuple) and len(item) == 2), None)

    def _open(self) -> imaplib.IMAP4:
        if self._imap is None:
            raise imaplib.IMAP4.abort("there is no connection to the IMAP server")
        return self._imap


def _response_data(answer: tuple[str, Any]) -> list[Any]:
    """Return the data in a response from the server.

    Raises:
        IMAP4.error: The server refused the command.
    """
    status, data = answer[0], list(answer[1])
    if status != "OK":
        raise imaplib.IMAP4.error("the IMAP server rejected a command")
    return data


def check(server: Server, domain: str) -> None:
    """Check the credentials for a mail server by logging in.

    Raises:
        LoginRefused: The user name or the password is wrong.
        OSError, SMTPException: The server could not be reached.
    """
    _quit(_connect_smtp(server, domain))


def deliver(server: Server, domain: str, message: OutgoingEmail) -> SendResult:
    """Try once to send an e-mail.

    The result is unknown if the connection breaks before the server confirms the e-mail.
    """
    try:
        smtp = _connect_smtp(server, domain)
    except LoginRefused as error:
        kind = SendErrorKind.TRANSIENT if error.passing else SendErrorKind.FORBIDDEN
        return SendResult.failed(kind, str(error))
    except smtplib.SMTPException as error:
        return refusal(error)
    except OSError as error:
        return SendResult.failed(
            SendErrorKind.TRANSIENT, f"a mail server cannot be reached: {type(error).__name__}"
        )
    try:
        try:
            size = [f"size={len(message.raw)}"] if smtp.has_extn("size") else []
            code, data = smtp.mail(message.sender, size)
            if code != 250:
                return refusal(smtplib.SMTPSenderRefused(code, data, message.sender))
            code, data = smtp.rcpt(message.to)
            if code not in (250, 251):
                return refusal(smtplib.SMTPRecipientsRefused({message.to: (code, data)}))
        except (smtplib.SMTPException, OSError) as error:
            return SendResult.failed(
                SendErrorKind.TRANSIENT, f"the mail server closed the connection: {type(error).__name__}"
            )
        try:
            code, data = smtp.data(message.raw)
        except smtplib.SMTPResponseException as error:
            return refusal(error)
        except (smtplib.SMTPException, OSError) as error:
            return SendResult.failed(
                SendErrorKind.UNKNOWN, f"the mail server's answer was lost: {type(error).__name__}"
            )
        return (
            SendResult.sent(message.message_id) if code == 250 else refusal(smtplib.SMTPDataError(code, data))
        )
    finally:
        _quit(smtp)


def _connect_smtp(server: Server, domain: str) -> smtplib.SMTP:
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


_IMAP_PORTS = {Security.SSL: 993, Security.STARTTLS: 143, Security.PLAIN: 143}
_SMTP_PORTS = {Security.SSL: 465, Security.STARTTLS: 587, Security.PLAIN: 25}
Port = Annotated[int, Meta(ge=1, le=65_535)]


class EmailOptions(PlatformConfig, frozen=True, kw_only=True):
    """The settings in the table `[platforms.email]`."""

    ALSO: ClassVar = {"password": "token", "smtp_password": "api_key"}
    address: str
    """The address of the bot."""
    imap_host: Line
    smtp_host: Line
    name: str | None = None
    """The display name of the bot in its e-mails."""
    user: Line | None = None
    """The user name for the mailbox. If None, `address` is used."""
    smtp_user: Line | None = None
    """The user name for the SMTP server. If None, the user name for the mailbox is used."""
    imap_port: Port | None = None
    """The port of the IMAP server. If None, the usual port for `imap_security` is used."""
    smtp_port: Port | None = None
    """The port of the SMTP server. If None, the usual port for `smtp_security` is used."""
    imap_security: Security = Security.SSL
    smtp_security: Security = Security.STARTTLS
    allow_plain: bool = False
    """Whether connections to other machines may be unencrypted (`plain`)."""
    ca_file: FilePath | None = None
    """A file with certificates, which are trusted instead of those of the system."""
    authserv_id: Line | None = None
    """The server whose `Authentication-Results` headers are trusted."""
    folder: Line = "INBOX"
    """The IMAP folder that is polled for mail."""
    subject: Line = "your message"
    """The subject of an answer to an e-mail that has been deleted."""
    poll_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 15_000
    """The pause between two polls of the folder, in milliseconds."""
    max_age_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    """The age, in days, above which an unread e-mail is ignored."""
    max_bytes: Annotated[int, Meta(ge=10_000, le=200_000_000)] = 25_000_000
    """Maximum bytes of an e-mail that are read. In a longer e-mail, `truncated` is true."""
    timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] = 30_000
    """The time limit for one step of a connection to a server, in milliseconds."""

    def __post_init__(self) -> None:
        if ADDRESS.fullmatch(self.address) is None:
            raise ValueError("`address` must be an address such as agent@example.org")
        if not (self.name or "").isprintable():
            raise ValueError("`name` must be one line of text")
        for name, host in (("imap_security", self.imap_host), ("smtp_security", self.smtp_host)):
            plain = (self.imap_security if name == "imap_security" else self.smtp_security) is Security.PLAIN
            if plain and host not in LOOPBACK and not self.allow_plain:
                raise ValueError(
                    f"`{name}` would send the password unencrypted; set it to ssl or starttls, or set "
                    "allow_plain if you trust the network"
                )

    @property
    def domain(self) -> str:
        """The domain in the address of the bot."""
        return self.address.rpartition("@")[2].lower()

    def imap(self, password: str) -> Server:
        """Return the IMAP server of the mailbox."""
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
        """Return the SMTP server for outgoing e-mail."""
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


_BATCH = 50
"""Maximum number of e-mails in a poll. If there are more, the next poll follows soon."""
_SHORT_PAUSE = 100
_REMEMBERED = 1_000
"""Maximum number of e-mails whose subject and references are cached."""
_MAX_LOOKED_UP = 20
"""The number of an e-mail's newest references that are looked up."""
_PATIENCE = 10.0
"""The number of seconds that `disconnect` waits for an active step."""
T = TypeVar("T")


class EmailAdapter(BasePlatformAdapter):
    """Receives and sends the e-mail of one mailbox.

    Raises:
        ConfigError: A setting is missing or invalid.
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
        self._me = Ourselves(address=self._address, authserv_id=options.authserv_id)
        password = _password(config.token, "password")
        self._imap = options.imap(password)
        self._smtp = options.smtp(_password(config.api_key, "smtp_password") if config.api_key else password)
        self._mailbox = Mailbox(self._imap, options.folder)
        self._is_open = False
        """Whether the mailbox is open. After a network failure, the mailbox is opened again."""
        self._thread: ThreadPoolExecutor | None = None
        self._threads: OrderedDict[str, Thread] = OrderedDict()

    @property
    def account(self) -> str:
        """The address of the bot."""
        return self._address

    def lock_identity(self) -> str | None:
        """Return the name of the mailbox, which only one process may read."""
        imap = self._imap
        return f"imap {imap.user} {imap.host}:{imap.port} {self._options.folder}"

    # Connecting and disconnecting.

    async def connect(self, *, is_reconnect: bool = False) -> None:
        """Log in to the IMAP server and the SMTP server, and start to poll for mail."""
        await self.disconnect()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="postroom-imap")
        self.liveness.state = AdapterState.CONNECTING
        try:
            await self._on_thread(self._mailbox.open)
            await asyncio.to_thread(check, self._smtp, self._options.domain)
        except BaseException as error:
            await self.disconnect()
            if (postroom_error := _connection_error(error)) is not None:
                raise postroom_error from None
            raise
        self._is_open = True
        self._start_receiving(self._look)

    async def disconnect(self) -> None:
        """Stop polling, and close the connection to the mailbox."""
        await self._end_tasks()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._mailbox.break_off()
            thread.submit(self._mailbox.close)
            ended = asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
            await asyncio.wait((ended,), timeout=_PATIENCE)

    async def _on_thread(self, step: Callable[[], T]) -> T:
        """Run a mailbox operation on the mailbox thread."""
        if self._thread is None:
            raise ServerUnavailable("the connection to the mailbox is closed", remedy="postroom retries")
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    # Incoming mail.

    async def _look(self, _: int) -> int:
        """Process the unread e-mails in order, and return the pause before the next poll."""
        options, now = self._options, self._clock.now()
        try:
            if not self._is_open:
                await self._on_thread(self._mailbox.open)
                self._is_open = True
            numbers = await self._on_thread(lambda: self._mailbox.unread(now, options.max_age_days, _BATCH))
            self._heard()
            for uid in numbers:
                await self._take(uid)
        except PostroomError:
            raise
        except Exception as error:
            self._is_open = False
            if (postroom_error := _connection_error(error)) is not None:
                raise postroom_error from error
            raise
        return _SHORT_PAUSE if len(numbers) == _BATCH else options.poll_ms

    async def _take(self, uid: int) -> None:
        """Hand over an e-mail, and mark the e-mail as read."""
        value = await self._on_thread(lambda: self._mailbox.fetch(uid, most=self._options.max_bytes))
        if value is not None:
            await self.take_in(value[0], partial(self._hand_over, uid, *value))
        await self._on_thread(lambda: self._mailbox.mark_read(uid))

    async def _hand_over(self, uid: int, raw: bytes, is_cut: bool) -> None:
        event = await self._on_thread(lambda: self._read(uid, raw, is_cut=is_cut))
        if event is not None and event.source is not None and event.message_id is not None:
            # The id of the conversation's first e-mail, found through the references of this e-mail.
            source, root = event.source, event.source.thread_id
            for message_id in reversed(self._threads[event.message_id].references[-_MAX_LOOKED_UP:]):
                if (named := root_in(message_id, self._address)) is not None:
                    root = named
                    break
                known = None if self._inbound is None else await self._inbound.look_up(source, message_id)
                if known is not None and known.event.source is not None:
                    root = known.event.source.thread_id
                    break
            event.source = replace(source, thread_id=root)
            await self.handle_message(event)

    def _read(self, uid: int, raw: bytes, *, is_cut: bool) -> MessageEvent | None:
        """Parse an e-mail. Call the method on a thread, because parsing a large e-mail is slow."""
        mail = parse_email(raw)
        event = understood(mail, self._mailbox.where(uid), self._me)
        if event is not None and event.message_id is not None:
            self._remember(event.message_id, parse_thread(mail))
            if is_cut:
                event.metadata["truncated"] = True
                event.unread += (f"the part of an e-mail after its first {self._options.max_bytes} bytes",)
        return event

    def _remember(self, message_id: str, thread: Thread) -> None:
        self._threads[message_id] = thread
        self._threads.move_to_end(message_id)
        if len(self._threads) > _REMEMBERED:
            self._threads.popitem(last=False)

    # Outgoing mail.

    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata | None = None
    ) -> SendResult:
        """Send an e-mail to an address, as a reply to an earlier e-mail if possible."""
        return await self._write(chat_id, content, reply_to, metadata or {}, None)

    async def send_media(
        self,
        chat_id: str,
        attachment: Attachment,
        data: FileContent,
        caption: str | None = None,
        metadata: Metadata | None = None,
    ) -> SendResult:
        """Send an e-mail with a file."""
        async with self._file_turn:
            file = (attachment, await data.whole())
            return await self._write(chat_id, caption or "", None, metadata or {}, file)

    async def fetch_media(self, attachment: Attachment, *, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield a received file from the bot's mailbox."""
        try:
            data = await self._on_thread(lambda: self._mailbox.part(attachment.ref, most=max_bytes))
        except NETWORK as error:
            raise ServerUnavailable("the mailbox does not answer", remedy="postroom retries") from error
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
                SendErrorKind.TOO_LONG, f"the text has more than {self.capabilities.limit} characters"
            )
        root = metadata.get("thread_id")
        thread = await self._find_thread(reply_to or root)
        key, options = metadata.get("dedupe_key"), self._options
        answered = reply_to or root
        try:
            subject = metadata.get("subject")
            if not isinstance(subject, str) or not subject:
                subject = options.subject if answered is None else build_subject(thread, options.subject)
            heading = Heading(
                sender=self._address,
                sender_name=options.name,
                to=to,
                subject=subject,
                message_id=message_id_from(str(key) if key else uuid4().hex, root, self._address),
                now=self._clock.now(),
                references=build_references(root, thread, answered),
                answers=answered if answered and MESSAGE_ID.fullmatch(answered) else None,
            )
        except ValueError as error:
            return SendResult.failed(SendErrorKind.BAD_FORMAT, f"this e-mail cannot be sent: {error}")
        message = await asyncio.to_thread(lambda: build_email(heading, text, to_html(text), file))
        result = await asyncio.to_thread(deliver, self._smtp, options.domain, message)
        if result.success:
            self._said()
        return result

    async def _find_thread(self, message_id: str | None) -> Thread | None:
        """Return the subject and the references of an e-mail, from the cache or from the mailbox."""
        if message_id is None or MESSAGE_ID.fullmatch(message_id) is None:
            return self._threads.get(message_id or "")
        if message_id in self._threads or self._thread is None:
            return self._threads.get(message_id)
        try:
            raw = await self._on_thread(lambda: self._mailbox.headers(message_id))
            thread = None if raw is None else parse_thread(parse_email(raw))
        except (*NETWORK, Malformed, ServerUnavailable):
            return None  # the answer is then sent with a default subject
        if thread is not None:
            self._remember(message_id, thread)
        return thread


def _connection_error(error: BaseException) -> PostroomError | None:
    """Convert a connection failure to an error for the operator, or return None."""
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
            f"e-mail: a connection failed: {type(error).__name__}",
            remedy="check `imap_host`, `smtp_host`, their ports and security, and `folder`",
        )
    return None
