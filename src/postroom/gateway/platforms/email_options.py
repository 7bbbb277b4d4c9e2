"""What the e-mail adapter is set to, checked before anything is opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from postroom.contracts.errors import ConfigError
from postroom.gateway.config import PlatformConfig
from postroom.gateway.platforms.email_post import Security, Server
from postroom.gateway.platforms.email_wire import ADDRESS

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
