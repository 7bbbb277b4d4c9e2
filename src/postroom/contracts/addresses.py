"""Parses PostgreSQL addresses in the two forms that libpq reads: a URL, or `host=/tmp dbname=mail`.

All code that accepts such an address uses this module, which does not need the database driver.
"""

import re
from typing import Final
from urllib.parse import quote, unquote

_SCHEMES: Final = ("postgresql://", "postgres://")
_WORD: Final = r"\s*([a-z_]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)+|)(?=\s|$)"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(:[0-9]{0,5})?")


def is_postgres_address(text: str) -> bool:
    """Return whether a text looks like a PostgreSQL address, including malformed addresses."""
    return text.startswith(_SCHEMES) or re.match(r"\s*[a-z_]+\s*=", text) is not None


def refuse_malformed_address(text: str) -> None:
    """Raise an error if a PostgreSQL address is malformed or ambiguous.

    Raises:
        ValueError: The address is malformed. The error does not quote the address, which may contain a
            password.
    """
    if not is_postgres_address(text):
        raise ValueError("write postgresql://user:password@host:port/database")
    if not text.isprintable():
        raise ValueError("write the address without line breaks or control characters")
    if not text.startswith(_SCHEMES):
        if re.fullmatch(rf"({_WORD})*\s*", text) is None:
            raise ValueError(
                "write host=/var/run/postgresql dbname=mail, with 'quotes' around values that contain spaces"
            )
        return
    place, _, path = text.partition("://")[2].partition("?")[0].partition("/")
    user, _, hosts = place.rpartition("@")
    if "@" in user + path:
        raise ValueError("write @ as %40 and / as %2F in the user and the password")
    if not all(_HOST.fullmatch(host) or unquote(host).startswith("/") for host in hosts.split(",")):
        raise ValueError("write the host and a numeric port: postgresql://user:password@host:port/database")


def shown_address(text: str, schema: str) -> str:
    """Return the location of a PostgreSQL schema as text, without user, password and options."""
    if text.startswith(_SCHEMES):
        base, _, query = text.partition("://")[2].partition("?")
        place = base.rpartition("@")[2]
        pairs = [pair.partition("=") for pair in query.split("&")]
        by_name = {name: unquote(value) for name, _, value in pairs}
        by_name["dbname"] = by_name.get("dbname", unquote(place.partition("/")[2]))
    else:
        words = [(name, value) for name, value in re.findall(_WORD, text)]
        by_name = {
            name: re.sub(r"\\(.)", r"\1", value.removeprefix("'").removesuffix("'")) for name, value in words
        }
        place = ""
    if not place or place.startswith("/"):
        named = [
            f"{name}={quote(by_name[name], safe='/,:@')}"
            for name in ("host", "hostaddr", "port")
            if by_name.get(name)
        ]
        place = f"/{quote(by_name.get('dbname', ''))}{'?' * bool(named)}{'&'.join(named)}"
    return f"postgresql://{place}, schema {schema}"
