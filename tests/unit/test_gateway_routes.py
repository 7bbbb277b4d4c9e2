"""The agent that answers a message: one function, and rules of which the first match decides."""

import pytest

from postroom.contracts.errors import ConfigError
from postroom.gateway.config import Route, reachable
from postroom.gateway.events import MessageEvent
from postroom.gateway.routes import check_routes, decide, listed
from postroom.gateway.session import Platform, SessionSource, build_session_key
from table_rows import each_row

ROUTES = (
    Route(agent="Bo@harbour", mention=("bo", "lights")),
    Route(agent="Cy@harbour", platform=("telegram",), chat=("-100",), pattern=("*deploy*",)),
    Route(agent="poet", platform=("telegram",), chat=("-100",), thread=("7",)),
    Route(agent=None, platform=("slack",)),
    Route(agent="Dan@harbour", type=("group",)),
)


def message(text: str, *, addressed: bool = True, reply_to: str | None = None, **place: str) -> MessageEvent:
    source = SessionSource(
        **{"platform": Platform.TELEGRAM, "chat_id": "-100", "chat_type": "group", "user_id": "1", **place}
    )
    return MessageEvent(text=text, source=source, addressed=addressed, reply_to_text=reply_to)


DECIDED = {
    "a name with an at sign": (message("what do you say, @Bo?"), "Bo@harbour"),
    "another of its names, at the beginning": (message("Lights: off"), "Bo@harbour"),
    "a name within a word is none": (message("mail a@bo.example or @boat"), "Dan@harbour"),
    "a name in the middle without a sign is none": (message("tell bo, please"), "Dan@harbour"),
    "words of that chat": (message("Please DEPLOY\nit"), "Cy@harbour"),
    "the same words in another chat": (message("deploy", chat_id="-200"), "Dan@harbour"),
    "a topic": (message("hello", thread_id="7"), "poet"),
    "a mention in that topic": (message("@bo hello", thread_id="7"), "Bo@harbour"),
    "a channel": (message("hello", platform=Platform.SLACK), None),
    "no rule": (message("hello", chat_type="dm"), None),
    "a reply to an agent": (message("why?", reply_to="Bo: it is dark"), "Bo@harbour"),
    "a reply to one that is not reachable there": (message("why?", reply_to="Eve: x"), "Dan@harbour"),
    "words for another in a reply": (message("deploy", reply_to="Bo: it is dark"), "Cy@harbour"),
}


@each_row("name", DECIDED)
def test_the_first_rule_that_matches_decides(name: str) -> None:
    event, agent = DECIDED[name]
    decision = decide(ROUTES, event)
    assert decision is not None
    assert decision.agent == agent


def test_what_is_not_for_us_is_answered_by_rules_that_find_words_in_it_alone() -> None:
    assert decide(ROUTES, message("hello", addressed=False)) is None
    assert decide(ROUTES, message("hello", addressed=False), "Bo@harbour") is None
    found = decide(ROUTES, message("@bo hello", addressed=False))
    assert found is not None
    assert found.agent == "Bo@harbour"
    assert found.why == "rule 1: mention bo or lights"


def test_a_choice_holds_among_the_agents_that_the_rules_let_one_reach_and_behind_words() -> None:
    here = message("hello")
    assert reachable(ROUTES, here.source) == ("Bo@harbour", "Cy@harbour", "Dan@harbour")
    assert decide(ROUTES, here, "Cy@harbour").agent == "Cy@harbour"
    assert decide(ROUTES, here, "poet").agent == "Dan@harbour"
    assert decide(ROUTES, message("@bo hello"), "Cy@harbour").agent == "Bo@harbour"
    assert reachable((), here.source) == (None,)


def test_a_sender_with_an_agent_of_his_own_reaches_no_other() -> None:
    routes = (
        Route(agent="guide", platform=("telegram",), sender=("1",)),
        Route(agent="ops", mention=("ops",)),
    )
    assert decide(routes, message("@ops restart"), "ops").agent == "guide"


NEVER = {
    "the same": (Route(agent="a", mention=("bo",)), Route(agent="b", mention=("BO",))),
    "less": (Route(agent="a", type=("group", "dm")), Route(agent="b", type=("dm",), mention=("bo",))),
    "behind all": (Route(agent="a"), Route(agent="b", pattern=("x",))),
    "behind any words": (Route(agent="a", pattern=("*",)), Route(agent="b", pattern=("x",))),
}


@each_row("name", NEVER)
def test_a_rule_that_is_never_reached_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"rule 2 \(.*\) can never match: rule 1 \(.*\) matches first"):
        check_routes(NEVER[name])


def test_rules_that_may_be_reached_are_taken_and_listed() -> None:
    check_routes(ROUTES)
    assert listed(ROUTES[:1]) == [
        {"agent": "Bo@harbour", "answers": "mention bo or lights"},
        {"agent": "default", "answers": "all messages"},
    ]


def test_each_agent_has_sessions_of_its_own() -> None:
    source = SessionSource(platform=Platform.TELEGRAM, chat_id="1", agent="Bo@har:bour")
    assert build_session_key(source) == "agent:Bo@har%3Abour:telegram:dm:1"
    assert SessionSource.from_dict(source.to_dict()) == source
