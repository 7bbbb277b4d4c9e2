"""Reads `.sql` files: a `-- name` heading, then one statement."""

import re
from importlib import resources

_HEADING = re.compile(r"^-- ([a-z_]+)$", re.MULTILINE)


def load_statements(name: str) -> dict[str, str]:
    """Return the statements of `sql/<name>.sql` by their headings."""
    source = resources.files("postroom.stores.sqlite").joinpath("sql", f"{name}.sql")
    pieces = _HEADING.split(source.read_text(encoding="utf-8"))[1:]
    return {heading: body.strip() for heading, body in zip(pieces[::2], pieces[1::2], strict=True)}
