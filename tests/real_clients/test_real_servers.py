"""The Matrix and e-mail channels with real servers: Synapse, and pymap with aiosmtpd."""

import hashlib
import hmac
import imaplib
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from e2e.running import RunningServer
from e2e.test_gateway_server import EchoingModel, configured, model, secret
from real_clients.home import PATIENCE, ROOT

__all__ = ["model"]
BIN = ROOT / ".venv-clients" / "bin"
CLIENT = "/_matrix/client/v3"
SECRET = "secret of the harbour's homeserver"
pytestmark = [pytest.mark.long, pytest.mark.timeout(10 * PATIENCE)]


def needs(program: Path) -> None:
    if not program.exists():
        pytest.skip("the real servers are not installed in the pinned versions: `make libraries`")


def soon(is_so: Callable[[], bool]) -> None:
    """Return once a condition holds.

    Raises:
        AssertionError: It did not hold within two minutes.
    """
    until = time.monotonic() + 2 * PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], folder: Path, is_up: Callable[[], bool]) -> Iterator[None]:
    """Run a server of others until the block ends."""
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            soon(lambda: process.poll() is None and is_up())
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


class Synapse:
    """A homeserver with its own database."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self._home = httpx2.Client(base_url=self.url, timeout=PATIENCE)
        listener = {
            "port": int(self.url.rpartition(":")[2]),
            "bind_addresses": ["127.0.0.1"],
            "type": "http",
            "resources": [{"names": ["client", "media"]}],
        }
        (folder / "homeserver.yaml").write_text(
            json.dumps(
                {
                    "server_name": "harbour.test",
                    "report_stats": False,
                    "listeners": [listener],
                    "database": {"name": "sqlite3", "args": {"database": str(folder / "home.db")}},
                    "media_store_path": str(folder / "media"),
                    "signing_key_path": str(folder / "signing.key"),
                    "registration_shared_secret": SECRET,
                    "trusted_key_servers": [],
                    "suppress_key_server_warning": True,
                    "rc_message": {"per_second": 100, "burst_count": 100},
                }
            )
        )
        self._command = [str(BIN / "python"), "-m", "synapse.app.homeserver", "-c", "homeserver.yaml"]

    @contextmanager
    def serving(self) -> Iterator[None]:
        subprocess.run([*self._command, "--generate-keys"], cwd=self.folder, check=True, capture_output=True)
        with self._home, running(self._command, self.folder, self._is_up):
            yield

    def _is_up(self) -> bool:
        try:
            return self._home.get("/health").is_success
        except httpx2.TransportError:
            return False

    def register(self, name: str) -> str:
        """Make a user and return the access token."""
        nonce = self.ask("GET", "/_synapse/admin/v1/register")["nonce"]
        said = "\0".join((nonce, name, "a password", "notadmin")).encode()
        told = {"nonce": nonce, "username": name, "password": "a password", "admin": False}
        mac = hmac.new(SECRET.encode(), said, hashlib.sha1).hexdigest()
        return str(self.ask("POST", "/_synapse/admin/v1/register", json={**told, "mac": mac})["access_token"])

    def ask(self, method: str, path: str, token: str = "", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = self._home.request(method, path, headers=headers, **more)
        assert answer.is_success, answer.text
        return answer.json()


class Room:
    """A direct chat of ada with the bot."""

    def __init__(self, home: Synapse, token: str) -> None:
        self._home, self._token, self._count = home, token, 0
        invited = {"preset": "trusted_private_chat", "is_direct": True, "invite": ["@bot:harbour.test"]}
        created = home.ask("POST", f"{CLIENT}/createRoom", token, json=invited)
        self.path = f"{CLIENT}/rooms/{quote(created['room_id'])}"

    def has_bot(self) -> bool:
        found = self._home.ask("GET", f"{self.path}/joined_members", self._token)["joined"]
        return "@bot:harbour.test" in found

    def say(self, text: str, **content: Any) -> str:
        self._count += 1
        told = {"msgtype": "m.text", "body": text, **content}
        path = f"{self.path}/send/m.room.message/{self._count}"
        return str(self._home.ask("PUT", path, self._token, json=told)["event_id"])

    def answers(self) -> list[str]:
        """Return the texts of the bot as a client shows them, with their edits."""
        path = f"{self.path}/messages?dir=b&limit=100"
        shown: dict[str, str] = {}
        for event in reversed(self._home.ask("GET", path, self._token)["chunk"]):
            if event["sender"] != "@bot:harbour.test" or event["type"] != "m.room.message":
                continue
            relation = event["content"].get("m.relates_to", {})
            if relation.get("rel_type") == "m.replace":
                shown[relation["event_id"]] = event["content"]["m.new_content"]["body"]
            else:
                shown[event["event_id"]] = event["content"]["body"]
        return list(shown.values())


def test_a_room_of_synapse_is_answered_through_files_replies_and_a_restart(
    tmp_path: Path, model: EchoingModel
) -> None:
    needs(BIN / "synapse_homeserver")
    home = Synapse(tmp_path / "synapse")
    with home.serving():
        ada, bot = home.register("ada"), home.register("bot")
        table = f'[platforms.matrix]\ntoken_file = "matrix.token"\nbase_url = "{home.url}"\n'
        data = configured(tmp_path, model.url, table + 'allow = {"@ada:harbour.test" = "owner"}\n')
        secret(data, "matrix.token", bot)
        room = Room(home, ada)
        server = RunningServer(data)
        with server:
            soon(room.has_bot)
            first = room.say("Is the light on?")
            soon(lambda: room.answers() == ["re: Is the light on? (1)"])
            reply = {"m.relates_to": {"m.in_reply_to": {"event_id": first}}}
            room.say("Which one?", **reply)
            soon(lambda: len(room.answers()) == 2)
            assert "> Is the light on?" in room.answers()[1]
            uploaded = home.ask("POST", "/_matrix/media/v3/upload", ada, content=b"The harbour is open")
            about = {"mimetype": "text/plain", "size": 19}
            room.say("notes.txt", msgtype="m.file", url=uploaded["content_uri"], info=about)
            soon(lambda: len(room.answers()) == 3)
            assert "The harbour is open" in room.answers()[2]
        # More than Synapse puts into the first answer after a long absence: the rest is asked for.
        away = [room.say(f"while away {number}") for number in range(14)]
        with server:
            soon(lambda: sum("re: while away" in one for one in room.answers()) >= len(away))
            for number in range(len(away)):
                assert sum(f"re: while away {number} (" in one for one in room.answers()) == 1


class Inbox:
    """Collects what our SMTP client sends."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        found = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(found, EmailMessage)
        self.mails.append(found)
        return "250 OK"


def words_of(mail: EmailMessage) -> str:
    """Return the plain text of a mail."""
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content())


def put(port: int, subject: str, text: str, *answers: str, file: str = "") -> str:
    """Put a mail of ada into the mailbox and return its id."""
    mail = EmailMessage(policy=policy.SMTP)
    mail["Authentication-Results"] = "mx.harbour.test; dmarc=pass header.from=harbour.test"
    mail["From"], mail["To"], mail["Subject"] = "Ada <ada@harbour.test>", "agent@harbour.test", subject
    mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain="harbour.test")
    if answers:
        mail["In-Reply-To"], mail["References"] = answers[-1], " ".join(answers)
    mail.set_content(text)
    if file:
        mail.add_attachment(file, filename="Übersicht.txt")
    with imaplib.IMAP4("127.0.0.1", port) as box:
        box.login("agent", "secret")
        assert box.append("INBOX", "", "", mail.as_bytes())[0] == "OK"
    return str(mail["Message-ID"])


def is_open(port: int) -> bool:
    try:
        imaplib.IMAP4("127.0.0.1", port).logout()
    except OSError:
        return False
    return True


def test_a_mailbox_of_pymap_is_answered_through_files_replies_and_a_restart(
    tmp_path: Path, model: EchoingModel
) -> None:
    needs(BIN / "pymap")
    inbox, port = Inbox(), free_port()
    smtp = Controller(
        inbox,
        hostname="127.0.0.1",
        port=free_port(),
        authenticator=lambda *told: AuthResult(success=told[-1].password == b"secret"),
        auth_require_tls=False,
    )
    smtp.start()
    command = [str(BIN / "pymap"), "--host", "127.0.0.1", "--port", str(port), "--no-tls", "dict"]
    command += ["--demo-data", "--demo-user", "agent", "--demo-password", "secret"]
    table = f"""[platforms.email]
address = "agent@harbour.test"
user = "agent"
password_file = "mail.password"
imap_host = "127.0.0.1"
imap_port = {port}
imap_security = "plain"
smtp_host = "127.0.0.1"
smtp_port = {smtp.port}
smtp_security = "plain"
authserv_id = "mx.harbour.test"
poll_ms = 1000
allow = {{"ada@harbour.test" = "owner"}}
"""
    data = configured(tmp_path, model.url, table)
    secret(data, "mail.password", "secret")
    server = RunningServer(data)
    try:
        with running(command, tmp_path, lambda: is_open(port)):
            with server:
                first = put(port, "Pier light", "Is the light on?")
                soon(lambda: len(inbox.mails) == 1)
                answer = inbox.mails[0]
                assert (answer["In-Reply-To"], answer["Subject"]) == (first, "Re: Pier light")
                put(port, "Re: Pier light", "Which one?", first, answer["Message-ID"])
                soon(lambda: len(inbox.mails) == 2)
                assert "Which one? (3)" in words_of(inbox.mails[1])
                put(port, "Grüße", "See the file", file="Der Hafen ist offen")
                soon(lambda: len(inbox.mails) == 3)
                assert "Der Hafen ist offen" in words_of(inbox.mails[2])
            for number in range(5):
                put(port, f"Away {number}", "while away")
            with server:
                soon(lambda: len(inbox.mails) >= 8)
        subjects = sorted(str(one["Subject"]) for one in inbox.mails[3:])
        assert subjects == [f"Re: Away {number}" for number in range(5)]
    finally:
        smtp.stop()
