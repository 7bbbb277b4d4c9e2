"""Mails as messages: parsed without trust, without I/O. An unreadable mail is `Malformed`."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email import policy
from email.errors import HeaderParseError, MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.utils import parsedate_to_datetime

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.gateway.events import Attachment, Forwarded, MessageEvent, MessageType
from postroom.gateway.platforms.email_text import LONGEST, text_of_html, unflowed, with_forwarded
from postroom.gateway.platforms.safe_text import clean, one_line
from postroom.gateway.session import Platform, SessionSource

ADDRESS = re.compile(
    r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,200}[A-Za-z0-9])?", re.ASCII
)
MESSAGE_ID = re.compile(r"<[!#-;=?-\[\]-~]{1,250}>")
_FROM = re.compile(r'\s*(?:((?:"(?:[^"\\]|\\.)*"|[^"<>(),;:\\])*)<([^<>]+)>|([^\s"<>(),;:\\]+))\s*')
_MACHINES = ("mailer-daemon", "postmaster")
_BULK = ("bulk", "list", "junk", "auto_reply")
_MOST_PARTS = 200
_DEEPEST = 30
_MOST_REFERENCES = 100
_LONGEST_HEAD = 256_000
_LONGEST_FIELD = 8_000
_MOST_BORDERS = 10_000
_FIELD = re.compile(rb"^content-(?:type|disposition):(?:[^\n]+|\n[ \t])*", re.IGNORECASE | re.MULTILINE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_NO_CHARSETS = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem")
"""Codecs that Python calls text and that no mail is written in; some take very long."""
_KINDS = {"image": MessageType.PHOTO, "audio": MessageType.AUDIO, "video": MessageType.VIDEO}
_RESULT = re.compile(r"\s*(dmarc|dkim|spf)\s*=\s*(\w+)", re.IGNORECASE)
_PROPERTY = re.compile(r'(header\.from|header\.d|smtp\.mailfrom)\s*=\s*"?([^\s";]+)', re.IGNORECASE)
_COMMENT = re.compile(r"\([^()]*\)")


class Malformed(InvalidArgument):
    """A mail cannot be read, or does not say clearly who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ourselves:
    """Our address, and whose word on senders we trust."""

    address: str
    authserv_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The position of a mail: permanently unique as long as the mailbox is not recreated."""

    validity: int
    uid: int

    @property
    def name(self) -> str:
        """The substitute for a missing message id."""
        return f"{self.validity}-{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """The data of an answered mail that an answer needs."""

    subject: str
    references: tuple[str, ...]


BROKEN = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MessageError)
"""The errors that the standard library's parser may raise for malicious mails."""


def parsed(raw: bytes) -> Message:
    """Return a mail's parts.

    Raises:
        Malformed: it is nested too deeply, breaks the parser, or would keep it busy for very long.
    """
    end = _HEAD_END.search(raw)
    if (end.start() if end else len(raw)) > _LONGEST_HEAD or raw.count(b"\n--") > _MOST_BORDERS:
        raise Malformed("a mail with too many headers or parts")
    if any(len(field[0]) > _LONGEST_FIELD for field in _FIELD.finditer(raw)):
        raise Malformed("a mail with a header that is too long")
    try:
        return BytesParser(policy=policy.compat32).parsebytes(raw)
    except BROKEN as error:
        raise Malformed("a mail that cannot be parsed") from error


def understood(mail: Message, where: Where, me: Ourselves) -> MessageEvent | None:
    """Return the content of a mail; None when we ourselves wrote it.

    Raises:
        Malformed: it is not clear who wrote it, or its parts are too many.
    """
    try:
        return _understood(mail, where, me)
    except BROKEN as error:
        raise Malformed("a mail that the parser cannot process") from error


def _understood(mail: Message, where: Where, me: Ourselves) -> MessageEvent | None:
    address, name = sender_of(mail)
    if address == me.address:
        return None
    message_id = message_id_of(mail) or where.name
    thread = thread_of(mail)
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
    event = MessageEvent(
        text=text,
        source=source,
        message_id=message_id,
        media=media,
        reply_to_message_id=thread.references[-1] if thread.references else None,
        timestamp=_instant_of(mail),
        forwarded=() if forwarded is None else (forwarded,),
        metadata={"verified": is_verified(mail, address, me.authserv_id), **automatic_marks(mail, address)},
    )
    if event.is_command():
        event.message_type = MessageType.COMMAND
    elif not text and media:
        event.message_type = media[0].kind
    return event


def sender_of(mail: Message) -> tuple[str, str | None]:
    """Return the one address that a mail is from, in small letters, and a name for show.

    Raises:
        Malformed: there is not exactly one, or it can be read in two ways.
    """
    told = mail.get_all("From") or []
    found = _FROM.fullmatch(_line(told[0])) if len(told) == 1 else None
    if found is None:
        raise Malformed("a mail without exactly one sender")
    address = (found[2] or found[3]).strip()
    if ADDRESS.fullmatch(address) is None:
        raise Malformed("a sender without a valid address")
    name = one_line(_decoded((found[1] or "").strip().strip('"')))
    return address.lower(), name or None


def automatic_marks(mail: Message, address: str) -> dict[str, Json]:
    """Return the mark of a mail from a machine or a list: an answer might cause a loop.

    `automatic` names the header with the mark. With `may_be_a_person`, programs also put it on people's
    mails.
    """
    for name in ("List-Unsubscribe", "X-Auto-Response-Suppress"):
        value = _line(mail.get(name, "")).strip().lower()
        if value not in ("", "none") and not _machine(mail, address):
            return {"automatic": name, "may_be_a_person": True}
    found = _machine(mail, address)
    return {} if found is None else {"automatic": found}


def _machine(mail: Message, address: str) -> str | None:
    """Return the part of a mail that says that a machine or a list sent it."""
    told = {
        name: _line(mail.get(name, "")).strip().lower()
        for name in ("Auto-Submitted", "Precedence", "Return-Path")
    }
    marks = {
        "Auto-Submitted": told["Auto-Submitted"].partition(";")[0].strip() not in ("", "no"),
        "Precedence": told["Precedence"] in _BULK,
        "Return-Path": told["Return-Path"] == "<>",
        "List-Id": mail.get("List-Id") is not None,
        "X-Autoreply": mail.get("X-Autoreply") is not None,
        "multipart/report": mail.get_content_type() == "multipart/report",
        "From": address.partition("@")[0] in _MACHINES,
    }
    return next((name for name, is_there in marks.items() if is_there), None)


def is_verified(mail: Message, address: str, authserv_id: str | None) -> bool:
    """Return whether the trusted server found that the sender's domain really sent the mail.

    Only the first header of that server counts: later ones came with the mail, and anybody can write them. A
    valid signature or path of another domain than the sender's proves nothing.
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
            return _passes(results, domain)
    return False


def _passes(results: list[str], domain: str) -> bool:
    passed = False
    for text in results:
        found = _RESULT.match(text)
        if found is None:
            continue
        method, result = found[1].lower(), found[2].lower()
        about = {name.lower(): value.lower() for name, value in _PROPERTY.findall(text)}
        if method == "dmarc" and result != "none":
            return result == "pass" and about.get("header.from", domain) == domain
        signed = about.get("header.d", "") if method == "dkim" else about.get("smtp.mailfrom", "")
        signer = signed.rpartition("@")[2]
        aligned = "." in signer and (domain == signer or domain.endswith(f".{signer}"))
        passed = passed or (method != "dmarc" and result == "pass" and aligned)
    return passed


def message_id_of(mail: Message) -> str | None:
    """Return a mail's own id, if it has a valid one."""
    found = MESSAGE_ID.fullmatch(_line(mail.get("Message-ID", "")).strip())
    return found[0] if found else None


def thread_of(mail: Message) -> Thread:
    """Return a mail's subject and its references, the oldest first."""
    references, answered = _ids_of(mail, "References"), _ids_of(mail, "In-Reply-To")
    known = [*references[:1], *references[1:][-_MOST_REFERENCES:]]
    known += [one for one in answered[:_MOST_REFERENCES] if one not in known]
    return Thread(subject=one_line(_decoded(_line(mail.get("Subject", "")))), references=tuple(known))


def _ids_of(mail: Message, name: str) -> list[str]:
    """Return the message ids in a header; mail programs fold and encode ids, and write words around them."""
    text = " ".join(_decoded(_line(value)) for value in mail.get_all(name) or ())
    return MESSAGE_ID.findall("".join(text.split()))


def leaves(mail: Message) -> Iterator[tuple[str, Message]]:
    """Yield the parts that are not containers, each with its number in IMAP.

    Raises:
        Malformed: There are too many, or they are nested too deeply.
    """
    waiting = [("", mail)]
    seen = 0
    while waiting:
        section, part = waiting.pop()
        seen += 1
        if seen > _MOST_PARTS or section.count(".") > _DEEPEST:
            raise Malformed("a mail with too many parts")
        payload = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(payload, list):
            prefix = f"{section}." if section else ""
            inner = [(f"{prefix}{number}", one) for number, one in enumerate(payload, start=1)]
            waiting.extend((number, one) for number, one in reversed(inner) if isinstance(one, Message))
        else:
            yield section or "1", part


def _content(
    mail: Message, where: Where, subject: str
) -> tuple[str, Forwarded | None, tuple[Attachment, ...]]:
    """Return the sender's own words, the forwarded words, and the files."""
    plain: list[str] = []
    pages: list[str] = []
    media: list[Attachment] = []
    for section, part in leaves(mail):
        name, is_container = _filename(part), part.get_content_maintype() == "multipart"
        kind = "text/plain" if is_container else part.get_content_type()  # a container without parts is text
        is_text = kind in ("text/plain", "text/html") and name is None
        if is_text and _disposition(part) != "attachment":
            text = _text(part)
            (plain if kind == "text/plain" else pages).append(text)
        else:
            media.append(_attachment(part, section, name, where))
    text = "\n\n".join(one for one in plain if one.strip())
    if not text.strip():
        text = "\n\n".join(text_of_html(page) for page in pages)
    own, forwarded = with_forwarded(text, subject)
    if forwarded is None:
        return (
            own,
            None,
            tuple(replace(one, is_foreign=one.mime in ("message/rfc822", "message/global")) for one in media),
        )
    # Mail programs put files of the forwarded mail next to those of the sender: they cannot be told apart.
    return own, forwarded, Attachment.foreign(media)


def _text(part: Message) -> str:
    raw = part.get_payload(decode=True)
    raw = raw[: LONGEST * 4] if isinstance(raw, bytes) else b""
    text = clean(_decode(raw, _param(part, "charset")))
    if part.get_content_type() == "text/plain" and (_param(part, "format") or "").lower() == "flowed":
        return unflowed(text)
    return text


def _decode(raw: bytes, charset: str | None) -> str:
    try:
        codec = codecs.lookup(charset or "utf-8").name
        if codec not in _NO_CHARSETS:
            return raw.decode(codec, "replace")
    except (LookupError, ValueError, TypeError):
        pass
    return raw.decode("utf-8", "replace")


def _attachment(part: Message, section: str, name: str | None, where: Where) -> Attachment:
    encoding = _line(part.get("Content-Transfer-Encoding", "7bit")).strip().lower()
    encoding = encoding if encoding in ("base64", "quoted-printable") else "plain"
    payload = part.get_payload()
    size = len(payload) if isinstance(payload, str) else None
    if size is not None and encoding == "base64":
        size = size * 3 // 4
    return Attachment(
        kind=_KINDS.get(part.get_content_maintype(), MessageType.DOCUMENT),
        ref=f"imap/{where.validity}/{where.uid}/{section}/{encoding}",
        mime=one_line(part.get_content_type()),
        name=name,
        size=size,
    )


# Headers, as hostile as they come.


def _line(value: object) -> str:
    """Return a header as one line."""
    return one_line(str(value), longest=20_000)


def _decoded(text: str) -> str:
    """Return a header's words; wrongly encoded ones are unchanged."""
    try:
        return str(make_header(decode_header(text)))
    except (HeaderParseError, LookupError, ValueError):
        return text


def _filename(part: Message) -> str | None:
    try:
        name = part.get_filename()
    except (LookupError, ValueError, TypeError):
        name = "file"
    return None if name is None else (one_line(_decoded(_line(name))) or "file")


def _param(part: Message, name: str) -> str | None:
    try:
        value = part.get_param(name)
    except (LookupError, ValueError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _disposition(part: Message) -> str | None:
    return _line(part.get("Content-Disposition", "")).partition(";")[0].strip().lower() or None


def _instant_of(mail: Message) -> int | None:
    try:
        return int(parsedate_to_datetime(_line(mail.get("Date", ""))).timestamp() * 1000)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
