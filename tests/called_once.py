"""Count the private functions that one place calls: such a function often belongs inside its caller.

`python tests/called_once.py [--list]` prints, for each folder of `src/postroom`, its private functions and methods, how many of
them are called exactly once, and the share. A function is looked for in its module, a method in its class and the classes
that are related to it. A name in a table or in an argument is no call.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src" / "postroom"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Private(NamedTuple):
    """A private function of the product."""

    file: str
    name: str
    is_called_once: bool


def functions(
    body: list[ast.stmt], owner: ast.ClassDef | None
) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    for one in body:
        if isinstance(one, Function) and one.name.startswith("_") and not one.name.startswith("__"):
            yield owner, one
        elif isinstance(one, ast.ClassDef):
            yield from functions(one.body, one)


def references(tree: ast.AST) -> tuple[Counter[str], Counter[str]]:
    """Return how often each name is used in a tree, and how often it is called."""
    used, called = Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
        elif isinstance(node, ast.Call):
            called[getattr(node.func, "id", getattr(node.func, "attr", ""))] += 1
    return used, called


def private_functions(source: Path = SOURCE) -> list[Private]:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(source.rglob("*.py"))}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
    beside: dict[str, set[str]] = defaultdict(set)  # the bases and the subclasses of a class
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            classes[node.name].append(node)
            for base in node.bases:
                root = base.value if isinstance(base, ast.Subscript) else base
                other = str(getattr(root, "id", getattr(root, "attr", "")))
                beside[node.name].add(other)
                beside[other].add(node.name)

    def relatives(name: str) -> Iterator[ast.ClassDef]:
        seen, waiting = {name}, [name]
        while waiting:
            more = (beside[waiting.pop()] & classes.keys()) - seen
            seen |= more
            waiting += more
        return (one for other in seen - {name} for one in classes[other])

    count = cache(references)
    found = []
    for path, tree in trees.items():
        for owner, function in functions(tree.body, None):
            name, own = function.name, references(function)
            others = [] if owner is None else list(relatives(owner.name))
            scope: list[ast.AST] = [tree if owner is None else owner, *others]
            if owner is not None and not sum(count(one)[0][name] for one in scope) - own[0][name]:
                scope = [tree]  # a function of its module uses it
            used = sum(count(one)[0][name] for one in scope) - own[0][name]
            called = sum(count(one)[1][name] for one in scope) - own[1][name]
            is_property = any(
                isinstance(one, ast.Name) and "property" in one.id for one in function.decorator_list
            )
            overrides = any(getattr(one, "name", "") == name for other in others for one in other.body)
            is_once = used == 1 and (called == 1 or is_property) and not overrides and name not in imported
            full_name = name if owner is None else f"{owner.name}.{name}"
            found.append(Private(path.relative_to(source).as_posix(), full_name, is_once))
    return found


def main() -> None:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in private_functions():
        if one.is_called_once and "--list" in sys.argv:
            print(f"{one.file}:{one.name}")
        for folder in (str(Path(one.file).parent), "all"):
            counts[folder][0] += 1
            counts[folder][1] += one.is_called_once
    for folder, (private, once) in sorted(counts.items()):
        print(f"{folder:24}{private:6}{once:6}{once / private:8.1%}")


if __name__ == "__main__":
    main()
