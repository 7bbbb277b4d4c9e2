"""Paths and slugs of projects: what names a folder, what does not, and which spellings mean the same one."""

import hashlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mail_room import HARBOR, SHORE, Room, room_in_memory
from postroom.contracts.errors import InvalidArgument, InvalidName, InvalidPath, UnknownProject
from postroom.mail import git_identity
from postroom.mail.git_identity import RepositoryFolder
from postroom.mail.projects import checked_path, make_slug, spelling

room = room_in_memory

REFUSED = {
    **dict.fromkeys(("", "   "), "is empty"),
    **dict.fromkeys(("relative", "./here", "../up", "~/project", "C:relative", "C:"), "not an absolute path"),
    **dict.fromkeys(("\\\\", "\\\\.\\", "file:///home/me"), "not an absolute path"),
    **dict.fromkeys(("/home/me/../you", "C:\\work\\..\\other", "/..", "/a/..\\b"), "contains '..'"),
    **dict.fromkeys(
        ("YOUR_PROJECT", "/path/to/YOUR_PROJECT", "/home/YOUR-NAME/x", "<PROJECT>"), "placeholder"
    ),
    **dict.fromkeys(("/home/<user>/x", "/srv/{project}", "$HOME/project", "/home/${USER}/x"), "placeholder"),
    **dict.fromkeys(("PROJECT_PATH", "/srv/PROJECT_KEY"), "placeholder"),
    **dict.fromkeys(("/a\x00b", "/a\nb", "/a\x7f"), "control characters"),
    "/" + "x" * 4_096: "longer than",
}


def test_what_is_no_absolute_path_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for path, why in REFUSED.items():
        with subtests.test(path=path, why=why):
            with pytest.raises(InvalidPath, match=re.escape(why)) as caught:
                checked_path(path)
            assert caught.value.value == path
            assert "absolute path" in caught.value.remedy
            assert len(str(caught.value)) < 300


def test_an_absolute_path_is_kept_without_doubled_or_trailing_separators() -> None:
    kept = {
        **{"/a/": "/a", "//a///b//": "/a/b", "/a/./b/.": "/a/b", "C:\\a\\b\\": "C:\\a\\b"},
        "c:/a//b": "c:\\a\\b",
    }
    kept |= {"C:/": "C:\\", "C:/</>": "C:\\<\\>", "c:\\\\.\\": "c:\\"}
    kept |= {"\\\\server\\share\\x\\": "\\\\server\\share\\x"}
    same = ("/", "/a", "/a b/ü", "/a/..b/c..", "/home/me/your_project", "/a/$1")
    kept |= {one: one for one in (*same, "\\\\wsl.localhost\\Ubuntu\\home\\me")}
    assert {given: checked_path(given) for given in kept} == kept
    assert {one: checked_path(one) for one in kept.values()} == {one: one for one in kept.values()}


def test_spellings_of_one_folder_compare_equal(subtests: pytest.Subtests) -> None:
    for one, other in [
        *(("C:\\Work\\App", "c:\\work\\app"), ("C:\\Work\\App", "/mnt/c/Work/App")),
        *(("C:\\Work\\App", "/mnt/C/work/app"), ("C:\\", "/mnt/c")),
        ("\\\\wsl.localhost\\Ubuntu\\home\\me\\app", "/home/me/app"),
        *(("\\\\wsl$\\Debian\\home\\me\\app", "/home/me/app"), ("\\\\wsl$\\Debian\\mnt\\d\\x", "D:\\x")),
        ("\\\\Server\\Share\\x", "\\\\server\\share\\X"),
    ]:
        with subtests.test(one=one, other=other):
            assert spelling(checked_path(one)) == spelling(checked_path(other))


def test_other_folders_stay_apart(subtests: pytest.Subtests) -> None:
    for one, other in [
        ("/home/me/App", "/home/me/app"),
        ("/mnt/c/x", "/mnt/d/x"),
        ("/mnt/cc/x", "C:\\c\\x"),
        ("/a", "/a/b"),
    ]:
        with subtests.test(one=one, other=other):
            assert spelling(checked_path(one)) != spelling(checked_path(other))


@given(st.text(min_size=1, max_size=200))
@settings(max_examples=20)
def test_every_slug_is_lower_case_letters_digits_and_single_hyphens(text: str) -> None:
    slug = make_slug("/" + text)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert len(slug) <= 120


@given(st.text(max_size=60))
@settings(max_examples=20)
def test_every_text_is_a_path_or_an_invalid_one_and_a_checked_path_stays_as_it_is(text: str) -> None:
    for candidate in (text, "/" + text, "C:\\" + text, "\\\\" + text):
        try:
            path = checked_path(candidate)
        except InvalidPath:
            continue
        assert ".." not in re.split(r"[\\/]", path)
        assert checked_path(path) == path


WINDOWS, MOUNTED = "C:\\work\\app", "/mnt/c/work/app"


async def test_a_project_is_found_by_its_slug_its_path_and_the_path_with_slashes_too_many(room: Room) -> None:
    made = await room.call("ensure_project", human_key=HARBOR)
    for key in ("projects-harbor", HARBOR, HARBOR + "/", "/projects//harbor/."):
        found = await room.call("show_project", project_key=key)
        assert found["id"] == made["id"]
    assert (await room.call("ensure_project", human_key=HARBOR + "//"))["id"] == made["id"]


async def test_paths_that_would_share_a_slug_get_their_own(room: Room) -> None:
    first = await room.call("ensure_project", human_key="/a-b")
    second = await room.call("ensure_project", human_key="/a/b")
    third = await room.call("ensure_project", human_key="/a b")
    assert first["slug"] == "a-b"
    assert re.fullmatch(r"a-b-[0-9a-f]{8}", second["slug"])
    assert len({first["slug"], second["slug"], third["slug"]}) == 3


async def test_a_path_that_has_the_slug_another_would_get_does_not_keep_it_out(room: Room) -> None:
    squatted = f"c-d-{hashlib.sha256(b'/c/d').hexdigest()[:8]}"
    for path in ("/c-d", f"/{squatted}", f"/{squatted}-2"):
        await room.call("ensure_project", human_key=path)
    made = await room.call("ensure_project", human_key="/c/d")
    assert made["slug"] == f"{squatted}-3"
    assert (await room.call("show_project", project_key=made["slug"]))["human_key"] == "/c/d"


async def test_an_unknown_project_is_refused_with_the_nearest_names(room: Room) -> None:
    await room.open("Ada")
    await room.open("Ada", project=SHORE)
    error = await room.refused(UnknownProject, "list_agents", project_key="projects-harbour")
    assert error.details["nearest"][0] == "projects-harbor"  # type: ignore[index]
    assert "projects-harbor" in error.message
    assert "ensure_project" in error.remedy
    error = await room.refused(UnknownProject, "list_agents", project_key="/projects/harbo")
    assert "/projects/harbor" in error.details["nearest"]  # type: ignore[operator]
    error = await room.refused(UnknownProject, "list_agents", project_key="zzzzzz")
    assert error.details["nearest"] == []


async def test_no_project_is_made_of_a_placeholder_a_relative_path_or_an_endless_one(room: Room) -> None:
    await room.open("Ada")
    who = {"program": "p", "model": "m", "name": "Ada"}
    placeholders = ("<PROJECT>", "YOUR_PROJECT", "/path/to/YOUR_PROJECT", "/a\x1b[31m", "{project}")
    for key in (*placeholders, "relative/path", ".", "..", "harbor", "C:relative"):
        await room.refused(InvalidPath, "ensure_project", human_key=key)
        await room.refused(InvalidPath, "start_session", project_key=key, **who)
        if key in placeholders:
            await room.refused(InvalidPath, "fetch_inbox", project_key=key, agent_name="Ada")
    for key in ("", "/" + "x" * 5_000):
        await room.refused(InvalidArgument, "list_agents", project_key=key)
        await room.refused(InvalidPath, "ensure_project", human_key=key)


@pytest.mark.parametrize("opening", ["ensure_project", "start_session"])
async def test_another_spelling_of_a_folder_is_the_same_project_when_git_says_so(
    room: Room, monkeypatch: pytest.MonkeyPatch, opening: str
) -> None:
    def read(path: str) -> RepositoryFolder:
        return RepositoryFolder(top=path, identity="host/app#abc")

    monkeypatch.setattr(git_identity, "read_folder", read)
    made = await room.call("ensure_project", human_key=WINDOWS)
    if opening == "ensure_project":
        again = await room.call("ensure_project", human_key=MOUNTED, idempotency_key="k")
        repeated = await room.call("ensure_project", human_key=MOUNTED, idempotency_key="k")
        assert repeated == again
    else:
        session = await room.call("start_session", project_key=MOUNTED, program="p", model="m", name="Ada")
        again = session["project"]
    assert again["id"] == made["id"]
    for key in (WINDOWS, MOUNTED, MOUNTED + "/", made["slug"]):
        assert (await room.call("show_project", project_key=key))["id"] == made["id"]


async def test_another_spelling_is_its_own_project_unless_the_caller_says_that_it_is_the_same(
    room: Room,
) -> None:
    plain = [await room.call("ensure_project", human_key=one) for one in ("D:\\work\\app", "/mnt/d/work/app")]
    assert len({one["id"] for one in plain}) == len({one["slug"] for one in plain}) == 2
    made = await room.call("ensure_project", human_key=WINDOWS, git_identity="r#1")
    same = await room.call("ensure_project", human_key=MOUNTED, git_identity="r#1")
    other = await room.call("ensure_project", human_key="/mnt/c/WORK/APP", git_identity="r#2")
    assert (same["id"] == made["id"], other["id"] == made["id"]) == (True, False)


async def test_a_session_that_is_refused_makes_no_project(room: Room) -> None:
    before = (await room.call("health_check"))["projects"]
    await room.refused(
        InvalidName, "start_session", project_key=SHORE, program="p", model="m", name="no name"
    )
    assert (await room.call("health_check"))["projects"] == before
