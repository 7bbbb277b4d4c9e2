"""Few private functions are called from one place: a path is read on, and not from helper to helper."""

from pathlib import Path

import pytest

from called_once import private_functions

pytestmark = pytest.mark.long

MOST = 0.276
"""The share that may be called once. It may only fall; `tests/called_once.py --list` names them."""
MOST_IN = {"app": 0.24, "app/clients": 0.23, "gateway": 0.21, "runtime": 0.3, "web": 0.47}
"""The share in a folder that has a limit of its own. These limits may only fall, too."""


def test_few_private_functions_are_called_from_one_place() -> None:
    found = private_functions()
    once = [one for one in found if one.is_called_once]
    assert len(found) > 1_000
    assert len(once) <= MOST * len(found), f"{len(once)} of {len(found)} private functions are called once"
    for folder, most in MOST_IN.items():
        inside = [one for one in found if Path(one.file).parent == Path(folder)]
        names = [f"{one.file}:{one.name}" for one in inside if one.is_called_once]
        assert inside, folder
        assert len(names) <= most * len(inside), f"{folder}: {names}"
