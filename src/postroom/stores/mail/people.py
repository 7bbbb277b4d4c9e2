"""Projects, their agents, and who may write to whom."""

from collections.abc import Iterable, Sequence

from typing_extensions import override

from postroom.contracts.errors import UnknownAgent, UnknownProject
from postroom.contracts.mail import Agent, ContactLink, ContactPolicy, ContactStatus, Project
from postroom.contracts.store import MailWrites
from postroom.stores.mail import rows
from postroom.stores.mail.part import Part, unknown

_FEW = 4


class People(Part, MailWrites):
    """Projects, agents and contacts."""

    _known: dict[str, Project]
    """Projects that this transaction has found, by the key that named them; they hardly ever change."""

    @override
    def lock_projects(self, project_ids: Iterable[int]) -> None:
        self._events.lock(project_ids)

    @override
    def project(self, key: str) -> Project | None:
        if key in self._known:
            return self._known[key]
        for by in ("mail.project_by_path", "mail.project_by_slug", "mail.project_by_alias"):
            if row := self._tx.one(by, {"key": key}):
                found = self._known[key] = rows.project(row)
                return found
        return None

    @override
    def project_by_id(self, project_id: int) -> Project | None:
        row = self._tx.one("mail.project_by_id", {"id": project_id})
        return rows.project(row) if row else None

    @override
    def projects_spelled(self, spelling: str) -> list[Project]:
        return [rows.project(row) for row in self._tx.all("mail.projects_spelled", {"spelling": spelling})]

    @override
    def projects(self, *, limit: int, after: int = 0) -> list[Project]:
        found = self._tx.all("mail.projects", {"after": after, "limit": limit})
        return [rows.project(row) for row in found]

    @override
    def insert_project(
        self, *, slug: str, human_key: str, spelling: str, git_identity: str, owner: str, now: int
    ) -> Project:
        values = {
            "slug": slug,
            "human_key": human_key,
            "spelling": spelling,
            "git_identity": git_identity,
            "owner": owner,
            "now": now,
        }
        made = rows.project(rows.written(self._tx.one("mail.insert_project", values)))
        self._events.project_made(made.id, now)
        return made

    @override
    def add_project_alias(self, project_id: int, human_key: str) -> None:
        self._tx.run("mail.add_project_alias", {"human_key": human_key, "project_id": project_id})

    @override
    def set_git_identity(self, project_id: int, git_identity: str) -> None:
        self._known.clear()
        self._update(
            "mail.set_git_identity", {"id": project_id, "git_identity": git_identity}, UnknownProject
        )

    @override
    def agent(self, project_id: int, name: str) -> Agent | None:
        row = self._tx.one("mail.agent_named", {"project_id": project_id, "name_key": name.casefold()})
        return rows.agent(row) if row else None

    @override
    def agents_named(self, project_id: int, names: Sequence[str]) -> list[Agent]:
        keys = sorted(set(map(str.casefold, names)))
        if len(keys) == 1:
            only = self.agent(project_id, keys[0])
            return [] if only is None else [only]
        if len(keys) <= _FEW:  # a look-up each is cheaper than reading a list
            looks = [("mail.agent_named", {"project_id": project_id, "name_key": key}) for key in keys]
            found = [rows.agent(row) for answer in self._tx.ask(*looks) for row in answer]
            return sorted(found, key=lambda agent: agent.id)
        values = {"project_id": project_id, "name_keys": keys}
        return [rows.agent(row) for row in self._tx.all("mail.agents_named", values)]

    @override
    def agents_by_id(self, agent_ids: Sequence[int]) -> dict[int, Agent]:
        return {row[0]: rows.agent(row) for row in self._tx.all("mail.agents_by_id", {"ids": agent_ids})}

    @override
    def agents(self, project_id: int, *, include_retired: bool, limit: int, after: int = 0) -> list[Agent]:
        values = {"project_id": project_id, "after": after, "retired": include_retired, "limit": limit}
        return [rows.agent(row) for row in self._tx.all("mail.agents", values)]

    @override
    def agent_by_token(self, token_hash: str) -> Agent | None:
        row = self._tx.one("mail.agent_by_token", {"token_hash": token_hash})
        return rows.agent(row) if row else None

    @override
    def insert_agent(
        self, project_id: int, *, name: str, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        values = {
            "project_id": project_id,
            "name": name,
            "name_key": name.casefold(),
            "program": program,
            "model": model,
            "task_description": task_description,
            "now": now,
        }
        made = rows.agent(rows.written(self._tx.one("mail.insert_agent", values)))
        self._events.agent_registered(made)
        return made

    @override
    def update_agent(
        self, agent_id: int, *, program: str, model: str, task_description: str, now: int
    ) -> Agent:
        values = {
            "id": agent_id,
            "program": program,
            "model": model,
            "task_description": task_description,
            "now": now,
        }
        if self._tx.one("mail.agent_differs", values):
            self._events.of_agent("agent.changed", agent_id, now)
        row = self._tx.one("mail.update_agent", values)
        if row is None:
            raise unknown(UnknownAgent, agent_id)
        return rows.agent(row)

    @override
    def set_agent_retired(self, agent_id: int, retired_at: int | None, *, now: int) -> None:
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("mail.set_agent_retired", {"id": agent_id, "retired_at": retired_at}, UnknownAgent)
        self._events.agent_retired(before, retired_at, now)

    @override
    def set_agent_token(self, agent_id: int, token_hash: str | None) -> None:
        self._update("mail.set_agent_token", {"id": agent_id, "token_hash": token_hash}, UnknownAgent)

    @override
    def set_contact_policy(self, agent_id: int, policy: ContactPolicy, *, now: int) -> None:
        before = self.agents_by_id([agent_id]).get(agent_id)
        self._update("mail.set_contact_policy", {"id": agent_id, "policy": policy}, UnknownAgent)
        self._events.policy_set(before, policy, now)

    @override
    def touch_agent(self, agent_id: int, now: int) -> None:
        values = {"id": agent_id, "now": now}
        self._update("mail.touch_agent", values, UnknownAgent)
        self._tx.run("mail.touch_reservations", values)

    @override
    def contact(self, from_id: int, to_id: int) -> ContactLink | None:
        row = self._tx.one("mail.contact", {"from_id": from_id, "to_id": to_id})
        return rows.contact(row) if row else None

    @override
    def contacts(self, agent_id: int) -> list[ContactLink]:
        return [rows.contact(row) for row in self._tx.all("mail.contacts", {"agent_id": agent_id})]

    @override
    def put_contact(
        self, from_id: int, to_id: int, *, status: ContactStatus, reason: str, now: int
    ) -> ContactLink:
        values = {
            "from_id": from_id,
            "to_id": to_id,
            "status": status,
            "reason": reason,
            "now": now,
            "decided_at": None if status == "pending" else now,
        }
        before = self.contact(from_id, to_id)
        link = rows.contact(rows.written(self._tx.one("mail.put_contact", values)))
        self._events.contact(before, link, now)
        return link
