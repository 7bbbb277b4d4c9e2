"""The acting agent: asserted and verified identity, tokens, the operator; a wrong token is an error everywhere."""

import itertools
from datetime import timedelta
from typing import Any

import pytest

from mail_room import (
    HARBOR,
    RUN_OF_ADA,
    SHORE,
    THE_PLAN,
    Room,
    everything,
    in_memory,
    room_in_memory,
    set_to_work,
)
from postroom.contracts import errors
from postroom.contracts.clock import iso
from postroom.mail.context import Caller, Rules, token_hash
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.service import Mail
from postroom.testing import ManualClock
from table_rows import each_row

room = room_in_memory

WHO = {"program": "p", "model": "m"}
ADA, BEN, EVE, WRONG = "token of Ada", "token of Ben", "token of Eve abroad", "no such token"
OPERATOR = Caller(operator=True)


def _with(token: str | None, *, operator: bool = False) -> Caller:
    return Caller(agent_token=token, operator=operator)


async def _furnish(room: Room) -> None:
    """Open two projects, give three agents a token, and write one message with a reservation."""
    await room.open()
    await room.open("Eve", project=SHORE)
    for project, name, token in (
        ("projects-harbor", "Ada", ADA),
        ("projects-harbor", "Ben", BEN),
        (SHORE, "Eve", EVE),
    ):
        await room.mail.issue_token(project, name, token_hash(token))
    plan = [{"name": "plan.txt", "content_base64": "dGhlIHBsYW4="}]
    await room.send("Ada", "Ben", thread_id="t", attachments=plan)
    await room.call("file_reservation_paths", agent_name="Ada", paths=["a"])
    await room.call("add_task", agent_name="Ada", title="t")
    await room.call("claim_task", agent_name="Ada")
    await room.call("add_note", agent_name="Ada", subject="Paint", text="It is red.")
    await room.call("subscribe", agent_name="Ada", kind="task_ready", about="1")
    await set_to_work(room.store)


ACTING: dict[str, dict[str, Any]] = {
    **{"register_agent": {"name": "Ada", **WHO}, "start_session": {"name": "Ada", **WHO}},
    **{"retire_agent": {"agent_name": "Ada"}, "unretire_agent": {"agent_name": "Ada"}},
    "rotate_agent_token": {"agent_name": "Ada"},
    "send_message": {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"},
    "reply_message": {"sender_name": "Ada", "message_id": 1, "body_md": "b"},
    "recall_message": {"sender_name": "Ada", "message_id": 1},
    **{"fetch_inbox": {"agent_name": "Ada"}, "fetch_inbox_events": {"agent_name": "Ada"}},
    "get_message": {"agent_name": "Ada", "message_id": 1},
    "get_attachment": {"agent_name": "Ada", "message_id": 1, "sha256": THE_PLAN},
    "delivery_status": {"agent_name": "Ada", "message_id": 1},
    "mark_message_read": {"agent_name": "Ben", "message_id": 1},
    "acknowledge_message": {"agent_name": "Ben", "message_id": 1},
    "ask_person": {"agent_name": "Ada", "run_id": RUN_OF_ADA, "question": "May I?"},
    "request_contact": {"agent_name": "Ada", "to": "Ben"},
    "respond_contact": {"agent_name": "Ada", "requester": "Ben", "accept": True},
    "list_contacts": {"agent_name": "Ada"},
    "set_contact_policy": {"agent_name": "Ada", "policy": "open"},
    "file_reservation_paths": {"agent_name": "Ada", "paths": ["b"]},
    "check_file_reservations": {"agent_name": "Ada", "paths": ["b"]},
    **{"release_file_reservations": {"agent_name": "Ada"}, "renew_file_reservations": {"agent_name": "Ada"}},
    "force_release_file_reservation": {"agent_name": "Ada", "reservation_id": 1, "reason": "r"},
    "claim_task": {"agent_name": "Ada"},
    "add_task": {"agent_name": "Ada", "title": "t"},
    "add_note": {"agent_name": "Ada", "subject": "s", "text": "t"},
    "end_note": {"agent_name": "Ada", "note_id": 1},
    "subscribe": {"agent_name": "Ada", "kind": "task_ready"},
    "list_subscriptions": {"agent_name": "Ada"},
    "end_subscription": {"agent_name": "Ada", "subscription_id": 1},
    "update_task": {"agent_name": "Ada", "task_id": 1, "title": "t"},
    "done_task": {"agent_name": "Ada", "task_id": 1, "epoch": 1},
}
OTHERS: dict[str, dict[str, Any]] = {
    **{"health_check": {}, "ensure_project": {"human_key": "/projects/new"}, "create_agent_identity": WHO},
    **{"show_project": {}, "whois": {"agent_name": "Ada"}, "list_agents": {}},
    **{"search_messages": {"query": "subject"}, "fetch_thread": {"thread_id": "t"}},
    **{
        "summarize_thread": {"thread_id": "t"},
        "list_file_reservations": {},
        "fetch_events": {},
        "list_tasks": {},
        "find_notes": {},
        "catch_up": {},
    },
}


def test_every_operation_is_in_one_of_the_two_tables() -> None:
    assert sorted([*ACTING, *OTHERS]) == sorted(one.name for one in MAIL_OPERATIONS)


def _own(arguments: dict[str, Any]) -> str:
    who = arguments.get("agent_name") or arguments.get("sender_name") or arguments.get("name")
    return BEN if who == "Ben" else ADA


@each_row("name", ACTING)
async def test_an_agent_acts_with_its_own_token_or_where_none_is_asked_for(
    clock: ManualClock, name: str
) -> None:
    for verified, operator in itertools.product((False, True), (False, True)):
        with in_memory(clock) as room:  # refusals change nothing: they share one
            await _furnish(room)
            _set_rules(room, verified)
            for token, kind in _refused(name, verified, operator).items():
                await _is_refused(room, kind, name, _caller(name, token, operator))
        for token in {"own", "none"} - _refused(name, verified, operator).keys():
            with in_memory(clock) as room:
                await _furnish(room)
                _set_rules(room, verified)
                await room.call(name, caller=_caller(name, token, operator), **ACTING[name])


def _set_rules(room: Room, verified: bool) -> None:
    def keep(slug: str, agent: str) -> tuple[str, str]:
        return f"new token of {agent} in {slug}", "/tokens/file"

    room.mail = Mail(room.store, room.clock, Rules(verified=verified), keep_token=keep)


def _refused(name: str, verified: bool, operator: bool) -> dict[str, type[errors.PostroomError]]:
    """Return the tokens with which an operation is refused, and how."""
    refused: dict[str, type[errors.PostroomError]] = {
        "other": errors.IdentityMismatch,
        "abroad": errors.IdentityMismatch,
        "wrong": errors.WrongToken,
    }
    # An agent with a token must show it to get another.
    if verified or (name == "rotate_agent_token" and not operator):
        refused["none"] = errors.TokenRequired
    return refused


def _caller(name: str, token: str, operator: bool) -> Caller:
    own = _own(ACTING[name])
    other = ADA if own == BEN else BEN
    tokens = {"none": None, "own": own, "other": other, "abroad": EVE, "wrong": WRONG}
    return _with(tokens[token], operator=operator)


async def _is_refused(room: Room, kind: type[errors.PostroomError], name: str, caller: Caller) -> None:
    error = await room.refused(kind, name, caller=caller, **ACTING[name])
    token = caller.agent_token
    assert token is None or token not in str(error.as_dict()), "no token is ever repeated"


@each_row("name, verified", itertools.product(OTHERS, (False, True)))
async def test_a_wrong_token_is_an_error_even_where_none_is_asked_for(
    clock: ManualClock, name: str, verified: bool
) -> None:
    with in_memory(clock) as room:
        await _furnish(room)
        room.mail.rules = Rules(verified=verified)
        await room.refused(errors.WrongToken, name, caller=_with(WRONG), **OTHERS[name])
        await room.refused(errors.WrongToken, name, caller=_with(WRONG, operator=True), **OTHERS[name])
        await room.refused(errors.WrongToken, name, caller=_with(""), **OTHERS[name])
        if name != "create_agent_identity":
            await room.call(name, caller=_with(EVE), **OTHERS[name])


async def test_a_revoked_or_replaced_token_is_a_wrong_one_and_only_agents_that_there_are_get_one(
    room: Room,
) -> None:
    await _furnish(room)
    await room.mail.issue_token("projects-harbor", "Ada", token_hash("second"))
    await room.refused(errors.WrongToken, "fetch_inbox", agent_name="Ada", caller=_with(ADA))
    assert await room.call("fetch_inbox", agent_name="Ada", caller=_with("second")) == []
    await room.mail.issue_token("projects-harbor", "Ada", None)
    assert not await room.mail.knows_token("second")
    await room.refused(errors.WrongToken, "fetch_inbox", agent_name="Ada", caller=_with("second"))
    with pytest.raises(errors.UnknownAgent):
        await room.mail.issue_token("projects-harbor", "Nobody", "h")
    for unknown in (room.mail.issue_token("nowhere", "Ada", "h"), room.mail.slug("nowhere")):
        with pytest.raises(errors.UnknownProject):
            await unknown
    assert await room.mail.slug(SHORE + "/") == "projects-shore"


MAKING = ("register_agent", "create_agent_identity", "start_session")


async def test_only_the_operator_makes_agents_where_identity_is_verified(room: Room) -> None:
    await _furnish(room)
    for number, (verified, name, token) in enumerate(itertools.product((False, True), MAKING, (None, ADA))):
        room.mail.rules = Rules(verified=verified)
        named = {} if name == "create_agent_identity" else {"name": f"Dee-{number}"}
        if verified:
            await room.refused(errors.TokenRequired, name, **WHO, caller=_with(token))
            await room.refused(errors.TokenRequired, name, **WHO, **named, caller=_with(token))
        else:
            await room.call(name, **WHO, **named, caller=_with(token))
        await room.call(name, **WHO, caller=_with(token, operator=True))


async def test_an_answer_kept_under_a_key_is_given_to_its_agent_only(room: Room) -> None:
    await _furnish(room)
    room.mail.rules = Rules(verified=True)
    message = {**ACTING["send_message"], "bcc": ["Cyd"], "idempotency_key": "k"}
    first = await room.call("send_message", **message, caller=_with(ADA))
    for kind, caller in (
        *((errors.IdentityMismatch, _with(BEN)), (errors.TokenRequired, _with(None))),
        *((errors.TokenRequired, OPERATOR), (errors.WrongToken, _with(WRONG))),
    ):
        await room.refused(kind, "send_message", **message, caller=caller)
    other = {**message, "subject": "other"}
    await room.refused(errors.IdentityMismatch, "send_message", **other, caller=_with(BEN))
    assert await room.call("send_message", **message, caller=_with(ADA)) == first


@each_row("name", MAKING)
async def test_an_answer_given_to_the_operator_is_given_to_it_again_and_to_nobody_else(
    clock: ManualClock, name: str
) -> None:
    with in_memory(clock) as room:
        await _furnish(room)
        room.mail.rules = Rules(verified=True)
        for key, more in (("k", {}), ("k2", {"name": "Dee"})):
            if more and name == "create_agent_identity":
                continue
            asked = {**WHO, **more, "idempotency_key": key}
            first = await room.call(name, **asked, caller=OPERATOR)
            assert await room.call(name, **asked, caller=OPERATOR) == first
            for caller in (Caller(), *([] if more else [_with(ADA)])):
                await room.refused(errors.TokenRequired, name, **asked, caller=caller)


async def test_a_token_is_rotated_into_a_file_and_never_answered(room: Room) -> None:
    await _furnish(room)
    kept: list[tuple[str, str]] = []

    def keep(slug: str, name: str) -> tuple[str, str]:
        kept.append((slug, name))
        return f"fresh {name}", f"/tokens/{slug}/{name}"

    await room.refused(errors.NotPermitted, "rotate_agent_token", agent_name="Ada", caller=_with(ADA))
    room.mail = Mail(room.store, room.clock, room.mail.rules, keep_token=keep)
    await room.refused(errors.TokenRequired, "rotate_agent_token", agent_name="Ada")
    await room.refused(errors.IdentityMismatch, "rotate_agent_token", agent_name="Ada", caller=_with(BEN))
    await room.refused(errors.UnknownAgent, "rotate_agent_token", agent_name="Nobody")
    assert (kept, await room.mail.knows_token(ADA)) == ([], True), "what is refused keeps the old token"
    answer = await room.call("rotate_agent_token", agent_name="ada", caller=_with(ADA))
    assert answer == {"agent": "Ada", "token_file": "/tokens/projects-harbor/Ada"}
    assert kept == [("projects-harbor", "Ada")]
    assert await room.mail.knows_token("fresh Ada")
    assert await room.mail.knows_token(ADA), "it may list tools, so that the answer is shown"
    for operation in ("fetch_inbox", "rotate_agent_token"):
        await room.refused(errors.WrongToken, operation, agent_name="Ada", caller=_with(ADA))
    room.clock.advance(timedelta(minutes=1))
    assert not await room.mail.knows_token(ADA)
    await room.call("rotate_agent_token", agent_name="Ada", caller=OPERATOR)
    await room.call("rotate_agent_token", agent_name="Cyd")
    assert [name for _, name in kept] == ["Ada", "Ada", "Cyd"]


async def test_a_retired_agent_reads_and_does_not_act(room: Room) -> None:
    await room.open()
    message = await room.send("Ada", "Ben")
    await room.call("file_reservation_paths", agent_name="Ben", paths=["a", "b"])
    retired = await room.call("retire_agent", agent_name="Ben")
    assert retired["retired_at"] == iso(room.clock.now())
    assert await room.call("retire_agent", agent_name="Ben") == retired
    assert (await room.call("list_file_reservations"))["reservations"] == []
    assert [one["id"] for one in await room.inbox("Ben")] == [message]
    await room.call("mark_message_read", agent_name="Ben", message_id=message)
    for name, arguments in (
        ("send_message", {"sender_name": "Ben", "to": ["Ada"], "subject": "s", "body_md": "b"}),
        ("reply_message", {"sender_name": "Ben", "message_id": message, "body_md": "b"}),
        ("file_reservation_paths", {"agent_name": "Ben", "paths": ["a"]}),
        ("request_contact", {"agent_name": "Ben", "to": "Ada"}),
        ("register_agent", {"name": "Ben", **WHO}),
        ("start_session", {"name": "Ben", **WHO}),
    ):
        await room.refused(errors.AgentRetired, name, **arguments)
    await room.refused(
        errors.AgentRetired, "send_message", sender_name="Ada", to=["Cyd", "Ben"], subject="s", body_md="b"
    )
    assert [one["name"] for one in (await room.call("list_agents"))["agents"]] == ["Ada", "Cyd"]
    everyone = await room.call("list_agents", include_retired=True)
    assert [one["name"] for one in everyone["agents"]] == ["Ada", "Ben", "Cyd"]
    back = await room.call("unretire_agent", agent_name="Ben")
    assert back["retired_at"] is None
    assert await room.call("unretire_agent", agent_name="Ben") == back
    await room.send("Ben", "Ada")


async def test_whois_tells_what_an_agent_holds_and_has_to_read(room: Room) -> None:
    await room.open()
    first = await room.send("Ada", "Ben")
    await room.send("Ada", "Ben")
    await room.call("mark_message_read", agent_name="Ben", message_id=first)
    await room.call("file_reservation_paths", agent_name="Ben", paths=["src/"])
    found = await room.call("whois", agent_name="ben")
    assert (found["name"], found["unread"], found["last_seq"]) == ("Ben", 1, 2)
    assert [one["path"] for one in found["reservations"]] == ["src/**"]
    assert "token" not in str(found)


async def test_a_run_makes_no_project_and_changes_none(room: Room) -> None:
    await room.open()
    ada = await room.store.read(lambda tx: tx.agent(1, "Ada"))
    assert ada is not None
    run = Caller(agent_id=ada.id)
    told = {"project_key": "/elsewhere", "program": "p", "model": "m", "name": "Ada"}
    await room.refused(errors.NotPermitted, "ensure_project", human_key="/elsewhere", caller=run)
    await room.refused(
        errors.NotPermitted, "ensure_project", human_key="/elsewhere", git_identity="g", caller=run
    )
    await room.refused(errors.NotPermitted, "start_session", **told, caller=run)
    before = await everything(room.store)
    known = await room.call("ensure_project", human_key=HARBOR, git_identity="g", caller=run)
    assert known["human_key"] == HARBOR
    assert await everything(room.store) == before
    begun = await room.call("start_session", **{**told, "project_key": HARBOR}, caller=run)
    assert begun["agent"]["name"] == "Ada"
