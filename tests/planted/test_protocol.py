"""The simulation finds every planted fault of the protocol; a fault whose text has gone must be planted again."""

from pathlib import Path

import pytest

from planted.measuring import found_after
from planted.protocol import PLANTS, Plant

ROOT = Path(__file__).resolve().parents[2]
WORLDS = 2_000


def named(plant: Plant) -> str:
    return plant.name


@pytest.mark.parametrize("plant", PLANTS, ids=named)
def test_a_planted_fault_has_its_place_in_the_source(plant: Plant) -> None:
    for file, text, fault in plant.changes:
        source = (ROOT / "src/postroom" / file).read_text(encoding="utf-8")
        assert source.count(text) == 1, "the source has changed: plant the fault anew"
        assert text != fault


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("plant", PLANTS, ids=named)
def test_the_simulation_finds_a_planted_fault(plant: Plant, tmp_path: Path) -> None:
    worlds, finding = found_after(plant, tmp_path / "src", WORLDS)
    assert finding, f"not found in {worlds} worlds"
