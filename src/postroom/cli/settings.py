"""`postroom config`: the settings and their sources."""

import typer

from postroom.cli import show
from postroom.cli.help_text import examples
from postroom.cli.options import AsJson, DataDir

app = typer.Typer(
    help="Show the settings.", rich_markup_mode=None, epilog=examples("config show", "config show --json")
)


@app.callback(invoke_without_command=True)
def group(ctx: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the settings."""
    ctx.default_map = {"show": {"data_dir": data_dir, "as_json": as_json}}
    if ctx.invoked_subcommand is None:
        show_all(data_dir, as_json)


@app.command("show")
def show_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the settings with their sources, and the configuration files."""
    from postroom.app import places
    from postroom.app.config import explain, load_settings

    settings = load_settings(overrides={"data_dir": data_dir})
    lines = explain(settings)
    files = [
        (str(path), path.exists())
        for path in (places.config_file(places.environment()), settings.gateway_file)
    ]
    document = {
        "files": [{"path": path, "exists": exists} for path, exists in files],
        "settings": [
            {"name": line.name, "value": line.value, "origin": line.origin, "description": line.description}
            for line in lines
        ],
    }
    rows = [(line.name, line.value, line.origin) for line in lines]
    read = [f"{show.line(path)}: {'is read' if exists else 'does not exist'}" for path, exists in files]
    show.answer(
        document,
        as_json=as_json,
        text=lambda: "\n".join([show.table(("SETTING", "VALUE", "FROM"), rows, none="No settings."), *read]),
    )
