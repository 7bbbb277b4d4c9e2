"""Threads on the pages: filtered, folded by read marks, and answered at their end."""

from postroom.mail.projects import PEOPLE_KEY, PEOPLE_SLUG
from postroom.web import threads
from unit.test_web_pages import NOW, Page, client, page, store, world
from unit.test_web_work import message_form, room, stores
from waking_room import PROJECT
from web_samples import MINUTE, Writer, picture
from work_room import SLUG, WorkRoom, hidden, place, post

__all__ = ["client", "room", "store", "stores", "world"]


def subjects(seen: Page) -> list[str]:
    """Return the last parts of the addresses of the threads that a list shows."""
    found = [link.rpartition("/t/")[2] for link in seen.links() if "/t/" in link]
    return list(dict.fromkeys(found))


async def test_threads_are_filtered_by_what_is_in_them(client, store, world):
    for asked, expected in [
        *(("show=unread", ["hostile", "claims"]), ("show=unread&agent=BlueFox", [])),
        *(("show=unread&agent=greenlake", ["hostile", "claims"]), ("show=unacknowledged", ["claims"])),
        *(("show=unacknowledged&agent=BlueFox", []), ("importance=high", ["claims"])),
        *(("agent=RedBird&importance=urgent", ["claims"]), ("agent=RedBird", ["hostile", "claims"])),
        *(("agent=HiddenReader", []), ("agent=nobody-here", []), ("person=Ana", [])),
    ]:
        seen = await page(client, f"/p/orchard/threads?{asked}")
        assert subjects(seen) == expected, asked
        assert "Show all" in seen.text, asked
    for wrong in ("show=all", "importance=low", "before=x"):
        await page(client, f"/p/orchard/threads?{wrong}", status=400)


async def test_a_filter_is_kept_from_page_to_page_and_says_where_it_has_looked(client, store, monkeypatch):
    monkeypatch.setattr(threads, "THREADS", 2)
    monkeypatch.setattr(threads, "AMONG", 3)

    def put(writes):
        write = Writer(writes)
        home = write.project("orchard", "/home/ana/orchard")
        lake, fox = write.agent(home, "GreenLake"), write.agent(home, "BlueFox")
        for number in range(9):
            urgent = number in (0, 1, 6, 7, 8)
            write.send(
                lake,
                f"T{number}",
                "x",
                to=(fox,),
                thread=f"t{number}",
                importance="urgent" if urgent else "low",
            )

    await store.write(put)
    address, pages = "/p/orchard/threads?importance=urgent&agent=BlueFox", []
    while address:
        seen = await page(client, address)
        pages.append((subjects(seen), "Search older threads" in seen.text, "data-remember" in seen.raw))
        address = seen.next()
        assert address is None or "importance=urgent&agent=BlueFox" in address
    assert pages == [
        *((["t8", "t7"], False, True), (["t6"], True, False), (["t1"], True, False), (["t0"], False, False)),
    ]


async def test_what_the_person_has_read_is_folded_and_the_last_message_never_is(client, store, world):
    def put(writes):
        write, home = Writer(writes), writes.project("orchard").id
        lake, fox = write.agent(home, "x"), write.agent(home, "y")
        ana = write.agent(write.project(PEOPLE_SLUG, PEOPLE_KEY), "Ana")
        sent = [
            write.send(lake, "S", "x", to=(fox, ana), thread="fold", ack=number == 1) for number in range(4)
        ]
        for number in (0, 1, 3):
            writes.mark_read(sent[number].id, fox.id, NOW - MINUTE)
            writes.mark_read(sent[number].id, ana.id, NOW - MINUTE)
        return [one.id for one in sent]

    read = (await store.write(put))[0]

    async def opened(address: str) -> list[bool]:
        seen = await page(client, address)
        return ["open" in one for one in seen.all("details") if one.get("class") == "fold"]

    assert await opened("/p/orchard/t/fold") == [True] * 4  # agents have read it, and nobody says who looks
    client.cookies.set("postroom_name", "Ana")
    assert await opened("/p/orchard/t/fold") == [False, True, True, True]
    assert await opened(f"/p/orchard/t/fold?after={read - 1}") == [True, True, True, True]
    assert await opened(f"/p/orchard/m/{read}") == []
    seen = await page(client, "/p/orchard/t/fold")
    assert "wrote 4" in seen.text
    assert "reads, 1 unread" in seen.text


async def test_pictures_of_a_message_are_in_their_place_and_others_are_links(client, store, world):
    def put(writes):
        write = Writer(writes)
        lake = write.agent(writes.project("orchard").id, "x")
        sent = write.send(lake, "S", "![a plot](plot.png) ![far](https://evil.example/plot.png)")
        return sent.id, write.attach(sent, "plot.png", "image/png", picture())

    message, sha256 = await store.write(put)
    seen = await page(client, f"/p/orchard/m/{message}")
    shown = [one["src"] for one in seen.all("img") if one["src"].startswith("/previews")]
    assert shown == [f"/previews/{sha256}?message={message}"]
    assert "https://evil.example/plot.png" in seen.links()


async def test_a_thread_is_answered_at_its_end_and_the_answer_is_shown_there(room: WorkRoom):
    browser, fields = await message_form(room, subject="The quay")
    await post(browser, f"/p/{SLUG}/write", *fields)
    await room.turn()
    first, answer = await room.messages()
    address = f"/p/{SLUG}/t/{first.thread_id}"
    shown = (await browser.get(address)).text
    assert f'name="reply" value="{answer.id}"' in shown
    form = [
        (name, hidden(shown[shown.index('id="reply"') :], name))
        for name in ("form_token", "key", "reply", "thread")
    ]
    sent = await post(browser, f"/p/{SLUG}/write", *form, ("name", "Ana"), ("body", "And now the pier."))
    [reply] = [one for one in await room.messages() if one.reply_to == answer.id]
    assert (reply.body_md, reply.sender_name) == ("And now the pier.", "Ana")
    assert place(sent) == f"{address}?newest=1&sent={reply.id}#m-{reply.id}"
    page = (await browser.get(sent.headers["location"])).text
    assert "<b>Sent.</b>" in page
    assert "And now the pier." in page
    again = await post(browser, f"/p/{SLUG}/write", *form, ("name", "Ana"), ("body", "And now the pier."))
    assert again.headers["location"] == sent.headers["location"]
    strange = await post(browser, f"/p/{SLUG}/write", *form, ("name", "Zoe"), ("body", "A word."))
    assert (strange.status_code, "Not sent." in strange.text, "A word." in strange.text) == (404, True, True)


async def test_every_page_of_a_thread_leads_to_its_answer_at_the_top_and_at_the_end(
    room: WorkRoom, monkeypatch
):
    browser, fields = await message_form(room, subject="The quay")
    await post(browser, f"/p/{SLUG}/write", *fields)
    await room.turn()
    thread_id = (await room.messages())[0].thread_id
    address = f"/p/{SLUG}/t/{thread_id}"
    form = 'id="reply"'
    shown = (await browser.get(address)).text
    assert (shown.count(form), shown.count('href="#reply"')) == (1, 1)
    monkeypatch.setattr(threads, "MESSAGES", 1)
    shown = (await browser.get(address)).text
    assert (shown.count(form), shown.count(f'href="{address}?newest=1#reply"')) == (0, 3)
    last = (await browser.get(f"{address}?newest=1")).text
    assert (last.count(form), last.count('href="#reply"')) == (1, 1)


async def test_a_message_to_a_person_is_marked_in_its_thread(room: WorkRoom):
    browser, _ = await message_form(room)
    asked = {
        **{"project_key": PROJECT, "sender_name": "Ada", "to": ["human:Ana"], "subject": "x", "body_md": "y"},
    }
    await room.mail.call("send_message", asked)
    [message] = await room.messages()
    browser.cookies.set("postroom_name", "Ana")
    address = f"/p/{SLUG}/t/{message.thread_id}"
    shown = (await browser.get(address)).text
    assert "Mark as read" in shown
    form = [(name, hidden(shown, name)) for name in ("form_token", "name", "thread")]
    marked = await post(browser, f"/p/{SLUG}/m/{message.id}/mark", *form, ("do", "read"))
    assert marked.headers["location"] == f"{address}?after={message.id - 1}#m-{message.id}"
    assert "Mark as read" not in (await browser.get(address)).text


async def test_a_thread_leads_to_the_first_message_that_its_reader_has_not_read(room: WorkRoom):
    await room.people_named.add("Ana", None)
    sent = []
    for number in range(4):
        asked = {"project_key": PROJECT, "sender_name": "Ada", "to": ["human:Ana"], "thread_id": "long"}
        sent.append(
            await room.mail.call("send_message", {**asked, "subject": "Long", "body_md": f"part {number}"})
        )
    messages = await room.messages()
    browser = room.browser()
    browser.cookies.set("postroom_name", "Ana")
    address = f"/p/{SLUG}/t/long"
    assert 'id="unread"' not in (await browser.get(address)).text
    for one in messages[:2]:
        await room.services.messages.mark("Ana", one.id, acknowledge=False)
    page = (await browser.get(address)).text
    assert 'href="#unread"' in page
    assert (
        page.index(f'id="m-{messages[1].id}"')
        < page.index('id="unread"')
        < page.index(f'id="m-{messages[2].id}"')
    )
