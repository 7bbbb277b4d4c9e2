"""`postroom config`: what is set, and where it came from."""

import typer

from postroom.cli import show
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(help="See the settings.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """See the settings."""


@app.command("show")
def show_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every setting and where it came from."""
    from postroom.app.config import explain, load_settings

    lines = explain(load_settings(overrides={"data_dir": data_dir}))
    document = {
        "settings": [
            {"name": one.name, "value": one.value, "origin": one.origin, "description": one.description}
            for one in lines
        ]
    }
    rows = [(one.name, one.value, one.origin) for one in lines]
    show.answer(
        document,
        as_json=as_json,
        text=lambda: show.table(("SETTING", "VALUE", "FROM"), rows, none="no settings"),
    )
