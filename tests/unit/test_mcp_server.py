"""The MCP server over agent mail: profiles, schemas, answers, refusals, resources, news."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import PromptReference, ResourceTemplateReference

from postroom.mail.context import Rules
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.mail.service import Mail
from postroom.mcp_server.profiles import CORE
from postroom.mcp_server.server import CORE_TOKEN_LIMIT, PostroomMcpServer, build_tools, definition_tokens
from postroom.services.calls import Subscriptions
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

PROJECT = "/srv/lighthouse"


@pytest.fixture
def mail(sqlite_store: SqliteStore, clock: ManualClock) -> Mail:
    return Mail(sqlite_store, clock, Rules(max_subject_chars=64))


@pytest.fixture
async def client(mail: Mail) -> AsyncIterator[Client[Any]]:
    async with Client(PostroomMcpServer(mail)) as client:
        await client.call_tool("ensure_project", {"human_key": PROJECT})
        for name in ("Ada", "Ben"):
            await client.call_tool(
                "register_agent", {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
            )
        yield client


def message(**more: Any) -> dict[str, Any]:
    return {
        "project_key": PROJECT,
        "sender_name": "Ada",
        "to": ["Ben"],
        "subject": "Lamp",
        "body_md": "Is it lit?",
        **more,
    }


def test_the_core_profile_is_small() -> None:
    tokens = definition_tokens("core")
    print(f"core profile: {len(build_tools('core'))} tools, at most {tokens} tokens")
    assert len(build_tools("core")) <= 19
    assert tokens < CORE_TOKEN_LIMIT


def test_schemas_name_no_nulls_and_no_references() -> None:
    for tool in build_tools("full"):
        text = json.dumps(tool.input_schema)
        assert "$ref" not in text
        assert '"null"' not in text
        assert tool.description
        assert tool.input_schema["additionalProperties"] is False


def test_every_tool_says_all_four_hints_and_only_destructive_ones_ask_for_approval() -> None:
    """Codex runs a tool without asking only when both `destructiveHint` and `openWorldHint` are false."""
    asking = set()
    for tool, operation in zip(build_tools("full"), MAIL_OPERATIONS, strict=True):
        assert tool.annotations is not None
        hints = tool.annotations.model_dump(by_alias=True)
        assert hints.pop("title") is None
        assert {type(value) for value in hints.values()} == {bool}, tool.name
        assert hints["readOnlyHint"] is not operation.changes
        assert hints["idempotentHint"] or operation.changes
        if hints["destructiveHint"] or hints["openWorldHint"]:
            asking.add(tool.name)
    assert asking == {
        *("retire_agent", "rotate_agent_token", "recall_message", "force_release_file_reservation"),
    }
    assert not asking & set(CORE)


def test_descriptions_say_when_and_what_next_and_name_only_tools_that_there_are() -> None:
    names = {operation.name for operation in MAIL_OPERATIONS}
    hints = {
        *("reply_all", "unread_only", "ack_required", "enforced_by", "ttl_seconds", "message_id"),
        "next_offset",
        "task_id",
        "not_found",
        "depends_on",
    }
    for operation in MAIL_OPERATIONS:
        assert "\n" not in operation.description
        assert operation.description.startswith(operation.summary)
        assert len(operation.description) < 330, operation.name
        named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", operation.description))
        assert named <= names | hints | {"contact_required", "same_owner"}, operation.name
        if operation.name in CORE:
            assert named & names <= set(CORE), "a model at this address has no such tool"
    without_more = {one.name for one in MAIL_OPERATIONS if one.description == one.summary}
    assert without_more == {"unretire_agent", "respond_contact", "set_contact_policy"}


async def test_news_of_a_message_reaches_who_listens_also_beside_a_listener_that_fails(mail: Mail) -> None:
    news, heard = Subscriptions(), list[str]()

    def fail(_: object) -> None:
        raise RuntimeError("a broken listener")

    async with Client(PostroomMcpServer(mail, subscriptions=news)) as client:
        await client.call_tool("ensure_project", {"human_key": PROJECT})
        for name in ("Ada", "Ben"):
            asked = {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
            await client.call_tool("register_agent", asked)
        news.subscribe(fail)
        stop = news.subscribe(lambda event: heard.append(event.uri))
        await client.call_tool("send_message", message(thread_id="lamp:1"))
        reserved = {"project_key": PROJECT, "agent_name": "Ada", "paths": ["a.py"]}
        await client.call_tool("file_reservation_paths", reserved)
        stop()
        stop()
        await client.call_tool("send_message", message())
    inbox, thread = "mail://inbox/srv-lighthouse/Ben", "mail://thread/srv-lighthouse/lamp:1"
    assert heard == [inbox, thread, "mail://reservations/srv-lighthouse"]


async def test_the_parts_of_a_resources_address_are_completed(client: Client[Any]) -> None:
    await client.call_tool("send_message", message(thread_id="lamp-7"))
    slug = "srv-lighthouse"

    async def suggested(template: str, part: str, begin: str, **known: str) -> list[str]:
        ref = ResourceTemplateReference(type="ref/resource", uri=template)
        found = await client.complete(ref, {"name": part, "value": begin}, context_arguments=known)
        return list(found.values)

    inbox, thread = "mail://inbox/{project}/{agent}", "mail://thread/{project}/{thread}"
    assert await suggested(inbox, "project", "SRV") == [slug]
    assert await suggested(inbox, "project", "no") == []
    assert await suggested(inbox, "agent", "b", project=slug) == ["Ben"]
    assert await suggested(inbox, "agent", "", project=PROJECT) == ["Ada", "Ben"]
    assert await suggested(inbox, "agent", "") == [], "the project is not known yet"
    assert await suggested(thread, "thread", "lamp", project=slug) == ["lamp-7"]
    for template, part in ((inbox, "thread"), ("mail://nothing/{project}", "project")):
        with pytest.raises(MCPError, match="no resource template"):
            await suggested(template, part, "")
    with pytest.raises(MCPError, match="no project is named 'nowhere'"):
        await suggested(inbox, "agent", "", project="nowhere")
    with pytest.raises(MCPError, match="there is no prompt 'plan'"):
        await client.complete(PromptReference(type="ref/prompt", name="plan"), {"name": "a", "value": ""})
