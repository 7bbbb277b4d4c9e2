"""Reads `.sql` files: a `-- name` heading, then one statement."""

import re
from importlib import resources

_HEADING = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""The database's clock in milliseconds; `{now}` stands for it in the files."""


def load_statements(name: str) -> dict[str, str]:
    """Return the statements of `sql/<name>.sql` by their headings."""
    source = resources.files("postroom.stores.postgres").joinpath("sql", f"{name}.sql")
    pieces = _HEADING.split(source.read_text(encoding="utf-8"))[1:]
    return {
        heading: body.strip().replace("{now}", _NOW)
        for heading, body in zip(pieces[::2], pieces[1::2], strict=True)
    }
