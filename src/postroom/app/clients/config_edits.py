"""The edits of setup: what should stand in a file, and the undo record of it. Values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

NAME: Final = "postroom"
"""The name of our entry in every client, and of the command that it starts."""
STDIO_KEYS: Final = frozenset({"command", "args", "env", "environment", "cwd"})
HTTP_KEYS: Final = frozenset(
    {"url", "httpUrl", "serverUrl", "headers", "oauth", "bearer_token_env_var", "http_headers"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEdit:
    """One thing that should stand in a file: a member of an object, or an item of an array."""

    path: tuple[str, ...]
    """The keys that lead to its object or array."""
    key: str = ""
    """Its name in an object; without one it is an item of an array."""
    value: object
    sign: str = ""
    """Words that identify our item of an array, even after other parts of it were changed."""
    only_new: bool = False
    """Whether it is written only where there is no value yet; any value that is there is accepted."""
    goes_with: tuple[str, ...] = ()
    """The path of what needs it; it is removed only when that is gone too."""

    @property
    def foreign(self) -> frozenset[str]:
        """The keys of the other transport, which our entry must not have."""
        if self.sign or not isinstance(self.value, Mapping):
            return frozenset()
        return STDIO_KEYS if HTTP_KEYS & self.value.keys() else HTTP_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedEdit:
    """The undo record of one thing that setup wrote: enough to remove it, whatever else changed since."""

    client: str
    kind: Literal["root", "container", "entry", "item", "replaced", "table"]
    path: tuple[str, ...]
    """The keys that lead to it; for an item of an array, to the array."""
    before: str = ""
    """The whitespace that was written before it."""
    after: str = ""
    """The whitespace that was written after it."""
    was: str = ""
    """The text that it replaced."""
    sign: str = ""
    goes_with: tuple[str, ...] = ()


def fits(found: object, edit: ConfigEdit) -> bool:
    """Return whether a value does what the edit wants; additions by people are accepted."""
    if edit.only_new:
        return True
    if isinstance(found, Mapping) and edit.foreign & found.keys():
        return False
    return _covers(found, edit.value)


def _covers(found: object, wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and _covers(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and all(any(_covers(one, value) for one in found) for value in wanted)
    return found == wanted and type(found) is type(wanted)


def mended(found: object, edit: ConfigEdit) -> object:
    """Return the value to put in place of `found`: ours, with the additions of people."""
    if not isinstance(found, Mapping) or not isinstance(edit.value, Mapping):
        return edit.value
    kept = {key: value for key, value in found.items() if key not in edit.foreign}
    result = {**kept, **edit.value}
    for key, value in edit.value.items():
        theirs = found.get(key)
        if edit.sign and isinstance(value, list) and isinstance(theirs, list):
            result[key] = value + [one for one in theirs if not bears(one, edit.sign)]
    return result


def bears(found: object, sign: str) -> bool:
    """Return whether a text anywhere in the value contains the words."""
    if isinstance(found, Mapping):
        return any(bears(value, sign) for value in found.values())
    if isinstance(found, list):
        return any(bears(value, sign) for value in found)
    return isinstance(found, str) and sign in found
