"""`postroom inbox`: the open questions and failed runs of all projects and chats, as on the first page."""

from typing import Annotated

import typer

from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.options import AsJson, DataDir
from postroom.cli.questions import since
from postroom.contracts.quoting import exact

app = typer.Typer()


@app.command()
def inbox(
    limit: Annotated[int, typer.Option(help="Maximum number of questions to show.", min=1, max=500)] = 50,
    after: Annotated[
        str,
        typer.Option(
            help="Show the questions that follow a page of the list; give the value of `next` on that "
            "page. Failed runs are left out."
        ),
    ] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the open questions and the failed runs of all agents and chats.

    Snoozed questions are listed below the others, with the time until which they are snoozed. An agent's runs
    that failed with the same error share a row. Answer with `postroom questions answer`, replay with
    `postroom runs replay`.
    """
    page = call("list_questions", data_dir=data_dir, limit=limit, after=after)
    questions = show.items(page.get("questions"))
    groups = [] if after else show.items(call("list_failed_runs", data_dir=data_dir).get("failed"))
    failed = [
        {
            "agent": show.agent(group),
            "error": group["why"],
            "since": group["newest_at"],
            "runs": group["run_ids"],
        }
        for group in groups
    ]
    rows = [
        (
            "snoozed" if question["snoozed_until"] else "asks",
            question["number"],
            show.agent(question),
            since(question),
            question["question"]
            + (
                f" A yes permits exactly this: {exact(question['action'], is_one_line=True)}"
                if question["action"]
                else ""
            ),
        )
        for question in questions
    ] + [
        (
            "failed" if len(group["runs"]) == 1 else f"failed {len(group['runs'])} times",
            group["runs"][0],
            group["agent"],
            group["since"],
            group["error"],
        )
        for group in failed
    ]
    heads = ("STATE", "ID", "AGENT", "SINCE", "WHY")
    show.tell_more(page, "--after")
    show.answer(
        {"questions": questions, "next": page.get("next"), "failed": failed},
        as_json=as_json,
        text=lambda: show.table(heads, rows, none="No open questions or failures."),
    )
