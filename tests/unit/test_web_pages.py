import re
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.applications import Starlette

from postroom.contracts.errors import InvalidName, StoreUnavailable, UnknownMessage
from postroom.contracts.mail import Attachment
from postroom.contracts.quoting import sentence
from postroom.contracts.records import replace
from postroom.contracts.waking import MessageRun
from postroom.mail.operations import MAIL_OPERATIONS
from postroom.stores.sqlite import SqliteStore
from postroom.web.agents import AGENTS
from postroom.web.files import ASSET_LINKS
from postroom.web.messages import attached
from postroom.web.pages import page_routes
from postroom.web.projects import COUNTED, PROJECTS
from postroom.web.reservations import ENDED, LIVE
from postroom.web.threads import THREADS
from web_samples import HOSTILE, HOUR, MINUTE, NOW, Writer, picture

GONE = "the recalled words"
HTTP = "http://127.0.0.1:8765"
ORCHARD = (
    "|/timeline|/timeline?span=all&open=idle&sel=message:1|/threads|/t/claims|/t/claims?newest=1|/agents"
)
ORCHARD += (
    "|/agents/GreenLake|/agents/GreenLake?box=sent|/agents/BlueFox|/reservations|/search|/search?q=claim"
)
ORCHARD += "|/search?q=nothing-like-it"
PAGES = ("/", *(f"/p/orchard{rest}" for rest in ORCHARD.split("|")), "/p/nowhere")
PAGES += tuple(f"/p/quiet{rest}" for rest in ("", "/timeline", "/threads", "/agents", "/reservations"))


class Noon:
    """A clock that does not advance."""

    def now(self):
        return NOW


class Page(HTMLParser):
    """The requests of a test to a page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.raw = text
        self.elements = []
        self.words = ""
        self.feed(text)
        self.close()
        self.text = re.sub(r" ([,:;.])", r"\1", " ".join(self.words.split()))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.words += " "

    def handle_endtag(self, tag):
        self.words += " "

    def handle_data(self, data):
        self.words += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self):
        return [one["href"] for one in self.all("a") if "href" in one]

    def next(self):
        found = [one["href"] for one in self.all("a") if one.get("rel") == "next"]
        assert len(set(found)) <= 1
        return found[0] if found else None


@dataclass
class World:
    """A project with mail in every state, and an empty project."""

    claim: int
    reply: int
    recalled: int
    stranger: int
    hostile: int
    files: dict[str, str]


def fill(writes):
    write = Writer(writes)
    orchard = write.project("orchard", "/home/ana/orchard")
    write.project("quiet", "C:\\Users\\ana\\quiet")
    lake, fox, bird = (write.agent(orchard, name) for name in ("GreenLake", "BlueFox", "RedBird"))
    ghost = write.agent(orchard, "HiddenReader")
    claim = write.send(
        lake,
        "Who claims the claim",
        "A *claim* without an epoch.",
        to=(fox, bird),
        cc=(lake,),
        bcc=(ghost,),
        thread="claims",
        importance="urgent",
        ack=True,
    )
    writes.mark_acked(claim.id, fox.id, NOW - 5 * MINUTE)
    writes.mark_read(claim.id, bird.id, NOW - 4 * MINUTE)
    files = {
        "chart": write.attach(
            claim, "chart.png", "image/png", picture(size=(900, 600)), picture(kind="WEBP")
        ),
        "small": write.attach(claim, "small.gif", "image/gif", picture(kind="GIF")),
        "drawing": write.attach(claim, "drawing.svg", "image/svg+xml", b"<svg onload='alert(1)'/>"),
        "liar": write.attach(claim, "liar.png", "image/png", b"<html><script>alert(1)</script>"),
        "named": write.attach(claim, 'a "b"\r\nX-Evil: 1;é/../\u202egpj.exe', "text/html", b"named"),
    }
    reply = write.send(
        fox, "Re: Who claims the claim", "I do.", to=(lake,), thread="claims", reply_to=claim.id
    )
    recalled = write.send(fox, GONE, GONE, to=(lake,), thread="claims", reply_to=reply.id)
    files["recalled"] = write.attach(recalled, "gone.txt", "text/plain", GONE.encode())
    writes.mark_recalled(recalled.id, NOW - MINUTE)
    first_recalled = write.send(fox, GONE, GONE, to=(lake,), thread="gone")
    writes.mark_recalled(first_recalled.id, NOW - MINUTE)
    nobody = replace(lake, id=987_654, name="")
    stranger = write.send(nobody, "", "A line from a stranger.", thread="strange")
    hostile = write.send(
        bird, "<script>alert(1)</script>", "\n\n".join(HOSTILE), to=(lake,), thread="hostile", at=NOW - HOUR
    )
    write.reserve(lake, "src/desk/**", reason="<b>mending</b>")
    write.reserve(fox, "docs/*.md", exclusive=False)
    old = write.reserve(bird, "old.py", at=NOW - 2 * HOUR)
    writes.release_reservation(old, now=NOW - HOUR, by="GreenLake", reason="gone silent")
    return World(claim.id, reply.id, recalled.id, stranger.id, hostile.id, files)


@pytest.fixture
def store():
    made = SqliteStore.in_memory()
    yield made
    made.close()


@pytest.fixture
async def client(store):
    app = Starlette(routes=page_routes(store.runs.store, clock=Noon()))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=HTTP) as made:
        yield made


@pytest.fixture
async def world(store):
    return await store.write(fill)


async def page(client, address, *, status=200):
    answer = await client.get(address)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Page(answer.text)


async def every_page(client):
    """Follow every link from the list of projects; of timelines those with one choice."""
    seen, waiting = {}, ["/"]
    while waiting:
        address = waiting.pop()
        if address in seen or urlsplit(address).netloc or address.startswith(("/attachments/", "/static/")):
            continue
        answer = await client.get(address)
        seen[address] = answer
        if "html" in answer.headers["content-type"]:
            waiting += [
                link.split("#")[0]
                for link in Page(answer.text).links()
                if not link.startswith(("#", "mailto:"))
                and not ("/timeline?" in link and link.count("=") > 1)
            ]
        assert len(seen) < 200
    return seen


def handled(writes, message_id, names, *, began=NOW - 3 * MINUTE):
    """Make agents run on a message: the first succeeds, the second fails, the third is active."""
    orchard = writes.project("orchard").id
    for name, ends in zip(
        names, ({}, {"outcome": "failed", "error": "exit 3: <script>alert(1)</script>"}, None), strict=False
    ):
        agent_id = writes.agent(orchard, name).id
        writes.put_message_run(
            MessageRun(message_id=message_id, agent_id=agent_id, run_id=f"r-{name}", delivered_at=began)
        )
        writes.begin_run(f"r-{name}", agent_id, began)
        if ends is not None:
            writes.end_run(f"r-{name}", now=began + MINUTE, **ends)


async def test_the_timeline_draws_what_happened_and_lists_the_same(client, store, world):
    await store.write(lambda tx: handled(tx, world.claim, ("BlueFox", "RedBird", "GreenLake")))
    shown = await page(client, "/p/orchard/timeline?span=all")
    drawn = [one for one in shown.all("a") if "data-mark" in one]
    listed = [one["data-key"] for one in shown.all("li") if "data-count" in one]
    assert sorted(one["data-mark"] for one in drawn) == sorted(listed)
    attempts = await store.read(
        lambda reads: [
            one
            for name in ("BlueFox", "RedBird", "GreenLake")
            for one in reads.attempts_of_runs([f"r-{name}"])
        ]
    )
    marks = {one["data-mark"] for one in drawn}
    assert {f"attempt:{one.id}" for one in attempts} <= marks
    assert {f"message:{one}" for one in (world.claim, world.reply, world.recalled)} <= marks
    names = [one["aria-label"] for one in drawn]
    assert any("RedBird failed" in one and "exit 3: <script>alert(1)</script>" in one for one in names)
    assert any("GreenLake is active" in one for one in names)
    assert "HiddenReader wrote" not in shown.text
    assert GONE not in shown.text


async def test_a_timeline_may_be_that_of_one_agent_or_one_thread(client, store, world):
    await store.write(lambda tx: handled(tx, world.claim, ("BlueFox", "RedBird")))
    fox = await page(client, "/p/orchard/timeline?agent=BlueFox&span=all")
    names = [one["aria-label"] for one in fox.all("a") if "data-mark" in one]
    assert any("BlueFox succeeded" in one for one in names)
    assert not any("RedBird failed" in one or "GreenLake holds" in one for one in names)
    claim = await store.read(lambda reads: reads.message(world.claim))
    whole = await page(client, f"/p/orchard/timeline?thread={claim.thread_id}&span=all")
    names = [one["aria-label"] for one in whole.all("a") if "data-mark" in one]
    assert any("RedBird failed" in one for one in names)
    assert not any(" holds " in one or " held " in one for one in names)
    for nobody in ("agent=Nobody", "thread=nowhere"):
        assert (await client.get(f"/p/orchard/timeline?{nobody}")).status_code == 404
    for wrong in ("from=5", "from=9&to=5", "from=0&to=99999999999999999", "span=3y", "from=x&to=y"):
        assert (await client.get(f"/p/orchard/timeline?{wrong}")).status_code == 400


async def test_a_place_in_the_picture_is_that_of_its_instant_whatever_the_hour_is_called(
    client, store, world
):
    """On the day on which clocks are put back, with a span of two seconds and of eight hours."""
    begin = 1_792_886_400_000  # 25 October 2026, 00:00 UTC; at 01:00 UTC it is 3 and then 2 o'clock in Berlin

    def happened(writes):
        lake = writes.agent(writes.project("orchard").id, "GreenLake").id
        writes.begin_run("short", lake, begin + 500)
        writes.end_run("short", now=begin + 1_500)
        writes.begin_run("long", lake, begin + 2 * HOUR)
        writes.end_run("long", now=begin + 4 * HOUR)

    await store.write(happened)
    for length, x, width in ((2_000, "25%", "50%"), (8 * HOUR, "25%", "25%")):
        shown = await page(client, f"/p/orchard/timeline?from={begin}&to={begin + length}")
        bars = [
            one for one in shown.all("rect") if one.get("class") == "tl-bar done" and one["height"] == "14"
        ]
        assert (bars[-1]["x"], bars[-1]["width"]) == (x, width)


async def test_every_link_of_every_page_leads_somewhere(client, world):
    found = await every_page(client)
    assert {
        address: answer.status_code for address, answer in found.items() if answer.status_code != 200
    } == {}
    for part in (
        *("/threads", "/agents/GreenLake", "?box=sent", "/t/claims", f"/m/{world.claim}", "/reservations"),
    ):
        assert any(part in address for address in found), part


async def test_no_page_needs_more_than_the_content_policy_allows(client, world):
    for address in PAGES:
        seen = Page((await client.get(address)).text)
        scripts = [one["src"] for one in seen.all("script")]
        own = [ASSET_LINKS["timeline.js"]] if "/timeline" in address else []
        assert scripts == ([] if address == "/p/nowhere" else [ASSET_LINKS["postroom.js"], *own]), address
        assert not {"style", "iframe", "object", "embed", "base"} & {tag for tag, _ in seen.elements}
        for _, attributes in seen.elements:
            assert not [name for name in attributes if name == "style" or name.startswith("on")], address
        fetched = [one["src"] for one in seen.all("img")] + [one["href"] for one in seen.all("link")]
        assert fetched
        assert all(re.match(r"/(static|previews)/", one) for one in fetched), address
        sending = [one for one in seen.all("form") if one.get("method") != "dialog"]  # which sends nothing
        assert all(one["action"].startswith("/") and one.get("method", "get") == "get" for one in sending)


async def test_rows_of_a_page_are_known_by_a_key_so_that_one_above_does_not_rewrite_them(client, world):
    for address, answer in (await every_page(client)).items():
        seen = Page(answer.text)
        rows = [one for one in seen.all("li") if "data-item" in one]
        heads = answer.text.count("<thead")
        rows += [one for one in seen.all("tr")[heads:] if one.get("role") == "row"] if heads == 1 else []
        assert [one for one in rows if not one.get("data-key")] == [], address
        keys = [one["data-key"] for one in rows]
        assert len(set(keys)) == len(keys), address


async def test_parts_of_a_page_are_the_same_html(client, world):
    whole = await client.get("/p/orchard/search?q=claim")
    parts = await client.get("/p/orchard/search?q=claim&part=main,tabs")
    assert parts.headers["postroom-after"] == whole.headers["postroom-after"] != "0"
    seen = Page(parts.text)
    assert [one["data-part"] for one in seen.all("div") if "data-part" in one] == ["main", "tabs"]
    assert not {"html", "main", "script"} & {tag for tag, _ in seen.elements}
    shown = Page(whole.text)
    rows = [one for one in seen.all("li") if one.get("class") == "row"]
    assert rows
    assert rows == [one for one in shown.all("li") if one.get("class") == "row"]
    assert set(seen.links()) <= set(shown.links())
    for name in ("nothing", "a.b", "main,,tabs", "title" * 20):
        assert (await client.get(f"/p/orchard/search?q=claim&part={name}")).status_code == 400


async def test_every_page_is_built_for_a_keyboard_and_a_screen_reader(client, world):
    for address in PAGES:
        seen = Page((await client.get(address)).text)
        assert seen.all("html") == [{"lang": "en"}]
        assert (seen.all("main")[0]["id"], seen.links()[0]) == ("main", "#main"), address
        levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1, address
        assert all(later - earlier <= 1 for earlier, later in pairwise(levels)), address
        ids = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
        assert len(ids) == len(set(ids)), address
        named = {attributes.get("aria-labelledby") for _, attributes in seen.elements} - {None}
        assert named <= set(ids), address
        for tag, name in (("img", "alt"), ("th", "scope"), ("time", "datetime")):
            assert all(name in one for one in seen.all(tag)), address
        assert seen.all("title")


async def test_what_is_hidden_or_recalled_is_on_no_page(client, world):
    hidden = "HiddenReader"
    inbox = await page(client, f"/p/orchard/agents/{hidden}")
    assert "No visible messages" in inbox.text
    assert f"/p/orchard/m/{world.claim}" not in inbox.links()
    lists = ("/p/orchard", "/p/orchard/agents", "/p/orchard/threads")  # the agents of the project
    for address, answer in (await every_page(client)).items():
        assert hidden not in answer.text or address in lists or hidden in address, address
        assert GONE not in answer.text, address
        assert '<span class="badge owed">True' not in answer.text, "nobody asks"
    message = await page(client, f"/p/orchard/m/{world.recalled}")
    assert ("recalled" in message.text, "/attachments/" in message.raw) == (True, False)
    assert "recalled" in (await page(client, "/p/orchard/t/gone")).text
    await page(client, f"/p/orchard/m/{world.recalled}/source", status=404)
    await page(client, f"/attachments/{world.files['recalled']}?message={world.recalled}", status=404)


SAID = {
    "/p/orchard/m/{claim}": (
        "urgent 2 of 3 to acknowledge",
        "BlueFox ✓✓ acknowledged 5 minutes ago",
        "RedBird ✓ read 4 minutes ago, 14:09 UTC, not acknowledged",
        "GreenLake cc ● unread, not acknowledged",
    ),
    "/p/orchard/threads": (
        "Who claims the claim BlueFox recalled urgent 2 to acknowledge",
        "no subject unknown sender A line from a stranger.",
    ),
    "/p/orchard/t/claims": ("3 messages",),
    "/p/orchard/m/{stranger}": ("unknown sender", "No visible recipients."),
    "/p/orchard/agents/GreenLake": (
        "Who claims the claim GreenLake A claim without an epoch. urgent cc ● unread, not acknowledged",
        "Re: Who claims the claim BlueFox I do. ● unread 10 minutes ago",
        "Reservations src/desk/** exclusive ends in 1 hour, 15:13 UTC <b>mending</b>",
    ),
    "/p/orchard/agents/GreenLake?box=sent": ("urgent 2 of 3 to acknowledge 2 of 3 read",),
    "/p/orchard/reservations": (
        "docs/*.md BF BlueFox shared no reason in 1 hour",
        "src/desk/** GL GreenLake exclusive <b>mending</b> in 1 hour",
        "old.py RB RedBird exclusive ended by GreenLake 1 hour ago, 13:13 UTC: gone silent",
    ),
    "/p/orchard/reservations?path=src/desk/a.py": ("src/desk/**",),
    "/p/orchard/reservations?path=elsewhere": ("No reservation of",),
    "/p/orchard/search?q=zzzz": ("No matches",),
    "/p/orchard/search?q=***": ("Search syntax",),
    "/p/orchard/search?q=": ("Search syntax",),
    "/p/orchard/search?q=%20%20": ("Search syntax",),
    "/p/orchard/search?q=%22": ("Search syntax",),
}
"""The pages' text about the world; a new row is a new line."""
NOT_SAID = {
    "/p/orchard/m/{stranger}": "acknowledged",
    "/p/orchard/reservations?path=src/desk/a.py": "docs/*.md",
}


async def test_each_page_says_what_its_row_says(client, world):
    missing = []
    for address, texts in SAID.items():
        seen = await page(client, address.format(claim=world.claim, stranger=world.stranger))
        missing += [(address, text) for text in texts if text not in seen.text]
        assert NOT_SAID.get(address, "\0") not in seen.text, address
    assert missing == []


async def test_a_thread_shows_its_messages_in_order_with_what_they_answer(client, world):
    seen = await page(client, "/p/orchard/t/claims")
    ids = [f"m-{number}" for number in (world.claim, world.reply, world.recalled)]
    assert [one["id"] for one in seen.all("article")] == ids
    assert f"#m-{world.claim}" in seen.links()
    assert f"/p/orchard/m/{world.claim}" in (await page(client, f"/p/orchard/m/{world.reply}")).links()


async def test_mail_between_projects_leads_to_where_it_and_its_people_are(client, store):
    def put(writes):
        write = Writer(writes)
        near, far = write.project("near", "/near"), write.project("far", "/far")
        fox, bird = write.agent(near, "BlueFox"), write.agent(far, "RedBird")
        kept = write.send(fox, "Over there", "text", to=(bird,), thread="t")
        guest = write.send(bird, "Over here", "text", to=(fox,), thread="t", project=near)
        return kept.id, guest.id

    kept, guest = await store.write(put)
    thread = await page(client, "/p/near/t/t")
    assert "/p/far/agents/RedBird" in thread.links()
    assert "/p/near/agents/RedBird" not in thread.links()
    assert f"/p/near/m/{kept}" in (await page(client, "/p/far/agents/RedBird")).links()
    await page(client, f"/p/near/m/{guest}")
    await page(client, f"/p/far/m/{guest}", status=404)


async def test_a_message_from_another_project_leads_to_a_thread_that_has_it(client, store):
    def put(writes):
        write = Writer(writes)
        near, far = write.project("near", "/near"), write.project("far", "/far")
        fox, bird = write.agent(near, "BlueFox"), write.agent(far, "RedBird")
        alone = write.send(fox, "Over there", "text", to=(bird,))
        answered = write.send(fox, "And there", "text", to=(bird,), thread="both")
        write.send(bird, "Here", "text", to=(fox,), thread="both")
        return alone, answered

    alone, answered = await store.write(put)
    for message, slug in ((alone, "near"), (answered, "far")):
        seen = await page(client, f"/p/far/m/{message.id}")
        [link] = [one for one in seen.links() if f"/t/{message.thread_id}" in one]
        assert link == f"/p/{slug}/t/{message.thread_id}?after={message.id - 1}#m-{message.id}"
        assert "text" in (await page(client, link)).text


async def test_clock_times_are_those_of_the_zone_that_the_browser_told_and_of_utc_otherwise(client, world):
    zones = {
        "": "15:13 UTC",
        "Asia/Kolkata": "20:43",
        "America/Phoenix": "08:13",
        "Pacific/Kiritimati": "05:13",
    }
    zones |= dict.fromkeys(("Mars/Olympus", "../../etc/passwd", "undefined"), "15:13 UTC")
    for zone, told in zones.items():
        client.cookies.set("postroom_zone", zone)
        seen = await page(client, "/p/orchard/agents/GreenLake")
        assert f"ends in 1 hour, {told} <b>" in seen.text, zone
        assert any(one.get("title", "").endswith("15:13:20 UTC") for one in seen.all("time"))
        corner = f'<p class="tl-corner soft">{"UTC" if "UTC" in told else zone}</p>'
        assert corner in (await client.get("/p/orchard/timeline?span=1h")).text, zone


async def test_an_empty_server_says_how_to_connect_a_client(client):
    shown = (await page(client, "/")).text
    assert f"claude mcp add --transport http postroom {HTTP}/mcp/core --header" in shown
    assert '--header "Authorization: Bearer $POSTROOM_TOKEN"' in shown
    elsewhere = await client.get("/", headers={"host": "box.local:9000"})
    assert "http://box.local:9000/mcp" in elsewhere.text
    strange = await client.get("/", headers={"host": "box$(reboot)"})
    assert f"{HTTP}/mcp" in Page(strange.text).text


async def walk(client, address):
    """Return the pages from an address on, by their links to the next one."""
    found = []
    while address:
        found.append(await page(client, address))
        address = found[-1].next()
        assert len(found) < 50
    return found


def numbers(pages, pattern):
    return [int(number) for one in pages for number in dict.fromkeys(re.findall(pattern, one.raw))]


async def test_long_lists_are_paged_and_each_row_is_there_once(client, store):
    def put(writes):
        write = Writer(writes)
        project = write.project("long", "/long")
        agents = [write.agent(project, f"Agent{n}") for n in range(2 * AGENTS + 5)]
        for n in range(2 * THREADS + 5):
            write.send(agents[0], f"Thread {n}", "text", to=(agents[1],), thread=f"t{n}")
        for n in range(2 * PROJECTS + 3):
            write.project(f"other-{n}", f"/other/{n}")

    await store.write(put)
    threads = await walk(client, "/p/long/threads")
    assert numbers(threads, r">Thread (\d+)<") == list(range(2 * THREADS + 5))[::-1]
    agents = await walk(client, "/p/long/agents")
    assert numbers(agents, r"/agents/Agent(\d+)") == list(range(2 * AGENTS + 5))
    projects = await walk(client, "/")
    assert sorted(numbers(projects, r"/p/other-(\d+)\"")) == list(range(2 * PROJECTS + 3))
    assert len(threads) == len(agents) == len(projects) == 3
    assert all("Back to the start" in one.text for one in threads[1:])


async def test_counts_that_were_not_finished_say_so(client, store):
    def put(writes):
        write = Writer(writes)
        project = write.project("long", "/long")
        sender, *_ = [write.agent(project, f"Agent{n}") for n in range(COUNTED + 1)]
        for n in range(COUNTED):
            write.send(sender, f"Thread {n}", "text")

    await store.write(put)
    assert "/long – 99+ 99 10 minutes ago" in (await page(client, "/")).text


async def test_a_long_thread_is_paged_in_order(client, store):
    def put(writes):
        write = Writer(writes)
        sender = write.agent(write.project("p", "/p"), "GreenLake")
        return [write.send(sender, "Long", f"text {n}", thread="long").id for n in range(120)]

    ids = await store.write(put)
    pages = await walk(client, "/p/p/t/long")
    assert numbers(pages, r'<article [^>]*id="m-(\d+)"') == ids
    assert len(pages) == 3
    assert "120 messages, the first 50 are shown" in pages[0].text
    newest = await page(client, "/p/p/t/long?newest=1")
    assert numbers([newest], r'<article [^>]*id="m-(\d+)"') == ids[-50:]
    assert newest.next() is None
    assert "No newer messages" in (await page(client, f"/p/p/t/long?after={ids[-1]}")).text


async def test_a_page_of_a_thread_ends_early_when_its_text_is_long(client, store):
    def put(writes):
        write = Writer(writes)
        sender = write.agent(write.project("p", "/p"), "GreenLake")
        bodies = ["a" * 1000, "b" * 300_000, "c" * 200_000, "d" * 60_000, "e"]
        return [write.send(sender, "Big", body, thread="big").id for body in bodies]

    ids = await store.write(put)
    pages = await walk(client, "/p/p/t/big")
    shown = [numbers([one], r'<article [^>]*id="m-(\d+)"') for one in pages]
    assert shown == [ids[:1], ids[1:2], ids[2:]]
    assert "This message is 293 KiB long" in pages[1].text
    assert f"/p/p/m/{ids[1]}/source" in pages[1].links()
    newest = await page(client, "/p/p/t/big?newest=1")
    assert numbers([newest], r'<article [^>]*id="m-(\d+)"') == ids[2:]


async def test_an_inbox_is_paged_newest_first_without_hidden_copies(client, store):
    def put(writes):
        write = Writer(writes)
        project = write.project("p", "/p")
        sender, reader = write.agent(project, "Sender"), write.agent(project, "Reader")
        shown = []
        for n in range(70):
            if n % 3:
                shown.append(write.send(sender, f"Open {n}", "text", to=(reader,)).id)
            else:
                write.send(sender, f"Hidden {n}", "text", bcc=(reader,))
        return shown

    shown = await store.write(put)
    pages = await walk(client, "/p/p/agents/Reader")
    assert numbers(pages, r'/m/(\d+)"') == shown[::-1]
    assert not any("Hidden" in one.raw for one in pages)
    assert len(pages) == 3


async def test_what_an_agent_sent_is_its_own_and_paged(client, store):
    def put(writes):
        write = Writer(writes)
        project = write.project("p", "/p")
        green, lake = write.agent(project, "Green"), write.agent(project, "Green-Lake")
        return [write.send((green, lake)[n % 2], f"Message {n}", "text", to=(lake,)).id for n in range(90)]

    ids = await store.write(put)
    assert numbers(await walk(client, "/p/p/agents/Green?box=sent"), r'/m/(\d+)"') == ids[::2][::-1]
    assert numbers(await walk(client, "/p/p/agents/green-lake?box=sent"), r'/m/(\d+)"') == ids[1::2][::-1]


async def test_reservations_that_overlap_are_marked_on_both_with_the_other_holder(client, store):
    def some(writes):
        write = Writer(writes)
        project = write.project("clash", "/home/ana/clash")
        fox, bird, owl = (write.agent(project, name, "") for name in ("Fox", "Bird", "Owl"))
        for agent, pattern in ((fox, "src/**"), (bird, "src/app.py"), (owl, "docs/a.md"), (fox, "src/b.py")):
            write.reserve(agent, pattern, reason="", at=NOW)

    await store.write(some)
    seen = (await client.get("/p/clash/reservations")).text
    assert re.findall(r"conflict with <bdi>(\w+)</bdi>: <bdi>([^<]+)</bdi>", seen) == [
        ("Bird", "src/app.py"),
        ("Fox", "src/**"),
    ]


async def test_the_last_reservations_that_ended_are_shown_newest_first(client, store):
    def put(writes):
        write = Writer(writes)
        agent = write.agent(write.project("p", "/p"), "GreenLake")
        other = write.agent(write.project("q", "/q"), "BlueFox")
        for n in range(200):
            write.reserve(other, f"noise{n}.py", at=NOW - 3 * HOUR)
            made = write.reserve(agent, f"file{n}.py", at=NOW - 2 * HOUR)
            if n % 2:
                writes.release_reservation(made, now=NOW - HOUR, by="GreenLake", reason="")

    await store.write(put)
    seen = await page(client, "/p/p/reservations")
    assert numbers([seen], r"file(\d+)\.py") == list(range(200 - ENDED, 200))[::-1]
    assert "file199.py GL GreenLake exclusive released 1 hour ago" in seen.text
    assert "file198.py GL GreenLake exclusive expired 1 hour ago" in seen.text


async def test_more_live_reservations_than_fit_are_said_to_be_there(client, store):
    def put(writes):
        write = Writer(writes)
        agent = write.agent(write.project("p", "/p"), "GreenLake")
        for n in range(LIVE + 1):
            write.reserve(agent, f"src/{n}.py")

    await store.write(put)
    assert f"Showing the oldest {LIVE}" in (await page(client, "/p/p/reservations")).text
    assert "Recently ended" not in (await page(client, "/p/p/reservations")).text
    assert "The agent has more reservations" in (await page(client, "/p/p/agents/GreenLake")).text


async def test_a_search_marks_what_it_found_and_goes_on(client, store):
    def put(writes):
        write = Writer(writes)
        sender = write.agent(write.project("p", "/p"), "GreenLake")
        return [write.send(sender, f"Message {n}", "an <i>Épôch</i> here").id for n in range(45)]

    ids = await store.write(put)
    for order in ("newest", "best"):
        pages = await walk(client, f"/p/p/search?q=epoch&order={order}")
        assert numbers(pages, r'/m/(\d+)"') == ids[::-1]
        assert "an &lt;i&gt;<mark>Épôch</mark>&lt;/i&gt; here" in pages[0].raw
        assert pages[0].all("input")[0]["value"] == "epoch"


class Counting:
    """Counts the reads of one page."""

    def __init__(self, store):
        self.store = store
        self.looked_up = 0

    async def settle(self):
        await self.store.settle()

    async def read(self, look):
        return await self.store.read(lambda tx: look(CountingTransaction(tx, self)))


class CountingTransaction:
    def __init__(self, tx, counting):
        self.mail = CountingReads(tx.mail, counting)
        self.now = tx.now


class CountingReads:
    def __init__(self, reads, counting):
        self.reads = reads
        self.counting = counting

    def __getattr__(self, name):
        self.counting.looked_up += 1
        return getattr(self.reads, name)


async def test_a_page_makes_a_fixed_number_of_look_ups_however_much_it_shows(store):
    def put(writes):
        write = Writer(writes)
        for slug, count in (("small", 2), ("large", 48)):
            project = write.project(slug, f"/{slug}")
            agents = [write.agent(project, f"Agent{n}") for n in range(count)]
            for n in range(count):
                sent = write.send(
                    agents[n % 2], f"Message {n}", f"word {n}", to=tuple(agents[:2]), thread="one"
                )
                write.attach(sent, "a.txt", "text/plain", b"a")
                write.send(agents[0], f"Other {n}", f"word {n}", to=(agents[1],), reply_to=sent.id)
                write.reserve(agents[0], f"src/{n}.py")

    await store.write(put)
    counting = Counting(store.runs.store)
    app = Starlette(routes=page_routes(counting, clock=Noon()))
    rests = (
        *("", "/threads", "/t/one", "/agents", "/agents/Agent1", "/agents/Agent1?box=sent", "/search?q=word"),
    )
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=HTTP) as client:
        for rest in rests:
            made = []
            for slug in ("small", "large"):
                counting.looked_up = 0
                await page(client, f"/p/{slug}{rest}")
                made.append(counting.looked_up)
            # Six are the frame's; a thread may have messages of people and others.
            most = 6 + (14 if rest.startswith("/t/") else 8)
            assert made[1] <= made[0] <= most or rest == "", (rest, made)
            assert made[1] <= 31


async def test_an_attachment_is_stored_and_never_opened(client, world):
    sha256 = world.files["chart"]
    answer = await client.get(f"/attachments/{sha256}?message={world.claim}&name=chart.png")
    assert answer.status_code == 200
    assert answer.content == picture(size=(900, 600))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (
        answer.headers["content-disposition"]
        == "attachment; filename=\"chart.png\"; filename*=UTF-8''chart.png"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["cache-control"] == "private, no-cache"
    again = await client.get(answer.url, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_the_name_of_a_file_comes_from_its_message_and_cannot_add_a_header(client, world):
    forged = await client.get(f"/attachments/{world.files['chart']}?message={world.claim}&name=invoice.exe")
    assert 'filename="chart.png"' in forged.headers["content-disposition"]
    odd = await client.get(f"/attachments/{world.files['named']}?message={world.claim}")
    assert "x-evil" not in odd.headers
    assert odd.headers["content-disposition"] == (
        'attachment; filename="a _b_ X-Evil: 1___.._gpj.exe"; '
        "filename*=UTF-8''a%20%22b%22%20X-Evil%3A%201%3B%C3%A9_.._gpj.exe"
    )


async def test_bytes_that_no_message_holds_are_not_given(client, store, world):
    alone = "f" * 64
    await store.write(lambda writes: writes.insert_blob(alone, b"alone"))
    chart = world.files["chart"]
    for address in (
        *(f"/attachments/{alone}?message={world.claim}", f"/attachments/{alone}", f"/attachments/{chart}"),
        *(f"/attachments/{chart}?message={world.reply}", f"/attachments/{chart}?message=999999"),
        f"/attachments/{chart.upper()}?message={world.claim}",
        *(f"/attachments/..{chart}?message={world.claim}", f"/previews/{alone}?message={world.claim}"),
    ):
        await page(client, address, status=404)


async def test_pictures_are_shown_as_what_their_bytes_are_and_nothing_else_is(client, world):
    message = await page(client, f"/p/orchard/m/{world.claim}")
    shown = [one["src"] for one in message.all("img") if one["src"].startswith("/previews/")]
    types = {}
    for address in shown:
        answer = await client.get(address)
        types[address] = answer.headers["content-type"] if answer.status_code == 200 else answer.status_code
        if answer.status_code == 200:
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"].startswith("sandbox")
    liar = f"/previews/{world.files['liar']}?message={world.claim}"
    assert types.pop(liar) == 404
    assert sorted(types.values()) == ["image/gif", "image/webp"]
    await page(client, f"/previews/{world.files['drawing']}?message={world.claim}", status=404)


def test_a_recalled_message_has_no_files_even_in_a_store_that_still_has_them():
    file = Attachment(sha256="a" * 64, name="a.txt", media_type="text/plain", size=1)

    class Reads:
        recalled_at = None

        def message(self, message_id):
            return SimpleNamespace(id=message_id, recalled_at=self.recalled_at)

        def attachments(self, message_ids):
            return {one: [file] for one in message_ids}

    assert attached(Reads(), 1, file.sha256) == [file]
    Reads.recalled_at = NOW
    with pytest.raises(UnknownMessage):
        attached(Reads(), 1, file.sha256)


async def test_a_message_is_given_as_it_was_written(client, world):
    answer = await client.get(f"/p/orchard/m/{world.hostile}/source")
    assert answer.text == "\n\n".join(HOSTILE)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert f'filename="message-{world.hostile}.md"' in answer.headers["content-disposition"]


UNKNOWN = (
    "none none/threads none/search?q=a orchard/t/none orchard/agents/Nobody orchard/m/999999 orchard/m/-1"
)
UNKNOWN += " orchard/m/99999999999999999999 orchard/m/" + "\u0661 quiet/m/1 orchard/something/else %ff%00"
WRONG = "threads?before=x threads?before=-5 threads?before=99999999999999999999 agents?after= search?q=a&order=worst"
WRONG += " agents/GreenLake?box=bin"


async def test_a_wrong_address_is_answered_in_the_look_of_the_other_pages(client, world):
    rows = [(f"/p/{rest}", 404) for rest in (*UNKNOWN.split(), "<script>alert(1)</script>")]
    for address, status in (*rows, *((f"/p/orchard/{rest}", 400) for rest in WRONG.split())):
        seen = await page(client, address, status=status)
        assert seen.all("main"), address
        assert str(status) in seen.text, address
        assert bool(seen.all("script")) == bool(seen.all("nav")), "within a project it takes keys"
        assert "/" in seen.links(), address


async def test_an_address_that_ends_in_a_slash_leads_to_the_same_without_it(client, store, world):
    for address, leads_to in [
        *(("/p/orchard/", "/p/orchard"), ("/p/orchard/agents/", "/p/orchard/agents")),
        ("/p/orchard/threads//?show=unread&agent=a%2F", "/p/orchard/threads?show=unread&agent=a%2F"),
        *(("/p/orchard/t/claims/", "/p/orchard/t/claims"), ("/p//evil.example/", "/p//evil.example")),
        *(("/p", "/"), ("/p/", "/")),
    ]:
        answer = await client.get(address)
        assert (answer.status_code, answer.headers.get("location")) == (308, leads_to), address
    assert (await client.get("/p/orchard/t/ends%2F")).status_code == 404  # the slash is the name's own
    assert (await client.get("/")).status_code == 200


WAYS = {
    "/p/orchard/t/none": "threads",
    "/p/orchard/m/99": "threads",
    "/p/orchard/m/x": "threads",
    "/p/orchard/m/99/source": "threads",
    "/p/orchard/agents/Nobody": "agents",
    "/p/orchard/timeline?agent=Nobody": "timeline",
    "/p/orchard/nothing/here": None,
    "/p/orchard/runs/none": None,  # these pages cannot be worked on: there are no runs
}
"""Missing records, and the list that would contain them."""


async def test_what_is_not_there_is_told_within_its_project_from_where_one_can_go_on(client, world):
    for address, where in WAYS.items():
        seen = await page(client, address, status=404)
        tabs = [one["href"] for one in seen.all("a") if one.get("data-key", "").startswith("tab-")]
        assert ("/p/orchard/threads" in tabs, "404 Not Found" in seen.text) == (True, True), address
        assert "data-project" not in seen.raw, "it is not live: it would only fail again"
        buttons = [one for one in seen.all("a") if "button" in one.get("class", "")]
        ways = [one["href"] for one in buttons if "data-go-to" not in one]
        assert ways == [*([f"/p/orchard/{where}"] if where else []), "/p/orchard", "/"], address
        assert not [one.name for one in MAIL_OPERATIONS if one.name in seen.text], "a tool is no remedy"
        assert where in (None, "timeline") or re.search("[Ss]ee ", seen.text), address
    for address, status in (("t/none?part=main,tabs", 404), ("search?part=a!", 400)):
        assert 'data-key="tab-threads"' in (await page(client, f"/p/orchard/{address}", status=status)).raw
    for address in ("/p/none/t/none", "/p/none/nothing/here", "/p/none"):
        seen = await page(client, address, status=404)
        assert "tab-threads" not in seen.raw
        assert [one["href"] for one in seen.all("a") if "button" in one.get("class", "")] == ["/"]
        assert not [one.name for one in MAIL_OPERATIONS if one.name in seen.text], "a tool is no remedy"


class Failing:
    def __init__(self, error):
        self.error = error

    async def settle(self):
        raise self.error

    async def read(self, look):
        raise self.error


async def test_a_failure_of_the_server_becomes_a_page_with_its_remedy():
    for error, status in [(StoreUnavailable("Busy"), 503), (InvalidName("No"), 400)]:
        app = Starlette(routes=page_routes(Failing(error), clock=Noon()))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=HTTP) as client:
            seen = await page(client, "/p/a/search?q=b", status=status)
        assert error.message in seen.text
        assert sentence(error.remedy).replace("`", "") in seen.text
        assert "`" not in seen.text


async def test_pages_are_kept_by_nobody_and_assets_for_good(client, world):
    assert (await client.get("/")).headers["cache-control"] == "no-store"
    for name in ("postroom.css", "favicon.svg"):
        hashed = await client.get(ASSET_LINKS[name])
        plain = await client.get(f"/static/{name}")
        assert hashed.content == plain.content
        assert hashed.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert plain.headers["cache-control"] == "no-cache"
        assert hashed.headers["content-type"] in ("text/css; charset=utf-8", "image/svg+xml")
        known = await client.get(f"/static/{name}", headers={"if-none-match": plain.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
    assert ASSET_LINKS["postroom.css"] in (await client.get("/")).text
    for address in (
        *("/static/none.css", "/static/postroom.0000000000000000.css", "/static/../pages.py", "/static/"),
    ):
        assert (await client.get(address)).status_code == 404


async def test_pages_are_read_and_never_written(client, world):
    for address in ("/", "/p/orchard", "/p/orchard/search", "/static/postroom.css"):
        assert (await client.post(address)).status_code == 405
        head = await client.head(address)
        assert (head.status_code, head.content) == (200, b"")
