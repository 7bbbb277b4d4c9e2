"""The descriptions of postroom's tools let a client run them without a person."""

import json

import pytest

from postroom.mcp_server.profiles import CORE
from real_clients.asked import Asked, CallTool, Say
from real_clients.bench import Bench


@pytest.mark.parametrize("client", ["codex"])
def test_a_tool_that_destroys_nothing_runs_without_approval_and_one_that_does_is_refused(
    client: str, bench: Bench
) -> None:
    """The entry was written by hand and approves nothing: only the hints of the tools decide."""
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


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_run_has_its_tools_also_when_it_is_the_first_to_speak_mcp(client: str, bench: Bench) -> None:
    """The server loads what speaks MCP with the first message of it; a client that does not wait would have none."""
    home = bench.home
    for name in ("Ada", "Bo"):
        home.must("postroom", "agents", "register", name)
    passed = [word for name in bench.client.pass_env for word in ("--pass-env", name)]
    home.must("postroom", "agents", "set-runner", "Bo", "--recipe", client, *passed)
    home.server.stop()
    home.server.start()
    search = CallTool("tool_search", {"query": "postroom", "limit": 100})
    bench.model.script = lambda asked: search if _has_to_search(asked) else Say("Aye.")
    message = {"project_key": str(home.project), "sender_name": "Ada", "to": ["Bo"]}
    body = json.dumps({**message, "subject": "s", "body_md": "b"}).encode()
    with home.server.line() as line:
        typed = {"Content-Type": "application/json"}
        assert line.request("POST", "/v1/send_message", body=body, headers=typed).status == 200
    asked = bench.model.wait_for(
        lambda asked: "Mail has come for you" in asked.text and not _has_to_search(asked)
    )
    assert set(asked.ours) == {*CORE, "ask_person"}, bench.model.story()


def _has_to_search(asked: Asked) -> bool:
    """Return whether the model gets postroom's tools only after it has searched for them."""
    return asked.tool("tool_search") is not None and not asked.returned


@pytest.mark.parametrize("client", ["codex"])
def test_a_patch_that_codex_applies_from_its_shell_is_refused_like_its_other_edits(
    client: str, bench: Bench
) -> None:
    """Models that are not offered the tool write so, and Codex applies the patch itself."""
    bench.set_up()
    bench.team()
    bench.as_agent("Bo")
    bench.reserve("Ada", "held.txt")
    patch = "*** Begin Patch\n*** Add File: {}\n+Bo was here.\n*** End Patch"
    calls = [
        CallTool("exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch.format(name)}\nEOF\n"})
        for name in ("free.txt", "held.txt")
    ]
    done = bench.turn("Write both.", *calls, Say("So it is."), flags=bench.trusted)
    assert (bench.home.project / "free.txt").exists(), bench.tell(done)
    assert not (bench.home.project / "held.txt").exists(), bench.tell(done)
    assert "Ada" in bench.model.conversation[2].new_text, bench.tell(done)
