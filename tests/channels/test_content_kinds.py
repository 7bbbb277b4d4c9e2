"""Nothing that a platform sends vanishes: each kind of content is given to the agent, named, or refused."""

import pytest

from channels.content_kinds import BEGIN, END, KINDS, PAGE, outcome, table

NAMED = {
    ("a story, a gift, paid media", "telegram"),
    ("content of a kind that is not known", "telegram"),
    ("content of a kind that is not known", "slack"),
    ("a file that the platform does not give", "slack"),
    ("a file that the platform does not give", "matrix"),
}
REFUSED = {
    "a mail of a machine or a list",
    "an event of the chat, such as somebody who joined",
    "a message without any content",
}


@pytest.mark.parametrize("kind", KINDS)
def test_content_is_given_named_or_refused(kind) -> None:
    for platform, event in KINDS[kind].items():
        expected = "named" if (kind, platform) in NAMED else "refused" if kind in REFUSED else "given"
        assert outcome(event) == expected, platform


@pytest.mark.parametrize("platform", ["telegram", "slack", "discord", "email"])
def test_forwarded_words_are_never_the_senders_own(platform) -> None:
    event = KINDS["a forward of words"][platform]
    assert event is not None
    assert "marker" not in event.text
    assert ["marker" in one.text for one in event.forwarded] == [True]


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table().strip(), (
        "run: PYTHONPATH=tests .venv/bin/python -m channels.content_kinds"
    )
