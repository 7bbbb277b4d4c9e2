"""`postroom agents set-runner`: what is said of messages that were there before the runner."""

import json
from collections.abc import Iterator

import pytest

from fake_postroom import FakePostroom
from postroom.cli.main import main


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        monkeypatch.setenv("POSTROOM_URL", running.url)
        yield running


@pytest.mark.parametrize(
    ("waking", "said"),
    [
        (0, "Bo has a runner: mail to it starts it\n"),
        (1, "Bo has a runner: mail to it starts it; one unread message that was there starts it now\n"),
        (3, "Bo has a runner: mail to it starts it; 3 unread messages that were there start it now\n"),
    ],
)
def test_messages_that_start_a_new_runner_at_once_are_told(
    waking: int, said: str, fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.admin["PUT", "/admin/runners"] = lambda _: {"replaced": False, "waking": waking}
    assert main(("agents", "set-runner", "Bo", "--", "true")) == 0
    assert capsys.readouterr().out == said
    assert main(("agents", "set-runner", "Bo", "--json", "--", "true")) == 0
    assert json.loads(capsys.readouterr().out)["waking"] == waking
