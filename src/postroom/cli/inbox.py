"""`postroom inbox`: everything in all projects and chats that needs a person, like on the first page."""

from typing import Annotated

import typer

from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.options import AsJson, DataDir
from postroom.contracts.quoting import exact

app = typer.Typer()


@app.command()
def inbox(
    limit: Annotated[int, typer.Option(help="At most this many questions.", min=1, max=500)] = 50,
    after: Annotated[
        str, typer.Option(help="Continue the list of questions with a page's `next`. Omits failed runs.")
    ] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the open questions and the failed runs of all agents and chats.

    Runs of one agent that failed with the same error are one row. Answer with `postroom questions answer`,
    replay with `postroom runs replay`.
    """
    page = call("list_questions", data_dir=data_dir, limit=limit, after=after)
    questions = show.items(page.get("questions"))
    groups = [] if after else show.items(call("list_failed_runs", data_dir=data_dir).get("failed"))
    failed = [
        {"agent": show.agent(one), "error": one["why"], "since": one["newest_at"], "runs": one["run_ids"]}
        for one in groups
    ]
    rows = [
        (
            "asks",
            one["number"],
            show.agent(one),
            one["waiting_since"],
            one["question"]
            + (
                f" A yes permits exactly this: {exact(one['action'], is_one_line=True)}"
                if one["action"]
                else ""
            ),
        )
        for one in questions
    ] + [
        (
            "failed" if len(one["runs"]) == 1 else f"failed {len(one['runs'])} times",
            one["runs"][0],
            one["agent"],
            one["since"],
            one["error"],
        )
        for one in failed
    ]
    heads = ("STATE", "ID", "AGENT", "SINCE", "WHY")
    show.tell_more(page, "--after")
    show.answer(
        {"questions": questions, "next": page.get("next"), "failed": failed},
        as_json=as_json,
        text=lambda: show.table(heads, rows, none="Nothing needs you."),
    )
