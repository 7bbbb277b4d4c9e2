"""Promises of a mail store about projects, agents and contacts."""

from collections.abc import Callable

from msgspec.structs import replace

from conformance.promises import given
from conformance.promises.given import MINUTE, an_office, refused
from postroom.contracts.choices import ContactPolicy, ContactStatus
from postroom.contracts.errors import InputError, StoreError
from postroom.contracts.mail import ContactLink, Project
from postroom.stores.mail.access import MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock


async def a_project_is_found_by_path_slug_and_id(store: MailStore, clock: ManualClock) -> None:
    """Each of the three names leads to the same record, which reads back as it was stored."""
    made = await store.write(
        lambda tx: tx.insert_project(
            slug="home-a",
            human_key="/home/a",
            spelling="/HOME/A",
            git_identity="git@example.org:a#1",
            owner="Åsa",
            now=clock.now(),
        )
    )
    assert (made.slug, made.human_key, made.spelling) == ("home-a", "/home/a", "/HOME/A")
    assert (made.git_identity, made.owner, made.created_at) == ("git@example.org:a#1", "Åsa", clock.now())
    found = await store.read(
        lambda tx: [tx.project("/home/a"), tx.project("home-a"), tx.project_by_id(made.id)]
    )
    assert found == [made, made, made]


async def an_unknown_project_is_none(store: MailStore, clock: ManualClock) -> None:
    """Looking up what is not there is an answer, not an error."""
    assert await store.read(lambda tx: tx.project("nowhere")) is None
    assert await store.read(lambda tx: tx.project_by_id(1)) is None
    assert await store.read(lambda tx: tx.projects_spelled("nowhere")) == []
    assert await store.read(lambda tx: tx.projects(limit=10)) == []


async def a_taken_slug_or_path_is_refused(store: MailStore, clock: ManualClock) -> None:
    """Two projects share neither slug nor path, and a refused one leaves nothing behind."""
    made = await store.write(given.project)

    def insert(tx: MailWrites, slug: str, path: str) -> None:
        tx.insert_project(slug=slug, human_key=path, spelling="", git_identity="", owner="", now=1)

    with refused(StoreError):
        await store.write(lambda tx: insert(tx, made.slug, "/elsewhere"))
    with refused(StoreError):
        await store.write(lambda tx: insert(tx, "elsewhere", made.human_key))
    assert await store.read(lambda tx: tx.projects(limit=10)) == [made]


async def an_alias_names_its_project(store: MailStore, clock: ManualClock) -> None:
    """Another spelling of the path finds the project; the first project to claim a spelling keeps it."""
    first, second = await store.write(lambda tx: (given.project(tx, "one"), given.project(tx, "two")))
    await store.write(lambda tx: tx.add_project_alias(first.id, "C:\\one"))
    await store.write(lambda tx: tx.add_project_alias(first.id, "C:\\one"))
    await store.write(lambda tx: tx.add_project_alias(second.id, "C:\\one"))
    assert await store.read(lambda tx: tx.project("C:\\one")) == first
    assert await store.read(lambda tx: tx.project("c:\\one")) is None


async def projects_of_one_spelling_come_oldest_first(store: MailStore, clock: ManualClock) -> None:
    """All projects whose path has a spelling are found by it, and no other."""

    def make(tx: MailWrites) -> list[int]:
        return [given.project(tx, name, spelling="c:/work").id for name in ("a", "b", "c")]

    ids = await store.write(make)
    await store.write(lambda tx: given.project(tx, "d", spelling="c:/worker"))
    found = await store.read(lambda tx: tx.projects_spelled("c:/work"))
    assert [one.id for one in found] == ids


async def projects_come_by_id_after_a_cursor(store: MailStore, clock: ManualClock) -> None:
    """Pages of projects join without a gap or a repetition."""
    made = await store.write(lambda tx: [given.project(tx, f"p{number}") for number in range(5)])
    assert await store.read(lambda tx: tx.projects(limit=10)) == made
    assert await store.read(lambda tx: tx.projects(limit=2)) == made[:2]
    assert await store.read(lambda tx: tx.projects(limit=2, after=made[1].id)) == made[2:4]
    assert await store.read(lambda tx: tx.projects(limit=2, after=made[-1].id)) == []
    assert await store.read(lambda tx: tx.projects(limit=0)) == []


async def a_git_identity_is_replaced(store: MailStore, clock: ManualClock) -> None:
    """Setting the Git identity changes nothing else of the project."""
    made = await store.write(given.project)
    await store.write(lambda tx: tx.set_git_identity(made.id, "remote#root"))
    found = await store.read(lambda tx: tx.project_by_id(made.id))
    assert found is not None
    assert found.git_identity == "remote#root"
    assert (found.slug, found.human_key, found.owner) == (made.slug, made.human_key, made.owner)


async def a_project_with_another_folder_keeps_its_former_one_as_a_name(
    store: MailStore, clock: ManualClock
) -> None:
    """Both folders name it, also when the new one was a name of it before; nothing else changes."""
    made = await store.write(given.project)
    for folder in ("/moved", "/again", made.human_key):
        await _moved(store, made, folder)
    named = await store.read(lambda tx: [tx.project(name) for name in ("/moved", "/again")])
    assert named == [replace(made, spelling=made.human_key.upper())] * 2


async def _moved(store: MailStore, made: Project, folder: str) -> None:
    await store.write(lambda tx: tx.set_project_folder(made.id, folder, spelling=folder.upper()))
    found = await store.read(lambda tx: tx.project(folder))
    assert found == replace(made, human_key=folder, spelling=folder.upper())


async def a_new_agent_reads_back_as_it_was_stored(store: MailStore, clock: ManualClock) -> None:
    """A new agent is open to mail, active now, neither retired nor with a token, its inbox empty."""
    home = await store.write(given.project)

    def make(tx: MailWrites) -> None:
        tx.insert_agent(
            home.id, name="Ada", program="shell", model="m-1", task_description="öl", now=clock.now()
        )

    await store.write(make)
    ada = await store.read(lambda tx: tx.agent(home.id, "Ada"))
    assert ada is not None
    assert (ada.project_id, ada.name, ada.program, ada.model) == (home.id, "Ada", "shell", "m-1")
    assert (ada.task_description, ada.created_at, ada.last_active_at) == ("öl", clock.now(), clock.now())
    assert (ada.contact_policy, ada.retired_at, ada.token_hash) == ("open", None, None)
    assert (ada.inbox_seq, ada.inbox_floor) == (0, 0)


async def names_are_compared_without_regard_to_case(store: MailStore, clock: ManualClock) -> None:
    """Any spelling finds the agent, whose name stays as it was chosen, in every alphabet."""
    home = await store.write(given.project)
    names = ["GreenLake", "Ångström", "Straße", "ΣΊΣ"]
    others = ["greenLAKE", "ÅNGSTRÖM", "STRASSE", "σίς"]
    made = await store.write(lambda tx: [given.agent(tx, home.id, name) for name in names])
    found = await store.read(lambda tx: [tx.agent(home.id, other) for other in others])
    assert found == made
    assert [one.name for one in made] == names
    assert await store.read(lambda tx: tx.agent(home.id, "Green")) is None


async def a_name_that_differs_by_case_only_is_refused(store: MailStore, clock: ManualClock) -> None:
    """One project has one agent of a name; another project may have its own."""
    one, two = await store.write(lambda tx: (given.project(tx, "one"), given.project(tx, "two")))
    first = await store.write(lambda tx: given.agent(tx, one.id, "Ada"))
    with refused(StoreError):
        await store.write(lambda tx: given.agent(tx, one.id, "ADA"))
    second = await store.write(lambda tx: given.agent(tx, two.id, "ADA"))
    assert first.id != second.id
    assert await store.read(lambda tx: tx.agent(one.id, "ada")) == first
    assert await store.read(lambda tx: tx.agent(two.id, "ada")) == second


async def agents_are_found_by_several_names_at_once(store: MailStore, clock: ManualClock) -> None:
    """Each agent is returned once, however often and in whatever case it is named; others are left out."""
    here, there = await an_office(store), await an_office(store, "elsewhere")
    names = ["BEN", "ada", "Ben", "Nobody"]
    found = await store.read(lambda tx: tx.agents_named(here.project.id, names))
    assert sorted(one.id for one in found) == [here.ada.id, here.ben.id]
    assert await store.read(lambda tx: tx.agents_named(there.project.id, [])) == []


async def agents_are_found_by_several_ids_at_once(store: MailStore, clock: ManualClock) -> None:
    """Ids that nobody has are left out."""
    here = await an_office(store)
    ids = [here.cyd.id, here.ada.id, 999, here.ada.id]
    found = await store.read(lambda tx: tx.agents_by_id(ids))
    assert found == {here.ada.id: here.ada, here.cyd.id: here.cyd}
    assert await store.read(lambda tx: tx.agents_by_id([])) == {}


async def agents_come_by_id_after_a_cursor(store: MailStore, clock: ManualClock) -> None:
    """Pages join without a gap, and hold retired agents only when asked to."""
    here = await an_office(store)
    await an_office(store, "elsewhere")
    await store.write(lambda tx: tx.set_agent_retired(here.ben.id, clock.now(), now=clock.now()))

    async def page(*, retired: bool, limit: int, after: int = 0) -> list[str]:
        found = await store.read(
            lambda tx: tx.agents(here.project.id, include_retired=retired, limit=limit, after=after)
        )
        return [one.name for one in found]

    assert await page(retired=True, limit=10) == ["Ada", "Ben", "Cyd"]
    assert await page(retired=False, limit=10) == ["Ada", "Cyd"]
    assert await page(retired=False, limit=1) == ["Ada"]
    assert await page(retired=False, limit=1, after=here.ada.id) == ["Cyd"]
    assert await page(retired=True, limit=1, after=here.ada.id) == ["Ben"]
    assert await page(retired=True, limit=1, after=here.cyd.id) == []


async def agents_come_by_their_last_activity(store: MailStore, clock: ManualClock) -> None:
    """The one active last comes first; retired ones are left out."""
    here = await an_office(store)
    await an_office(store, "elsewhere")

    def change(tx: MailWrites) -> None:
        tx.touch_agent(here.cyd.id, clock.now() + MINUTE)
        tx.set_agent_retired(here.ben.id, clock.now(), now=clock.now())

    async def active(limit: int) -> list[str]:
        found = await store.read(lambda tx: tx.active_agents(here.project.id, limit=limit))
        return [one.name for one in found]

    await store.write(change)
    assert await active(9) == ["Cyd", "Ada"]
    assert await active(1) == ["Cyd"]


async def an_update_replaces_what_an_agent_says_of_itself(store: MailStore, clock: ManualClock) -> None:
    """Program, model and task are replaced and activity is noted; name, policy, token and inbox stay."""
    here = await an_office(store)

    def prepare(tx: MailWrites) -> None:
        tx.set_contact_policy(here.ada.id, "approval", now=1)
        tx.set_agent_token(here.ada.id, "hash")
        given.put_message(tx, here.ben, [here.ada])

    await store.write(prepare)
    updated = await store.write(
        lambda tx: tx.update_agent(here.ada.id, program="p", model="m", task_description="t", now=clock.now())
    )
    assert (updated.program, updated.model, updated.task_description) == ("p", "m", "t")
    assert (updated.id, updated.name, updated.created_at) == (here.ada.id, "Ada", here.ada.created_at)
    assert (updated.contact_policy, updated.token_hash, updated.inbox_seq) == ("approval", "hash", 1)
    assert updated.last_active_at == clock.now()
    assert await store.read(lambda tx: tx.agent(here.project.id, "Ada")) == updated


async def activity_never_goes_back(store: MailStore, clock: ManualClock) -> None:
    """A clock that was turned back does not make an agent less active."""
    here, now = await an_office(store), clock.now()
    await store.write(lambda tx: tx.touch_agent(here.ada.id, now))
    await store.write(lambda tx: tx.touch_agent(here.ada.id, now - MINUTE))
    updated = await store.write(
        lambda tx: tx.update_agent(here.ada.id, program="", model="", task_description="", now=now - MINUTE)
    )
    assert updated.last_active_at == now


async def an_agent_is_retired_and_brought_back(store: MailStore, clock: ManualClock) -> None:
    """Retirement has an instant; a retired agent is still found by name and id."""
    here = await an_office(store)
    await store.write(lambda tx: tx.set_agent_retired(here.ada.id, clock.now(), now=clock.now()))
    retired = await store.read(lambda tx: tx.agent(here.project.id, "Ada"))
    assert retired is not None
    assert retired.retired_at == clock.now()
    await store.write(lambda tx: tx.set_agent_retired(here.ada.id, None, now=clock.now()))
    assert await store.read(lambda tx: tx.agent(here.project.id, "Ada")) == here.ada


async def a_token_belongs_to_one_agent_until_it_is_replaced(store: MailStore, clock: ManualClock) -> None:
    """A token finds its agent; a replaced or revoked one finds nobody; nobody gets another's."""
    here = await an_office(store)
    assert await store.read(lambda tx: tx.agent_by_token("one")) is None
    await store.write(lambda tx: tx.set_agent_token(here.ada.id, "one"))
    await store.write(lambda tx: tx.set_agent_token(here.ada.id, "one"))
    found = await store.read(lambda tx: tx.agent_by_token("one"))
    assert found is not None
    assert (found.id, found.token_hash) == (here.ada.id, "one")
    with refused(StoreError):
        await store.write(lambda tx: tx.set_agent_token(here.ben.id, "one"))
    await store.write(lambda tx: tx.set_agent_token(here.ada.id, "two"))
    assert await store.read(lambda tx: tx.agent_by_token("one")) is None
    await store.write(lambda tx: tx.set_agent_token(here.ada.id, None))
    assert await store.read(lambda tx: tx.agent_by_token("two")) is None


async def a_contact_policy_is_replaced(store: MailStore, clock: ManualClock) -> None:
    """Each policy reads back."""
    here = await an_office(store)
    policies: list[ContactPolicy] = ["same_owner", "approval", "open", "closed"]

    def set_each(tx: MailWrites) -> list[ContactPolicy]:
        seen = []
        for policy in policies:
            tx.set_contact_policy(here.ada.id, policy, now=1)
            seen.append(tx.agents_by_id([here.ada.id])[here.ada.id].contact_policy)
        return seen

    assert await store.write(set_each) == policies
    found = await store.read(lambda tx: tx.agents_by_id([here.ada.id, here.ben.id]))
    assert found[here.ada.id].contact_policy == "closed"
    assert found[here.ben.id].contact_policy == "open"


async def a_contact_link_has_a_direction(store: MailStore, clock: ManualClock) -> None:
    """What one agent asked of another says nothing of what the other asked."""
    here = await an_office(store)
    link = await store.write(
        lambda tx: tx.put_contact(here.ada.id, here.ben.id, status="pending", reason="hello", now=clock.now())
    )
    assert (link.from_id, link.to_id, link.status) == (here.ada.id, here.ben.id, "pending")
    assert (link.reason, link.created_at, link.decided_at) == ("hello", clock.now(), None)
    assert await store.read(lambda tx: tx.contact(here.ada.id, here.ben.id)) == link
    assert await store.read(lambda tx: tx.contact(here.ben.id, here.ada.id)) is None
    reach = await store.read(lambda tx: tx.reach(here.ada.id, [here.ben.id, here.cyd.id]))
    assert {agent_id: one.granted for agent_id, one in reach.items()} == {
        here.ben.id: "pending",
        here.cyd.id: None,
    }


async def a_contact_link_keeps_its_beginning(store: MailStore, clock: ManualClock) -> None:
    """A decision has its own instant; asking again takes it back; the link's beginning stays."""
    here, began = await an_office(store), clock.now()

    async def put(status: ContactStatus, now: int) -> ContactLink:
        link = await store.write(
            lambda tx: tx.put_contact(here.ada.id, here.ben.id, status=status, reason=f"is {status}", now=now)
        )
        assert await store.read(lambda tx: tx.contact(here.ada.id, here.ben.id)) == link
        assert (link.created_at, link.status, link.reason) == (began, status, f"is {status}")
        return link

    assert (await put("pending", began)).decided_at is None
    assert (await put("approved", began + 1)).decided_at == began + 1
    assert (await put("blocked", began + 2)).decided_at == began + 2
    assert (await put("pending", began + 3)).decided_at is None


async def contacts_of_an_agent_are_those_from_and_to_it(store: MailStore, clock: ManualClock) -> None:
    """Both directions are listed once, oldest first; links between others are not."""
    here, now = await an_office(store), clock.now()

    def link(tx: MailWrites) -> None:
        tx.put_contact(here.cyd.id, here.ada.id, status="pending", reason="", now=now + 2)
        tx.put_contact(here.ada.id, here.ben.id, status="approved", reason="", now=now + 1)
        tx.put_contact(here.ada.id, here.ada.id, status="approved", reason="", now=now + 3)
        tx.put_contact(here.ben.id, here.cyd.id, status="blocked", reason="", now=now)

    await store.write(link)
    found = await store.read(lambda tx: tx.contacts(here.ada.id))
    ada, ben, cyd = here.ada.id, here.ben.id, here.cyd.id
    assert [(one.from_id, one.to_id) for one in found] == [(ada, ben), (cyd, ada), (ada, ada)]


async def a_change_of_what_is_not_there_is_refused(store: MailStore, clock: ManualClock) -> None:
    """Look-ups answer with nothing; changes of a record that nobody stored raise, and change nothing."""
    here = await an_office(store)
    changes: tuple[Callable[[MailWrites], object], ...] = (
        lambda tx: tx.set_git_identity(99, ""),
        lambda tx: tx.set_project_folder(99, "/moved", spelling="/moved"),
        lambda tx: tx.update_agent(99, program="", model="", task_description="", now=1),
        lambda tx: tx.set_agent_retired(99, 1, now=1),
        lambda tx: tx.set_agent_token(99, None),
        lambda tx: tx.set_contact_policy(99, "open", now=1),
        lambda tx: tx.touch_agent(99, 1),
        lambda tx: tx.mark_recalled(99, 1),
        lambda tx: tx.extend_reservation(99, expires_at=2, ttl=1, exclusive=True, reason="", now=1),
        lambda tx: tx.release_reservation(99, now=1, by="", reason=""),
    )
    for change in changes:
        with refused(InputError):
            await store.write(change)
    with refused(StoreError):
        await store.write(lambda tx: given.agent(tx, 99, "Dot"))
    with refused(StoreError):
        await store.write(lambda tx: tx.put_contact(here.ada.id, 99, status="pending", reason="", now=1))


PROMISES = (
    a_project_is_found_by_path_slug_and_id,
    an_unknown_project_is_none,
    a_taken_slug_or_path_is_refused,
    an_alias_names_its_project,
    projects_of_one_spelling_come_oldest_first,
    projects_come_by_id_after_a_cursor,
    a_git_identity_is_replaced,
    a_project_with_another_folder_keeps_its_former_one_as_a_name,
    a_new_agent_reads_back_as_it_was_stored,
    names_are_compared_without_regard_to_case,
    a_name_that_differs_by_case_only_is_refused,
    agents_are_found_by_several_names_at_once,
    agents_are_found_by_several_ids_at_once,
    agents_come_by_id_after_a_cursor,
    agents_come_by_their_last_activity,
    an_update_replaces_what_an_agent_says_of_itself,
    activity_never_goes_back,
    an_agent_is_retired_and_brought_back,
    a_token_belongs_to_one_agent_until_it_is_replaced,
    a_contact_policy_is_replaced,
    a_contact_link_has_a_direction,
    a_contact_link_keeps_its_beginning,
    contacts_of_an_agent_are_those_from_and_to_it,
    a_change_of_what_is_not_there_is_refused,
)
