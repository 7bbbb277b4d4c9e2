"""`postroom inbox`: everything in all projects and chats that needs a person, like on the first page."""

import typer

from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.options import AsJson, DataDir

app = typer.Typer()


@app.command()
def inbox(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the open questions and the failed runs of all agents and chats.

    Runs of one agent that failed with the same error are one row. Answer with `postroom questions answer`,
    replay with `postroom runs replay`.
    """
    questions = show.items(call("list_questions", data_dir=data_dir).get("questions"))
    failed = [
        {"agent": show.agent(item), "error": item["why"], "since": item["newest_at"], "runs": item["run_ids"]}
        for item in show.items(call("list_failed_runs", data_dir=data_dir).get("failed"))
    ]
    rows = [
        ("asks", question["number"], show.agent(question), question["waiting_since"], question["question"])
        for question in questions
    ] + [
        (
            "failed" if len(item["runs"]) == 1 else f"failed {len(item['runs'])} times",
            item["runs"][0],
            item["agent"],
            item["since"],
            item["error"],
        )
        for item in failed
    ]
    heads = ("STATE", "ID", "AGENT", "SINCE", "WHY")
    show.answer(
        {"questions": questions, "failed": failed},
        as_json=as_json,
        text=lambda: show.table(heads, rows, none="Nothing needs you."),
    )
