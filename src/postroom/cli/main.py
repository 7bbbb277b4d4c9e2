"""The program `postroom`: runs a command, reports failures in one form, and exits with the right code.

Modules are imported only when they are needed, because hooks run at every tool call of a client.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code.

    The default of `arguments` is the command line of this process.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller has closed this stream
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    given_argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given_argv[:1] == ["hook"] and "--help" not in given_argv:
            from postroom.cli.hook import run

            return run(*[*given_argv[1:3], "", ""][:2])  # a client treats exit code 2 as a refusal
        given_argv = ["version"] if given_argv == ["--version"] else given_argv
        way = _short_way(given_argv)
        return _run(given_argv) if way is None else way()
    except KeyboardInterrupt:
        from postroom.cli.exit_codes import INTERRUPTED

        return INTERRUPTED
    except BrokenPipeError:
        from postroom.cli.exit_codes import READER_GONE

        return READER_GONE


def _short_way(given: list[str]) -> Callable[[], int] | None:
    if given[:2] == ["guard", "check"] and len(given) > 2 and not given[2].startswith("-"):
        from postroom.cli.guard_check import run_check

        return lambda: run_check(given[2], given[3:])
    if not given or given[0] != "mcp":
        return None
    rest = [word for word in given[1:] if word != "--no-start"]
    fields = dict(zip(rest[::2], rest[1::2], strict=False))
    folder, tools = fields.get("--data-dir"), fields.get("--tools")
    if (
        2 * len(fields) != len(rest)
        or not fields.keys() <= {"--data-dir", "--tools"}
        or (folder or "").startswith("-")
        or tools not in (None, "core", "full")
    ):
        return None  # the normal entry point reports the error

    def serve() -> int:
        from pathlib import Path

        from postroom.cli.stdio import serve_stdio

        data_dir = None if folder is None else Path(folder)
        return serve_stdio(start="--no-start" not in given, data_dir=data_dir, tools=tools)

    return serve


def _run(given: list[str]) -> int:
    from typer import TyperException

    from postroom.cli import show
    from postroom.cli.commands import tree
    from postroom.cli.exit_codes import DONE, exit_code
    from postroom.contracts.errors import InvalidArgument, PostroomError

    as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
    show.accept_any_text()
    try:
        try:
            code = tree(*given[:1])(args=given, prog_name="postroom", standalone_mode=not as_json)
        except TyperException as error:
            raise InvalidArgument(error.format_message(), remedy="run the command with --help") from error
        except OSError as error:
            raise PostroomError(f"system error: {error}", value=error.filename) from error
        return code if isinstance(code, int) else DONE
    except PostroomError as error:
        show.failure(error, as_json=as_json, given=given)
        return exit_code(error)
    except SystemExit as end:  # typer ends a command in this way
        return end.code if isinstance(end.code, int) else DONE
