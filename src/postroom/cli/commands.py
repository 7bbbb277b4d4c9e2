"""The tree of commands."""

import typer

from postroom.cli import (
    agents,
    backup,
    database,
    events,
    gateway,
    guard,
    hook_command,
    mail,
    people,
    projects,
    prune,
    questions,
    rebuild,
    reservations,
    runs,
    schedules,
    server,
    settings,
    setup,
    support,
    tokens,
    top,
    watch,
)
from postroom.cli.demo.command import demo
from postroom.cli.help_text import GroupedCommands, examples

app = typer.Typer(
    name="postroom",
    cls=GroupedCommands,
    help="The post room of a team of AI agents and their people.",
    epilog=examples(
        "up", "top", "mail send --as Ada --to Ben -s Lights 'The north pier?'", "mail inbox --as Ben"
    )
    + "\n\nEvery command takes --help, and --json for one JSON document. "
    "Exit codes: 0 done, 1 failed, 2 usage or refused, 75 temporary, 78 configuration.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(server.app)
app.add_typer(mail.app, name="mail")
app.add_typer(agents.app, name="agents")
app.add_typer(tokens.app, name="tokens")
app.add_typer(reservations.app, name="reservations")
app.add_typer(watch.app)
app.add_typer(events.app)
app.add_typer(guard.app, name="guard")
app.add_typer(hook_command.app)
app.add_typer(gateway.app, name="gateway")
app.add_typer(runs.app, name="runs")
app.add_typer(backup.app)
app.add_typer(backup.backups, name="backup")
app.add_typer(database.app, name="database")
app.add_typer(support.app)
app.add_typer(projects.app, name="projects")
app.add_typer(prune.app)
app.add_typer(rebuild.app, name="rebuild")
app.add_typer(settings.app, name="config")
app.add_typer(top.app)
app.add_typer(questions.app, name="questions")
app.add_typer(people.app, name="people")
app.add_typer(schedules.app, name="schedules")
app.command("demo")(demo)
app.add_typer(setup.app, name="setup")
