"""Setup's entries, checked with the clients themselves: accepted, trusted, run, and removed."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from real_clients.asked import CallTool, Say
from real_clients.bench import Bench
from real_clients.home import Home


def status_of(home: Home, client: str) -> Mapping[str, Any]:
    told = json.loads(home.run("postroom", "setup", "status", "--json").out)
    return next(one for one in told["clients"] if one["client"] == client)


def trust_hooks(home: Home) -> None:
    """Trust the hooks that Codex lists, as its user does: it keeps the hash of their content."""
    asked = (
        {"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "person", "version": "1"}}},
        {"method": "initialized"},
        {"id": 1, "method": "hooks/list", "params": {"cwds": [str(home.project)]}},
    )
    with subprocess.Popen(
        ("codex", "app-server"),
        env=home.environment,
        cwd=home.project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("".join(f"{json.dumps(one)}\n" for one in asked))
        server.stdin.flush()
        answer = next(found for line in server.stdout if (found := json.loads(line)).get("id") == 1)
        server.kill()
    [entry] = answer["result"]["data"]
    file = home.path / ".codex/config.toml"
    for hook in entry["hooks"]:
        file.write_text(
            f'{file.read_text()}\n[hooks.state."{hook["key"]}"]\ntrusted_hash = "{hook["currentHash"]}"\n'
        )


@pytest.mark.parametrize("client", ["codex"])
def test_codex_says_whether_it_trusts_our_hooks_and_runs_them_when_it_does(bench: Bench) -> None:
    bench.set_up()
    bench.home.postroom("agents", "register", "Ada", "--project", str(bench.home.project))
    [finding] = status_of(bench.home, "codex")["findings"]
    assert finding["drift"] == "hooks_untrusted"
    bench.turn("Hello.", Say("Good day."))
    assert "start_session registers this session" not in bench.model.conversation[0].text
    trust_hooks(bench.home)
    assert status_of(bench.home, "codex")["findings"] == []
    done = bench.turn("Hello.", Say("Good day."))
    assert "start_session registers this session" in bench.model.conversation[-1].text, bench.tell(done)


SETTINGS = '{\n    "permissions": {"allow": ["Read"]}\n}\n\n'


@pytest.mark.parametrize("client", ["claude"])
def test_claude_runs_our_plugin_in_its_first_session_and_forgets_it_when_it_is_taken_out(
    bench: Bench,
) -> None:
    home = bench.home
    settings = home.write(".claude/settings.json", SETTINGS)
    home.postroom("agents", "register", "Ada", "--project", str(home.project))
    [told] = home.postroom("setup", "claude")["clients"]
    assert (told["form"], told["refusal"], told["trial"]["state"]) == ("plugin", "", "answered")
    assert "plugin:postroom:postroom: postroom mcp" in home.must("claude", "mcp", "list").text
    called = CallTool("fetch_inbox", {"project_key": str(home.project), "agent_name": "Ada"})
    done = bench.turn(
        "Is there mail?",
        called,
        Say("None."),
        flags=("--allowedTools", "mcp__plugin_postroom_postroom"),
    )
    first, second = bench.model.conversation
    assert "start_session registers this session" in first.text, bench.tell(done)
    assert second.returned[-1] == '{"result":[]}', bench.tell(done)
    [init] = [line for line in done.lines() if line.get("subtype") == "init"]
    assert {"postroom:inbox", "postroom:send"} <= set(init["slash_commands"])
    home.postroom("setup", "remove", "claude")
    assert settings.read_text() == SETTINGS
    assert "postroom" not in home.must("claude", "plugin", "list").text
    bench.turn("And now?", Say("Nothing."))
    assert "start_session" not in bench.model.conversation[-1].text
    assert bench.model.conversation[-1].ours == ()


@pytest.mark.parametrize("client", ["claude"])
def test_claude_s_own_file_is_what_it_would_be_without_us_after_it_was_written_anew(bench: Bench) -> None:
    home = bench.home
    [told] = home.postroom("setup", "claude", "--no-plugin")["clients"]
    assert told["form"] == "settings"
    bench.turn("Hello.", Say("Good day."))
    servers = home.path / ".claude.json"
    written = json.loads(servers.read_text())
    assert written.pop("mcpServers").keys() == {"postroom"}
    home.postroom("setup", "remove", "claude")
    assert servers.read_text() == json.dumps(written, indent=2, ensure_ascii=False)
    assert not (home.path / ".claude/settings.json").exists()
