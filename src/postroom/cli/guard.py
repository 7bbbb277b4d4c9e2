"""`postroom guard`: Git hooks that prevent commits and pushes of files that others have reserved."""

from pathlib import Path
from typing import Annotated

import typer

from postroom.cli import guard_check, guard_hooks, show
from postroom.cli.help_text import command_group
from postroom.cli.options import AsJson

app = command_group(
    "Block commits and pushes of files that other agents have reserved.", "guard install", "guard remove"
)

Repo = Annotated[
    Path,
    typer.Option(
        "--repo", metavar="PATH", help="A folder inside the repository.", show_default="the current folder"
    ),
]
HERE = Path()


@app.command()
def install(repo: Repo = HERE, as_json: AsJson = False) -> None:
    """Install the pre-commit and pre-push hooks. An existing hook is kept and called first."""
    _show(guard_hooks.install(repo), as_json=as_json)


@app.command()
def remove(repo: Repo = HERE, as_json: AsJson = False) -> None:
    """Remove the hooks, and restore the previous hooks unchanged."""
    _show(guard_hooks.remove(repo), as_json=as_json)


@app.command()
def status(repo: Repo = HERE, as_json: AsJson = False) -> None:
    """Show each hook's state: absent, installed, foreign (from another program) or overwritten.

    If husky or lefthook manages the hooks, a hook counts as installed if their configuration calls the guard.
    """
    _show(guard_hooks.read_hooks(repo), as_json=as_json)


@app.command()
def check(
    hook: Annotated[str, typer.Argument(metavar="HOOK", help="The Git hook: pre-commit or pre-push.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="The arguments that Git passes to the hook.")
    ] = None,
) -> None:
    """Run a hook's check. Exit code 1 if other agents hold a file; standard error explains why."""
    raise typer.Exit(guard_check.run_check(hook, arguments or []))


def _show(hooks: list[guard_hooks.Hook], *, as_json: bool) -> None:
    folder = str(hooks[0].path.parent)
    rows = [
        {"name": hook.name, "state": hook.state, "chained": hook.chained, "manager": hook.manager}
        for hook in hooks
    ]
    lines = []
    for hook in hooks:
        if hook.manager:
            beside = f"{'called' if hook.state == 'installed' else 'written'} by {hook.manager}"
        elif hook.chained and hook.state == "installed":
            beside = "calls the hook that was there before"
        else:
            beside = ""
        lines.append((hook.name, hook.state, beside))
    show.answer(
        {"folder": folder, "hooks": rows},
        as_json=as_json,
        text=lambda: f"{show.line(folder)}\n" + show.table(("HOOK", "STATE", "BESIDE"), lines, none=""),
    )
