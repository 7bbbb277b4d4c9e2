"""What an adapter reads of its platform's `extra`: a struct a platform, read and refused in one way."""

import re
from typing import Annotated, ClassVar, Final, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from postroom.contracts.errors import ConfigError
from postroom.gateway.config import PlatformConfig

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
Line = Annotated[str, Meta(pattern=r"^[\x20-\x7e]+\Z")]
"""Text of one line in ASCII."""
_NAMED: Final = re.compile(r"`(?:\$\.)?(\w+)[^`]*`")
_PLACE: Final = re.compile(r" - at `[^`]*`\Z")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names that may be set, with their defaults; those that are secrets are never shown.

    What types cannot say is looked at in `__post_init__`, which raises ValueError with the name in backquotes
    and without the value.
    """

    of: ClassVar[str]
    """The platform."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    @classmethod
    def read(cls, config: PlatformConfig) -> Self:
        """Return what a configuration says.

        Raises:
            ConfigError: a name is missing or not known, or a value is none.
        """
        try:
            return msgspec.convert(dict(config.extra), cls)
        except msgspec.ValidationError as error:
            why = str(error)
        name = _NAMED.findall(why)[-1]
        known = ", ".join(cls.__struct_fields__)
        raise ConfigError(
            f"extra.{name} of {cls.of} cannot be used: {_PLACE.sub('', why)}",
            value=name,
            remedy=f"mend it; the names are {known}",
        )


def refuse_address(name: str, url: str, *, plain: bool = False, query: bool = False) -> None:
    """Refuse what is no address of a server, or holds a name and a password.

    It is http only on this machine, unless `plain`.

    Raises:
        ValueError: it is none; it is not quoted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    secure = bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and (plain or host in LOOPBACK))
    )
    if not secure or port == 0 or "@" in parts.netloc or parts.fragment or (parts.query and not query):
        raise ValueError(f"`{name}` is no address that begins with {'http:// or ' if plain else ''}https://")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"`{name}` holds what no address holds")
