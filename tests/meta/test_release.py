"""The check of a release's files names modules that exist: it runs before a release only."""

from importlib.util import find_spec

import pytest

from try_package import MODULES

OURS = [module for modules in MODULES.values() for module in modules if module.startswith("postroom.")]


@pytest.mark.parametrize("module", OURS)
def test_the_modules_that_an_extra_makes_importable_exist(module: str) -> None:
    assert find_spec(module) is not None
