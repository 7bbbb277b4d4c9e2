"""Single-line faults, spread over the product: how many of them do the tests find?

The lines were drawn at random, as many from each room as its size asks, and changed by fixed rules: a comparison, a word
(`and`, `or`, `not`), a truth value, a small number, or a call that is left out. Faults that change nothing a user sees
were taken out by hand. `make planted` plants one at a time in a copy and runs the tests.
"""

from planted.protocol import Plant, plant

_ROWS = (
    ("app/connection.py", "        super().on_url(url)\n", "        pass\n"),
    (
        "app/clients/readiness.py",
        "        if known_paths and not _program(client, target) and not any(path.exists() for path in known_paths):\n",
        "        if known_paths and _program(client, target) and not any(path.exists() for path in known_paths):\n",
    ),
    ("app/agent_supervisor.py", "            self._tokens.revoke(token)\n", "            pass\n"),
    ("app/clients/json_edit.py", '    _require(array, "array", path)\n', "    pass\n"),
    (
        "app/places.py",
        "    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)\n",
        "    data_dir.mkdir(mode=0o700, parents=True, exist_ok=False)\n",
    ),
    (
        "cli/hook.py",
        '    if endpoint is None and not (kind == "edit" and mode == "block"):\n',
        '    if endpoint is None and not (kind != "edit" and mode == "block"):\n',
    ),
    (
        "cli/demo/command.py",
        '                yield f"{YOU} to {who}: {text}", ""\n',
        "                pass\n",
    ),
    ("cli/start.py", "    if code is None:\n", "    if code is not None:\n"),
    (
        "cli/client.py",
        "    if not token and (not named or host in _LOOPBACK):\n",
        "    if not token and (not named and host in _LOOPBACK):\n",
    ),
    (
        "cli/content.py",
        "    if argument is None and file is None:\n",
        "    if argument is None or file is None:\n",
    ),
    (
        "stores/sqlite/restoring.py",
        "                forget_generation(wish.database)\n",
        "                pass\n",
    ),
    (
        "contracts/runs.py",
        "        return self.waiting is not None and self.waiting.reason is WaitingReason.BACKGROUND_TASKS\n",
        "        return self.waiting is not None and self.waiting.reason is not WaitingReason.BACKGROUND_TASKS\n",
    ),
    (
        "contracts/quoting.py",
        '    if len(text) > most and text[-most - 1] == "\\n":\n',
        '    if len(text) >= most and text[-most - 1] == "\\n":\n',
    ),
    (
        "contracts/addresses.py",
        '        if re.fullmatch(rf"({_WORD})*\\s*", text) is None:\n',
        '        if re.fullmatch(rf"({_WORD})*\\s*", text) is not None:\n',
    ),
    (
        "contracts/events.py",
        "        if not self.scopes or len(families) != len(self.scopes) or not self.event_kind.strip():\n",
        "        if not self.scopes and len(families) != len(self.scopes) or not self.event_kind.strip():\n",
    ),
    (
        "contracts/dispatch.py",
        "            most is not None and self.interruption_count > most\n",
        "            most is not None and self.interruption_count >= most\n",
    ),
    ("contracts/runs.py", "    is_to_come: bool = False\n", "    is_to_come: bool = True\n"),
    (
        "dispatch/completion.py",
        "                if not is_told:\n                    worker.job.stop(LeaseEnd.CANCELLED)\n",
        "                if is_told:\n                    worker.job.stop(LeaseEnd.CANCELLED)\n",
    ),
    (
        "dispatch/submission.py",
        "            if submission.claims is not None:\n",
        "            if submission.claims is None:\n",
    ),
    ("dispatch/worker.py", "            while True:\n", "            while False:\n"),
    (
        "dispatch/config.py",
        "            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):\n",
        "            if not isinstance(value, kinds) or (isinstance(value, bool) or bool not in kinds):\n",
    ),
    (
        "embedded/running.py",
        "        if until is None and limit is not None:\n",
        "        if until is None or limit is not None:\n",
    ),
    (
        "embedded/effects.py",
        "                watch.run = run if run.status is RunStatus.DONE else None\n",
        "                watch.run = run if run.status is not RunStatus.DONE else None\n",
    ),
    (
        "executors/acp/conversation.py",
        "            if self.asked is None and not isinstance(reason, str):\n",
        "            if self.asked is None and isinstance(reason, str):\n",
    ),
    (
        "executors/remote/executor.py",
        "        if execution.result is None and isinstance(answer, Result):\n",
        "        if execution.result is None or isinstance(answer, Result):\n",
    ),
    (
        "executors/processes/output.py",
        "        self.is_lost = not self.gone.is_set()\n",
        "        self.is_lost = self.gone.is_set()\n",
    ),
    (
        "executors/processes/process_runner.py",
        "    return task.done() and not task.cancelled() and task.exception() is not None\n",
        "    return task.done() and not task.cancelled() and task.exception() is None\n",
    ),
    (
        "executors/command/executor.py",
        "    is_command = client.one_word_is_command and len(prompt.split()) == 1\n",
        "    is_command = client.one_word_is_command or len(prompt.split()) == 1\n",
    ),
    (
        "gateway/config.py",
        "    return {name: short_name(name) if shared[short_name(name)] == 1 else name for name in names}\n",
        "    return {name: short_name(name) if shared[short_name(name)] != 1 else name for name in names}\n",
    ),
    ("gateway/platforms/webhook.py", "    if proof is Proof.WRONG:\n", "    if proof is not Proof.WRONG:\n"),
    (
        "gateway/streaming.py",
        "    return capabilities.streams or capabilities.edits\n",
        "    return capabilities.streams and capabilities.edits\n",
    ),
    (
        "gateway/delivery.py",
        "            outgoing.address = replace(address, answers=address.read)\n",
        "            pass\n",
    ),
    (
        "gateway/platforms/telegram.py",
        '        return inner if set_already or not inner.strip() else f"{mark}{inner}{mark}"\n',
        '        return inner if set_already or inner.strip() else f"{mark}{inner}{mark}"\n',
    ),
    ("gateway/run.py", "            self.decided.clear()\n", "            pass\n"),
    (
        "gateway/platforms/discord.py",
        "        return self.type in SPOKEN and self.author.id != me.user_id\n",
        "        return self.type in SPOKEN or self.author.id != me.user_id\n",
    ),
    (
        "gateway/sessions.py",
        "        chosen = None if session is None else session.settings.get(_CHOSEN)\n",
        "        chosen = None if session is not None else session.settings.get(_CHOSEN)\n",
    ),
    (
        "gateway/splitting.py",
        "        start = 0 if self._is_last(0) else self._after_white(0)\n",
        "        start = 0 if self._is_last(0) else self._after_white(1)\n",
    ),
    (
        "gateway/gateway.py",
        '        return "" if self._leases is None or adapter is None else adapter.lease or ""\n',
        '        return "" if self._leases is None or adapter is not None else adapter.lease or ""\n',
    ),
    (
        "http_api/guard.py",
        "        public = public or below.startswith(self._public)\n",
        "        public = public or not below.startswith(self._public)\n",
    ),
    (
        "mail/archive/archive.py",
        "        repository.write({layout.PROJECT_FILE: data}, removed=removed, subject=subject, now=self._clock.now())\n",
        "        pass\n",
    ),
    (
        "mail/query.py",
        "            return replace(query, field=query.field or field)\n",
        "            return replace(query, field=query.field and field)\n",
    ),
    (
        "mail/commands.py",
        "    if text is None and value is not None:\n",
        "    if text is None and value is None:\n",
    ),
    ("contracts/operations.py", "        return True\n", "        return False\n"),
    (
        "mail/waking/mail_runs.py",
        "            if (asker := _asker(context, agent, messages[number], is_answer=is_answer)) is not None:\n",
        "            if (asker := _asker(context, agent, messages[number], is_answer=is_answer)) is None:\n",
    ),
    ("mail/git_identity.py", "    if git is None or is_plain:\n", "    if git is not None or is_plain:\n"),
    (
        "mcp_server/short_way.py",
        '        and tool.decode("latin-1") == params.get("name")\n',
        '        and tool.decode("latin-1") != params.get("name")\n',
    ),
    (
        "runtime/openai_endpoint.py",
        "        verify: ssl.SSLContext | bool = True,\n",
        "        verify: ssl.SSLContext | bool = False,\n",
    ),
    ("runtime/agents.py", "    parallel_tools: bool = True\n", "    parallel_tools: bool = False\n"),
    ("schedules/firing.py", "            if not known.is_paused:\n", "            if known.is_paused:\n"),
    (
        "services/hooks.py",
        "    if actor is None and not judged and not files.notes:\n",
        "    if actor is None or not judged and not files.notes:\n",
    ),
    (
        "services/schedules.py",
        "        return any(recipient.read_at is None for",
        "        return any(recipient.read_at is not None for",
    ),
    (
        "stores/outline.py",
        "        {log[0]: log[2] for log in logs},\n",
        "        {log[0]: log[1] for log in logs},\n",
    ),
    ("stores/sqlite/engine.py", "        self._let_go()\n", "        pass\n"),
    (
        "stores/runs/messages.py",
        "        if sorted(order) != sorted(by_id):\n",
        "        if sorted(order) == sorted(by_id):\n",
    ),
    (
        "stores/runs/dispatches.py",
        "        number = self.starts(scope, most)[0] + 1\n",
        "        number = self.starts(scope, most)[0] + 2\n",
    ),
    ("stores/postgres/connection.py", "        while True:\n", "        while False:\n"),
    (
        "stores/store.py",
        "        if not self.wanted or size < self.wanted:\n",
        "        if not self.wanted and size < self.wanted:\n",
    ),
    ("stores/postgres/writer.py", "        self._closing.set()\n", "        pass\n"),
    (
        "web/run.py",
        "    if named != work.run_id:  # the address contains a part of the id, or the id of the dispatch\n",
        "    if named == work.run_id:  # the address contains a part of the id, or the id of the dispatch\n",
    ),
    (
        "web/reservations.py",
        '        if any(mark in segment for mark in "*?["):\n',
        '        if any(mark not in segment for mark in "*?["):\n',
    ),
)
"""In each file, a text and the text that takes its place."""
LINES: tuple[Plant, ...] = tuple(
    plant(f"{file}: {' '.join(fault.split())}", file, text, fault) for file, text, fault in _ROWS
)
