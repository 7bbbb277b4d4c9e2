"""Secrets of the gateway. `gateway.toml` names the environment variables or private files with them.

`<name>_env` names an environment variable, and `<name>_file` names a file that only its owner can use. A
secret in `gateway.toml` itself is refused, because that file is copied, shown and kept under version control.

Secrets are never shown. Errors do not show the name of a variable or file either, because it may be the
secret itself.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Final

from postroom.app import places
from postroom.contracts.tables import Secret
from postroom.toml_files import TableName

SUFFIXES: Final = ("_env", "_file")
_LARGEST: Final = 16 * 1024
_SHARED: Final = stat.S_IRWXG | stat.S_IRWXO


def take_secret(
    table: TableName, told: dict[str, object], name: str, environment: Mapping[str, str], *, read: bool = True
) -> Secret | None:
    """Remove the fields that name a secret from a table, and return the secret.

    Return None if the table names no secret, or if `read` is False.

    Raises:
        ConfigError: The table contains the secret itself or both fields, or the secret cannot be read.
    """
    by_env, by_file = f"{name}_env", f"{name}_file"
    if name in told:
        table.refuse(
            f"the file contains the secret {name} in plain text",
            value=name,
            remedy=f"set {by_env} to the name of an environment variable that holds it, or {by_file} to a "
            "private file, and replace the secret if others may have read this file",
        )
    if by_env in told and by_file in told:
        table.refuse(f"{by_env} and {by_file} are both set", value=name, remedy="set only one of them")
    for way, look in ((by_env, _from_environment), (by_file, _from_file)):
        if way in told:
            named = told.pop(way)
            if not isinstance(named, str) or not named.strip() or "\0" in named:
                table.refuse(
                    f"{way} is not text", value=way, remedy=f"write {way} as text in quotation marks"
                )
            return look(table, way, named, environment) if read else Secret()
    return None


def secret_names(names: Iterable[str]) -> list[str]:
    """Return the names of the table fields that can name the secrets `names`."""
    return [f"{name}{suffix}" for name in names for suffix in SUFFIXES]


def _from_environment(table: TableName, way: str, name: str, environment: Mapping[str, str]) -> Secret:
    if name.startswith(places.PREFIX):
        table.refuse(
            f"{way} names a variable that begins with {places.PREFIX}, but such variables are server "
            f"settings",
            value=way,
            remedy="rename the variable, for example to CHAT_TOKEN",
        )
    value = environment.get(name, "")
    if not value.strip():
        table.refuse(
            f"{way} names a variable that is not set in the server's environment",
            value=way,
            remedy=(
                f"set the variable for the process that runs `postroom up`; {way} holds the variable's "
                f"name, not the secret"
            ),
        )
    return _one_line(table, way, value)


def _from_file(table: TableName, way: str, name: str, environment: Mapping[str, str]) -> Secret:
    path = places.absolute(name, environment, base=table.file.parent)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - the checks below need this very descriptor
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                table.refuse(
                    f"{path} is not a file", value=str(path), remedy=f"set {way} to the path of a file"
                )
            if found.st_mode & _SHARED:
                table.refuse(
                    f"the file {path} can be used by other users (mode {stat.S_IMODE(found.st_mode):04o})",
                    value=str(path),
                    remedy=f"chmod 600 {path}; if others may have read the file, replace the secret",
                )
            owner, user = found.st_uid, os.geteuid()
            if owner != user:
                table.refuse(
                    f"the file {path} belongs to user {owner}, not to the server's user {user}",
                    value=str(path),
                    remedy=f"`chown {user} {path}` as root, or run this command as user {owner}",
                )
            content = file.read(_LARGEST + 1)
    except OSError as error:
        table.refuse(
            f"the file that {way} names cannot be read: {error.strerror}",
            value=way,
            remedy=(
                f"write the secret to a file with mode 0600; {way} holds the file's path, not the secret"
            ),
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text.strip() or len(content) > _LARGEST:
        table.refuse(
            f"the file {path} contains no secret",
            value=str(path),
            remedy="write the secret to the file as one line of text",
        )
    return _one_line(table, way, text)


def _one_line(table: TableName, way: str, text: str) -> Secret:
    secret = text.strip("\r\n")
    if not secret.isprintable():
        table.refuse(
            f"the secret that {way} refers to is not one line of text",
            value=way,
            remedy="write the secret as one line",
        )
    return Secret(secret)
