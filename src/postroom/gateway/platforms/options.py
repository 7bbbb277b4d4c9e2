"""What an adapter reads of its platform's `extra`: a struct a platform, read and refused in one way."""

import re
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, inspect

from postroom.contracts.errors import ConfigError
from postroom.gateway.config import PlatformConfig

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
Line = Annotated[str, Meta(pattern=r"^[\x20-\x7e]+\Z", description="one line of ASCII text")]
_NAMED: Final = re.compile(r"`(?:\$\.)?(\w+)[^`]*`")
_PLACE: Final = re.compile(r" - at `[^`]*`\Z")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names that may be set, with their defaults; those that are secrets are never shown.

    What types cannot say is looked at in `__post_init__`, which raises ValueError with the name in backquotes
    and without the value. A text of a certain form or length has a description: that is told of it.
    """

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
        kinds = {field.name: field.type for field in inspect.type_info(cls).fields}  # type: ignore[attr-defined]  # it is a struct
        if name not in kinds:
            remedy = f"use one of {', '.join(kinds)}"
            raise ConfigError(f"unknown setting {name!r}", value=name, remedy=remedy)
        if why.startswith("Object missing"):
            raise ConfigError(f"{name} is missing", value=name, remedy=f"add {name}: {_words(kinds[name])}")
        if _PLACE.search(why):
            why = f"{name} must be {_words(kinds[name])}"
        raise ConfigError(why, value=name, remedy=f"correct {name}")


def _words(kind: inspect.Type) -> str:
    """Say what values a type takes."""
    match kind:
        case inspect.Metadata():
            return str((kind.extra_json_schema or {})["description"])
        case inspect.UnionType():
            return _words(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.EnumType():
            return f"one of {', '.join(one.value for one in kind.cls)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"an integer from {kind.ge} to {kind.le}"
        case inspect.FloatType():
            return f"a number from {kind.ge} to {kind.le}"
        case inspect.VarTupleType():
            return f"a list; each item is {_words(kind.item_type)}"
        case inspect.DictType():
            return "a table that is not empty"
        case inspect.StrType():
            return "a text"
    raise NotImplementedError(kind)


def secret_remedy(name: str, what: str) -> str:
    """Return the remedy where a secret is missing or wrong: it never stands in the file itself."""
    return f"put {what} into a variable or a private file, and set `{name}_env` or `{name}_file` to its name"


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
        raise ValueError(f"`{name}` must be a URL that begins with {'http:// or ' if plain else ''}https://")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"`{name}` contains a character that is not allowed in a URL")
