"""Fake mail servers on loopback: an IMAP server of one folder, and an SMTP server that keeps what it gets.

The IMAP side speaks the few commands that the adapter uses, word for word as `imaplib` sends them; the SMTP side is
aiosmtpd. Both can refuse, break off, and lose an answer.
"""

import re
import socket
import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage, Message
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

PASSWORD = "correct horse"
ADDRESS = "agent@example.org"


@dataclass
class Mail:
    """A mail in the folder."""

    raw: bytes
    seen: bool = False
    came: datetime = field(default_factory=lambda: datetime(2023, 11, 14, tzinfo=UTC))


class FakeImap:
    """The IMAP side. Faults are given as the word that a command begins with, `UID FETCH` for instance."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.implicit_tls = False
        self.open: set[int] = set()
        """Connections that are open."""
        self.away = False
        """Whether every connection ends at once."""
        fake = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                fake.serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.reset()

    def reset(self) -> None:
        self.mails: dict[int, Mail] = {}
        self.validity = 7
        self.commands: list[str] = []
        self.cuts: list[str] = []
        """Commands on which the connection breaks, each once."""
        self.lost: list[str] = []
        """Commands that are done, and whose answer is lost, each once."""
        self.refusals: dict[str, str] = {}
        """Commands that are refused, and with what words."""
        self.silent: set[str] = set()
        """Commands that get no answer."""

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, raw: bytes | Message, **words: Any) -> int:
        """Let a mail come in; return its number."""
        uid = max(self.mails, default=0) + 1
        self.mails[uid] = Mail(raw if isinstance(raw, bytes) else raw.as_bytes(), **words)
        return uid

    def rebuild(self) -> None:
        """Create the folder again: other numbers, nothing read, and every connection breaks."""
        self.validity += 1
        self.mails = {uid + 100: Mail(mail.raw, came=mail.came) for uid, mail in list(self.mails.items())}
        self.cuts.append("")

    def asked(self, word: str) -> list[str]:
        return [one for one in self.commands if one.startswith(word)]

    def unread(self) -> list[int]:
        return [uid for uid, mail in list(self.mails.items()) if not mail.seen]

    def serve(self, connection: socket.socket) -> None:
        if self.away:
            connection.close()
            return
        number = id(connection)
        self.open.add(number)
        sockets = [connection]
        try:
            if self.implicit_tls:
                connection = self._sealed(connection, sockets)
            self._talk(connection, sockets)
        except OSError:
            pass
        finally:
            for one in sockets:
                one.close()
            self.open.discard(number)

    def _sealed(self, connection: socket.socket, sockets: list[socket.socket]) -> socket.socket:
        assert self.tls is not None
        sealed = self.tls.wrap_socket(connection, server_side=True)
        sockets.append(sealed)
        return sealed

    def _talk(self, connection: socket.socket, sockets: list[socket.socket]) -> None:
        connection.sendall(b"* OK fake\r\n")
        reader = connection.makefile("rb")
        while line := reader.readline():
            tag, _, command = line.decode().strip().partition(" ")
            self.commands.append(command)
            if self.away:
                return
            if self._due(self.cuts, command):
                return
            if any(command.startswith(one) for one in self.silent):
                continue
            if refusal := next((no for one, no in self.refusals.items() if command.startswith(one)), None):
                connection.sendall(f"{tag} NO {refusal}\r\n".encode())
                continue
            told = self._do(command)
            if self._due(self.lost, command):
                return
            connection.sendall(told + f"{tag} OK done\r\n".encode())
            if command == "STARTTLS":
                connection = self._sealed(connection, sockets)
                reader = connection.makefile("rb")
            if command == "LOGOUT":
                return

    @staticmethod
    def _due(faults: list[str], command: str) -> bool:
        due = next((one for one in faults if command.startswith(one)), None)
        if due is not None:
            faults.remove(due)
        return due is not None

    def _do(self, command: str) -> bytes:
        if command == "CAPABILITY":
            return b"* CAPABILITY IMAP4rev1 STARTTLS\r\n"
        if command.startswith("SELECT"):
            return f"* {len(self.mails)} EXISTS\r\n* OK [UIDVALIDITY {self.validity}] ok\r\n".encode()
        if command.startswith("UID SEARCH"):
            found = [uid for uid, mail in list(self.mails.items()) if self._matches(mail, command)]
            return f"* SEARCH {' '.join(map(str, found))}\r\n".encode()
        if command.startswith("UID STORE"):
            uid = int(command.split()[2])
            if uid in self.mails:  # an expunged mail is passed over, as RFC 3501 has it
                self.mails[uid].seen = r"\Seen" in command
        if command.startswith("UID FETCH"):
            return self._fetched(int(command.split()[2]), command)
        return b"* BYE\r\n" if command == "LOGOUT" else b""

    def _matches(self, mail: Mail, command: str) -> bool:
        if wanted := re.search(r'HEADER Message-ID "(.*)"', command):
            return message_from_bytes(mail.raw)["Message-ID"] == wanted[1]
        since = datetime.strptime(command.split()[-1], "%d-%b-%Y").replace(tzinfo=UTC)
        return not mail.seen and mail.came >= since

    def _fetched(self, uid: int, command: str) -> bytes:
        mail = self.mails.get(uid)
        if mail is None:
            return b""
        if "RFC822.SIZE" in command:
            return f"* 1 FETCH (UID {uid} RFC822.SIZE {len(mail.raw)})\r\n".encode()
        asked = re.search(r"BODY\.PEEK\[(.*)\](?:<0\.(\d+)>)?\)", command)
        assert asked is not None
        data = self._section(mail.raw, asked[1])
        data = data[: int(asked[2])] if asked[2] else data
        return f"* 1 FETCH (UID {uid} BODY[{asked[1]}] {{{len(data)}}}\r\n".encode() + data + b")\r\n"

    @staticmethod
    def _section(raw: bytes, section: str) -> bytes:
        if not section:
            return raw
        part = message_from_bytes(raw)
        if section.startswith("HEADER"):
            names = section.partition("(")[2].rstrip(")").split()
            return "".join(f"{name}: {part[name]}\r\n" for name in names if part[name]).encode() + b"\r\n"
        for number in section.split("."):
            part = part.get_payload(int(number) - 1) if part.is_multipart() else part  # type: ignore[assignment]
        payload = part.get_payload()
        assert isinstance(payload, str)
        return payload.encode("ascii", "surrogateescape")


class FakeSmtp:
    """The SMTP side."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, starttls: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.reset()
        self._controller = Controller(
            self,
            hostname="127.0.0.1",
            port=self.port,
            authenticator=self._authenticated,
            auth_require_tls=starttls,
            require_starttls=starttls,
            tls_context=tls if starttls else None,
            ssl_context=None if starttls else tls,
            data_size_limit=2_000_000,
        )
        self._controller.start()

    def reset(self) -> None:
        self.got: list[Message] = []
        self.raw: list[bytes] = []
        self.recipients: list[list[str]] = []
        self.refusals: dict[str, str] = {}
        """The answer to MAIL, RCPT or DATA instead of a yes; `cut`: the connection breaks."""
        self.loses_answers = 0
        self.refused = 0
        """The number of refused clients."""
        self.away = False
        """Whether every mail is broken off."""

    def stop(self) -> None:
        self._controller.stop()

    def _authenticated(self, _: Any, __: Any, ___: Any, ____: Any, data: Any) -> AuthResult:
        refusal = self.refusals.get("AUTH")
        if refusal:
            return AuthResult(success=False, handled=False, message=refusal)
        return AuthResult(success=data.password.decode() == PASSWORD, handled=False)

    def _refused(self, server: Any, word: str) -> str | None:
        refusal = "cut" if self.away else self.refusals.get(word)
        self.refused += refusal is not None
        if refusal == "cut":
            server.transport.abort()
        return refusal

    async def handle_MAIL(self, server: Any, _: Any, envelope: Any, address: str, options: Any) -> str:
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return self._refused(server, "MAIL") or "250 OK"

    async def handle_RCPT(self, server: Any, _: Any, envelope: Any, address: str, options: Any) -> str:
        envelope.rcpt_tos.append(address)
        return self._refused(server, "RCPT") or "250 OK"

    async def handle_DATA(self, server: Any, _: Any, envelope: Any) -> str:
        if refusal := self._refused(server, "DATA"):
            return refusal
        self.raw.append(envelope.content)
        self.got.append(message_from_bytes(envelope.content))
        self.recipients.append(list(envelope.rcpt_tos))
        if self.loses_answers:
            self.loses_answers -= 1
            server.transport.abort()
        return "250 OK"


class FakeMail:
    """Both servers."""

    def __init__(self) -> None:
        self.imap, self.smtp = FakeImap(), FakeSmtp()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.imap.stop()
        self.smtp.stop()

    def reset(self) -> None:
        self.imap.reset()
        self.smtp.reset()


def mail(text: str = "hello there", *, sender: str = "Ann <ann@example.com>", **headers: str) -> EmailMessage:
    """Return a mail of a person; names of headers are written with `_`."""
    message = EmailMessage()
    message["From"] = sender
    message["To"] = ADDRESS
    wanted = {"Subject": "A question", "Message_ID": "<1@example.com>", **headers}
    wanted.setdefault("Date", "Tue, 14 Nov 2023 22:13:20 +0000")
    for name, value in wanted.items():
        if value:
            message[name.replace("_", "-")] = value
    message.set_content(text)
    return message
