"""No content from a platform is lost: each kind is given to the agent, named, or refused."""

from channels.content_kinds import BEGIN, END, KINDS, PAGE, outcome, table

NAMED = {
    ("a story, a gift, paid media", "telegram"),
    ("content of an unknown kind", "telegram"),
    ("content of an unknown kind", "slack"),
    ("a file that the platform withholds", "slack"),
    ("a file that the platform withholds", "matrix"),
}
REFUSED = {
    "an e-mail from a program or a mailing list",
    "an event of the chat, such as somebody who joined",
    "a message without any content",
}


def test_content_is_given_named_or_refused() -> None:
    wrong = []
    for kind, platform, event in ((kind, *one) for kind, found in KINDS.items() for one in found.items()):
        expected = "named" if (kind, platform) in NAMED else "refused" if kind in REFUSED else "given"
        if outcome(event) != expected:
            wrong.append((kind, platform, outcome(event)))
    assert wrong == []


def test_forwarded_words_are_never_the_senders_own() -> None:
    for platform in ("telegram", "slack", "discord", "email"):
        event = KINDS["a forward of words"][platform]
        assert event is not None
        assert "marker" not in event.text, platform
        assert ["marker" in one.text for one in event.forwarded] == [True], platform


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table().strip(), (
        "run: PYTHONPATH=tests .venv/bin/python -m channels.content_kinds"
    )
