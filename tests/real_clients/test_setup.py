"""What set-up writes, asked of the clients themselves: accepted, trusted, run, and taken out again."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from real_clients.asked import Say
from real_clients.bench import Bench
from real_clients.home import Home


def status_of(home: Home, client: str) -> Mapping[str, Any]:
    told = json.loads(home.run("postroom", "setup", "status", "--json").out)
    return next(one for one in told["clients"] if one["client"] == client)


def trust_hooks(home: Home) -> None:
    """Trust what Codex lists, as its user does: it keeps the hash of what was seen."""
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
    assert "start_session" not in bench.model.conversation[0].text
    trust_hooks(bench.home)
    assert status_of(bench.home, "codex")["findings"] == []
    done = bench.turn("Hello.", Say("Good day."))
    assert "start_session" in bench.model.conversation[-1].text, bench.tell(done)
