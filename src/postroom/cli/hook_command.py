"""The command `postroom hook` in the tree of commands.

`main` runs `postroom.cli.hook` directly, without loading the tree.
"""

from typing import Annotated

import typer

from postroom.cli import hook as quick
from postroom.contracts.clients import EVENTS

app = typer.Typer()

_CLIENTS = [client for client in EVENTS if client != "git"]


@app.command()
def hook(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"{', '.join(_CLIENTS)}.")],
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The client's own name for the event.")],
) -> None:
    """Answer one client event.

    Read the client's JSON from standard input, and print the answer in the client's format. If there is
    nothing to report, or after an error, print nothing and exit with 0. `wait` exits with 2 when mail has
    arrived.
    """
    quick.run(client, event)
