"""What Telegram's adapter is set to; the table of names is in `telegram.py`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final, Self
from urllib.parse import urlsplit

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.config import PlatformConfig

_TOKEN: Final = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,120}")
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


def _is_address(value: Json) -> bool:
    if not isinstance(value, str) or not value.isprintable() or set(value) & set(" ?#"):
        return False
    try:
        parts = urlsplit(value)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not parts.username
        )
    except ValueError:
        return False


def _is_whole(least: int, most: int) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_WANTED: Final[Mapping[str, tuple[Callable[[Json], bool], str]]] = {
    "base_url": (_is_address, "an address that begins with http:// or https://"),
    "webhook_url": (
        lambda value: value is None or _is_address(value),
        "an address that begins with https://",
    ),
    "delete_webhook": (lambda value: isinstance(value, bool), "true or false"),
    "poll_seconds": (_is_whole(1, 50), "a whole number from 1 to 50"),
    "timeout_ms": (_is_whole(1, 300_000), "a whole number of milliseconds from 1 to 300000"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramOptions:
    """What is set beside the token and the secret."""

    base_url: str = "https://api.telegram.org"
    webhook_url: str | None = None
    delete_webhook: bool = False
    poll_seconds: int = 30
    timeout_ms: int = 30_000

    @classmethod
    def read(cls, config: PlatformConfig) -> Self:
        """Return what a configuration says.

        Raises:
            ConfigError: a name is not known, a value is none, or a webhook has no secret.
        """
        known = [one.name for one in fields(cls)]
        for name, value in config.extra.items():
            if name not in _WANTED:
                raise ConfigError(
                    f"telegram knows no setting extra.{name}", value=name, remedy=f"use {', '.join(known)}"
                )
            fits, wanted = _WANTED[name]
            if not fits(value):
                raise ConfigError(
                    f"extra.{name} of telegram must be {wanted}", value=name, remedy=f"give {wanted}"
                )
        options = cls(**config.extra)
        if options.webhook_url is not None and not _SECRET.fullmatch(config.api_key or ""):
            raise ConfigError(
                "telegram's webhook has no secret",
                remedy="set api_key to 1 to 256 letters, digits, _ or -; Telegram then sends it along",
            )
        return options


def token_of(config: PlatformConfig) -> str:
    """Return the bot's token.

    Raises:
        ConfigError: there is none, or it has not the form of one; it is not shown.
    """
    if not config.token:
        raise ConfigError(
            "telegram has no token", remedy="ask @BotFather in Telegram for one, and set it as the token"
        )
    if not _TOKEN.fullmatch(config.token):
        raise refused_token("it does not look like 123456:ABC-DEF")
    return config.token


def refused_token(why: str) -> ConfigError:
    """Return that the token is none, or not valid any more."""
    return ConfigError(
        f"telegram's token is not valid: {why}",
        remedy="ask @BotFather in Telegram for the bot's token, or for a new one, and set it as the token",
    )
