"""Markdown, as the generated pages need it."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells are made safe for their place."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell(one) for one in row)} |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """Return a value as it can stand in a table."""
    parts = str(value).replace("\n", " ").replace("|", "\\|").strip().split("`")
    parts[::2] = [
        part.replace("<", "&lt;") for part in parts[::2]
    ]  # what stands between marks is shown as it is
    return "`".join(parts)


def sentence(text: str) -> str:
    """Return words with a capital in front and a full stop behind."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "`")) or not text else ".")
