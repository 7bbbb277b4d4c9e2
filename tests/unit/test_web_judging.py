"""The page of a run, made to judge the run by: its question, what it changed, its neighbours, retry with a note."""

import re
import subprocess
from datetime import timedelta
from pathlib import Path

from postroom.services.changes import changes_since
from unit.test_web_work import asked, dead, room, stores
from work_room import SLUG, WorkRoom, hidden, post

__all__ = ["room", "stores"]


def git(folder: Path, *words: str) -> None:
    subprocess.run(("git", "-C", str(folder), *words), check=True, capture_output=True)


def repository(folder: Path) -> Path:
    """Make a repository with two files and one commit."""
    folder.mkdir()
    git(folder, "init", "-q")
    for name, value in (("user.email", "ada@example.com"), ("user.name", "Ada")):
        git(folder, "config", name, value)
    (folder / "pay.py").write_text("old\nstays\n")
    (folder / "gone.py").write_text("gone\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "start")
    return folder


def test_changes_since_a_commit_are_told_by_file_with_new_and_deleted_ones(tmp_path: Path) -> None:
    folder = repository(tmp_path / "shop")
    assert changes_since(str(folder), 0) is not None
    (folder / "pay.py").write_text("new\nstays\n```\n")
    (folder / "gone.py").unlink()
    (folder / "extra.txt").write_text("x")
    found = changes_since(str(folder), 0)
    assert found is not None
    assert [(one.path, one.added, one.removed) for one in found.files] == [
        ("gone.py", 0, 1),
        ("pay.py", 2, 1),
    ]
    assert (list(found.new_files), found.is_cut) == (["extra.txt"], False)
    (folder / "pay.py").write_text("x" * 300_000)
    cut = changes_since(str(folder), 0)
    assert cut is not None
    assert cut.is_cut
    assert len(cut.files[-1].diff) < 300_000
    (tmp_path / "plain").mkdir()
    assert changes_since(str(tmp_path / "plain"), 0) is None
    assert changes_since(str(tmp_path / "missing"), 0) is None


def test_a_repository_runs_no_program_of_its_own_when_its_changes_are_read(tmp_path: Path) -> None:
    folder, trace = repository(tmp_path / "shop"), tmp_path / "ran"
    for name in ("filter.evil.clean", "filter.evil.process", "diff.evil.textconv", "diff.external"):
        git(folder, "config", name, f"touch {trace}")
    git(folder, "config", "core.fsmonitor", f"touch {trace}")
    git(folder, "config", "filter.evil.required", "true")
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (folder / "pay.py").write_text("new\n")
    found = changes_since(str(folder), 0)
    assert found is not None
    assert [one.path for one in found.files] == ["pay.py"]
    assert not trace.exists()


async def test_a_run_shows_what_changed_when_that_is_asked_for(room: WorkRoom, tmp_path: Path) -> None:
    folder = repository(tmp_path / "shop")
    (folder / "pay.py").write_text("<b>new</b>\n````\nstays\n")
    await room.mail.set_runner("/projects/shop", "Bo", f'{{"cwd": "{folder}"}}')
    await room.send("Ada", "Bo")
    await room.turn()
    [work] = await room.operator.works(SLUG)
    browser, address = room.browser(), f"/p/{SLUG}/runs/{work.run_id}"
    page = (await browser.get(address)).text
    assert f'href="{address}?changes=1"' in page
    assert "pay.py" not in page
    for shown in ("?changes=1", "?part=changes"):
        page = (await browser.get(address + shown)).text
        assert re.search(r'<span class="count">1 file</span>', page)
        assert re.search(
            r'<bdi>pay.py</bdi></code> <span class="added">\+2</span> <span class="removed">−1', page
        )
        assert "&lt;b&gt;new&lt;/b&gt;" in page
        assert "<b>new" not in page


async def test_a_question_is_answered_on_the_page_of_its_run(room: WorkRoom) -> None:
    browser, _ = await asked(room)
    [work] = await room.operator.works(SLUG)
    address = f"/p/{SLUG}/runs/{work.run_id}"
    page = (await browser.get(address)).text
    assert page.index("May I?") < page.index('id="changes"')
    fields = [(name, hidden(page, name)) for name in ("form_token", "do", "back", "run", "number")]
    answered = await post(browser, f"/p/{SLUG}/questions", *fields, ("answer", "yes"), ("by", "Bea"))
    assert answered.headers["location"].partition("?answered=")[0] == address
    assert await room.questions.questions() == []


async def test_the_result_of_a_run_is_never_the_message_that_asks_its_question(room: WorkRoom) -> None:
    await asked(room)
    [work] = await room.operator.works(SLUG)
    browser, address = room.browser(), f"/p/{SLUG}/runs/{work.run_id}"
    page = (await browser.get(address)).text
    assert ("Sent the question as" in page, "No answer yet." in page) == (True, True)
    assert 'id="result"' not in page
    room.clock.advance(timedelta(seconds=1))
    await room.questions.answer(room.agents.question_ids[0], True, why="")
    await room.turn()
    page = (await browser.get(address)).text
    assert "Sent the question as" in page
    _, _, result = page.partition('id="result"')
    result, _, _ = result.partition("</section>")
    assert ("Ash did it" in result, "has a question" in result, "I wait." in result) == (True, False, False)


async def test_a_run_leads_to_the_previous_and_the_next_run_of_its_agent(room: WorkRoom) -> None:
    for _ in range(3):
        await room.send("Ada", "Bo")
        await room.turn()
        room.clock.advance(timedelta(seconds=1))
    newest, middle, oldest = [one.run_id for one in await room.operator.works(SLUG)]
    browser, runs = room.browser(), f"/p/{SLUG}/runs"
    for of, before, after in ((oldest, "", middle), (middle, oldest, newest), (newest, middle, "")):
        page = (await browser.get(f"{runs}/{of}")).text
        links = re.findall(rf'href="{runs}/([^"]+)">(◂ previous|next) run', page)
        assert [run for run, _ in links] == [one for one in (before, after) if one]


async def test_a_dead_letter_is_retried_with_a_note(room: WorkRoom) -> None:
    await room.people_named.add("Ana", None)
    await dead(room)
    [letter] = await room.operator.dead()
    browser = room.browser()
    browser.cookies.set("postroom_name", "Ana")
    page = (await browser.get(f"/p/{SLUG}/runs/{letter['run_id']}")).text
    again = re.search(r'href="([^"]+again=[^"]+)"', page)
    assert again is not None
    page = (await browser.get(again[1].replace("&amp;", "&"))).text
    assert "&gt; please" in page
    room.agents.failing.clear()
    typed = ("name", "Ana"), ("to", "Fay"), ("subject", "Work"), ("body", "Use the other key.\n\n> please")
    fields = [(name, hidden(page, name)) for name in ("form_token", "key", "again")]
    sent = await post(browser, f"/p/{SLUG}/write", *fields, *typed)
    assert sent.status_code == 303
    assert await room.operator.dead() == []
    await room.turn()
    assert any("Use the other key." in text for text in room.agents.told)


async def test_the_page_of_an_agent_says_why_it_is_silent(room: WorkRoom) -> None:
    browser, _ = await asked(room)
    await room.send("Ada", "Ash", subject="Next")
    await room.turn()
    page = (await browser.get(f"/p/{SLUG}/agents/Ash")).text
    runs = page[page.index('id="open">Runs') :].partition("</section>")[0]
    assert "Waiting:" in runs
    assert "1 waiting message" in runs
