"""Clients that are missing, too old, logged out, or changed their format: the reports of setup and of runs."""

import json
import os
from typing import Any

import pytest

from real_clients.bench import Bench
from real_clients.clients import CLIENTS
from real_clients.home import PINS, PROGRAMS, Home
from real_clients.test_woken import Office

RUN = [name for name, one in CLIENTS.items() if one.runner]
KEYS = ("ANTHROPIC_API_KEY", "SCRIPTED_KEY", "GEMINI_API_KEY", "COPILOT_PROVIDER_API_KEY")


def put_first(home: Home, name: str, script: str) -> None:
    """Put a program of the test before a client's: a fake, if no real client does this."""
    path = home.write(f"first/{name}", f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    home.environment["PATH"] = f"{path.parent}{os.pathsep}{home.environment['PATH']}"


def program_of(client: str) -> str:
    """Return the program that a client's runner starts."""
    own = {"claude over ACP": "claude-agent-acp", "codex over ACP": "codex-acp"}
    return own.get(client, client.split()[0])


def reason(office: Office) -> str:
    """Return why Ada's message could not be handled: the same in her inbox and in the run."""
    office.open()
    office.send("The word is one.")
    [told] = office.await_answers(1)
    [run] = office.home.postroom("runs", "list")["runs"]
    shown = office.home.must("postroom", "runs", "show", str(run["run_id"])).out
    why = str(told["body_md"])
    assert "Bo could not process your message" in why
    assert "npm install -g" in shown or "run `" in shown or "; `" in shown, shown
    return why


@pytest.mark.parametrize("client", RUN)
def test_a_run_of_a_client_that_is_missing_says_how_to_install_it(client: str, home: Home) -> None:
    office = Office(CLIENTS[client], home)
    folders = home.environment["PATH"].split(os.pathsep)
    home.environment["PATH"] = os.pathsep.join(one for one in folders if one != str(PROGRAMS))
    with home.server:
        why = reason(office)
    assert f"the command '{program_of(client)}' was not found" in why
    assert f"npm install -g {CLIENTS[client].package}@latest" in why


@pytest.mark.parametrize("client", [name for name in RUN if "opencode" not in name and name != "cline"])
def test_a_run_of_a_client_that_is_logged_out_says_how_to_log_in(client: str, home: Home) -> None:
    """opencode is not asked: it has models that need no key. Nor is Cline, whose key stands in its own file."""
    one = CLIENTS[client]
    names = [name for name in (*KEYS, "COPILOT_PROVIDER_BASE_URL", "COPILOT_OFFLINE") if name in one.pass_env]
    emptied = [word for name in names for word in ("--env", f"{name}=")]
    office = Office(one, home, flags=tuple(emptied))
    with home.server:
        why = reason(office)
    assert PINS[one.package] in why
    assert "expected a login or a valid key" in why


@pytest.mark.parametrize("client", RUN)
def test_a_run_of_a_client_that_puts_out_another_format_says_what_came(client: str, home: Home) -> None:
    office = Office(CLIENTS[client], home)
    version = f'[ "$1" = --version ] && exec {PROGRAMS}/{program_of(client)} --version'
    put_first(home, program_of(client), f'{version}\nread line\necho \'{{"type": "novelty"}}\'')
    with home.server:
        why = reason(office)
    assert "expected " in why
    assert "its format may have changed: `npm install -g" in why


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_setup_says_of_the_real_client_that_nobody_is_logged_in(client: str, bench: Bench) -> None:
    for name in KEYS:
        bench.home.environment.pop(name, None)
    if client == "codex":
        (bench.home.path / ".codex/config.toml").write_text('model = "gpt-5.5"\n')
    told = json.loads(bench.home.must("postroom", "setup", client, "--no-verify", "--json").out)
    assert [one["kind"] for one in told["clients"][0]["to_do"]] == ["logged_out"], told
    status = bench.home.run("postroom", "setup", "status")
    assert status.code == 1
    assert "logged_out" in status.out


TRUSTED: dict[str, Any] = {
    "claude": (
        ".claude.json",
        '{{"projects": {{"{0}": {{"hasTrustDialogAccepted": true, '
        '"enabledMcpjsonServers": ["postroom"]}}}}}}',
    ),
    "codex": (".codex/config.toml", '[projects."{0}"]\ntrust_level = "trusted"\n'),
    "gemini": (".gemini/trustedFolders.json", '{{"{0}": "TRUST_FOLDER"}}'),
    "copilot": (".copilot/config.json", '{{"trustedFolders": ["{0}"]}}'),
}


@pytest.mark.parametrize("client", list(TRUSTED))
def test_setup_says_of_a_project_whether_the_real_client_trusts_it(client: str, bench: Bench) -> None:
    home = bench.home
    file, text = TRUSTED[client]
    (home.path / file).unlink(missing_ok=True)
    words = ("postroom", "setup", client, "--scope", "project", "--no-verify", "--json")
    assert "folder_untrusted" in kinds(home.must(*words).out)
    home.write(file, text.format(home.project))
    assert "folder_untrusted" not in kinds(home.must(*words).out)


def kinds(out: str) -> list[str]:
    return [str(one["kind"]) for one in json.loads(out)["clients"][0]["to_do"]]
