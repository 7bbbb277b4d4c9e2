"""A program that does what it should, and what it is given."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from executors.room import DEAF, HANG, SERVER, Room, Sink, descriptors, script, zombies
from postroom.contracts import errors
from postroom.contracts.activation import Recovery
from postroom.contracts.agent_events import RunStart, TextDelta
from postroom.contracts.records import replace
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason
from postroom.executors.command import CommandLimits
from postroom.executors.processes.process_runner import mask_secrets, secrets_in

ODD = 'it\'s "quoted" $(id) `id` \\ ; & | * \n second line\t– größer 日本語 🙂 {prompt} {prompt_file}'
ECHO = "sys.stdout.write(%s)"
BY = {
    "argument": "sys.argv[1]",
    "stdin": "sys.stdin.read()",
    "file": "open(sys.argv[1], encoding='utf-8').read()",
}


def echo(way: str, **fields: object) -> Runner:
    words = ("{prompt_file}",) if way == "file" else ()
    return script(
        "sys.stdout.reconfigure(encoding='utf-8'); sys.stdin.reconfigure(encoding='utf-8')\n"
        + ECHO % BY[way],
        *words,
        prompt=way,
        **fields,
    )


async def test_what_it_prints_is_streamed_and_is_the_answer(tmp_path: Path) -> None:
    room = Room(tmp_path, script("tell('one'); tell('two')"))
    result = await room.executor.run(await room.activation(), room.sink)
    assert (result.response, result.termination, result.steps) == (
        "one\ntwo\n",
        TerminationReason.natural_end(),
        1,
    )
    assert isinstance(room.sink.events[0], RunStart)
    assert room.sink.text == "one\ntwo\n"
    assert (room.files(), room.executor.executing, zombies()) == ([], 0, [])


async def test_output_is_streamed_while_it_runs(tmp_path: Path) -> None:
    """It waits for a file that is made when its first line was heard."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    room = Room(tmp_path, script("tell('begun'); open(sys.argv[1]).read(); tell('done')", str(gate)))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.run())
        await room.sink.tells("begun")
        await asyncio.to_thread(gate.write_text, "go")
    assert run.result() == "begun\ndone\n"


@pytest.mark.parametrize("way", ["argument", "stdin", "file"])
async def test_a_prompt_arrives_as_it_is(tmp_path: Path, way: str) -> None:
    assert await Room(tmp_path, echo(way)).run(ODD) == ODD


@pytest.mark.parametrize("way", ["stdin", "file"])
async def test_a_prompt_of_a_megabyte_arrives_whole(tmp_path: Path, way: str) -> None:
    prompt = "0123456789abcde\n" * (1 << 16)
    room = Room(tmp_path, echo(way, max_output_bytes=2 << 20))
    assert await room.run(prompt) == prompt
    assert room.files() == []


async def test_an_argument_beyond_the_systems_limit_is_refused_with_the_remedy(tmp_path: Path) -> None:
    room = Room(tmp_path, echo("argument"))
    with pytest.raises(errors.PromptTooLong, match="1048577 bytes") as refused:
        await room.run("x" * (1 << 20))
    assert "stdin" in refused.value.remedy
    assert await room.run("x" * 131_071) == "x" * 131_071
    with pytest.raises(errors.PromptTooLong, match="zero byte"):
        await room.run("a\0b")
    assert room.files() == []


async def test_a_prompt_is_no_option(tmp_path: Path) -> None:
    assert await Room(tmp_path, echo("argument")).run("--help") == " --help"


async def test_a_program_that_does_not_read_its_prompt_is_not_waited_for(tmp_path: Path) -> None:
    assert await Room(tmp_path, script("tell('no, thanks')")).run("x" * (1 << 20)) == "no, thanks\n"


async def test_the_file_of_a_prompt_is_private(tmp_path: Path) -> None:
    text = "tell(oct(os.stat(sys.argv[1]).st_mode), oct(os.stat(os.path.dirname(sys.argv[1])).st_mode))"
    room = Room(tmp_path, script(text, "{prompt_file}", prompt="file"))
    room.folder.mkdir(mode=0o755)
    assert await room.run() == "0o100600 0o40700\n"


async def test_a_run_that_is_asked_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidActivation, match="no text"):
        await Room(tmp_path, echo("stdin")).run(" \n")


async def test_the_environment_holds_nothing_but_what_was_said(tmp_path: Path) -> None:
    runner = script(
        "print(*sorted(f'{k}={v!r}' for k, v in os.environ.items() if k != 'LC_CTYPE'), sep='\\n')",
        env={"LITERAL": "a b", "HOME": "/elsewhere"},
        pass_env=("WANTED", "NOT_THERE"),
    )
    server = {
        **SERVER,
        "WANTED": "w",
        "LC_TIME": "C",
        "POSTROOM_TOKEN": "t",
        "PYTHONPATH": "/x",
        "TERM": "dumb",
    }
    room = Room(
        tmp_path,
        runner,
        environment=server,
        environment_of=lambda _: {"POSTROOM_PROJECT": "p"},
    )
    asked = await room.activation()
    said = dict(
        line.split("=", 1) for line in (await room.executor.run(asked, room.sink)).response.splitlines()
    )
    assert {name: eval(value) for name, value in said.items()} == {
        **{"PATH": SERVER["PATH"], "HOME": "/elsewhere", "LC_ALL": "C.UTF-8", "LC_TIME": "C", "TERM": "dumb"},
        **{"LITERAL": "a b", "WANTED": "w", "POSTROOM_AGENT": "Ada", "POSTROOM_PROJECT": "p"},
        **{"POSTROOM_THREAD": "t", "POSTROOM_RUN": "r", "POSTROOM_DISPATCH": "dispatch-of-r"},
    }


async def test_it_runs_in_its_folder_and_in_a_session_of_its_own(tmp_path: Path) -> None:
    text = "tell(os.getcwd(), os.getsid(0) == os.getpid() == os.getpgid(0), *sorted(os.listdir('/proc/self/fd')))"
    assert await Room(tmp_path, script(text, cwd=str(tmp_path))).run() == f"{tmp_path} True 0 1 2 3\n"


async def test_an_agent_without_a_runner_is_refused_for_good(tmp_path: Path) -> None:
    with pytest.raises(errors.RunnerNotFound, match="'Ada' has no runner") as refused:
        await Room(tmp_path, None).run()
    assert not refused.value.retryable
    assert "declare a runner" in refused.value.remedy


async def test_what_is_handed_over_by_no_mailbox_is_refused(tmp_path: Path) -> None:
    room = Room(tmp_path, echo("stdin"))
    with pytest.raises(errors.InvalidActivation, match="coordinator"):
        await room.executor.run(replace(await room.activation(), control=None), room.sink)


def missing_interpreter(folder: Path) -> Runner:
    path = folder / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    return Runner(argv=(str(path),), cwd="/")


def not_executable(folder: Path) -> Runner:
    (folder / "text").write_text("hello")
    return Runner(argv=(str(folder / "text"),), cwd="/")


def no_program(folder: Path) -> Runner:
    (folder / "odd").write_bytes(b"\x00\x01\x02")
    (folder / "odd").chmod(0o755)
    return Runner(argv=(str(folder / "odd"),), cwd="/")


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        (lambda folder: Runner(argv=("no-such-agent",), cwd="/"), "'no-such-agent' was not found"),
        (lambda folder: Runner(argv=("/no/such/agent",), cwd="/"), "'/no/such/agent' was not found"),
        (lambda folder: Runner(argv=("true",), cwd="/no/such/folder"), "'/no/such/folder' is missing"),
        (missing_interpreter, "interpreter that is missing"),
        (not_executable, "not executable"),
        (no_program, "could not be started"),
    ],
)
async def test_what_cannot_be_started_is_named(tmp_path: Path, runner, words: str) -> None:  # type: ignore[no-untyped-def]
    room = Room(tmp_path, runner(tmp_path))
    before = descriptors()
    with pytest.raises(errors.CommandNotStarted, match=words) as refused:
        await room.run()
    assert not refused.value.retryable
    await room.executor.close()
    assert (room.files(), descriptors(), zombies()) == ([], before, [])


async def test_a_private_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    room = Room(tmp_path, echo("stdin"))
    room.folder.write_text("in the way")
    with pytest.raises(errors.CommandNotStarted, match="private folder"):
        await room.run()


@pytest.mark.parametrize(
    ("text", "kind", "words", "again"),
    [
        ("print('why', file=sys.stderr); sys.exit(3)", errors.CommandFailed, "exit code 3: why", False),
        ("print('on stdout'); sys.exit(1)", errors.CommandFailed, "exit code 1: on stdout", False),
        ("sys.exit(1)", errors.CommandFailed, "exit code 1$", False),
        ("print('later', file=sys.stderr); sys.exit(75)", errors.CommandBusy, "exit code 75: later", True),
        ("os.kill(os.getpid(), 9)", errors.CommandKilled, "killed by SIGKILL", True),
        ("os.kill(os.getpid(), 40)", errors.CommandKilled, "killed by signal 40|SIGRTMIN", True),
        ("sys.exit(0)", errors.CommandSaidNothing, "(?m)without an answer$", False),
        (
            "print('  '); print('mute', file=sys.stderr)",
            errors.CommandSaidNothing,
            "without an answer: mute",
            False,
        ),
    ],
)
async def test_an_exit_says_what_becomes_of_the_run(
    tmp_path: Path, text: str, kind: type[errors.CommandFailed], words: str, again: bool
) -> None:
    room = Room(tmp_path, script(text))
    with pytest.raises(kind, match=words) as failed:
        await room.run()
    assert failed.value.retryable is again
    assert (room.files(), zombies()) == ([], [])


async def test_secrets_are_masked_in_a_failures_reason(tmp_path: Path) -> None:
    runner = script(
        "print('begin', os.environ['API_KEY'], os.environ['my_token'], os.environ['PLAIN'], file=sys.stderr)\n"
        "print(os.environ['PEM_SECRET'].splitlines()[1], file=sys.stderr); sys.exit(1)",
        env={"API_KEY": "k1-SUPER", "PEM_SECRET": "head\nsecond-line-of-it\n", "PLAIN": "shown"},
        pass_env=("my_token",),
    )
    room = Room(tmp_path, runner, environment={**SERVER, "my_token": "k1-SUPER-longer"})
    with pytest.raises(errors.CommandFailed) as failed:
        await room.run()
    assert failed.value.message.endswith("exit code 1: begin [masked] [masked] shown\n[masked]")


async def test_a_secret_that_the_cut_goes_through_is_masked(tmp_path: Path) -> None:
    """The bound of the stored text lies within a secret; masking shortens the text, so that its end would show."""
    secret = "S" * 400 + "ecret-end"
    room = Room(
        tmp_path, script("sys.stderr.write(os.environ['X_KEY'] * 100); sys.exit(1)", env={"X_KEY": secret})
    )
    with pytest.raises(errors.CommandFailed) as failed:
        await room.run()
    assert set(failed.value.message.partition(": ")[2].replace("[masked]", "")) == set()


async def test_a_long_complaint_is_told_by_its_end(tmp_path: Path) -> None:
    room = Room(tmp_path, script("sys.stderr.write('x' * 100_000 + 'the end'); sys.exit(1)"))
    with pytest.raises(errors.CommandFailed, match=r"(?m)the end$") as failed:
        await room.run()
    assert len(failed.value.message) < 2_200


async def test_broken_utf8_is_replaced_and_a_character_in_two_pieces_is_whole(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = "out = sys.stdout.buffer; out.write(b'a\\xff\\n\\xe2\\x82'); out.flush(); open(sys.argv[1]).read(); out.write(b'\\xac\\xc3')"
    room = Room(tmp_path, script(text, str(gate)))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.run())
        await room.sink.tells("a")
        await asyncio.to_thread(gate.write_text, "go")
    assert run.result() == room.sink.text == "a\ufffd\n€\ufffd"


async def test_bytes_of_every_kind_are_an_answer(tmp_path: Path) -> None:
    answer = await Room(tmp_path, script("sys.stdout.buffer.write(bytes(range(256)) * 2000)")).run()
    assert answer.startswith("\t\n\n !")
    assert not {one for one in answer if ord(one) < 32 or 127 <= ord(one) < 160} - {"\t", "\n"}
    assert answer.encode()  # a store can keep it


@pytest.mark.parametrize("line", ["'x' * 4_000_000", "'x\\n' * 2_000_000"])
async def test_of_a_long_answer_the_end_is_kept(tmp_path: Path, line: str) -> None:
    room = Room(
        tmp_path, script(f"sys.stdout.write({line}); sys.stdout.write('the end')", max_output_bytes=1000)
    )
    answer = await room.run()
    assert answer.endswith("the end")
    assert answer.startswith("[the beginning was cut off: 3999007 bytes]\n")
    assert len(answer) < 1_100
    assert len(room.sink.text) < 1_100
    assert room.sink.text.endswith("[further output is not streamed]\n")


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.long
async def test_a_flood_of_a_gigabyte_costs_bounded_memory(tmp_path: Path) -> None:
    text = "block = b'0123456789abcdef' * 65536\nfor _ in range(1024): sys.stdout.buffer.write(block)\ntell('the end')"
    room = Room(tmp_path, script(text))
    await asyncio.to_thread(Path("/proc/self/clear_refs").write_text, "5")
    before = await asyncio.to_thread(peak_kib)
    answer = await room.run()
    grown = await asyncio.to_thread(peak_kib) - before
    assert answer.endswith("the end\n")
    assert len(answer) <= (1 << 20) + 100
    assert sum(len(one.delta) for one in room.sink.events if isinstance(one, TextDelta)) <= (1 << 20) + 4_000
    assert grown < 24 << 10, f"{grown} KiB"


async def test_who_puts_out_more_than_anybody_reads_is_ended(tmp_path: Path) -> None:
    room = Room(
        tmp_path,
        script("while True: sys.stdout.write('x' * 65536)"),
        limits=CommandLimits(most_output_bytes=10_000_000),
    )
    with pytest.raises(errors.CommandFlooded, match="more than its limit"):
        await room.run()
    assert room.files() == []


async def test_a_flood_of_complaints_is_drained_in_bounded_memory(tmp_path: Path) -> None:
    text = "block = 'x' * 1_000_000\nfor _ in range(100): sys.stderr.write(block)\ntell('done')"
    room = Room(tmp_path, script(text))
    await asyncio.to_thread(Path("/proc/self/clear_refs").write_text, "5")
    before = await asyncio.to_thread(peak_kib)
    assert await room.run() == "done\n"
    assert await asyncio.to_thread(peak_kib) - before < 24 << 10


async def test_a_program_that_closes_its_output_is_awaited(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = "tell('said'); os.close(1); os.close(2); open(sys.argv[1], 'w').write('went on')"
    assert await Room(tmp_path, script(text, str(mark))).run() == "said\n"
    assert mark.read_text() == "went on"


async def test_twenty_run_at_once(tmp_path: Path) -> None:
    room = Room(tmp_path, script("tell(sys.stdin.read(), os.environ['POSTROOM_RUN'])"))
    before = descriptors()
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(room.run(f"prompt {n}", thread=f"t{n}", run=f"r{n}")) for n in range(20)]
    assert [run.result() for run in runs] == [f"prompt {n} r{n}\n" for n in range(20)]
    await room.executor.close()
    assert (room.files(), room.executor.executing, zombies(), descriptors()) == ([], 0, [], before)


async def test_it_takes_nothing_while_it_runs_and_begins_again_after_a_crash(tmp_path: Path) -> None:
    room = Room(tmp_path, script(DEAF + HANG))
    asked = await room.activation()
    assert room.executor.recovery(asked) is Recovery.RESTART
    assert not room.executor.send_messages("t", asked.messages)
    assert not room.executor.wake_pending_boundary("t")
    assert not room.executor.has_commit_coordinator()
    assert isinstance(Sink().text, str)
    assert CommandLimits().grace == timedelta(seconds=5)


def test_a_part_of_a_secret_is_masked_as_well(subtests: pytest.Subtests) -> None:
    for text, is_cut, shown in [
        ("a SECRET-VALUE b SECRET-VALUE", False, "a [masked] b [masked]"),
        *(("T-VALUE b", True, "[masked] b"), ("T-VALUE b", False, "T-VALUE b"), ("ET-VAL", True, "[masked]")),
        *(("a SECR", False, "a [masked]"), ("a SEC", False, "a SEC")),
        *(("the second line here", False, "the [masked] here"), ("", True, "[masked]")),
    ]:
        with subtests.test(text=text, is_cut=is_cut, shown=shown):
            secrets = secrets_in(
                {"A_KEY": "SECRET-VALUE", "CERT_SECRET": "x\nsecond line\n", "OTHER": "here"}
            )
            assert mask_secrets(text, secrets, is_cut=is_cut) == shown


def test_a_secret_of_great_length_costs_little() -> None:
    assert mask_secrets("ab" * 4_000, ("a" * 130_000, "ab" * 60_000), is_cut=True) == "[masked]"
