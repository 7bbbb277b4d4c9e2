"""Reservations: conflicts in either order, leases that end to the millisecond, releases with their author and reason."""

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

from mail_room import Room, room_in_memory
from postroom.contracts import errors
from postroom.contracts.clock import iso
from postroom.mail.context import Rules
from table_rows import each_row

room = room_in_memory

SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)


async def _reserve(room: Room, name: str, *paths: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await room.call(
        "file_reservation_paths", agent_name=name, paths=list(paths), **more
    )
    return answer


async def _live(room: Room, **more: Any) -> list[tuple[str, str]]:
    found = await room.call("list_file_reservations", **more)
    return [(one["agent"], one["path"]) for one in found["reservations"]]


async def test_disjoint_paths_are_granted_without_a_conflict(room: Room) -> None:
    await room.open()
    answer = await _reserve(room, "Ada", "src/a.py", "docs/**", reason="work")
    assert answer["conflicts"] == []
    assert answer["enforced_by"] == []
    assert [one["path"] for one in answer["granted"]] == ["src/a.py", "docs/**"]
    one = answer["granted"][0]
    assert (one["agent"], one["exclusive"], one["reason"]) == ("Ada", True, "work")
    assert one["expires_ts"] == iso(room.clock.now() + 3_600_000)
    assert (await _reserve(room, "Ben", "src/b.py"))["conflicts"] == []


@each_row(
    "asked, granted",
    [
        *(("src/{a,b}.py", ["src/a.py", "src/b.py"]), ("src/**/*.{ts,tsx}", ["src/**/*.ts", "src/**/*.tsx"])),
        ("{a,b{c,d}}/{e,}f", ["a/ef", "a/f", "bc/ef", "bc/f", "bd/ef", "bd/f"]),
        *(("{a,a}", ["a"]), ("./!a", ["!a"])),
        *((asked, ["src/a.py"]) for asked in ("`src/a.py`", "\"'src/a.py'\"", "\t src/a.py \n")),
        *(("src/{a, b}.py", ["src/a.py", "src/b.py"]), ("cafe\u0301.py", ["caf\u00e9.py"])),
        *((as_it_is, [as_it_is]) for as_it_is in ("{a}", "[{]a,b}", "{a,b", "src/a?10", "port:8080")),
        *((as_it_is, [as_it_is]) for as_it_is in ("port:8000-8010", "./port:8080", "a b.py", "a,b.py")),
        *((as_it_is, [as_it_is]) for as_it_is in ("issue#10", "page 10", "chapter (10)")),
    ],
)
async def test_a_callers_spelling_is_read_as_patterns(room: Room, asked: str, granted: list[str]) -> None:
    await room.open()
    answer = await _reserve(room, "Ada", asked)
    assert [one["path"] for one in answer["granted"]] == granted
    assert [one["path"] for one in (await _reserve(room, "Ben", asked))["conflicts"]] == granted
    for name, paths in (("Ada", [asked]), ("Ben", granted)):
        await room.call("release_file_reservations", agent_name=name, paths=paths)
        assert [one for one in await _live(room) if one[0] == name] == []


LINES = [
    *(":10-20", ":10", ":10:5", ":10,20", ":L10-L20", "#L10", "#L10C2-L20C5"),
    *(" (lines 10-20)", " (line 10)", ", lines 10 - 20", " (L10)"),
]
"""How callers name lines of a file."""


@each_row(
    "remedy, spellings",
    [
        ("./!name", ["!src/a.py", "{!a,b}", "{a,!b}.py"]),
        ("reserve 'src/a.py';", [f"src/a.py{lines}" for lines in LINES] + ["`src/a.py`:10"]),
        *(("reserve './src/a.py';", ["./src/a.py:10"]), ("reserve 'a.py';", ["{a,b}.py:10", "a.py:3"])),
        *(("reserve 'main.py';", ["main.py:10-20"]), ("reserve 'Makefile';", ["Makefile:3"])),
        *(("reserve 'a';", ["a:10"]), ("reserve './a';", ["./a:10"])),
        ('["x1.py", "x2.py"]', ["x1.py, x2.py", "`x1.py`, 'x2.py'"]),
        ('["x1.py"]', ["x1.py,"]),
        ("wildcard", ["{a,b}" * 7, "{a,b}" * 200, "{,}" * 1300]),
        ("src/**", ["{" * 4000]),
    ],
)
async def test_a_spelling_that_no_pattern_has_is_refused_with_another(
    room: Room, remedy: str, spellings: list[str]
) -> None:
    await room.open()
    for asked in spellings:
        refused = await room.refused(
            errors.InvalidPattern, "file_reservation_paths", agent_name="Ada", paths=[asked]
        )
        assert remedy in (refused.remedy or ""), asked
    assert await _live(room) == []


PAIRS = [
    (one, other, is_met == "meet")
    for one, other, is_met in re.findall(
        r"(\S+) (\S+) (meet|apart)",
        """
        src/a.py src/a.py meet          src/a.py src/b.py apart        src src/a.py meet
        src/ src/deep/er/a.py meet      src/* src/a.py meet            src/* src/deep/a.py apart
        src/** src/deep/a.py meet       ** anything meet               **/*.py src/a.py meet
        **/*.py src/** meet             *.md README.md meet            *.md *.txt apart
        a* *b meet                      a[0-4] a[5-9] apart            srcs src apart
        port:8080 port:8080 meet        port:8080 port:8081 apart      port:8080 ** apart
        service:db service:db meet      service:db ./service:db apart  A.py a.py apart
        """,
    )
]


@each_row("one, other, meet", PAIRS)
async def test_a_conflict_is_found_in_either_order(room: Room, one: str, other: str, meet: bool) -> None:
    await room.open("Ada", "Ben", "Cyd", "Dee")
    for first, second, holder, comer in ((one, other, "Ada", "Ben"), (other, one, "Cyd", "Dee")):
        await _reserve(room, holder, first)
        checked = await room.call("check_file_reservations", agent_name=comer, paths=[second])
        answer = await _reserve(room, comer, second)
        assert len(answer["granted"]) == 1, "granted beside the conflict: it is advice"
        assert bool(answer["conflicts"]) is meet
        assert checked["conflicts"] == answer["conflicts"]
        if meet:
            assert [held["agent"] for held in answer["conflicts"][0]["holders"]] == [holder]
        for name in (holder, comer):
            await room.call("release_file_reservations", agent_name=name)


async def test_case_goes_by_the_rule_of_the_file_system(room: Room) -> None:
    await room.open()
    room.mail.rules = Rules(case_sensitive_paths=False)
    await _reserve(room, "Ada", "Src/A.py")
    answer = await _reserve(room, "Ben", "src/a.PY")
    assert [one["path"] for one in answer["conflicts"][0]["holders"]] == ["Src/A.py"]


async def test_an_agent_does_not_stand_in_its_own_way_and_the_same_pattern_is_a_renewal(room: Room) -> None:
    await room.open()
    first = await _reserve(room, "Ada", "src/**", "src/a", ttl_seconds=60, reason="one")
    assert first["conflicts"] == []
    room.clock.advance(30 * SECOND)
    again = await _reserve(room, "Ada", "src/**", "./src//**", ttl_seconds=60)
    assert again["conflicts"] == []
    assert [one["id"] for one in again["granted"]] == [first["granted"][0]["id"]]
    assert again["granted"][0]["expires_ts"] == iso(room.clock.now() + 60_000)
    assert again["granted"][0]["reason"] == "one"
    changed = await _reserve(room, "Ada", "src/**", exclusive=False, reason="two")
    assert (changed["granted"][0]["exclusive"], changed["granted"][0]["reason"]) == (False, "two")


async def test_a_reservation_ends_at_its_millisecond_and_not_before(room: Room) -> None:
    await room.open()
    await _reserve(room, "Ada", "a", ttl_seconds=60)
    ask = {"agent_name": "Ben", "paths": ["a"]}
    room.clock.advance(60 * SECOND - MILLISECOND)
    assert (await room.call("check_file_reservations", **ask))["conflicts"]
    assert await _live(room) == [("Ada", "a")]
    room.clock.advance(MILLISECOND)
    assert (await room.call("check_file_reservations", **ask))["conflicts"] == []
    assert await _live(room) == []
    await room.send("Ada", "Ben")
    assert await _live(room) == [], "a sign of life revives nothing"
    assert (await _reserve(room, "Ben", "a"))["conflicts"] == []


async def test_what_expired_is_not_renewed_and_not_released_again(room: Room) -> None:
    await room.open()
    held = (await _reserve(room, "Ada", "a", ttl_seconds=60))["granted"][0]["id"]
    room.clock.advance(60 * SECOND)
    assert (await room.call("renew_file_reservations", agent_name="Ada"))["renewed"] == []
    assert (await room.call("renew_file_reservations", agent_name="Ada", ids=[held]))["renewed"] == []
    assert (await room.call("release_file_reservations", agent_name="Ada", ids=[held]))["released"] == []
    await room.refused(
        errors.StateError, "force_release_file_reservation", agent_name="Ben", reservation_id=held, reason="r"
    )
    assert (await _reserve(room, "Ada", "a"))["granted"][0]["id"] != held


@each_row(
    "name, arguments",
    [
        ("send_message", {"sender_name": "Ada", "to": ["Ben"], "subject": "s", "body_md": "b"}),
        ("mark_message_read", {"agent_name": "Ada", "message_id": 1}),
        ("file_reservation_paths", {"agent_name": "Ada", "paths": ["other"]}),
        ("register_agent", {"name": "Ada", "program": "p", "model": "m"}),
        ("start_session", {"name": "Ada", "program": "p", "model": "m"}),
    ],
)
async def test_the_holders_activity_extends_what_it_holds_by_its_own_length(
    room: Room, name: str, arguments: dict[str, Any]
) -> None:
    await room.open()
    await room.send("Ben", "Ada")
    await _reserve(room, "Ada", "short", ttl_seconds=60)
    await _reserve(room, "Ada", "long", ttl_seconds=600)
    await _reserve(room, "Ben", "bens", ttl_seconds=60)
    room.clock.advance(59 * SECOND)
    await room.call(name, **arguments)
    listed = (await room.call("list_file_reservations"))["reservations"]
    ends = {one["path"]: one["expires_ts"] for one in listed}
    for path, seconds in (("short", 60), ("long", 600), ("bens", 1)):
        assert ends[path] == iso(room.clock.now() + seconds * 1_000)


async def test_releases_by_path_by_id_and_of_all(room: Room) -> None:
    await room.open()
    granted = (await _reserve(room, "Ada", "a", "b/", "c", "d", "e"))["granted"]
    await _reserve(room, "Ben", "z")

    async def released(**chosen: Any) -> list[str]:
        answer = await room.call("release_file_reservations", agent_name="Ada", **chosen)
        return [one["path"] for one in answer["released"]]

    assert await released(paths=[], ids=[]) == []
    assert await released(paths=[]) == []
    assert await released(paths=["b/**", "nothing"]) == ["b/**"]
    assert await released(paths=["b/**"]) == []
    assert await released(ids=[granted[0]["id"], granted[0]["id"]]) == ["a"]
    assert await released(ids=[granted[0]["id"]]) == []
    assert await released(paths=["c"], ids=[granted[3]["id"]]) == ["c", "d"]
    assert await released() == ["e"]
    assert await released() == []
    held = (await _reserve(room, "Ada", "f"))["granted"][0]["id"]
    [ended] = (await room.call("release_file_reservations", agent_name="Ada", ids=[held]))["released"]
    assert ended["released_ts"] == iso(room.clock.now())
    assert await _live(room) == [("Ben", "z")]


async def test_a_path_releases_and_renews_what_it_covers_and_the_answer_names_what_was_not_found(
    room: Room,
) -> None:
    await room.open()
    held = ["src/app.py", "src/*.py", "src/web/**", "docs", "port:8080", "lib/[ab].py"]
    await room.call("file_reservation_paths", agent_name="Ada", paths=held)
    ended = (await room.call("file_reservation_paths", agent_name="Ada", paths=["old"]))["granted"][0]["id"]
    await room.call("release_file_reservations", agent_name="Ada", ids=[ended])

    async def changed(tool: str, key: str, **chosen: Any) -> tuple[list[str], list[str | int]]:
        answer = await room.call(tool, agent_name="Ada", **chosen)
        return [one["path"] for one in answer[key]], answer["not_found"]

    renewed = await changed("renew_file_reservations", "renewed", paths=["**/*.py", "test/**"])
    assert renewed == (["src/app.py", "src/*.py"], ["test/**"])
    part = await changed(
        "release_file_reservations", "released", paths=["src/web/a.py", "lib/*"], ids=[ended]
    )
    assert part == ([], ["src/web/a.py", "lib/*", ended])
    rest = await changed("release_file_reservations", "released", paths=["src/**", "docs/", "gone"])
    assert rest == (["src/app.py", "src/*.py", "src/web/**", "docs"], ["gone"])
    rest = await changed("release_file_reservations", "released", paths=["port:8080", "lib/[ab].py"])
    assert rest == (["port:8080", "lib/[ab].py"], [])


async def test_only_the_holder_releases_or_renews_by_id_and_a_renewal_runs_from_now_and_never_shortens(
    room: Room,
) -> None:
    await room.open()
    mine = (await _reserve(room, "Ada", "long", ttl_seconds=1_000))["granted"][0]["id"]
    await _reserve(room, "Ada", "short", ttl_seconds=60)
    theirs = (await _reserve(room, "Ben", "b"))["granted"][0]["id"]
    for name in ("release_file_reservations", "renew_file_reservations"):
        error = await room.refused(errors.NotHolder, name, agent_name="Ada", ids=[mine, theirs])
        assert error.value == theirs
        await room.refused(errors.UnknownReservation, name, agent_name="Ada", ids=[mine, 999])
    assert await room.call("release_file_reservations", agent_name="Ada", paths=["b"]) == {
        "released": [],
        "not_found": ["b"],
    }
    room.clock.advance(20 * SECOND)
    renewed = (await room.call("renew_file_reservations", agent_name="Ada", ttl_seconds=100))["renewed"]
    ends = {one["path"]: one["expires_ts"] for one in renewed}
    assert ends == {"long": iso(room.clock.now() + 980_000), "short": iso(room.clock.now() + 100_000)}
    alone = await room.call("renew_file_reservations", agent_name="Ada", ttl_seconds=2_000, paths=["short"])
    assert [one["path"] for one in alone["renewed"]] == ["short"]
    room.mail.rules = Rules(max_reservation_ttl=timedelta(minutes=1))
    await _reserve(room, "Ada", "a", ttl_seconds=60)
    asked = {"agent_name": "Ada", "ttl_seconds": 61}
    await room.refused(errors.InvalidArgument, "file_reservation_paths", **asked, paths=["b"])
    await room.refused(errors.InvalidArgument, "renew_file_reservations", **asked)


FORCED = {"agent_name": "Ben", "reason": "the build is red"}


async def test_a_forced_release_tells_the_holder_why(room: Room) -> None:
    await room.open()
    held = (await _reserve(room, "Ada", "src/**"))["granted"][0]["id"]
    ended = await room.call("force_release_file_reservation", **FORCED, reservation_id=held)
    assert (ended["released_ts"], ended["release_reason"]) == (iso(room.clock.now()), "the build is red")
    assert await _live(room) == []
    message = (await room.inbox("Ada"))[0]
    assert (message["from"], message["importance"]) == ("Ben", "high")
    assert "src/**" in message["subject"]
    assert "the build is red" in message["body_md"]
    await room.refused(errors.StateError, "force_release_file_reservation", **FORCED, reservation_id=held)
    assert len(await room.inbox("Ada")) == 1
    held = (await _reserve(room, "Ada", "x" * 1_000))["granted"][0]["id"]
    await room.call("force_release_file_reservation", **FORCED, reservation_id=held)
    assert len((await room.inbox("Ada"))[0]["subject"]) == 512


async def test_a_holder_who_does_not_take_the_message_loses_the_reservation_all_the_same(room: Room) -> None:
    await room.open()
    own = (await _reserve(room, "Ben", "b"))["granted"][0]["id"]
    await room.call("force_release_file_reservation", **FORCED, reservation_id=own)
    for wish in ("closed", "approval", "blocked"):
        if wish == "blocked":
            await room.call("set_contact_policy", agent_name="Ada", policy="open")
            await room.call("respond_contact", agent_name="Ada", requester="Ben", accept=False)
        else:
            await room.call("set_contact_policy", agent_name="Ada", policy=wish)
        held = (await _reserve(room, "Ada", "a"))["granted"][0]["id"]
        await room.call("force_release_file_reservation", **FORCED, reservation_id=held)
        assert await _live(room) == []
    assert [*await room.inbox("Ada"), *await room.inbox("Ben")] == []


async def test_reservations_are_listed_by_agent_and_limited(room: Room) -> None:
    await room.open()
    await _reserve(room, "Ada", "a", "b")
    await _reserve(room, "Ben", "c")
    assert await _live(room) == [("Ada", "a"), ("Ada", "b"), ("Ben", "c")]
    assert await _live(room, agent_name="ben") == [("Ben", "c")]
    assert await _live(room, limit=1) == [("Ada", "a")]
    assert (await room.call("list_file_reservations"))["conflicts"] == []
    ids = [
        (await _reserve(room, name, path))["granted"][0]["id"]
        for name, path in (("Ada", "d/**"), ("Ben", "d/*.py"))
    ]
    assert (await room.call("list_file_reservations"))["conflicts"] == [ids]


async def test_the_answer_says_what_enforces_a_reservation_and_counts_no_holder_away(room: Room) -> None:
    names = [f"Agent{number}" for number in range(60)]
    await room.open("Ada", *names)
    room.mail.rules = Rules(enforced_by=("pre-commit",))
    for name in names:
        await _reserve(room, name, "shared", exclusive=False)
    asked = await _reserve(room, "Ada", "shared")
    assert [len(one["holders"]) for one in asked["conflicts"]] == [50], "more than are shown"
    checked = await room.call("check_file_reservations", agent_name="Ada", paths=["a"])
    for answer in (asked, checked, await room.call("list_file_reservations")):
        assert answer["enforced_by"] == ["pre-commit"]


async def test_of_eight_agents_that_reserve_one_path_at_once_one_holds_it(room: Room) -> None:
    names = [f"Worker{number}" for number in range(8)]
    await room.open(*names)
    answers = await asyncio.gather(*(_reserve(room, name, "tasks/7") for name in names))
    assert sorted(answer["granted"][0]["held"] for answer in answers) == [False] * 7 + [True]
    for answer in answers:
        assert answer["granted"][0]["held"] is (answer["conflicts"] == [])


async def test_a_holder_that_renews_still_holds_the_path_though_others_reserved_it_later(room: Room) -> None:
    await room.open()
    await _reserve(room, "Ada", "src/**")
    [later] = (await _reserve(room, "Ben", "src/a.py"))["granted"]
    renewed = await _reserve(room, "Ada", "src/**")
    assert (later["held"], renewed["granted"][0]["held"]) == (False, True)
    assert [one["path"] for one in renewed["conflicts"]] == ["src/**"]
    await room.call("release_file_reservations", agent_name="Ada")
    [now] = (await _reserve(room, "Ben", "src/a.py"))["granted"]
    assert now["held"]


async def test_a_reservation_with_mode_refuse_reserves_nothing_while_another_agent_holds_a_path(
    room: Room,
) -> None:
    await room.open()
    await _reserve(room, "Ada", "src/a.py", mode="refuse")
    with pytest.raises(
        errors.NotHolder, match=r"Ada holds src/a.py until .*; nothing was reserved"
    ) as refused:
        await _reserve(room, "Ben", "docs/b.md", "src/a.py", mode="refuse")
    assert refused.value.details["conflicts"][0]["holders"][0]["agent"] == "Ada"  # type: ignore[index]
    with pytest.raises(errors.NotHolder, match=r"^Ada holds src/a.py until .*; nothing was reserved"):
        await _reserve(room, "Ben", "src/**", mode="refuse")
    assert await _live(room) == [("Ada", "src/a.py")]
    assert (await _reserve(room, "Ada", "src/a.py", mode="refuse"))["granted"][0]["held"]


async def _held(room: Room, name: str, path: str, **more: Any) -> bool:
    [granted] = (await _reserve(room, name, path, **more))["granted"]
    return bool(granted["held"])


@each_row("shared, other", [("zz/a.py", "zz/a.py"), ("zz/**", "zz/a.py"), ("zz/a.py", "zz/**")])
async def test_raising_a_shared_reservation_to_exclusive_is_a_new_demand_behind_those_made_before(
    room: Room, shared: str, other: str
) -> None:
    await room.open("Ada", "Ben", "Cyd")
    [mine] = (await _reserve(room, "Ada", shared, exclusive=False, reason="reading"))["granted"]
    assert await _held(room, "Ben", other, exclusive=False)
    before = (await room.call("list_file_reservations"))["reservations"]
    refused = await room.refused(
        errors.NotHolder, "file_reservation_paths", agent_name="Ada", paths=["new", shared], mode="refuse"
    )
    assert refused.details["conflicts"][0]["holders"][0]["agent"] == "Ben"  # type: ignore[index]
    assert (await room.call("list_file_reservations"))["reservations"] == before, "the shared one stays"
    raised = await _reserve(room, "Ada", shared)
    [demand] = raised["granted"]
    assert (demand["held"], demand["exclusive"], demand["reason"]) == (False, True, "reading")
    assert demand["id"] != mine["id"]
    assert [one["agent"] for one in raised["conflicts"][0]["holders"]] == ["Ben"]
    assert await _held(room, "Ben", other, exclusive=False), "the shared one is older"
    assert not await _held(room, "Ada", shared), "a renewal keeps the place"
    assert not await _held(room, "Cyd", other)
    assert await _live(room) == [("Ben", other), ("Ada", shared), ("Cyd", other)]
    await room.call("release_file_reservations", agent_name="Ben")
    assert await _held(room, "Ada", shared), "next in order"
    assert not await _held(room, "Cyd", other)
    for name in ("Ada", "Cyd"):
        await room.call("release_file_reservations", agent_name=name)


async def test_a_shared_reservation_that_nobody_stands_against_is_raised_and_lowered_and_keeps_what_it_has(
    room: Room,
) -> None:
    await room.open("Ada", "Ben")
    assert await _held(room, "Ada", "a", exclusive=False)
    [raised] = (await _reserve(room, "Ada", "a", mode="refuse"))["granted"]
    assert raised["held"]
    assert not await _held(room, "Ben", "a", exclusive=False)
    [lowered] = (await _reserve(room, "Ada", "a", exclusive=False))["granted"]
    assert (lowered["held"], lowered["id"]) == (True, raised["id"]), "to share it is no new demand"
    assert await _held(room, "Ben", "a", exclusive=False)


@each_row("mode", ["grant", "refuse"])
async def test_of_two_agents_that_raise_a_shared_reservation_at_once_one_holds_it_or_both_stay_shared(
    room: Room, mode: str
) -> None:
    await room.open("Ada", "Ben")
    for name in ("Ada", "Ben"):
        await _reserve(room, name, "a", exclusive=False)
    answers = await asyncio.gather(
        *(_reserve(room, name, "a", mode=mode) for name in ("Ada", "Ben")), return_exceptions=True
    )
    listed = (await room.call("list_file_reservations"))["reservations"]
    if mode == "refuse":
        assert [type(answer) for answer in answers] == [errors.NotHolder] * 2
        assert [one["exclusive"] for one in listed] == [False, False]
    else:
        assert [one["exclusive"] for one in listed] == [True, True]
        first, second = (one["agent"] for one in listed)
        assert (await _held(room, second, "a"), await _held(room, first, "a")) == (False, True)
    for name in ("Ada", "Ben"):
        await room.call("release_file_reservations", agent_name=name)


async def test_an_absolute_path_inside_the_project_is_the_path_from_its_folder(room: Room) -> None:
    await room.open()
    project = await room.call("show_project")
    [granted] = (await _reserve(room, "Ada", f"{project['human_key']}/src/a.py"))["granted"]
    assert granted["path"] == "src/a.py"
    assert (await _reserve(room, "Ben", "src/a.py"))["conflicts"]
    for end in ("", "/", "/.", "//"):
        [granted] = (await _reserve(room, "Ada", f"{project['human_key']}{end}"))["granted"]
        assert granted["path"] == "**"
    with pytest.raises(errors.InvalidPattern, match="is an absolute path"):
        await _reserve(room, "Ada", f"{project['human_key']}-old")
    with pytest.raises(errors.InvalidPattern, match="is an absolute path"):
        await _reserve(room, "Ada", "/elsewhere/src/a.py")
