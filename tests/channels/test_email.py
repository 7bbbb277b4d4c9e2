"""The e-mail adapter, against fake IMAP and SMTP servers on loopback."""

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.chat_listener import Listener, eventually
from channels.fake_mail_servers import ADDRESS, PASSWORD, FakeImap, FakeMail, FakeSmtp, mail
from channels.fetching import fetched, sending
from machine import PATIENCE
from platform_tables import table_of
from postroom.contracts.errors import ConfigError, ServerUnavailable, TooLarge
from postroom.contracts.records import replace
from postroom.gateway.events import Attachment, Button, Card, MessageEvent, MessageType, SendErrorKind
from postroom.gateway.platforms import email as wire
from postroom.gateway.platforms.base import AdapterState
from postroom.gateway.platforms.email import (
    EmailAdapter,
    EmailOptions,
    own_words,
    text_of_html,
    unwrap_flowed_text,
)
from postroom.gateway.session import Platform
from postroom.testing import ManualClock
from table_rows import each_row

ANN = "ann@example.com"
PLACE = wire.Where(validity=7, uid=3)
ME = wire.Ourselves(address=ADDRESS, authserv_id="mx.example.org")


@pytest.fixture(scope="module")
def servers() -> Iterator[FakeMail]:
    with FakeMail() as found:
        yield found


@pytest.fixture
def fake(servers: FakeMail) -> FakeMail:
    servers.reset()
    return servers


@pytest.fixture
def listener() -> Listener:
    return Listener()


def configured(fake: FakeMail, token: str | None = PASSWORD, **extra: Any) -> EmailOptions:
    usual = {
        "address": ADDRESS,
        "imap_host": "127.0.0.1",
        "imap_port": fake.imap.port,
        "imap_security": "plain",
        "smtp_host": "127.0.0.1",
        "smtp_port": fake.smtp.port,
        "smtp_security": "plain",
        "timeout_ms": 5_000,
    }
    path = extra.get("ca_file")
    if isinstance(path, str):  # the reader would make it absolute, which blocks the loop
        return replace(configured(fake, token, **{**extra, "ca_file": None}), ca_file=path)
    told = {name: one for name, one in {**usual, **extra}.items() if one is not None}
    return table_of(EmailOptions, token=token, **told)


@pytest.fixture
async def adapter(fake: FakeMail, clock: ManualClock, listener: Listener) -> AsyncIterator[EmailAdapter]:
    found = EmailAdapter(configured(fake), clock=clock, timer=clock)
    found.set_message_handler(listener)
    await found.connect()
    yield found
    await found.disconnect()


async def passing(clock: ManualClock, holds: Any) -> None:
    """Advance through pauses until a condition holds, a thousand times as fast as outside.

    Without a limit, days could pass while a thread reads one mail, and the mails that wait would be too old.
    """
    async with asyncio.timeout(PATIENCE):
        advanced = time.monotonic()
        while not holds():
            if time.monotonic() - advanced >= 0.001:
                clock.advance(timedelta(seconds=1))
                advanced = time.monotonic()
            await asyncio.sleep(0)


def heard(message: EmailMessage | bytes, me: wire.Ourselves = ME) -> MessageEvent | None:
    raw = message if isinstance(message, bytes) else message.as_bytes()
    return wire.understood(wire.parse_email(raw), PLACE, me)


def inbound_of(message: EmailMessage | bytes, me: wire.Ourselves = ME) -> MessageEvent:
    event = heard(message, me)
    assert event is not None
    return event


# What comes in.


async def test_a_mail_is_a_message_and_is_read_afterwards(fake, adapter, listener, clock) -> None:
    fake.imap.put(mail("What time is it?"))
    await passing(clock, lambda: not fake.imap.unread())
    inbound = listener.inbound[0]
    assert inbound.text == "A question\n\nWhat time is it?"
    assert (inbound.message_id, inbound.timestamp) == ("<1@example.com>", 1_700_000_000_000)
    assert (inbound.source.platform, inbound.source.chat_type) == (Platform.EMAIL, "dm")
    assert (inbound.source.chat_id, inbound.source.user_id, inbound.source.user_name) == (ANN, ANN, "Ann")
    assert (inbound.source.thread_id, inbound.source.account) == ("<1@example.com>", ADDRESS)
    assert inbound.metadata == {"verified": False}
    assert adapter.liveness.state is AdapterState.CONNECTED
    assert adapter.liveness.inbound_at is not None
    assert adapter.liveness.outbound_at is None


async def test_old_unread_mail_is_left_alone(fake, adapter, listener, clock) -> None:
    fake.imap.put(mail("old"), came=datetime(2023, 10, 1, tzinfo=UTC))
    fake.imap.put(mail("new", Subject=""))
    await passing(clock, lambda: listener.inbound)
    assert listener.texts == ["new"]
    assert 1 in fake.imap.unread()


@each_row(
    "headers",
    [
        {"Auto-Submitted": "auto-replied"},
        {"Auto-Submitted": "auto-generated; x=y"},
        {"Precedence": "Bulk"},
        {"List-Id": "<l.example.com>"},
        {"X-Autoreply": "yes"},
        {"Return-Path": "<>"},
        {"From": "MAILER-DAEMON@example.com"},
        {"Content-Type": "multipart/report; boundary=x"},
    ],
)
def test_a_mail_of_a_machine_or_a_list_is_marked_as_such(headers) -> None:
    message = mail()
    for name, value in headers.items():
        del message[name]
        message[name] = value
    marks = heard(message).metadata
    assert marks["automatic"] in {*headers, "multipart/report"}
    assert "may_be_a_person" not in marks
    assert "automatic" not in heard(mail(Auto_Submitted="no")).metadata


@each_row("headers", [{"List-Unsubscribe": "<mailto:x@y.z>"}, {"X-Auto-Response-Suppress": "OOF"}])
def test_headers_that_programs_put_on_mails_of_people_too_are_told_apart(headers) -> None:
    message = mail()
    for name, value in headers.items():
        message[name] = value
    assert heard(message).metadata["may_be_a_person"] is True


async def test_our_own_mail_is_passed_over_and_read_too(fake, adapter, listener, clock) -> None:
    own = mail()
    del own["From"]
    own["From"] = f"Me <{ADDRESS.upper()}>"
    fake.imap.put(own)
    await passing(clock, lambda: not fake.imap.unread())
    assert (listener.inbound, adapter.liveness.refused) == ([], 0)


HEAD = b"Subject: x\r\nMessage-ID: <9@x.org>\r\n"
DEEP = b"".join(
    b'Content-Type: multipart/mixed; boundary="%d"\r\n\r\n--%d\r\n' % (n, n) for n in range(2_000)
)


@each_row(
    "raw",
    [
        HEAD + b"\r\nno sender",
        b"From: a@x.org\r\nFrom: b@x.org\r\n" + HEAD + b"\r\ntwo",
        b"From: a@x.org, b@x.org\r\n" + HEAD + b"\r\ntwo",
        b"From: a@x.org <b@x.org> c@x.org\r\n" + HEAD + b"\r\nthree",
        b'From: "<a@x.org" b@x.org>\r\n' + HEAD + b"\r\nodd",
        b"From: (a@x.org) b@x.org\r\n" + HEAD + b"\r\ncomment",
        b"From: nobody\r\n" + HEAD + b"\r\nno address",
        b"From: a@x.org\r\n" + HEAD + DEEP + b"\r\n\r\nend",
        b"",
        b"\xff\xfe\x00\r\n\r\n",
    ],
)
async def test_a_malformed_mail_is_counted_and_does_not_block(fake, adapter, listener, clock, raw) -> None:
    refused, known = adapter.liveness.refused, len(listener.texts)
    fake.imap.put(raw)
    fake.imap.put(mail("after", Subject=""))
    await passing(clock, lambda: not fake.imap.unread())
    assert listener.texts[known:] == ["after"]
    assert adapter.liveness.refused == refused + 1


def test_the_sender_is_the_address_and_never_the_name() -> None:
    inbound = inbound_of(mail(sender='"boss@example.org" <Eve@Evil.example>'))
    assert (inbound.source.user_id, inbound.source.user_name) == ("eve@evil.example", "boss@example.org")
    encoded = (
        b"From: =?utf-8?q?boss=40x=2Eorg_=3Cboss=40x=2Eorg=3E?= <eve@evil.example>\r\n" + HEAD + b"\r\n."
    )
    inbound = inbound_of(encoded)
    assert inbound.source.user_id == "eve@evil.example"


@each_row(
    "results, verified",
    [
        (["mx.example.org; dmarc=pass header.from=example.com"], True),
        (["MX.example.org 1; spf=none; dmarc=pass (p=reject) header.from=example.com"], True),
        (["mx.example.org; dkim=pass header.d=example.com"], True),
        (["mx.example.org; spf=pass smtp.mailfrom=ann@example.com"], True),
        (["mx.example.org; dkim=pass header.d=com"], False),
        (["mx.example.org; dkim=pass header.d=evil.example"], False),
        (["mx.example.org; dkim=pass header.d=example.com; dmarc=fail header.from=example.com"], False),
        (["mx.example.org; dmarc=none; dkim=pass header.d=example.com"], True),
        (["mx.example.org; dmarc=pass header.from=evil.example"], False),
        (["mx.example.org; dkim=fail header.d=example.com (dkim=pass header.d=example.com)"], False),
        (["mx.evil.example; dmarc=pass header.from=example.com"], False),
        (["mx.example.org; dmarc=fail", "mx.example.org; dmarc=pass"], False),
        (["mx.example.org.evil; dmarc=pass", "mx.example.org; dmarc=pass"], True),
        (["mx.example.org; none"], False),
        ([";;;", "((((("], False),
        ([], False),
    ],
)
def test_a_sender_is_verified_by_the_trusted_server_alone(results, verified) -> None:
    message = (
        b"".join(b"Authentication-Results: %s\r\n" % one.encode() for one in results) + mail().as_bytes()
    )
    assert inbound_of(message).metadata["verified"] is verified
    assert inbound_of(message, wire.Ourselves(address=ADDRESS)).metadata["verified"] is False


def test_a_thread_is_known_by_its_root() -> None:
    inbound = inbound_of(mail("yes", References="<root@x.org> <2@x.org>", In_Reply_To="<2@x.org>"))
    assert (inbound.source.thread_id, inbound.reply_to_message_id) == ("<root@x.org>", "<2@x.org>")
    assert (inbound.text, inbound.source.chat_topic) == ("yes", "A question")
    inbound = inbound_of(mail("yes", In_Reply_To="<only@x.org>"))
    assert (inbound.source.thread_id, inbound.reply_to_message_id) == ("<only@x.org>", "<only@x.org>")


@each_row("message_id", ["", "<a b@x>", '<"@x>', "<é@x>", "plain", "<" + "x" * 300 + "@y>"])
def test_a_mail_without_a_proper_id_has_that_of_its_place(message_id) -> None:
    raw = b"From: ann@example.com\r\nMessage-ID: " + message_id.encode() + b"\r\n\r\nhello"
    assert inbound_of(raw).message_id == "7-3"


def test_a_command_is_not_hidden_by_the_subject() -> None:
    inbound = inbound_of(mail("/status now"))
    assert (inbound.text, inbound.message_type) == ("/status now", MessageType.COMMAND)


def test_plain_words_are_preferred_to_pages_and_files_are_references() -> None:
    message = mail("plain words", Subject="")
    message.add_alternative("<p>page</p>", subtype="html")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="../../etc/pass\u202ewd")
    message.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="a.png")
    inbound = inbound_of(message)
    assert inbound.text == "plain words"
    assert inbound.media == (
        Attachment(
            kind=MessageType.DOCUMENT,
            ref="imap/7/3/2/base64",
            mime="application/pdf",
            name="../../etc/pass\u202ewd",
            size=inbound.media[0].size,
        ),
        Attachment(
            kind=MessageType.PHOTO,
            ref="imap/7/3/3/base64",
            mime="image/png",
            name="a.png",
            size=inbound.media[1].size,
        ),
    )


def test_a_page_alone_is_read_as_words() -> None:
    message = mail("x", Subject="")
    message.set_content("<p>Hello <b>you</b></p><script>evil()</script><p>bye</p>", subtype="html")
    assert inbound_of(message).text == "Hello you\n\nbye"


def test_a_picture_alone_is_a_picture() -> None:
    message = mail("", Subject="")
    message.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="a.png")
    inbound = inbound_of(message)
    assert (inbound.text, inbound.message_type) == ("", MessageType.PHOTO)


@each_row(
    "head, body, expected",
    [
        (b"text/plain; charset=latin-1", b"caf\xe9", "café"),
        (b"text/plain; charset=utf-8", b"caf\xe9\x00!", "caf\ufffd!"),
        (b"text/plain; charset=nonsense", b"caf\xc3\xa9", "café"),
        (b"text/plain; charset=punycode", b"abc-xyz", "abc-xyz"),
        (b"text/plain; charset=zlib", b"abc", "abc"),
        (b"text/plain; charset*=utf-9''x%ZZ", b"abc", "abc"),
        (b"text/plain; charset=utf-8; format=flowed", b"one \r\ntwo\r\nthree", "one two\nthree"),
        (b"nonsense", b"abc", "abc"),
        (b"multipart/mixed", b"abc", "abc"),
        (b"multipart/mixed; boundary=x", b"abc", "abc"),
    ],
)
def test_bodies_are_read_whatever_they_claim_to_be(head, body, expected) -> None:
    raw = (
        b"From: ann@example.com\r\nContent-Type: "
        + head
        + b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
        + body
    )
    assert inbound_of(raw).text == expected


def test_hostile_headers_stay_on_their_line() -> None:
    raw = (
        b"From: =?utf-8?q?A=0D=0ABcc=3A_x?= <ann@example.com>\r\nSubject: =?utf-8?b?YQ0KQmNjOiB4?= =?x?y?z?=\r\n"
        b"Content-Disposition: attachment; filename*=utf-8''a%0D%0Ab; filename=\"c\"\r\n\r\nx"
    )
    inbound = inbound_of(raw)
    assert "\n" not in f"{inbound.source.user_name}{inbound.source.chat_topic}{inbound.media[0].name}"


@each_row(
    "html, text",
    [
        ("<div>a</div><div>b<br>c</div>", "a\nb\nc"),
        ("a &amp; b &lt;c&gt; &#x41;", "a & b <c> A"),
        ("<ul><li>one<li>two</ul>", "- one\n- two"),
        ("<style>p{}</style><title>t</title>x<!-- <p>no</p> -->y", "xy"),
        ("x<script>if (a<b) {}</script >y", "xy"),
        ("x<script>never ends", "x"),
        ("a < b <b>c</b", "a < b c</b"),
        ('<img src=x onerror="a()">x<a href="javascript:y">link</a>', "xlink"),
        ("new<blockquote>old<p>more</p></blockquote>", "new\n> old\n> more"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("<table><tr><td>a</td><td>b</td></tr></table>", "a b"),
        ("", ""),
    ],
)
def test_pages_become_words(html, text) -> None:
    assert text_of_html(html) == text


@each_row(
    "text, own",
    [
        ("yes\n\nOn Mon, 1 Jan 2024 at 10:00, Bot <b@x> wrote:\n> old\n> older", "yes"),
        ("yes\n\nOn Mon, 1 Jan 2024 at 10:00, Bot\n<b@x> wrote:\n\n> old", "yes"),
        ("ja\n\nAm Mo., 1. Jan. 2024 um 10:00 Uhr schrieb Bot <b@x>:\n> alt", "ja"),
        ("yes\n\n-----Original Message-----\nFrom: Bot\nSent: Monday\n\nold", "yes"),
        ("yes\n\nFrom: Bot <b@x>\nSent: Monday\nTo: Ann\n\nold", "yes"),
        ("yes\n-- \nAnn\nCEO", "yes"),
        ("yes\n\n--\nAnn", "yes"),
        ("> old\n\nmy answer\n\n> older\n\nanother", "> old\n\nmy answer\n\n> older\n\nanother"),
        ("yes\n> old", "yes"),
        ("> only\n> quoted", "> only\n> quoted"),
        (
            "fwd\n\n---------- Forwarded message ---------\nimportant",
            "fwd\n\n---------- Forwarded message ---------\nimportant",
        ),
        ("a\n--\n" + "b\n" * 20 + "c", "a\n--\n" + "b\n" * 20 + "c"),
        ("", ""),
    ],
)
def test_history_and_signatures_are_cut_off(text, own) -> None:
    assert own_words(text) == own


def test_flowed_lines_are_joined_and_quotations_are_not() -> None:
    assert unwrap_flowed_text("a \nb\n> c \n> d\n-- \nsig") == "a b\n> c \n> d\n-- \nsig"


@each_row("piece", ["<!--", "<a ", "<div>", "</", "<script>", "&#", "<blockquote>", "<![", "<? "])
def test_pages_that_are_made_to_take_long_do_not(piece) -> None:
    assert len(text_of_html((piece * 40_000)[:100_000] + ">")) <= 100_001


@each_row(
    "raw",
    [
        b"From: a@x.org\r\nContent-Type: text/plain" + b"; a=b" * 20_000 + b"\r\n\r\nx",
        b"From: a@x.org\r\nContent-Type: text/plain" + b"\r\n ; a=b" * 20_000 + b"\r\n\r\nx",
        b"From: a@x.org\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n" + b"--x\r\n\r\n" * 20_000,
        b"From: a@x.org\r\n" + b"X: y\r\n" * 100_000 + b"\r\nx",
    ],
)
def test_mails_that_are_made_to_take_long_are_refused(raw) -> None:
    with pytest.raises(wire.Malformed):
        wire.parse_email(raw)


PIECES = st.sampled_from(
    [
        *(
            b"From: a@x.org",
            b"From: ",
            b"\r\n",
            b"\n",
            b"Content-Type: ",
            b"multipart/mixed",
            b"; boundary=b",
        ),
        *(
            b"--b",
            b"--b--",
            b"text/plain; charset=",
            b"utf-16",
            b"; name*0*=x''%ff",
            b"=?utf-8?q?=ff?=",
            b" ",
        ),
        *(b"Content-Transfer-Encoding: base64", b"message/rfc822", b"Subject: ", b"Date: ", b"99 Jun 99999"),
        *(b"References: <a@b>", b"Message-ID: <", b"Content-Disposition: attachment", b"; filename=", b'"'),
        *(b"text/html", b"\x00", b"\xff", b"words", b"Authentication-Results: mx.example.org; dmarc=", b";"),
    ]
)


@given(st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=40).map(b"".join))
def test_no_mail_breaks_the_reader(raw) -> None:
    try:
        event = heard(b"From: a@x.org\r\n" + raw)
    except wire.Malformed:
        return
    if event is not None:
        assert json.dumps(event.to_body()).encode()
        assert isinstance(event.text.encode("utf-8"), bytes)
        assert event.message_id


async def test_a_mail_that_is_too_long_is_cut_off(fake, clock, listener) -> None:
    adapter = EmailAdapter(configured(fake, max_bytes=10_000), clock=clock, timer=clock)
    adapter.set_message_handler(listener)
    await adapter.connect()
    message = mail("the words", Subject="")
    message.add_attachment(b"x" * 100_000, maintype="application", subtype="zip", filename="big.zip")
    fake.imap.put(message)
    await passing(clock, lambda: not fake.imap.unread())
    await adapter.disconnect()
    assert listener.texts == ["the words"]
    assert listener.inbound[0].metadata["truncated"] is True


async def test_files_are_fetched_within_their_bound(fake, adapter, listener, clock) -> None:
    message = mail("x")
    message.add_attachment(bytes(range(256)) * 40, maintype="application", subtype="zip", filename="a.zip")
    message.add_attachment("grün", filename="b.txt", cte="quoted-printable")
    fake.imap.put(message)
    await passing(clock, lambda: listener.inbound)
    first, second = listener.inbound[0].media
    assert await fetched(adapter, first, max_bytes=10_240) == bytes(range(256)) * 40
    assert (await fetched(adapter, second, max_bytes=100)).decode().strip() == "grün"
    for bound in (10_239, 10):
        with pytest.raises(TooLarge):
            await fetched(adapter, first, max_bytes=bound)
    for ref in (
        "imap/8/1/2/base64",
        "imap/7/99/1/base64",
        "imap/7/1/1] ALL/plain",
        "https://x/y",
        "file:///etc",
    ):
        with pytest.raises(ServerUnavailable):
            await fetched(adapter, Attachment(kind=MessageType.DOCUMENT, ref=ref), max_bytes=10)


async def test_a_file_is_never_that_of_another_mail_of_a_mailbox_that_was_made_anew(
    fake, adapter, listener, clock
) -> None:
    message = mail("x", Message_ID="<old@x.org>")
    message.add_attachment("ours", filename="a.txt")
    fake.imap.put(message)
    await passing(clock, lambda: not fake.imap.unread())
    [old] = listener.inbound[0].media
    fake.imap.rebuild()
    fake.imap.mails = {1: fake.imap.mails[101]}
    other = mail("y", Message_ID="<new@x.org>")
    other.add_attachment("theirs", filename="b.txt")
    fake.imap.mails[1].raw = other.as_bytes()
    await passing(clock, lambda: not fake.imap.unread())
    with pytest.raises(ServerUnavailable, match="no longer in the mailbox"):
        await fetched(adapter, old, max_bytes=100)
    [new] = listener.inbound[1].media
    assert (await fetched(adapter, new, max_bytes=100)).decode().strip() == "theirs"


async def test_a_mail_that_is_expunged_after_the_search_is_passed_over(
    fake, adapter, listener, clock
) -> None:
    await eventually(lambda: clock.sleeping)
    listener.gate = asyncio.Event()
    for number in (1, 2, 3):
        fake.imap.put(mail(f"mail {number}", Subject="", Message_ID=f"<{number}@x.org>"))
    await passing(clock, lambda: listener.asked)
    del fake.imap.mails[2]
    listener.gate.set()
    await passing(clock, lambda: not fake.imap.unread())
    assert listener.texts == ["mail 1", "mail 3"]
    assert adapter.liveness.state is AdapterState.CONNECTED


# Connections.


async def test_a_password_that_is_changed_ends_receiving(fake, adapter, clock) -> None:
    fake.imap.cuts = ["NOOP"]
    fake.imap.refusals = {"LOGIN": "[AUTHENTICATIONFAILED] no"}
    await passing(clock, lambda: adapter.liveness.state is AdapterState.FAILED)
    assert (adapter.liveness.error_code, adapter.liveness.retryable) == ("unauthorized", False)
    await eventually(lambda: len(adapter._tasks) == 0)


async def test_a_log_in_that_may_come_later_is_tried_again(fake, adapter, listener, clock) -> None:
    fake.imap.cuts = ["NOOP"]
    fake.imap.refusals = {"LOGIN": "[UNAVAILABLE] later"}
    await passing(clock, lambda: len(fake.imap.asked("LOGIN")) > 2)
    fake.imap.refusals = {}
    fake.imap.put(mail("after", Subject=""))
    await passing(clock, lambda: listener.inbound)


async def test_wrong_passwords_are_told_at_once_and_shown_nowhere(fake, clock, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    for refuse in ("imap", "smtp"):
        fake.reset()
        if refuse == "imap":
            fake.imap.refusals = {"LOGIN": "[AUTHENTICATIONFAILED] Invalid credentials"}
        else:
            fake.smtp.refusals = {"AUTH": "535 5.7.8 no"}
        adapter = EmailAdapter(configured(fake), clock=clock, timer=clock)
        with pytest.raises(ConfigError) as caught:
            await adapter.connect()
        assert refuse.upper() in caught.value.message
        assert PASSWORD not in f"{caught.value.as_dict()} {caplog.text} {adapter.liveness} {adapter.config}"
        assert adapter.liveness.state is AdapterState.STOPPED


async def test_servers_that_are_not_there_are_to_be_tried_again(fake, clock) -> None:
    for words in ({"imap_port": 1}, {"smtp_port": 1}):
        adapter = EmailAdapter(configured(fake, **words), clock=clock, timer=clock)
        with pytest.raises(ServerUnavailable):
            await adapter.connect()
    fake.imap.refusals = {"SELECT": "no such folder"}
    with pytest.raises(ServerUnavailable) as caught:
        await EmailAdapter(configured(fake), clock=clock, timer=clock).connect()
    assert "`folder`" in caught.value.remedy


async def test_a_stop_does_not_wait_for_a_server_that_says_nothing(fake, adapter, clock) -> None:
    await eventually(lambda: clock.sleeping)
    fake.imap.silent = {"UID SEARCH"}
    clock.advance(timedelta(seconds=15))
    await eventually(lambda: len(fake.imap.asked("UID SEARCH")) == 2)
    async with asyncio.timeout(8):  # it would wait for ten seconds
        await adapter.disconnect()


@each_row(
    "extra",
    [
        {"address": None},
        {"address": "a@b\r\nc"},
        {"imap_host": None},
        {"smtp_host": ""},
        {"imap_security": "none"},
        {"imap_host": "mail.example.org"},
        {"imap_port": 0},
        {"smtp_port": "25"},
        {"folder": "a\r\nb"},
        {"poll_ms": True},
        {"ca_file": 7},
        {"imap_hsot": "x"},
    ],
)
def test_wrong_settings_are_named(fake, extra) -> None:
    with pytest.raises(ConfigError) as caught:
        EmailAdapter(configured(fake, **extra))
    assert caught.value.remedy
    assert PASSWORD not in str(caught.value.as_dict())


def test_a_password_of_one_line_is_needed(fake) -> None:
    for token in (None, "", "a\r\nb LOGOUT", "pässword"):
        with pytest.raises(ConfigError):
            EmailAdapter(configured(fake, token))


def test_the_lock_is_on_the_mailbox(fake) -> None:
    adapter = EmailAdapter(configured(fake))
    assert adapter.lock_identity() == f"imap {ADDRESS} 127.0.0.1:{fake.imap.port} INBOX"
    assert adapter.account == ADDRESS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(folder / "key"),
        "-out",
        str(folder / "crt"),
    ]
    subprocess.run([*words, *names], check=True, capture_output=True, timeout=PATIENCE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    return folder / "crt", context


@pytest.mark.parametrize("security", ["ssl", "starttls"])
async def test_connections_are_kept_from_others_eyes(certificate, clock, listener, security) -> None:
    file, context = certificate
    imap = FakeImap(context)
    imap.implicit_tls = security == "ssl"
    smtp = FakeSmtp(context, starttls=security == "starttls")
    try:
        words = {"imap_security": security, "smtp_security": security, "ca_file": str(file)}
        fake = FakeMail.__new__(FakeMail)
        fake.imap, fake.smtp = imap, smtp
        adapter = EmailAdapter(configured(fake, **words), clock=clock, timer=clock)
        adapter.set_message_handler(listener)
        await adapter.connect()
        imap.put(mail("sealed", Subject=""))
        await passing(clock, lambda: listener.inbound)
        assert (await adapter.send(ANN, "sealed too")).success
        await adapter.disconnect()
        with pytest.raises(ServerUnavailable):  # nobody vouches for the certificate
            await EmailAdapter(
                configured(fake, **{**words, "ca_file": None}), clock=clock, timer=clock
            ).connect()
    finally:
        imap.stop()
        smtp.stop()


async def test_certificates_that_are_not_there_are_named(fake, clock) -> None:
    words = {"imap_security": "ssl", "ca_file": "not/there"}
    with pytest.raises(ConfigError, match="ca_file"):
        await EmailAdapter(configured(fake, **words), clock=clock, timer=clock).connect()


async def test_a_server_without_starttls_gets_no_password(fake, clock) -> None:
    adapter = EmailAdapter(configured(fake, smtp_security="starttls"), clock=clock, timer=clock)
    with pytest.raises(ServerUnavailable):
        await adapter.connect()


# What goes out.


async def test_an_answer_belongs_to_its_thread(fake, adapter, listener, clock) -> None:
    fake.imap.put(mail("hm", Subject="Grüße", References="<root@x.org> <2@x.org>"))
    await passing(clock, lambda: listener.inbound)
    inbound = listener.inbound[0]
    result = await adapter.send(
        inbound.source.chat_id, "**Hello** <b>", inbound.message_id, {"thread_id": inbound.source.thread_id}
    )
    assert result.success
    got = fake.smtp.got[0]
    assert fake.smtp.recipients == [[ANN]]
    assert (got["From"], got["To"]) == (ADDRESS, ANN)
    assert wire.parse_thread(got).subject == "Re: Grüße"
    assert got["In-Reply-To"] == "<1@example.com>"
    assert got["References"] == "<root@x.org> <2@x.org> <1@example.com>"
    assert got["Message-ID"] == result.message_id
    assert (got["Auto-Submitted"], got["X-Auto-Response-Suppress"]) == ("auto-replied", "All")
    plain, page = (part.get_payload(decode=True).decode().strip() for part in got.get_payload())
    assert plain == "**Hello** <b>"
    assert page == "<p><strong>Hello</strong> &lt;b&gt;</p>"
    assert adapter.liveness.outbound_at is not None


async def test_a_subject_is_looked_up_when_it_is_not_remembered(fake, adapter) -> None:
    fake.imap.put(
        mail("x", Subject="Re: Old matter", Message_ID="<old@x.org>", References="<r@x.org>"), seen=True
    )
    await adapter.send(ANN, "a", "<old@x.org>")
    await adapter.send(ANN, "b", "<gone@x.org>", {"thread_id": "<r@x.org>"})
    fake.imap.cuts = ["UID SEARCH"]
    await adapter.send(ANN, "c", "<other@x.org>")
    assert [one["Subject"] for one in fake.smtp.got] == [
        "Re: Old matter",
        "Re: your message",
        "Re: your message",
    ]
    assert [one["References"] for one in fake.smtp.got] == [
        "<r@x.org> <old@x.org>",
        "<r@x.org> <gone@x.org>",
        "<other@x.org>",
    ]


async def test_a_mail_of_its_own_begins_a_thread(fake, adapter) -> None:
    await adapter.send(ANN, "news", None, {"subject": "News of today"})
    got = fake.smtp.got[0]
    assert (got["Subject"], got["References"], got["In-Reply-To"]) == ("News of today", None, None)


@each_row(
    "to, reply_to, metadata",
    [
        ("a@x.org\r\nBcc: b@x.org", None, {}),
        ("a@x.org, b@x.org", None, {}),
        ("<a@x.org>", None, {}),
        ("a@x.org> SIZE=1\r\nRCPT TO:<b@x.org", None, {}),
        ("", None, {}),
        (ANN, None, {"subject": "a\r\nBcc: b@x.org"}),
        (ANN, None, {"subject": "a\nb"}),
    ],
)
async def test_nobody_adds_a_header(fake, adapter, to, reply_to, metadata) -> None:
    result = await adapter.send(to, "x", reply_to, metadata)
    assert (result.success, result.error_kind) == (False, SendErrorKind.BAD_FORMAT)
    assert fake.smtp.got == []


async def test_ids_that_are_none_are_left_out(fake, adapter) -> None:
    assert (await adapter.send(ANN, "x", "<a@x>\r\nBcc: b@x.org", {"thread_id": "7-3"})).success
    got = fake.smtp.got[0]
    assert (got["References"], got["In-Reply-To"], got["Bcc"]) == (None, None, None)


async def test_a_hostile_subject_of_theirs_stays_on_its_line(fake, adapter, listener, clock) -> None:
    raw = b"From: ann@example.com\r\nMessage-ID: <1@x.org>\r\nSubject: =?utf-8?b?YQ0KQmNjOiBiQHgub3Jn?=\r\n\r\nx"
    fake.imap.put(raw)
    await passing(clock, lambda: listener.inbound)
    assert (await adapter.send(ANN, "x", "<1@x.org>")).success
    assert fake.smtp.got[0]["Bcc"] is None
    assert fake.smtp.got[0]["Subject"] == "Re: a Bcc: b@x.org"


@each_row(
    "word, said, kind",
    [
        ("RCPT", "550 5.1.1 no such user", SendErrorKind.NOT_FOUND),
        ("RCPT", "550 5.7.1 blocked", SendErrorKind.FORBIDDEN),
        ("RCPT", "450 4.2.0 greylisted", SendErrorKind.TRANSIENT),
        ("RCPT", "451 4.7.1 slow down", SendErrorKind.RATE_LIMITED),
        ("MAIL", "552 5.3.4 too big", SendErrorKind.TOO_LONG),
        ("MAIL", "550 5.7.1 not you", SendErrorKind.FORBIDDEN),
        ("MAIL", "421 4.3.0 busy", SendErrorKind.TRANSIENT),
        ("DATA", "552 too big", SendErrorKind.TOO_LONG),
        ("DATA", "554 5.7.1 spam", SendErrorKind.FORBIDDEN),
        ("DATA", "451 4.3.0 later", SendErrorKind.TRANSIENT),
        ("AUTH", "535 5.7.8 no", SendErrorKind.FORBIDDEN),
        ("AUTH", "454 4.7.0 later", SendErrorKind.TRANSIENT),
        ("MAIL", "cut", SendErrorKind.TRANSIENT),
        ("RCPT", "cut", SendErrorKind.TRANSIENT),
    ],
)
async def test_refusals_are_told_apart(fake, clock, word, said, kind) -> None:
    fake.smtp.refusals = {}
    adapter = EmailAdapter(configured(fake), clock=clock, timer=clock)
    await adapter.connect()
    fake.smtp.refusals = {word: said}
    result = await adapter.send(ANN, "x")
    await adapter.disconnect()
    assert (result.success, result.error_kind) == (False, kind)
    assert (result.retry_after_ms is not None) is (kind is SendErrorKind.RATE_LIMITED)
    assert fake.smtp.got == []


async def test_what_is_too_long_is_refused_before_it_is_sent(fake, adapter) -> None:
    assert (await adapter.send(ANN, "x" * 50_001)).error_kind is SendErrorKind.TOO_LONG
    assert fake.smtp.got == []
    assert (await adapter.send(ANN, ".\n" * 10_000 + "\ud800")).success
    plain = fake.smtp.got[0].get_payload()[0].get_payload(decode=True).decode()
    assert plain.count(".") == 10_000
    assert all(len(line) <= 998 for line in fake.smtp.raw[0].splitlines())


async def test_a_file_goes_out_under_a_harmless_name(fake, adapter) -> None:
    file = Attachment(kind=MessageType.PHOTO, ref="", mime="image/png", name="../gr\r\nün.png")
    assert (await adapter.send_media(ANN, file, sending(b"\x89PNG"), "look")).success
    part = fake.smtp.got[0].get_payload()[1]
    assert (part.get_content_type(), part.get_payload(decode=True)) == ("image/png", b"\x89PNG")
    assert part.get_filename() == ".._gr ün.png"
    odd = Attachment(kind=MessageType.DOCUMENT, ref="", mime="text/html\r\nBcc: x", name=None)
    assert (await adapter.send_media(ANN, odd, sending(b"x"))).success
    assert fake.smtp.got[1].get_payload()[1].get_content_type() == "application/octet-stream"


async def test_a_card_says_what_to_answer_and_nothing_is_edited(fake, adapter) -> None:
    card = Card(text="May I?", buttons=(Button(label="Yes", value="approve 7"),))
    assert (await adapter.send_card(ANN, card)).success
    assert "Yes: /approve 7" in fake.smtp.got[0].get_payload()[0].get_payload(decode=True).decode()
    assert (await adapter.edit_message(ANN, "<1@x>", "x")).error_kind is SendErrorKind.BAD_FORMAT
    assert not adapter.capabilities.edits
    await adapter.send_typing(ANN)
