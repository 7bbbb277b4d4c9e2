"""Statements that this engine alone has: those of live commands, whose tables SQLite does not need."""

import re
from importlib import resources
from typing import Final

from postroom.stores.statements import Statement

_HEADING: Final = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def load_statements(name: str) -> dict[str, Statement]:
    """Return the statements of a file by their headings; `{now}` is the database's present instant."""
    folder = resources.files("postroom.stores.postgres").joinpath("sql")
    pieces = _HEADING.split(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8"))[1:]
    return {
        heading: Statement(
            name=f"{name}.{heading}",
            text=text.strip().replace("{now}", _NOW),
            parameters=(),
            lists=frozenset(),
        )
        for heading, text in zip(pieces[::2], pieces[1::2], strict=True)
    }
