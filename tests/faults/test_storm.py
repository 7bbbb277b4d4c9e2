"""Workers that are killed, stopped and cut off: no run is lost, none beside its thread's, no limit is passed."""

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
