"""The page of the library: every public class and function, with its signature and docstring."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import postroom
from postroom import testing
from postroom.contracts.errors import PostroomError

GROUPS: Final = {
    "Work": "Mailbox Run RunHandle Item Answer RunEvent RunState State BusyPolicy Recovery",
    "Configuration": "MailboxConfig Budget BudgetScope BudgetWindow Limit LimitScope",
    "Executors": "RunDispatchExecutor RunActivation AgentRunResult Message",
}
"""The public names that are not errors, in the order of the page."""
INTRODUCTION: Final = """
# Python API

`from postroom import ...` gives every name of this page except those of the test kit.
[Runs as a library](../embedding.md) is the introduction, and the [cookbook](../cookbook.md) has complete
programs. `postroom.sync` has `Mailbox`, `Run` and `RunHandle` with the same methods as blocking calls, for
programs without asyncio.
"""
ERRORS: Final = """
## Errors

Each is an exception with `code`, `message`, `value`, `remedy` and `retryable`. [Errors](errors.md) lists all
codes.
"""
KIT: Final = """
## Test kit

`from postroom.testing import ...` gives a mailbox whose clock the test moves, work that fails as planned, and
a check of what happened. It needs no test framework.
"""
SIGNATURE_WIDTH: Final = 100
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """Return the page.

    Raises:
        LookupError: A public name is in no group.
    """
    public = {name: getattr(postroom, name) for name in postroom.__all__ if name != "__version__"}
    errors = {
        name: kind
        for name, kind in public.items()
        if isinstance(kind, type) and issubclass(kind, PostroomError)
    }
    placed = " ".join(GROUPS.values()).split()
    if lost := {*public} - {*errors, *placed}:
        raise LookupError(f"add to GROUPS: {', '.join(sorted(lost))}")
    parts = [INTRODUCTION.strip()]
    for group, names in GROUPS.items():
        parts += [f"## {group}", *(_described(public[name]) for name in names.split())]
    parts += [ERRORS.strip(), "\n".join(f"- `{name}`: {_in_a_line(errors[name])}" for name in sorted(errors))]
    parts += [KIT.strip(), *(_described(getattr(testing, name)) for name in testing.__all__)]
    return "\n\n".join(parts)


def _in_a_line(error: type) -> str:
    return (inspect.getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")


def _described(thing: Any) -> str:
    """Return the part about a class or function."""
    node = ast.parse(inspect.getsource(thing)).body[0]
    text = _markdown(inspect.getdoc(thing) or "")
    if not isinstance(node, ast.ClassDef):
        return f"### {thing.__name__}\n\n{_signature(node)}\n\n{text}"
    parts = [f"### {node.name}", text, "\n".join(_attributes(node))]
    for method in node.body:
        doc = ast.get_docstring(method) if isinstance(method, Function) else None
        if isinstance(method, Function) and doc and method.name[0] != "_" and not _is_property(method):
            parts += [f"#### {node.name}.{method.name}", _signature(method), _markdown(doc)]
    return "\n\n".join(part for part in parts if part)


def _is_property(node: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield a line for each field, documented attribute and property."""
    made = [one.body for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    for body in [node.body, *made]:
        for one, after in zip(body, [*body[1:], None], strict=True):
            words = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                words = f": {_markdown(inspect.cleandoc(str(after.value.value)))}".replace("\n", " ")
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and one.target.id[0] != "_"
            ):
                default = re.sub(
                    r"field\((?:default=)?(.*?)(?:, )?(?:kw_only=True)?\)$", r"\1", ast.unparse(one)
                )
                yield f"- `{default.removesuffix(' = ')}`{words}"
            elif isinstance(one, ast.Assign) and words:
                yield f"- `{ast.unparse(one.targets[0]).removeprefix('self.')}`{words}"
    for one in node.body:
        if isinstance(one, Function) and one.name[0] != "_" and _is_property(one) and one.returns:
            words = _markdown(ast.get_docstring(one) or "").replace("\n", " ")
            yield f"- `{one.name}: {ast.unparse(one.returns)}`: {words}"


def _signature(node: Any) -> str:
    """Return the signature of a function as a block of code, without `self`."""
    for group in (node.args.posonlyargs, node.args.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    arguments = re.sub(r"(: [^=,]*?(?:\[[^=]*?\])?[^=,]*?)=", r"\1 = ", ast.unparse(node.args))
    marks = [ast.unparse(one) for one in node.decorator_list]
    begin = "".join(
        f"@{mark}\n" for mark in marks if mark in ("classmethod", "staticmethod", "asynccontextmanager")
    )
    begin += f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}def {node.name}("
    end = f") -> {ast.unparse(node.returns)}" if node.returns else ")"
    if len(begin.rpartition("\n")[2] + arguments + end) > SIGNATURE_WIDTH:
        each = re.sub(r", (?=[*\w]+(: | = |,|$)|/)(?![^\[(]*[\])])", ",\n    ", arguments)
        arguments = f"\n    {each},\n"
    return f"```python\n{begin}{arguments}{end}\n```"


def _markdown(docstring: str) -> str:
    """Return a docstring as Markdown: its errors become a list."""
    text, _, raised = docstring.partition("Raises:\n")
    if not raised:
        return docstring.strip()
    listed = re.sub(r"\n {5,}", " ", raised.rstrip())
    listed = re.sub(r"^ {4}(\S[^:]*): ", r"- `\1`: ", listed, flags=re.MULTILINE)
    return f"{text.strip()}\n\nRaises:\n\n{listed}"
