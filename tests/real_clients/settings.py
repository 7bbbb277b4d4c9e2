"""Files of settings as documents, and the rest of a file without setup's part."""

import json
import tomllib
from typing import Any

OURS = "postroom"


def read(name: str, text: bytes) -> Any:
    """Return a file of settings as a document."""
    return tomllib.loads(text.decode()) if name.endswith(".toml") else json.loads(text)


def without_ours(document: Any) -> Any:
    """Return a document without what names us; what holds nothing more then is gone with it, and is None."""
    if isinstance(document, dict):
        if any(isinstance(value, str) and OURS in value for value in document.values()):
            return None
        parts = {name: without_ours(value) for name, value in document.items() if OURS not in name}
        left: Any = {name: part for name, part in parts.items() if part is not None}
    elif isinstance(document, list):
        left = [part for value in document if (part := without_ours(value)) is not None]
    else:
        return document
    return left if left or not document else None
