"""How the source is built: short functions, files that one can hold in mind, failures that nobody swallows.

Exceptions are listed with their reason, in both directions: an exception that is no longer needed fails too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.app.config import SETTINGS

SOURCE = Path(__file__).resolve().parents[2] / "src"
MAX_FUNCTION_LINES = 60

LONG_FUNCTIONS = {
    "postroom/app/serve.py:run": "one start of a server, read straight on: each step needs the one before",
    "postroom/http_api/rest/document.py:document": "the whole OpenAPI document, whose parts are data",
    "postroom/stores/runs/tables.py:RunTables.commit": "one step of a thread: it is read, decided and written in this order",
}
"""Functions over the limit, counted from the end of the docstring, and why."""
BROAD_EXCEPTS = {
    "postroom/cli/hook.py:run": "the edge around one event of a client: a hook that fails must not stop it",
    "postroom/app/clients/trial.py:try_out": "the edge around one trial call: whatever the library raises is what was seen",
    "postroom/cli/stdio.py:Proxy._run": "the edge around one request of a client",
    "postroom/dispatch/worker.py:Commands._hand_over": "the edge around one executor that is told something",
    "postroom/dispatch/worker.py:Dispatcher._run_isolated": "the worker around one run: whatever an executor raises is its result",
    "postroom/dispatch/worker.py:_Held.__await__": "hands what comes on to the executor, which it stands around",
    "postroom/dispatch/worker.py:Dispatcher._guard": "the worker around one run, for what nobody foresaw: it is put back",
    "postroom/dispatch/recovery.py:Lifecycle._kept_up": "the edge around one of the mailbox's rounds, callbacks included",
    "postroom/gateway/delivery.py:Delivery._sent": "the relay around one answer, whatever its adapter does",
    "postroom/gateway/files.py:FilesOfRun._take": "the edge around one file: its message goes on without it",
    "postroom/gateway/gateway.py:Gateway._connect_adapter": "the edge around one channel: the others go on",
    "postroom/gateway/platforms/base.py:BasePlatformAdapter._receive": "the edge around one look at a platform: it is logged, and the next is made",
    "postroom/gateway/platforms/base.py:BasePlatformAdapter.take_in": "the edge around one update of a platform: those behind it are served",
    "postroom/gateway/run.py:GatewayRunner.drain": "the edge around one turn in a chat: the messages behind it have theirs",
    "postroom/gateway/run.py:GatewayRunner._stop": "the end of one channel: the others are ended as well",
    "postroom/http_api/guard.py:Guard._serve": "the edge around one HTTP request",
    "postroom/relay.py:Relay._perform": "the relay around one batch",
    "postroom/schedules/firing.py:Schedules._moved_on": "the worker around one schedule",
    "postroom/mcp_server/answers.py:answer_call": "the edge around one tool call",
    "postroom/mcp_server/server.py:PostroomMcpServer.read_resource": "the edge around one reading of a resource",
    "postroom/services/calls.py:Subscriptions._tell": "the edge around one listener",
    "postroom/stores/engine.py:PendingChange.perform": "hands whatever a caller's function raised to that caller",
    "postroom/stores/postgres/writer.py:Writer._commit": "the writer around one group: who waits learns of a fault of ours",
    "postroom/stores/postgres/writer.py:_Work._run": "hands whatever a caller's function raised to that caller",
    "postroom/dispatch/completion.py:_told_by": "an exception of foreign code that cannot tell its text: the kind is told",
    "postroom/embedded/running.py:Run._try_step": "a step is the program's own code: its last failure is raised",
    "postroom/sync.py:_Loop.run.on_thread": "hands the end of the event loop to the thread that waits for it",
    "postroom/sync.py:_settle": "hands whatever a program's function raised to the run that waits for it",
}
"""Where an `except` catches everything and does not raise it again, and what it does instead."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    """The content of each file, by its name: reading all of them takes seconds."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{within}{'.' if within else ''}{getattr(node, 'name', '')}"
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, name if isinstance(node, Function | ast.ClassDef) else within)


def length(function: Function) -> int:
    first = function.body[0]
    begin = first.end_lineno if ast.get_docstring(function, clean=False) is not None else function.lineno
    return (function.end_lineno or 0) - (begin or 0)


def test_functions_fit_on_a_screen(modules: dict[str, ast.Module]) -> None:
    long = {
        f"{name}:{function}": length(node)
        for name, tree in modules.items()
        for function, node in functions(tree)
        if length(node) > MAX_FUNCTION_LINES
    }
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def catches_everything(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def own_handlers(function: Function) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers of a function, those of functions within it left out."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ExceptHandler):
            yield node
        if not isinstance(node, Function):
            waiting.extend(ast.iter_child_nodes(node))


def test_nothing_is_swallowed_but_at_the_named_edges(modules: dict[str, ast.Module]) -> None:
    broad = {
        f"{name}:{function}"
        for name, tree in modules.items()
        for function, node in functions(tree)
        for handler in own_handlers(node)
        if catches_everything(handler) and not raises_again(handler)
    }
    assert broad == BROAD_EXCEPTS.keys()


def test_no_module_catches_everything_while_it_is_loaded(modules: dict[str, ast.Module]) -> None:
    top = [
        name
        for name, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.Try) and any(map(catches_everything, node.handlers))
    ]
    assert top == []


def settings_read(tree: ast.Module) -> Iterator[str]:
    """Yield what a module reads of something that is called `settings`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value
            if getattr(of, "attr", getattr(of, "id", "")) == "settings":
                yield node.attr


def test_every_setting_is_read_or_said_to_have_no_effect(modules: dict[str, ast.Module]) -> None:
    read = {
        one
        for name, tree in modules.items()
        if name != "postroom/app/config.py"
        for one in settings_read(tree)
    }
    derived = {  # read through the properties of Settings
        "verified": {"identity", "host"},
        "max_request_bytes": {"max_body_bytes", "max_attachments_bytes"},
    }
    for name, parts in derived.items():
        read |= parts if name in read else set()
    page = (SOURCE.parent / "docs/reference/settings.md").read_text(encoding="utf-8")
    said = set(re.findall(r"`(\w+)` \(", page.partition("have no further effect: ")[2].partition("\n")[0]))
    assert set(SETTINGS) - read == said


def test_every_field_of_what_can_be_set_is_read(modules: dict[str, ast.Module]) -> None:
    """A field that only its own class reads, to check it, changes nothing."""
    fields: dict[str, list[str]] = {}
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and re.search("(Config|Limits|Rules)$", node.name):
                named = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                fields[f"{name}:{node.name}"] = [one.id for one in named if isinstance(one, ast.Name)]
    checks = {
        id(part)
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__"
        for part in ast.walk(node)
    }
    read = {
        node.attr
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and id(node) not in checks
    }
    assert fields["postroom/dispatch/config.py:MailboxConfig"]
    unread = {name: left for name, ones in fields.items() if (left := set(ones) - read)}
    assert unread == {}


def test_every_reason_says_something() -> None:
    reasons = [*LONG_FUNCTIONS.values(), *BROAD_EXCEPTS.values()]
    assert [reason for reason in reasons if len(reason.split()) < 4] == []
