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
    """The keys that lead to the object or array it stands in."""
    key: str = ""
    """Its name in an object; without one it is an item of an array."""
    value: object
    sign: str = ""
    """The words by which our item of an array is known, whoever changed the rest of it."""
    only_new: bool = False
    """Whether it is written only where nothing stands yet, and what stands there is right as it is."""
    goes_with: tuple[str, ...] = ()
    """The path of what it is there for: it is taken out only when that is gone too."""

    @property
    def foreign(self) -> frozenset[str]:
        """The keys that would make our entry one of the other kind."""
        if self.sign or not isinstance(self.value, Mapping):
            return frozenset()
        return STDIO_KEYS if HTTP_KEYS & self.value.keys() else HTTP_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedEdit:
    """The undo record of one thing that setup wrote: enough to take it out, whatever else changed since."""

    client: str
    kind: Literal["root", "container", "entry", "item", "replaced", "table"]
    path: tuple[str, ...]
    """The keys that lead to it; for an item of an array, to the array."""
    before: str = ""
    """The blanks that were written before it."""
    after: str = ""
    """The blanks that were written behind it."""
    was: str = ""
    """What stood there, for what was replaced."""
    sign: str = ""
    goes_with: tuple[str, ...] = ()


def fits(found: object, edit: ConfigEdit) -> bool:
    """Return whether what was found does what is wanted; what people added to it is theirs."""
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
    """Return what should stand where `found` does: ours, and what people added to it."""
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
    """Return whether the words stand anywhere in a value."""
    if isinstance(found, Mapping):
        return any(bears(value, sign) for value in found.values())
    if isinstance(found, list):
        return any(bears(value, sign) for value in found)
    return isinstance(found, str) and sign in found
