"""Asks a client whether it runs postroom's hooks. Codex runs only hooks that its user has trusted."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, Final

from postroom.app.clients.config_paths import SetupScope
from postroom.app.clients.table import Client
from postroom.contracts.client_programs import NAME
from postroom.executors.processes import asking

if TYPE_CHECKING:
    from postroom.executors.jsonrpc import Answer

TRUSTED: Final = frozenset({"trusted", "managed"})
HOW_TO_TRUST: Final = "start `{}` in a terminal and trust the hooks when it says that they need review"
_LIST: Final = "hooks/list"
_ACCOUNT: Final = "account/read"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTrust:
    """A client's answer to the question whether postroom's hooks are trusted."""

    untrusted: tuple[str, ...] = ()
    """The events whose hooks the client does not run, each with the reason that the client states."""
    trouble: str = ""
    """The expected and the actual answer, if the client did not answer as expected."""


def hook_trust(client: Client, target: SetupScope) -> HookTrust | None:
    """Ask a client whether postroom's hooks are trusted, and return the answer.

    Return None if the client is not installed or does not support the question.
    """
    if client.hooks is None or not client.hooks.asks_trust:
        return None
    program = shutil.which(client.programs[0], path=target.environment.get("PATH"))
    if program is None:
        return None
    try:
        version, answer = _answer(program, target, _LIST, {"cwds": [str(target.project)]})
    except (OSError, ValueError) as error:
        return HookTrust(trouble=_trouble(client, "", str(error)))
    try:
        ours = [
            hook
            for entry in answer.result["data"]
            for hook in entry["hooks"]
            if str(hook.get("command", "")).startswith(f"{NAME} hook {client.name} ")
        ]
        values = [(str(item["eventName"]), str(item["trustStatus"]), bool(item["enabled"])) for item in ours]
    except (KeyError, TypeError, AttributeError):
        ours, values = [], []
    if not ours:
        return HookTrust(trouble=_trouble(client, version, _answer_text(answer)))
    return HookTrust(
        untrusted=tuple(
            f"{event} ({trust if enabled else 'disabled'})"
            for event, trust, enabled in values
            if trust not in TRUSTED or not enabled
        )
    )


def account(program: str, target: SetupScope) -> tuple[bool | None, str, str]:
    """Return whether Codex has an account or needs none (None if unknown), and texts about the answers.

    The texts are the expected answer of Codex, and the actual answer or "".
    """
    expected = f"an account in the answer to {_ACCOUNT}"
    try:
        _, answer = _answer(program, target, _ACCOUNT, {})
    except (OSError, ValueError) as error:
        return None, expected, str(error)
    try:
        return bool(answer.result["account"]) or not answer.result["requiresOpenaiAuth"], expected, ""
    except (KeyError, TypeError):
        return None, expected, _answer_text(answer)


def _answer_text(answer: "Answer") -> str:
    return answer.refusal.text if answer.refusal else json.dumps(dict(answer.result))[:300]


def _trouble(client: Client, version: str, found: str) -> str:
    who = f"{client.title} {version}".rstrip()
    return (
        f"{who} did not say whether it trusts postroom's hooks: expected the hooks in its answer to "
        f"{_LIST}, found {found}"
    )


def _answer(program: str, target: SetupScope, method: str, params: Mapping[str, Any]) -> "tuple[str, Answer]":
    from postroom.executors.jsonrpc import Answer, Peer, ProtocolFault  # keeps msgspec out of start-up

    with _app_server(program, target) as (stdin, stdout):

        def say(message: Mapping[str, Any]) -> None:
            with suppress(BrokenPipeError):  # An ended server may have answered
                stdin.write(json.dumps(message) + "\n")
                stdin.flush()

        peer, version, last_method = Peer(say), "", "initialize"
        peer.ask("initialize", {"clientInfo": {"name": NAME, "version": "1"}})
        for line in stdout:
            message = json.loads(line)
            if not isinstance(message, dict):
                continue
            try:
                answer = peer.read(message)
            except ProtocolFault as error:
                raise ValueError(f"it {error}") from error
            if isinstance(answer, Answer) and answer.method == method:
                return version, answer
            if isinstance(answer, Answer):  # the greeting: `postroom/0.169.0 (...)`
                version = str(answer.result.get("userAgent", "")).partition("/")[2].partition(" ")[0]
                peer.tell("initialized", {})
                last_method = method
                peer.ask(method, params)
    raise ValueError(f"no answer to {last_method}, because the program ended")


@contextmanager
def _app_server(program: str, target: SetupScope) -> Iterator[tuple[IO[str], IO[str]]]:
    """Start the server of a client on pipes, and stop the server at the end of the block.

    Raises:
        ValueError: The server takes too long, or took too long in an earlier call.
    """
    if program in target.silent:
        raise ValueError(asking.no_answer())
    with subprocess.Popen(  # noqa: S603 - the client's own program, found on the PATH of this user
        [program, "app-server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(target.environment),
        cwd=Path(target.environment.get("HOME", "/")),
        text=True,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        assert process.stdin is not None  # noqa: S101 - it was asked for
        assert process.stdout is not None  # noqa: S101 - as above

        def give_up() -> None:
            target.silent.add(program)
            asking.end(process)

        watch = Timer(asking.PATIENCE.total_seconds(), give_up)
        watch.start()
        try:
            yield process.stdin, process.stdout
        except (OSError, ValueError) as error:
            if program in target.silent:
                raise ValueError(asking.no_answer()) from error
            raise
        finally:
            watch.cancel()
            asking.end(process)
            with suppress(BrokenPipeError):
                process.stdin.close()
