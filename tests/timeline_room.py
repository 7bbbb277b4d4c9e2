"""A project whose timeline has something of every shape, as large as a test wants it."""

import random

from postroom.contracts.mail import Agent, Message
from postroom.contracts.waking import MessageRun
from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.stores.mail.access import MailWrites

MINUTE = 60_000
HOUR = 60 * MINUTE
NAMES = (
    "Ada",
    "Bo",
    "Cleo",
    "Dora",
    "Emil",
    "Gus",
    "Hana",
    "Ines",
    "<b onclick=alert(1)>",
    "مراجعة",
    "Kai",
    "Lotte",
)
SUBJECTS = (
    "Basket total is too low",
    "Prices in the payment sandbox",
    "Release 2.14",
    "<img src=x onerror=alert(1)>",
)


def _agent(tx: MailWrites, project_id: int, name: str, now: int) -> Agent:
    return tx.insert_agent(
        project_id, name=name, program="claude-code", model="opus", task_description="", now=now - 9 * HOUR
    )


def _send(tx: MailWrites, sender: Agent, readers: list[Agent], at: int, number: int) -> Message:
    message = tx.insert_message(
        project_id=sender.project_id,
        sender=sender,
        thread_id=f"thread-{number % 5}",
        subject=SUBJECTS[number % len(SUBJECTS)],
        body_md="The total of a basket is too low, and a test fails. Please **mend** it, and have Bo look at it.",
        importance="normal",
        ack_required=False,
        topic="",
        broadcast=False,
        reply_to=None,
        now=at,
    )
    for reader in readers:
        tx.insert_recipient(message.id, reader, kind="to")
    return message


def a_shop(tx: MailWrites, *, now: int, agents: int = 8, each: int = 4) -> int:
    """Store a project that was active for eight hours, with `each` runs of most of its agents."""
    chance = random.Random(5)
    project = tx.insert_project(
        slug="orchard",
        human_key="/home/mira/orchard",
        spelling="/home/mira/orchard",
        git_identity="",
        owner="mira",
        now=now - 9 * HOUR,
    )
    people = tx.insert_project(
        slug=PEOPLE_SLUG, human_key=PEOPLE_KEY, spelling=PEOPLE_KEY, git_identity="", owner="mira", now=now
    )
    mira = _agent(tx, people.id, "Mira", now)
    names = [NAMES[number] if number < len(NAMES) else f"Agent{number}" for number in range(agents)]
    crew = [_agent(tx, project.id, name, now) for name in names]
    step = 7 * HOUR // each
    for agent in crew[: max(3, agents * 6 // 10)]:
        at = now - 8 * HOUR + chance.randrange(HOUR // 2)
        for number in range(each):
            sender = mira if number == 0 else chance.choice(crew)
            message = _send(tx, sender, [agent], at, number)
            _run(tx, agent, message, at, step, number, chance)
            at += step
    _unfinished(tx, crew, now)
    return project.id


def _run(
    tx: MailWrites, agent: Agent, message: Message, at: int, step: int, number: int, chance: random.Random
) -> None:
    run_id, began = f"run-{agent.id}-{number}", at + chance.randrange(step // 8)
    ended = began + chance.randrange(step // 8, step // 2)
    tx.put_message_run(
        MessageRun(message_id=message.id, agent_id=agent.id, run_id=run_id, delivered_at=began)
    )
    tx.begin_run(run_id, agent.id, began)
    roll = chance.random()
    if roll < 0.1:
        tx.end_run(run_id, now=ended, outcome="failed", error="HTTP 529 overloaded, tried again after 250 ms")
        began, ended = ended + step // 10, ended + step // 5
        tx.begin_run(run_id, agent.id, began)
    elif roll < 0.2:
        tx.end_run(run_id, now=ended, outcome="waiting", asked_at={"q": ended})
        began, ended = ended + step // 8, ended + step // 4
        tx.begin_run(run_id, agent.id, began)
    tx.end_run(run_id, now=ended, outcome="cancelled" if roll > 0.96 else "failed" if roll > 0.92 else "done")


def _unfinished(tx: MailWrites, crew: list[Agent], now: int) -> None:
    for number, agent in enumerate(crew[:2]):
        tx.begin_run(f"r{number + 1}", agent.id, now - (3 + 9 * number) * MINUTE)
        tx.insert_reservation(
            agent,
            pattern="src/shop/basket/**" if number else "src/shop/basket/total.py",
            prefix="src/shop/basket",
            exclusive=True,
            reason="mending it",
            ttl=30 * MINUTE,
            now=now - (15 + 60 * number) * MINUTE if number else now - 15 * MINUTE,
        )
    tx.begin_run("r3", crew[2].id, now - 40 * MINUTE)
    tx.end_run("r3", now=now - 12 * MINUTE, outcome="waiting", asked_at={"q": now - 12 * MINUTE})
