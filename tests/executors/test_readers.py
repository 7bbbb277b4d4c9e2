"""Recipes on output of the documented shape, and on other output: no program of a vendor is run here."""

import json
from pathlib import Path
from typing import Any

import pytest

from postroom.contracts.runners import PromptWay, Recipe, Runner
from postroom.contracts.runs import Usage
from postroom.executors.clients import CLIENTS
from postroom.executors.command.executor import build_command
from postroom.executors.command.reading import Reading, refuses_session

CLAUDE = [
    {"type": "system", "subtype": "init", "session_id": "s-1", "tools": ["Bash"], "model": "m"},
    {
        "type": "assistant",
        "message": {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Looking. "},
                {"type": "tool_use", "id": "t", "name": "Bash", "input": {}},
            ],
        },
        "session_id": "s-1",
    },
    {
        "type": "user",
        "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    },
    {
        "type": "assistant",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        "session_id": "s-1",
    },
    {
        **{"type": "result", "subtype": "success", "is_error": False, "result": "Done.", "session_id": "s-1"},
        **{"total_cost_usd": 0.012345, "num_turns": 2},
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 5,
            "cache_read_input_tokens": 3,
            "output_tokens": 7,
        },
    },
]
CODEX = [
    {"type": "thread.started", "thread_id": "th-1"},
    {"type": "turn.started"},
    {"type": "error", "message": "reconnecting"},
    {"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "hm"}},
    {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "Looking. "}},
    {
        "type": "item.completed",
        "item": {"id": "item_2", "type": "command_execution", "command": "ls", "exit_code": 0},
    },
    {"type": "item.completed", "item": {"id": "item_3", "type": "agent_message", "text": "Done."}},
    {"type": "turn.completed", "usage": {"input_tokens": 18, "cached_input_tokens": 3, "output_tokens": 7}},
]
GEMINI = {
    "session_id": "g-1",
    "response": "Done.",
    "stats": {"models": {"m": {"tokens": {"prompt": 18, "candidates": 7, "total": 25}}}},
}
OPENCODE = [
    {"type": "step_start", "timestamp": 1, "sessionID": "ses_1", "part": {"type": "step-start"}},
    {"type": "text", "timestamp": 2, "sessionID": "ses_1", "part": {"type": "text", "text": "Looking. "}},
    {
        "type": "tool_use",
        "timestamp": 3,
        "sessionID": "ses_1",
        "part": {"tool": "bash", "state": {"status": "completed"}},
    },
    {
        "type": "step_finish",
        "timestamp": 4,
        "sessionID": "ses_1",
        "part": {"reason": "tool-calls", "tokens": {"input": 8, "output": 3}, "cost": 0.01},
    },
    {"type": "step_start", "timestamp": 5, "sessionID": "ses_1", "part": {"type": "step-start"}},
    {"type": "text", "timestamp": 6, "sessionID": "ses_1", "part": {"type": "text", "text": "Do"}},
    {"type": "text", "timestamp": 6, "sessionID": "ses_1", "part": {"type": "text", "text": "ne."}},
    {
        "type": "step_finish",
        "timestamp": 7,
        "sessionID": "ses_1",
        "part": {"reason": "stop", "tokens": {"input": 10, "output": 4}, "cost": 0.002345},
    },
]
CLINE = [
    {"type": "hook_event", "hookEventName": "agent_start", "agentId": "agent_1"},
    {"type": "agent_event", "event": {"type": "content_start", "contentType": "text", "text": "Do"}},
    {"type": "agent_event", "event": {"type": "content_end", "contentType": "text", "text": "Done."}},
    {
        "type": "run_result",
        "finishReason": "completed",
        "aggregateUsage": {"inputTokens": 18, "outputTokens": 7, "totalCost": 0.5},
        "text": "Done.",
    },
]


def lines(*objects: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


OUTPUTS = {
    Recipe.CLAUDE: lines(*CLAUDE),
    Recipe.CODEX: lines(*CODEX),
    Recipe.GEMINI: b"Loaded cached credentials.\n" + json.dumps(GEMINI, indent=2).encode() + b"\n",
    Recipe.OPENCODE: lines(*OPENCODE),
}


def read(recipe: Recipe, output: bytes, *, piece: int = 1 << 16, most: int = 1 << 20) -> tuple[Reading, str]:
    reading = Reading(CLIENTS[recipe], most=most)
    streamed = "".join(reading.take(output[at : at + piece]) for at in range(0, len(output), piece))
    return reading, streamed + reading.end()


def test_the_answer_the_session_and_the_use_are_read(subtests: pytest.Subtests) -> None:
    for recipe in OUTPUTS:
        for piece in [1, 7, 1 << 16]:
            with subtests.test(recipe=recipe, piece=piece):
                reading, streamed = read(recipe, OUTPUTS[recipe], piece=piece)
                assert reading.answer() == "Done."
                assert streamed == ("Done." if recipe is Recipe.GEMINI else "Looking. Done.")
                assert reading.said.session in ("s-1", "th-1", "g-1", "ses_1")
                assert (reading.said.usage.input_tokens, reading.said.usage.output_tokens) == (18, 7)
                assert reading.said.usage.cost_micros == (
                    12_345 if recipe in (Recipe.CLAUDE, Recipe.OPENCODE) else 0
                )
                assert reading.said.error is None


def test_what_is_not_known_is_passed_over(subtests: pytest.Subtests) -> None:
    """Between all lines: other text, other JSON, known types with contents of every wrong kind."""
    for recipe in OUTPUTS:
        with subtests.test(recipe=recipe):
            kinds = [
                *("assistant", "result_of_something", "thread.resumed", "text", "step_finish"),
                *("item.updated", "x"),
            ]
            noise = b"not json\n{broken\n[1, 2]\nnull\n" + lines(
                *(
                    {"type": kind, "message": wrong, "part": wrong, "item": wrong, "usage": wrong}
                    for kind in kinds
                    for wrong in (
                        None,
                        1,
                        "s",
                        [],
                        [1, None],
                        {
                            "content": [1, {"type": "text", "text": 5}],
                            "text": 7,
                            "tokens": [],
                            "cost": "free",
                        },
                    )
                ),
                {"type": None},
                {"type": ["result"]},
                {},
            )
            if recipe is Recipe.GEMINI:
                noise = b"warning {odd}\n"
            pieces = OUTPUTS[recipe].split(b"\n") if recipe is not Recipe.GEMINI else [OUTPUTS[recipe]]
            reading, _ = read(recipe, noise + (b"\n" + noise).join(pieces))
            assert reading.answer() == "Done."


def test_output_of_another_shape_is_the_answer_as_it_is(subtests: pytest.Subtests) -> None:
    for recipe in OUTPUTS:
        for output in [b"plain words\n", b"{not json}\n", b'{"a": 1}\n']:
            with subtests.test(recipe=recipe, output=output):
                reading, _ = read(recipe, output)
                assert reading.answer() == output.decode()


def test_a_failure_is_read(subtests: pytest.Subtests) -> None:
    for recipe, output, words in [
        (
            Recipe.CLAUDE,
            lines({"type": "result", "subtype": "error_max_turns", "is_error": False}),
            "error_max_turns",
        ),
        (
            Recipe.CLAUDE,
            lines({"type": "result", "subtype": "success", "is_error": True, "result": "Limit reached"}),
            "Limit reached",
        ),
        (Recipe.CODEX, lines({"type": "turn.failed", "error": {"message": "no quota"}}), "no quota"),
        (Recipe.CODEX, lines({"type": "error", "message": "broken"}), "broken"),
        (Recipe.GEMINI, lines({"error": {"type": "ApiError", "message": "bad key", "code": 1}}), "bad key"),
        (
            Recipe.OPENCODE,
            lines({"type": "error", "error": {"name": "APIError", "data": {"message": "down"}}}),
            "down",
        ),
    ]:
        with subtests.test(recipe=recipe, output=output, words=words):
            reading, _ = read(recipe, output)
            assert reading.said.error == words


def test_an_end_without_an_answer_is_no_answer() -> None:
    reading, _ = read(
        Recipe.CLAUDE, lines({"type": "result", "subtype": "success", "is_error": False, "result": ""})
    )
    assert reading.answer() == ""


def test_an_answer_longer_than_is_kept_keeps_its_end() -> None:
    reading, _ = read(Recipe.CLAUDE, lines({"type": "result", "result": "x" * 5_000 + "end"}), most=100)
    assert reading.answer().endswith("end")
    assert len(reading.answer()) < 200


def test_a_line_beyond_all_bounds_is_passed_over() -> None:
    reading, _ = read(Recipe.CLAUDE, b'{"type": "' + b"x" * (5 << 20) + b'"}\n' + OUTPUTS[Recipe.CLAUDE])
    assert reading.answer() == "Done."


def test_deep_nesting_and_large_numbers_break_nothing() -> None:
    deep = b'{"type": "result", "usage": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}\n"
    large = b'{"type": "turn.completed", "usage": {"input_tokens": 1e308, "output_tokens": NaN}}\n'
    reading, _ = read(Recipe.CODEX, deep + large + lines(*CODEX))
    assert (reading.answer(), reading.said.usage) == ("Done.", Usage(input_tokens=18, output_tokens=7))


def test_the_command_of_a_recipe(subtests: pytest.Subtests) -> None:
    for recipe, way, session, words in [
        (
            Recipe.CLAUDE,
            PromptWay.STDIN,
            None,
            "claude -p --output-format stream-json --verbose --permission-mode acceptEdits",
        ),
        (
            Recipe.CLAUDE,
            PromptWay.ARGUMENT,
            "s",
            "claude -p --output-format stream-json --verbose --permission-mode acceptEdits --resume s hi",
        ),
        (
            Recipe.CODEX,
            PromptWay.STDIN,
            None,
            "codex exec --json --skip-git-repo-check --sandbox workspace-write -",
        ),
        (
            Recipe.CODEX,
            PromptWay.STDIN,
            "s",
            "codex exec --json --skip-git-repo-check --sandbox workspace-write resume s -",
        ),
        (
            Recipe.CODEX,
            PromptWay.ARGUMENT,
            "s",
            "codex exec --json --skip-git-repo-check --sandbox workspace-write resume s hi",
        ),
        (
            Recipe.GEMINI,
            PromptWay.STDIN,
            "s",
            "gemini --output-format json --approval-mode auto_edit --resume s",
        ),
        (
            Recipe.GEMINI,
            PromptWay.ARGUMENT,
            None,
            "gemini --output-format json --approval-mode auto_edit --prompt hi",
        ),
        (Recipe.OPENCODE, PromptWay.STDIN, "s", "opencode run --format json --session s"),
        (Recipe.OPENCODE, PromptWay.ARGUMENT, None, "opencode run --format json hi"),
    ]:
        with subtests.test(recipe=recipe, way=way, session=session, words=words):
            runner = Runner(recipe=recipe, prompt=way, cwd="/")
            assert build_command(runner, prompt="hi", prompt_file=Path("/p"), session=session) == tuple(
                words.split()
            )


def test_a_command_of_ones_own_takes_the_place_of_the_recipes() -> None:
    runner = Runner(recipe=Recipe.CODEX, argv=("my-codex", "exec", "--json", "-"), cwd="/")
    assert build_command(runner, prompt="hi", prompt_file=Path("/p"), session=None)[-2:] == ("--json", "-")
    placed = Runner(argv=("say", "{prompt}", "--loud"), prompt=PromptWay.ARGUMENT, cwd="/")
    assert build_command(placed, prompt="{prompt} x", prompt_file=Path("/p"), session=None) == (
        "say",
        "{prompt} x",
        "--loud",
    )
    by_file = Runner(argv=("say", "--from={prompt_file}"), prompt=PromptWay.FILE, cwd="/")
    assert build_command(by_file, prompt="hi", prompt_file=Path("/p q"), session=None) == (
        "say",
        "--from=/p q",
    )


def test_a_session_that_is_refused_is_told_from_other_failures(subtests: pytest.Subtests) -> None:
    for recipe, words in [
        (Recipe.CLAUDE, "No conversation found with session ID: s"),
        (
            Recipe.CODEX,
            "Error: thread/resume: thread/resume failed: no rollout found for thread id s (code -32600)",
        ),
        (Recipe.GEMINI, 'Error resuming session: Invalid session identifier "s".'),
        (Recipe.OPENCODE, "Session not found"),
    ]:
        with subtests.test(recipe=recipe, words=words):
            nothing, _ = read(recipe, b"")
            whole, _ = read(recipe, OUTPUTS[recipe])
            assert refuses_session(CLIENTS[recipe], nothing, words)
            assert not refuses_session(CLIENTS[recipe], nothing, "out of credits")
            assert not refuses_session(CLIENTS[recipe], whole, words), (
                "it had worked already: that is not done twice"
            )


def test_cline_says_its_answer_what_it_used_and_why_it_failed() -> None:
    reading, streamed = read(Recipe.CLINE, lines(*CLINE))
    assert (reading.answer(), streamed) == ("Done.", "Done.")
    assert reading.said.usage == Usage(input_tokens=18, output_tokens=7, cost_micros=500_000)
    assert reading.said.error is None
    error = {"type": "error", "message": "no key"}
    assert read(Recipe.CLINE, lines(error, {**CLINE[-1], "finishReason": "error"}))[0].said.error == "no key"
    stopped = lines({**CLINE[-1], "finishReason": "mistake_limit"})
    assert read(Recipe.CLINE, stopped)[0].said.error == "its run ended: mistake_limit"


def test_cline_is_given_its_prompt_as_an_argument_and_never_as_a_command() -> None:
    for way in (PromptWay.STDIN, PromptWay.ARGUMENT):
        runner = Runner(recipe=Recipe.CLINE, prompt=way, cwd="/")
        for prompt, shown in (("hub", " hub"), ("-y now", " -y now"), ("Say hello", "Say hello")):
            words = build_command(runner, prompt=prompt, prompt_file=Path("/p"), session=None)
            assert words == ("cline", "--json", shown)
