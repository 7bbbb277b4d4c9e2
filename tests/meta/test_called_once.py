"""Few private functions are called from one place: a path is read on, and not from helper to helper."""

import pytest

from called_once import private_functions

pytestmark = pytest.mark.long

MOST = 0.40
"""The share that may be called once. It may only fall; `tests/called_once.py --list` names them."""


def test_few_private_functions_are_called_from_one_place() -> None:
    found = private_functions()
    once = [one for one in found if one.is_called_once]
    assert len(found) > 1_000
    assert len(once) <= MOST * len(found), f"{len(once)} of {len(found)} private functions are called once"
