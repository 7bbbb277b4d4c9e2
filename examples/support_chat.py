"""A support chat with its conversations in PostgreSQL. Any number of its processes can share the work.

    python support_chat.py work                   answer customers
    python support_chat.py say CUSTOMER TEXT      write as a customer; a run that is at work reads it
    python support_chat.py follow RUN [CURSOR]    print the events of a run after the cursor
    python support_chat.py decide RUN QUESTION yes|no    permit the refund, or refuse it

DATABASE_URL names the database. OPENAI_BASE_URL and OPENAI_API_KEY name the endpoint of the model.
"""

import asyncio
import contextlib
import os
import sys

from postroom import BusyPolicy, Mailbox
from postroom.runtime import AgentRuntime, FixedResolver, OpenAICompatibleModel, ResolvedAgent, function_tool

RULES = "You help the customers of a lamp shop. Refund lamps that arrived broken."
ORDER = {"order": {"type": "string"}, "cents": {"type": "integer"}}


@function_tool({"type": "object", "properties": ORDER, "required": ["order", "cents"]}, needs_approval=True)
async def refund(order, cents):
    """Give a customer the money back."""
    return {"refunded": cents, "order": order}


def agent():
    model = OpenAICompatibleModel(os.environ["OPENAI_BASE_URL"], os.environ.get("OPENAI_API_KEY"))
    name = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
    return AgentRuntime(FixedResolver(ResolvedAgent.new("support", name, RULES, model, [refund])))


async def follow(handle, cursor=0):
    async for event in handle.events(after=int(cursor)):
        print(event.cursor, f"{event.type} {event.question_id}".strip(), event.text, flush=True)
        if event.type == "question":
            return  # the run waits for a person without a process; follow it later from this cursor


async def main(command, *words):
    work = agent() if command == "work" else None
    async with Mailbox.open(os.environ["DATABASE_URL"], work) as mailbox:
        if command == "work":
            await asyncio.Event().wait()
        elif command == "say":
            handle = await mailbox.enqueue(*words, when_busy=BusyPolicy.STEER)
            print("run", handle.id, flush=True)
            await follow(handle)
        elif command == "follow":
            await follow(await mailbox.handle(words[0]), *words[1:])
        elif command == "decide":
            handle = await mailbox.handle(words[0])
            await handle.answer(question_id=words[1], approved=words[2] == "yes", by="a person")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(*sys.argv[1:] or ["work"]))
