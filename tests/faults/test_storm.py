"""Workers that are killed, suspended and cut off: no run is lost, no two of a thread run at once, no limit is exceeded."""

from pathlib import Path

import pytest

from faults.storm import Storm, weather

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("postgres_dsn")]


async def test_a_limit_and_the_order_of_threads_hold_in_a_storm(postgres_dsn, tmp_path: Path):
    storm = Storm(runs=150, threads=25, workers=3, at_once=4, kill_every=1.2)
    done = await weather(storm, postgres_dsn, tmp_path / "log")
    assert done.findings == []
    assert done.counts == {"acked": storm.runs}
    assert done.history.ended == set(done.history.accepted or ())
    assert done.standstills > 0
