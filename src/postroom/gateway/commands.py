"""Chat commands. The gateway performs them itself, without waiting for active runs.

A command normally waits until the earlier messages of its chat have been processed. `/stop` does not wait.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.contracts.activation import BusyPolicy
from postroom.contracts.chat import ChatSession
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import Clock
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import (
    DuplicateRecord,
    IllegalTransition,
    InvalidSchedule,
    PostroomError,
    StoreError,
    UnknownAgent,
    UnknownDispatch,
    UnknownProject,
)
from postroom.contracts.files import safe_name
from postroom.contracts.messages import COMPACT, Json, Message, Role, Visibility
from postroom.contracts.quoting import sentence
from postroom.contracts.records import replace
from postroom.contracts.run_stores import MAX_PAGE, MessageQuery
from postroom.contracts.runs import RunRecord, Usage
from postroom.contracts.work import FailedRuns
from postroom.dispatch.mailbox import Mailbox
from postroom.gateway import wording
from postroom.gateway.config import (
    DEFAULT_AGENT,
    MAX_SPOKEN_LENGTH,
    GatewayConfig,
    chat_names,
    is_person,
    reachable,
    short_name,
)
from postroom.gateway.events import Button, Card, MessageEvent, is_button_value
from postroom.gateway.handover import Handover
from postroom.gateway.notices import Notices
from postroom.gateway.people import People
from postroom.gateway.questions import Questions
from postroom.gateway.reminders import CHAT, Reminders, in_words, next_time, read_every, read_once
from postroom.gateway.replies import closed_card, thread_name
from postroom.gateway.session import ANSWER_ONLY, SessionSource
from postroom.gateway.sessions import MAX_HIDDEN, Sessions
from postroom.ports import ChatDelivery
from postroom.stores.runs.ports import ThreadStore

if TYPE_CHECKING:
    from postroom.gateway.chat_settings import ChatSettings
    from postroom.gateway.links import Links

_MAX_LISTED = 10
_MAX_SEARCHED = 2_000
"""The maximum number of messages that one `/search` reads."""
_ID_DIGITS = 15
_CAUGHT_UP = "catch_up"
"""The session setting that stores the cursor of the last summary of each project."""
Answer = str | Card | None
"""The reply to a command: a text, a text with buttons, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """A command that a person sent in a chat, with its arguments."""

    event: MessageEvent
    source: SessionSource
    key: str
    words: str


class Commands:
    """The commands that people can send in a chat."""

    def __init__(  # noqa: PLR0913 - its collaborators by name
        self,
        config: GatewayConfig,
        sessions: Sessions,
        handover: Handover,
        people: People,
        notices: Notices,
        run_queue: Mailbox,
        threads: ThreadStore,
        clock: Clock,
        links: "Links",
        settings: "ChatSettings",
        mail: ChatDelivery | None = None,
        reminders: Reminders | None = None,
        failed: Callable[[], Awaitable[Sequence[FailedRuns]]] | None = None,
    ) -> None:
        self._failed = failed
        self._links, self._settings = links, settings
        self._mail, self._reminders = mail, reminders
        self._config, self._people, self._notices = config, people, notices
        self._sessions, self._handover = sessions, handover
        self._questions = Questions(run_queue, threads, clock)
        self._run_queue, self._threads = run_queue, threads

    def may_use(self, command: "Command", source: SessionSource) -> bool:
        """Return whether the sender may use a command."""
        return self._people.may(source, self._config.command_roles.get(command.name, command.role))

    async def obey(self, command: "Command", event: MessageEvent, source: SessionSource, key: str) -> Answer:
        """Execute a command and return the reply to the sender.

        Raises:
            StoreError: The command could not be performed.
        """
        call = CommandCall(event=event, source=source, key=key, words=event.get_command_args())
        if is_person(source.agent) and command.is_for_agents:
            return wording.A_PERSON_ANSWERS
        return await command.run(self, call)

    # Commands that only show something.

    async def _start(self, call: CommandCall) -> str:
        return wording.GREETING

    async def _help(self, call: CommandCall) -> str:
        return help_text(lambda command: self.may_use(command, call.source), call.words)

    async def _status(self, call: CommandCall) -> str:
        session, active = await self._with_active(call)
        waiting = await self._handover.count_waiting(session.thread_id)
        lines = [
            f"Conversation: {session.title or 'untitled'}",
            f"Active: {'yes' if active is not None else 'no'}",
            f"Waiting: {waiting}",
            f"While busy: {self._handover.busy_mode(session, call.source).value}",
        ]
        if active is not None and active.status is RunDispatchStatus.QUEUED:
            lines[1] = "Active: no, the run is queued"
        here = await self._sessions_here(call)
        questions = [
            question for session in here for question in await self._questions.open(session.thread_id)
        ]
        if active is None:
            others = [
                await self._handover.active(chat_session.thread_id)
                for chat_session in here
                if chat_session.thread_id != session.thread_id
            ]
            if any(other is not None for other in others):
                lines[1] = "Active: yes, but the run belongs to another agent of this chat"
            elif questions:
                lines[1] = "Active: no, the run waits for the answer to a question"
        lines += [f"Question ({question.number}): {question.text}" for question in questions]
        return "\n".join(lines)

    async def _usage(self, call: CommandCall) -> str:
        session, _ = await self._sessions.of(call.key, call.source)
        runs = await self._threads.latest_runs(session.thread_id)
        used = sum((run.usage for run in runs), Usage())
        if not runs:
            return "This conversation has no runs yet."
        last = max(runs, key=lambda run: run.created_at).usage
        which = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
        if len(runs) == MAX_PAGE:
            which = f"The newest {MAX_PAGE} runs"
        return (
            f"{which}: {wording.used_up(used.input_tokens, used.output_tokens, used.cost_micros)}, "
            f"{used.wall_ms / 1000:.1f} s\nThe last run: "
            f"{wording.used_up(last.input_tokens, last.output_tokens, last.cost_micros)}, "
            f"{last.wall_ms / 1000:.1f} s"
        )

    # The active run, and waiting messages.

    async def _stop(self, call: CommandCall) -> str | None:
        """Cancel the active or waiting run of the session."""
        dropped: list[Message] = []
        stopping, ended, waiting = False, False, 0
        for session in await self._sessions_here(call):
            if call.words.lower() == "all":
                dropped += await self._handover.dropped(session.thread_id)
            is_at_work = await self._handover.active(session.thread_id) is not None
            if await self._handover.cancel(session.thread_id):
                stopping, ended = stopping or is_at_work, ended or not is_at_work
            waiting += len(await self._run_queue.pending(session.thread_id))
        lines = [wording.STOPPING] if stopping else [] if ended else [wording.NOTHING_TO_STOP]
        if not lines and call.source.platform in ANSWER_ONLY:
            # the end of the run answers another request, so this request needs its own answer
            lines = [wording.STOPPED]
        lines += _format_list("Dropped", [message.text() for message in dropped])
        if waiting:
            lines.append(f"{waiting} waiting, to be answered next; /stop all removes them.")
        return "\n".join(lines) or None

    async def _queue(self, call: CommandCall) -> str | None:
        return await self._handed_over(call, BusyPolicy.QUEUE)

    async def _steer(self, call: CommandCall) -> str | None:
        return await self._handed_over(call, BusyPolicy.STEER)

    async def _handed_over(self, call: CommandCall, mode: BusyPolicy) -> str | None:
        if not call.words and not call.event.media:
            return f"Write a text after the command: /{mode.value} <text>"
        session, _ = await self._sessions.of(call.key, call.source)
        call.event.text = call.words
        admission = await self._handover.hand_over(call.event, session, mode=mode)
        return admission.text

    async def _set(self, call: CommandCall) -> str:
        return await self._settings.set(call.key, call.source, call.words)

    async def _set_by_command(self, call: CommandCall) -> str:
        """Execute `/busy` or `/voice`, the short forms of `/set busy` and `/set voice`."""
        name = call.event.get_command()
        return await self._settings.set(call.key, call.source, f"{name} {call.words}")

    async def _link(self, call: CommandCall) -> str:
        return await self._links.link(call.source, call.words.strip())

    async def _unlink(self, call: CommandCall) -> str:
        return await self._links.unlink(call.source)

    async def _background(self, call: CommandCall) -> str | None:
        if not call.words and not call.event.media:
            return "Write a text after the command: /background <text>"
        source = call.source
        unique = f"beside-{call.event.inbound_id}"
        beside = thread_name(source.platform.value, source.account, unique, source.agent)
        session = ChatSession(session_key=call.key, thread_id=beside, source=source.to_dict())
        call.event.text = call.words
        await self._handover.hand_over(call.event, session, mode=BusyPolicy.QUEUE)
        return "Started in the background. The answer will appear here."

    # Threads. Chats call them conversations.

    async def _new(self, call: CommandCall) -> str:
        session, _ = await self._sessions.of(call.key, call.source)
        dropped = await self._handover.dropped(session.thread_id)
        stopped = await self._handover.cancel(session.thread_id)
        await self._sessions.begin_anew(call.key, call.source)
        lines = ["Started a new conversation."]
        if stopped:
            lines.append("The active run was stopped.")
        lines += _format_list("Dropped", [message.text() for message in dropped])
        return "\n".join(lines)

    async def _compact(self, call: CommandCall) -> str | None:
        session, _ = await self._sessions.of(call.key, call.source)
        call.event.text = f"/{COMPACT}"
        call.event.metadata["command"] = COMPACT
        admission = await self._handover.hand_over(call.event, session, mode=BusyPolicy.QUEUE)
        return admission.text

    async def _title(self, call: CommandCall) -> str:
        session, _ = await self._sessions.of(call.key, call.source)
        if not call.words:
            return f"Title: {session.title or 'none; set it with /title <name>'}"
        title = " ".join(call.words.split())[:100]
        try:
            await self._sessions.changed(call.key, lambda one: replace(one, title=title))
        except DuplicateRecord:
            return f"Another conversation in this chat already has the title {title!r}."
        return f"Title: {title}"

    async def _resume(self, call: CommandCall) -> str:
        session, _ = await self._sessions.of(call.key, call.source)
        known_threads = [
            thread
            for thread in await self._sessions.threads(call.key)
            if thread.thread_id != session.thread_id
        ]
        if not known_threads:
            return "There are no earlier conversations in this chat."
        if not call.words:
            titles = [
                f"{place}. {thread.title or 'untitled'}"
                for place, thread in enumerate(known_threads, start=1)
            ]
            return "\n".join([*titles[:_MAX_LISTED], "Resume one with /resume <title or number>."])
        wanted = call.words.strip()
        chosen = next((thread for thread in known_threads if thread.title == wanted), None)
        if chosen is None and re.fullmatch("[0-9]{1,6}", wanted) and 0 < int(wanted) <= len(known_threads):
            chosen = known_threads[int(wanted) - 1]
        if chosen is None:
            return f"No conversation in this chat has the title {wanted!r}; /resume lists the conversations."
        await self._sessions.bind(call.key, chosen.thread_id, title=chosen.title)
        return f"Resumed: {chosen.title or 'untitled'}"

    async def _search(self, call: CommandCall) -> str:
        from_here = re.match(r"@(\d{1,6}):(\d{1,15})\s+", call.words, re.ASCII)
        requested_words = call.words[from_here.end() :] if from_here else call.words
        if not (words := requested_words.casefold().split()):
            return "Write the words to search for: /search <words>"
        first, before = (int(from_here[1]), int(from_here[2])) if from_here else (0, None)
        texts, looked_at = list[str](), 0
        conversations = (await self._sessions.threads(call.key))[first:]
        for place, thread in enumerate(conversations, start=first):
            while page := await self._threads.list_message_records(
                thread.thread_id, MessageQuery(before=before, newest_first=True)
            ):
                looked_at, before = looked_at + len(page), page[-1].seq
                lines = (
                    _search_line(record.message)
                    for record in page
                    if record.message.visibility is Visibility.ALL
                    and record.message.role in (Role.USER, Role.ASSISTANT)
                )
                texts += [
                    f"{thread.title or 'untitled'}: {_around(text, words[0])}"
                    for text in lines
                    if all(word in text.casefold() for word in words)
                ]
                if len(texts) >= _MAX_LISTED:
                    return "\n".join(texts[:_MAX_LISTED])
                if looked_at >= _MAX_SEARCHED:
                    rest = (
                        f"Searched {looked_at} messages. To search older messages: /search "
                        f"@{place}:{before} {requested_words}"
                    )
                    return "\n".join([*texts, rest])
            before = None
        return "\n".join(texts) or "No matches."

    async def _undo(self, call: CommandCall) -> str:
        number = int(call.words or 1)
        session, active = await self._with_active(call)
        if active is not None:
            return wording.AT_WORK
        shown = await self._shown_runs(session)
        gone = shown[-number:]
        if not gone:
            return "There is no exchange that could be removed."
        if not await self._hide(session, gone):
            return wording.too_much_forgotten(MAX_HIDDEN)
        return f"Removed the last {len(gone)} exchanges." if len(gone) > 1 else "Removed the last exchange."

    async def _retry(self, call: CommandCall) -> str | None:
        session, active = await self._with_active(call)
        if active is not None:
            return wording.AT_WORK
        shown = await self._shown_runs(session)
        if not shown:
            return "There is no earlier message that could be answered again."
        last = shown[-1]
        ids = last.input.trigger_message_ids if last.input else ()
        messages = [
            record.message for record in await self._threads.load_message_records(last.thread_id, ids)
        ]
        if not await self._hide(session, [last]):
            return wording.too_much_forgotten(MAX_HIDDEN)
        if last.dispatch_id is not None:  # the retry replaces the dead letter of a failed run
            with suppress(UnknownDispatch, IllegalTransition):
                await self._run_queue.discard_dead_letter(last.dispatch_id)
        call.event.text = "\n".join(message.text() for message in messages)
        await self._handover.hand_over(call.event, session, mode=BusyPolicy.QUEUE)
        return None

    async def _sethome(self, call: CommandCall) -> str:
        key = f"home:{call.source.platform.value}:{call.source.account}"
        await self._sessions.of(key, call.source)
        await self._sessions.changed(key, lambda one: replace(one, source=call.source.to_dict()))
        return "This chat is now the home channel."

    # The questions of agents.

    async def _approve(self, call: CommandCall) -> str:
        return await self._decide(call, approved=True)

    async def _deny(self, call: CommandCall) -> str:
        return await self._decide(call, approved=False)

    async def _answer(self, call: CommandCall) -> str:
        return await self._decide(call, approved=None)

    async def _inbox(self, call: CommandCall) -> str:
        if not self._sees_all(call.source):
            return (
                "/inbox shows the questions and failed runs of all projects, so only owners can use it, and "
                "only in a direct message."
            )
        listed = await self._questions.inbox(call.words)
        failed = () if call.words.strip() or self._failed is None else await self._failed()
        return listed if not failed else f"{listed}\n\n{wording.failures(failed)}"

    def _sees_all(self, source: SessionSource) -> bool:
        """Return whether the sender may see the questions of all projects in this chat."""
        return source.chat_type == "dm" and self._people.may(source, PersonRole.OWNER)

    async def read_as_answer(self, event: MessageEvent, source: SessionSource, key: str) -> None:
        """Turn a person's reply to a question's card into an `/answer` command, if the person may answer.

        Raises:
            StoreError: The question could not be read.
        """
        call = CommandCall(event=event, source=source, key=key, words="")
        if is_person(source.agent) or not self.may_use(BY_NAME["answer"], source) or not event.text.strip():
            return
        new_cards = {**self._sessions.new_cards}  # copied before the stored cards are read
        for session in await self._sessions_here(call):
            stored_cards = session.settings.get("cards", {})
            cards = new_cards | {number: card["id"] for number, card in stored_cards.items()}
            for number, card_id in cards.items():
                if card_id != event.reply_to_message_id:
                    continue
                if any(
                    question.number == number for question in await self._questions.open(session.thread_id)
                ):
                    event.text = f"/answer {number} {event.text}"
                    return

    async def _decide(self, call: CommandCall, *, approved: bool | None) -> str:
        threads = [session.thread_id for session in await self._sessions_here(call)]
        decided = await self._questions.decide(
            threads, call.source, call.words, approved=approved, everywhere=self._sees_all(call.source)
        )
        if decided.question is not None:
            text = closed_card(decided.question, decided.answer)
            await self._notices.show_answered(decided.thread_id, decided.question.number, text)
        return decided.note

    async def _reply(self, call: CommandCall) -> str:
        number, _, text = call.words.partition(" ")
        message = int(number) if number.isascii() and number.isdigit() and len(number) <= _ID_DIGITS else 0
        if not message or not text.strip():
            return "Write a number and a text after the command: /reply <number> <text>"
        if self._mail is None:
            return "This chat receives no messages from agents, so there is nothing to reply to."
        source = call.source
        address = source.address
        line = (
            text.strip()
            if source.chat_type == "dm"
            else f"{source.user_name or source.user_id}: {text.strip()}"
        )
        key = f"chat/{address.name}/{call.event.inbound_id or call.event.message_id}"
        try:
            whom = await self._mail.reply(await self._links.chats(source), message, line, key=key)
        except StoreError:
            raise
        except PostroomError as error:
            return f"Not sent: {error.message}."
        return f"Sent to {whom}."

    async def _here(self, call: CommandCall) -> str:
        if self._mail is None or call.source.chat_type != "dm":
            return wording.NOBODY_REACHED
        try:
            person = await self._mail.prefer(await self._links.chats(call.source))
        except UnknownAgent:
            return wording.NOBODY_REACHED
        return wording.reached_here(person)

    async def _catchup(self, call: CommandCall) -> str:
        """Summarise the events in a project since the last summary in this chat."""
        if self._mail is None:
            return "This chat receives no messages from agents."
        session, _ = await self._sessions.of(call.key, call.source)
        kept_setting = session.settings.get(_CAUGHT_UP)
        by_slug = (
            {slug: at for slug, at in kept_setting.items() if isinstance(at, int)}
            if isinstance(kept_setting, dict)
            else {}
        )
        project = call.words.strip() or (call.source.agent or "").partition("@")[2]
        try:
            slug, text, newest = await self._mail.catch_up(project, by_slug)
        except UnknownProject as error:
            return f"{sentence(error.message)}. Write /catchup <project>."
        caught: dict[str, Json] = {**by_slug, slug: newest}
        await self._sessions.changed(
            call.key, lambda one: replace(one, settings={**one.settings, _CAUGHT_UP: caught})
        )
        return f"{slug}\n{text}"

    # Scheduled messages.

    async def _remind(self, call: CommandCall) -> str:
        return await self._later(call, once=True)

    async def _every(self, call: CommandCall) -> str:
        words = call.words.split()
        if words and words[0].casefold() != "stop":
            return await self._later(call, once=False)
        kept_schedules = [] if self._reminders is None else await self._reminders.listed(call.key)
        if not words:
            thread = await asyncio.to_thread(
                lambda: [in_words(schedule, shows_next=True) for schedule in kept_schedules]
            )
            lines = [f"{number}. {value}" for number, value in enumerate(thread, start=1)]
            return "\n".join(lines) or "No schedules or reminders."
        number = int(words[1]) if len(words) == 2 and words[1].isascii() and words[1].isdecimal() else 0
        if self._reminders is None or not 0 < number <= len(kept_schedules):
            return "There is no schedule with this number; /every lists the schedules."
        await self._reminders.kept.remove(CHAT, kept_schedules[number - 1].name)
        return f"Removed: {in_words(kept_schedules[number - 1])}"

    async def _later(self, call: CommandCall, *, once: bool) -> str:
        if self._reminders is None:
            return wording.WHEN_AND_WHAT
        if call.source.platform in ANSWER_ONLY:
            return wording.ANSWERS_ONLY
        key = str(call.event.inbound_id or call.event.message_id)
        quiet = None if once else await self._sessions.quiet_hours(call.source.address)
        zone = quiet.zone.key if quiet is not None and quiet.zone is not None else "UTC"
        try:
            when, text = await asyncio.to_thread(
                lambda: read_once(call.words) if once else read_every(call.words, zone)
            )
            kept_schedule = await self._reminders.add(call.key, call.source, when, text, once=once, key=key)
        except InvalidSchedule as error:
            return f"Not saved: {error.message}; {error.remedy}." if error.remedy else error.message
        coming = "" if once else f"; next {await asyncio.to_thread(next_time, kept_schedule)}"
        return f"Saved: {when.words}{coming}."

    # The agent and the model that answer.

    async def _agent(self, call: CommandCall) -> str:
        open_to = reachable(self._config.routes, call.source)
        named = chat_names(agent or DEFAULT_AGENT for agent in open_to)
        wanted = call.words.strip().casefold()
        if not wanted:
            answers = call.source.agent or DEFAULT_AGENT
            others = [shown for agent, shown in named.items() if agent != answers]
            more = f" Choose another agent with /agent: {', '.join(others)}." if others else ""
            return f"{named.get(answers, short_name(answers))} answers in this chat.{more}"
        if wanted == DEFAULT_AGENT:
            await self._sessions.choose_agent(call.source, None)
            return "The routing rules choose the agent of this chat again."
        texts = [agent for agent in named if wanted in (agent.casefold(), short_name(agent).casefold())]
        if len(texts) != 1:
            which = "Several agents are" if texts else "No agent is"
            return f"{which} named {call.words!r} here. Choose one of these: {', '.join(named.values())}."
        agent = None if texts[0] == DEFAULT_AGENT else texts[0]
        await self._sessions.choose_agent(call.source, agent)
        return f"{named[texts[0]]} now answers in this chat. /agent {DEFAULT_AGENT} undoes this."

    async def _model(self, call: CommandCall) -> Answer:
        """Show or change the model that answers in the chat."""
        names = self._config.models.get(call.source.agent, ())
        wanted = call.words.strip()
        if wanted and wanted.casefold() != DEFAULT_AGENT:
            texts = [name for name in names if wanted.casefold() == name.casefold()]
            if not texts:
                offered = f"Offered models: {', '.join(names)}." if names else wording.NO_MODELS
                return f"The model {wanted[:100]!r} is not offered here. {offered}"
            wanted = texts[0]
        if wanted:
            return await self._settings.set(call.key, call.source, f"model {wanted}")
        shown = await self._settings.set(call.key, call.source, "model")
        if not names:
            return f"{shown}\n{wording.NO_MODELS}"
        if not self._settings.may_choose("model", call.source):
            return f"{shown}\n{wording.OPERATORS_CHOOSE}"
        values = [(name, f"model {name}") for name in (*names, DEFAULT_AGENT)]
        buttons = [Button(label=name, value=value) for name, value in values if is_button_value(value)]
        typed = [f"/{value}" for _, value in values if not is_button_value(value)]
        return Card(text="\n".join([shown, *typed]), buttons=tuple(buttons))

    # Parts of the commands.

    async def _sessions_here(self, call: CommandCall) -> list[ChatSession]:
        """Return the person's sessions in the chat, with the session of the command first."""
        session, _ = await self._sessions.of(call.key, call.source)
        others = (replace(call.source, agent=agent) for agent in reachable(self._config.routes, call.source))
        keys = [self._config.session_key(source) for source in others]
        sessions = [await self._sessions.load(key) for key in keys if key != call.key]
        return [session, *(session for session in sessions if session is not None)]

    async def _with_active(self, call: CommandCall) -> tuple[ChatSession, RunDispatch | None]:
        session, _ = await self._sessions.of(call.key, call.source)
        return session, await self._handover.active(session.thread_id)

    async def _shown_runs(self, session: ChatSession) -> list[RunRecord]:
        """Return the recent runs of a conversation that can be undone, oldest first."""
        hidden = await self._sessions.hidden(session.thread_id)
        newest = await self._threads.latest_runs(session.thread_id)
        runs = [run for run in newest if run.run_id not in hidden]
        runs.sort(key=lambda run: (run.created_at, run.run_id))
        ids = [id for run in runs if run.input for id in run.input.trigger_message_ids]
        records = await self._threads.load_message_records(session.thread_id, ids)
        wishes = {record.message_id for record in records if record.message.asks_to_compact}
        return [run for run in runs if run.input is None or wishes.isdisjoint(run.input.trigger_message_ids)]

    async def _hide(self, session: ChatSession, runs: Sequence[RunRecord]) -> bool:
        by_run_id = {run.run_id: run.input.trigger_message_ids if run.input else () for run in runs}
        return await self._sessions.hide(session, by_run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The definition of a chat command."""

    name: str
    run: Callable[[Commands, CommandCall], Awaitable[Answer]]
    help: str
    usage: str = ""
    aliases: tuple[str, ...] = ()
    role: PersonRole = PersonRole.MEMBER
    form: str = ""
    """The pattern for the words after the command's name. Upper and lower case are equal.

    If `form` is empty and `usage` is not, the command checks its arguments itself.
    """
    takes: str = "no words after it"
    """A description of the accepted words. The notice that refuses other words contains it."""
    is_for_agents: bool = False
    """Whether the command is refused in a chat in which a person answers in place of an agent."""
    gives_words: bool = False
    """Whether an agent reads the words after the command's name.

    The words of such a command can be edited until an agent has read them.
    """
    answers_question: bool = False
    """Whether the command answers a question of a run. The card of the question then shows the answer."""
    has_turn: bool = True
    """Whether the command is performed after the earlier messages of its chat, and not at once."""
    decides_session: bool = False
    """Whether the command changes the session of the messages after it.

    Messages after such a command wait until the command has been performed.
    """

    def refusal(self, name: str, words: str) -> str | None:
        """Return the error message for invalid arguments of a command, or None for valid arguments."""
        is_free = not words or (self.usage and not self.form)
        if is_free or re.fullmatch(self.form, words, re.ASCII | re.IGNORECASE | re.DOTALL):
            return None
        return wording.not_read_by(name, self.takes, words)


COMMANDS = (
    # A link that opens a chat with a Telegram bot can add a word to /start.
    Command(
        name="start",
        run=Commands._start,
        help="show a greeting and how to begin",
        role=PersonRole.VIEWER,
        form=".*",
    ),
    Command(
        name="help",
        run=Commands._help,
        usage="[command]",
        help="list the commands, or explain one command",
        role=PersonRole.VIEWER,
    ),
    Command(
        name="status",
        run=Commands._status,
        help="show the active run and waiting messages",
        role=PersonRole.VIEWER,
    ),
    Command(
        name="stop",
        run=Commands._stop,
        has_turn=False,
        usage="[all]",
        help="stop the active run; with `all`, drop waiting messages too",
        form="all",
        takes="`all` or nothing",
    ),
    Command(
        name="agent",
        run=Commands._agent,
        decides_session=True,
        usage="[name]",
        help="show the agent that answers in this chat, or choose another",
    ),
    Command(
        name="model",
        run=Commands._model,
        is_for_agents=True,
        usage="[name|default]",
        help="show the model that answers in this chat, or choose another",
    ),
    Command(
        name="queue",
        run=Commands._queue,
        is_for_agents=True,
        gives_words=True,
        usage="<text>",
        aliases=("q",),
        help="run this text separately, after the active run",
    ),
    Command(
        name="steer",
        run=Commands._steer,
        is_for_agents=True,
        gives_words=True,
        usage="<text>",
        help="give this text to the agent at its next step",
    ),
    Command(
        name="busy",
        run=Commands._set_by_command,
        is_for_agents=True,
        usage="[queue|collect|steer|interrupt|reject|default]",
        help="choose what happens to messages while the agent is busy",
    ),
    Command(
        name="set",
        run=Commands._set,
        usage="[busy|reset|quiet|voice|model|instructions] [value|default]",
        help="show or change the settings of this chat: busy mode, new conversations, quiet hours, model",
    ),
    Command(
        name="voice",
        run=Commands._set_by_command,
        is_for_agents=True,
        usage="[on|off|default]",
        help=f"send answers of up to {MAX_SPOKEN_LENGTH:,} characters also as speech (on), or only as "
        "text (off)",
    ),
    Command(
        name="new",
        run=Commands._new,
        aliases=("reset",),
        help="start a new conversation; waiting messages are dropped and listed",
    ),
    Command(name="retry", run=Commands._retry, is_for_agents=True, help="answer the last message again"),
    Command(
        name="undo",
        run=Commands._undo,
        is_for_agents=True,
        usage="[n]",
        help="remove the last exchanges from the conversation",
        form="0*[1-9][0-9]{0,5}",
        takes="the number of exchanges to remove, or nothing for one",
    ),
    Command(
        name="compact",
        run=Commands._compact,
        is_for_agents=True,
        help="summarize earlier messages, so that the agent reads less",
    ),
    Command(name="title", run=Commands._title, usage="[name]", help="show or set the conversation's title"),
    Command(
        name="resume",
        run=Commands._resume,
        usage="[title or number]",
        help="list earlier conversations, or resume one",
    ),
    Command(
        name="search",
        run=Commands._search,
        usage="<words>",
        help="search this conversation and earlier ones, 2,000 messages at a time",
    ),
    Command(name="usage", run=Commands._usage, help="show the tokens, cost and time of this conversation"),
    Command(
        name="approve",
        run=Commands._approve,
        answers_question=True,
        usage="<number> [why]",
        help="answer a question with yes",
        role=PersonRole.OPERATOR,
    ),
    Command(
        name="deny",
        run=Commands._deny,
        answers_question=True,
        usage="<number> [why]",
        help="answer a question with no",
        role=PersonRole.OPERATOR,
    ),
    Command(
        name="answer",
        run=Commands._answer,
        answers_question=True,
        usage="<number> <answer>",
        help="answer a question with a choice, its number, a text, or field = value",
        role=PersonRole.OPERATOR,
    ),
    Command(
        name="inbox",
        run=Commands._inbox,
        usage="[number | after number]",
        help="list the open questions and failed runs of all agents, or show one question in full",
        role=PersonRole.OPERATOR,
    ),
    Command(
        name="remind",
        run=Commands._remind,
        usage="<span> <text>",
        help="send a reminder to this chat after a time, for example 10m",
    ),
    Command(
        name="every",
        run=Commands._every,
        is_for_agents=True,
        usage="[span text | days at time [zone] text | stop number]",
        help=(
            "schedule a task for the agent, every 1d or on mon,wed at 18:30; without arguments, list the "
            "schedules"
        ),
    ),
    Command(
        name="link",
        run=Commands._link,
        decides_session=True,
        usage="[code | apart | together]",
        help="let your direct chats on several channels share one conversation",
        form="[A-Z2-9]{8}|apart|together",
        takes="a code of 8 characters, `apart`, `together` or nothing",
    ),
    Command(
        name="unlink",
        run=Commands._unlink,
        decides_session=True,
        help="end the link between this chat and your other chats",
    ),
    Command(
        name="catchup",
        run=Commands._catchup,
        usage="[project]",
        help="summarize what happened in a project since the last summary in this chat",
        role=PersonRole.OPERATOR,
    ),
    Command(name="here", run=Commands._here, help="receive the messages that agents send you in this chat"),
    Command(
        name="reply",
        run=Commands._reply,
        usage="<number> <text>",
        help="reply to an agent's message in this chat",
    ),
    Command(
        name="background",
        run=Commands._background,
        is_for_agents=True,
        gives_words=True,
        usage="<text>",
        aliases=("bg",),
        help="run this text in the background",
    ),
    Command(
        name="sethome",
        run=Commands._sethome,
        aliases=("set-home",),
        help="send answers that have no chat of their own to this chat",
        role=PersonRole.OWNER,
    ),
)
"""All commands, in the order of `/help`. Each row names the `Commands` method that performs it."""
BY_NAME: Mapping[str | None, Command] = {
    name: command for command in COMMANDS for name in (command.name, *command.aliases)
}


def may_be_changed_into(before: MessageEvent, after: MessageEvent) -> bool:
    """Return whether a person may edit the message `before` into `after` while no run has read it.

    A message cannot become a command, and a command cannot become another command. The arguments of a command
    can be edited only if an agent reads the arguments.
    """
    name = after.get_command()
    if name is None:
        return True
    command = BY_NAME.get(name)
    return command is not None and command is BY_NAME.get(before.get_command()) and command.gives_words


def help_text(may_use: Callable[[Command], bool], word: str = "") -> str:
    """Return the help text of the command `word`, or of all commands that the sender may use."""
    name = word.strip().removeprefix("/").casefold()
    if name and name not in BY_NAME:
        return wording.unknown_command(name)
    shown = [
        command for command in COMMANDS if may_use(command) and name in ("", command.name, *command.aliases)
    ]
    if not shown:
        return wording.NOT_ALLOWED
    return "\n".join(f"/{command.name} {command.usage}".rstrip() + f": {command.help}" for command in shown)


def _search_line(message: Message) -> str:
    """Return a message's text and its file names as one line."""
    names = [
        f"[{safe_name(block.data['name'], block.data.get('mime') or '', position)}]"
        for position, block in enumerate(message.content)
        if "ref" in block.data and block.data.get("name")
    ]
    return " ".join(" ".join([message.text(), *names]).split())


def _around(text: str, word: str, most: int = 80) -> str:
    """Return an excerpt of a text that contains a word."""
    at = max(text.casefold().find(word) - most // 3, 0)
    part = text[at : at + most]
    return f"{'…' if at else ''}{part}{'…' if at + most < len(text) else ''}"


def _format_list(title: str, texts: list[str], most: int = 60) -> list[str]:
    """Return a heading with the number of texts, and one line for each text."""
    if not texts:
        return []
    lines = (" ".join(text.split()) or "(a file)" for text in texts)
    return [
        f"{title}: {len(texts)}",
        *(f"- {line if len(line) <= most else line[: most - 1] + '…'}" for line in lines),
    ]
