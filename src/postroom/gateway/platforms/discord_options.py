"""What `config.extra` says to the adapter of Discord, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.platforms.discord_wire import is_id

_NUMBERS = {
    "backfill_limit": (1, 100_000),
    "backfill_minutes": (0, 100_000),
    "max_held": (1, 1_000_000),
    "timeout_seconds": (1, 600),
}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The names are in the table of `postroom.gateway.platforms.discord`."""

    base_url: str = "https://discord.com/api/v10"
    cdn_url: str = "https://cdn.discordapp.com"
    backfill: bool = True
    backfill_limit: int = 500
    backfill_minutes: int = 60
    channels: tuple[str, ...] = ()
    max_held: int = 1_000
    timeout_seconds: float = 30

    @classmethod
    def read(cls, extra: Mapping[str, Json]) -> "Options":
        """Return them as they are set.

        Raises:
            ConfigError: a name is not known, or a value is not what its name asks for.
        """
        found: dict[str, object] = {}
        for name, value in extra.items():
            if name in ("base_url", "cdn_url"):
                found[name] = _address(name, value)
            elif name in _NUMBERS:
                found[name] = _number(name, value)
            elif name == "backfill":
                found[name] = _wish(name, value)
            elif name == "channels":
                found[name] = _channels(name, value)
            else:
                known = ", ".join(("base_url", "cdn_url", "backfill", "channels", *_NUMBERS))
                raise _wrong(name, f"is not known; there are {known}")
        return cls(**found)  # type: ignore[arg-type] # each was checked by its name


def bot_token(token: str | None) -> str:
    """Return a bot's token as it is sent.

    Raises:
        ConfigError: it is missing, or holds what no token holds. It is not shown.
    """
    kept = (token or "").strip().removeprefix("Bot ").strip()
    if not kept or not kept.isascii() or not kept.isprintable() or " " in kept:
        raise ConfigError(
            "the Discord bot's token is missing or is none",
            remedy="set `token` of the platform `discord` to the token from Bot → Reset Token at"
            " https://discord.com/developers/applications",
        )
    return kept


def _address(name: str, value: Json) -> str:
    parts = urlsplit(value) if isinstance(value, str) else None
    secure = parts is not None and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    )
    if parts is None or not secure or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise _wrong(name, "is an address that begins with https://")
    return parts.geturl().rstrip("/")


def _number(name: str, value: Json) -> float:
    least, most = _NUMBERS[name]
    whole = name != "timeout_seconds"
    fits = isinstance(value, int) or (isinstance(value, float) and not whole)
    if isinstance(value, bool) or not fits or not (least <= value if whole else value > 0) or value > most:
        raise _wrong(name, f"is a number from {least} to {most}")
    return value  # type: ignore[no-any-return]


def _wish(name: str, value: Json) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "is true or false")
    return value


def _channels(name: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(is_id(one) for one in value):
        raise _wrong(name, "is a list of channel ids, each a text of digits")
    return tuple(value)


def _wrong(name: str, rule: str) -> ConfigError:
    return ConfigError(
        f"Discord's setting `{name}` {rule}",
        value=name,
        remedy=f"mend or remove `{name}` in `extra` of the platform `discord`",
    )
