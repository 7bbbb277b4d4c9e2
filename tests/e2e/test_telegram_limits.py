"""The published limits of Telegram, counted strictly: nothing is lost, nothing is said twice."""

from pathlib import Path

import pytest

from e2e.telegram_storm import MINUTE_MS, storm

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


async def test_200_chats_and_a_group_of_60_people_are_answered_once_each(tmp_path: Path) -> None:
    """In a tenth of the time; `python tests/e2e/telegram_storm.py` takes its own."""
    found = await storm(tmp_path, waves=1, speed=10)
    assert found.refused, "somebody else had used the bot up"
    assert [at for at in found.refused if at >= MINUTE_MS] == []
    assert set(found.answers.values()) == {1}
    assert len(found.answers) == found.asked == 260
    assert found.dead == 0
