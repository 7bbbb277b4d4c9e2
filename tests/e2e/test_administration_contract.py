"""The answers of administration match its part of the OpenAPI document, and contain nothing else: at a real server."""

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from e2e.running import RunningServer, soon

pytestmark = pytest.mark.long
UNSEEN = {
    "cancel_run",  # each answers a run, as discard_run does
    "hasten_run",
    "replay_run",
    "issue_agent_token",  # a text, and above in the same place a truth
    "move_project",  # as list_projects
    "pair_person",  # of chats, which this server does not have
    "list_chat_people",
    "remove_chat_person",
    "send_to_chat",
    "reconnect_channel",
    "retry_undelivered",
    "discard_undelivered",
}


class Administration:
    """A server's addresses below /admin, each answer of which is compared with the document."""

    def __init__(self, server: RunningServer) -> None:
        token = (server.data_dir / "token").read_text().strip()
        self.client = httpx2.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=30
        )
        self.document = self.client.get("/v1/openapi.json").json()
        self.closed = copy.deepcopy(self.document["components"])
        for schema in self.closed["schemas"].values():
            if schema.get("type") == "object" and "properties" in schema:
                schema.setdefault("additionalProperties", False)
        self.seen = set[str]()

    def ask(self, method: str, path: str, /, **given: Any) -> Any:
        """Return the answer of an address, which must be as described."""
        sent = {"params": given} if method == "GET" else {"json": given}
        reply = self.client.request(method, path, **sent)
        assert reply.is_success, (method, path, reply.text)
        described = self.document["paths"][path][method.lower()]
        [schema] = described["responses"][str(reply.status_code)]["content"].values()
        Draft202012Validator({**schema["schema"], "components": self.closed}).validate(reply.json())
        self.seen.add(described["operationId"])
        return reply.json()

    def call(self, operation: str, /, **given: Any) -> Any:
        """Call an operation of mail that changes something."""
        reply = self.client.post(f"/v1/{operation}", json=given)
        assert reply.is_success, reply.text
        return reply.json()


@pytest.fixture
def administration(tmp_path: Path) -> Iterator[Administration]:
    with RunningServer(tmp_path / "data") as server:
        made = Administration(server)
        yield made
        made.client.close()


def token_of(number: int) -> dict[str, str]:
    return {"id": f"{number:012}", "hash": hashlib.sha256(str(number).encode()).hexdigest()}


def test_administration_answers_what_its_document_says(
    administration: Administration, tmp_path: Path
) -> None:
    ask, folders = administration.ask, [tmp_path / name for name in ("harbour", "port")]
    for folder in folders:
        folder.mkdir()
        administration.call("ensure_project", human_key=str(folder))
    project = str(folders[0])
    for name in ("Ada", "Bo"):
        administration.call("register_agent", project_key=project, program="p", model="m", name=name)

    ask("POST", "/admin/tokens", name="ci", scopes=["mail:read"], life_seconds=60, **token_of(1))
    ask("POST", "/admin/tokens/rotate", name="ci", overlap_seconds=5, **token_of(2))
    assert len(ask("GET", "/admin/tokens")["tokens"]) == 2
    ask("DELETE", "/admin/tokens", name="ci")
    ask("DELETE", "/admin/agent-token", project=project, agent="Ada")
    for path in ("progress", "status", "cluster", "projects", "doctor", "support-bundle"):
        ask("GET", f"/admin/{path}")
    ask("POST", "/admin/doctor", dry_run=True)
    ask("POST", "/admin/backup")
    ask("POST", "/admin/login-code")
    ask("POST", "/admin/projects/merge", source=str(folders[1]), target=project, dry_run=True)
    ask("POST", "/admin/prune", dry_run=True)
    ask("POST", "/admin/rebuild-archive")
    ask("GET", "/health/detailed")

    ask("PUT", "/admin/people", name="Ana")
    ask("GET", "/admin/people")
    schedule = {"name": "standup", "project": project, "sender": "Ana", "to": ["Ada"], "every_seconds": 3600}
    ask("POST", "/admin/schedules", subject="Plan", body="What is planned?", **schedule)
    ask("GET", "/admin/schedules")
    ask("GET", "/admin/schedules/one", name="standup")
    for word in ("pause", "resume", "trigger"):
        ask("POST", f"/admin/schedules/{word}", name="standup")
    ask("DELETE", "/admin/schedules", name="standup")
    ask("DELETE", "/admin/people", name="Ana")

    runner = {"argv": ["/bin/sh", "-c", "echo no >&2; exit 1"], "cwd": project}
    ask("PUT", "/admin/runners", project=project, agent="Bo", runner=runner)
    ask("GET", "/admin/runners")
    sent = {
        "project_key": project,
        "sender_name": "Ada",
        "to": ["Bo"],
        "subject": "Work",
        "body_md": "please",
    }
    administration.call("send_message", **sent)
    [dead] = soon(lambda: ask("GET", "/admin/runs/dead")["dead"], "the run is a dead letter")
    assert [one["run_ids"] for one in ask("GET", "/admin/runs/failed")["failed"]] == [[dead["run_id"]]]
    ask("GET", "/admin/runs")
    ask("GET", "/admin/runs/one", run=dead["run_id"])
    ask("GET", "/admin/floor", project=project)
    ask("POST", "/admin/runs/discard", run=dead["run_id"])
    ask("DELETE", "/admin/runners", project=project, agent="Bo")
    asked = {"project_key": project, "agent_name": "Ada", "question": "May I?"}
    number = administration.call("ask_person", **asked)["question_id"]
    soon(lambda: ask("GET", "/admin/questions")["questions"], "the question is open")
    ask("POST", "/admin/questions/snooze", number=number, seconds=3600)
    ask("GET", "/admin/questions/one", number=number)
    ask("POST", "/admin/questions", number=number, answer="yes", by="Ana")
    ask("GET", "/admin/gateway/dead")
    ask("PUT", "/admin/people", name="Ana")
    named = {"project_key": project, "agent_name": "Ada"}
    administration.call("add_task", **named, title="Mend it", acceptance="person")
    administration.call("claim_task", **named)
    administration.call("done_task", **named, task_id=1, epoch=1)
    ask("GET", "/admin/tasks")
    ask("POST", "/admin/tasks/decide", project=project, task=1, answer="yes", person="human:Ana")
    administration.call("add_task", **named, title="Paint it")
    cancelled = ask("POST", "/admin/tasks/decide", project=project, task=2, answer="cancel", person="Ana")
    assert cancelled == {"task": 2, "state": "cancelled"}

    described = {
        operation["operationId"]
        for path, operations in administration.document["paths"].items()
        for operation in operations.values()
        if not path.startswith("/v1/")
    }
    assert administration.seen == described - UNSEEN
