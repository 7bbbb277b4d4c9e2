"""What our tools say of themselves is what lets a client run them without a person."""

import pytest

from real_clients.asked import CallTool, Say
from real_clients.bench import Bench


@pytest.mark.parametrize("client", ["codex"])
def test_a_tool_that_destroys_nothing_runs_without_approval_and_one_that_does_is_refused(
    client: str, bench: Bench
) -> None:
    """The entry is one that was written by hand and approves nothing: only the hints of the tools decide."""
    bench.home.must("codex", "mcp", "add", "postroom", "--", "postroom", "mcp", "--tools", "full")
    with bench.home.server.line() as line:
        line.tool(
            "health_check"
        )  # Codex begins without the tools of a server that still loads what speaks MCP
    project = {"project_key": str(bench.home.project)}
    who = {"program": "codex", "model": "m", "name": "Ada"}
    note = {"sender_name": "Ada", "to": ["Ada"], "subject": "Quay", "body_md": "One boat."}
    done = bench.turn(
        "Begin, and take the note back.",
        CallTool("start_session", {**project, **who}),
        CallTool("send_message", {**project, **note}),
        CallTool("recall_message", {**project, "sender_name": "Ada", "message_id": 1}),
        Say("Done."),
    )
    begun, sent, recalled = bench.model.conversation[-1].returned
    assert '"unread"' in begun, bench.tell(done)
    assert '"deliveries"' in sent, bench.tell(done)
    assert "approval" in recalled or "cancelled" in recalled, bench.tell(done)
    with bench.home.server.line() as line:
        inbox = line.tool("fetch_inbox", **project, agent_name="Ada")
    assert [one["body_md"] for one in inbox] == ["One boat."]
