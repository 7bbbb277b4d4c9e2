"""The chat page in a real browser, with a fake agent: sending, drafts, cards, cuts, and appearance."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from e2e import running
from e2e.browser import PATIENCE, Browser
from e2e.test_page_in_a_browser import ACTING
from postroom.contracts.errors import StoreUnavailable
from postroom.gateway.events import Button, ButtonPress, Card, MessageEvent
from postroom.gateway.platforms.web import WebAdapter, WebOptions
from postroom.gateway.session import SessionSource
from postroom.stores.memory import MemoryRunStores

pytestmark = pytest.mark.long

TOKEN = "the token of the harbour"
HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script> [here](javascript:alert(3)) javascript:alert(4)\n"
    'https://example.org/?a=<b>&c="d" data:text/html,<b>x</b> `<i>code</i>` **<u>bold</u>** {{base}}\n'
    "```html\n<iframe src=//evil.test></iframe>\n```\n<a href=//evil.test>x</a>"
)
ANSWER = """The north light is **on** since 18:40. This is what I ran, and what it said:

```sh
pier status --light north --format "a long line that does not fit on a telephone, so that it scrolls"
north: on (lamp 2 of 2, reserve at 71 %)
```

Two things to know:
- the reserve lasts until `02:15`
- the log is at https://harbour.example/lights/north, open to everybody.

Shall I switch the south one on too?"""


class FakeAgent:
    """A fake gateway with its agent: keeps the messages that it gets, and may refuse them."""

    def __init__(self) -> None:
        self.accepted: list[MessageEvent] = []
        self.edits: list[str] = []
        self.deletions: list[str] = []
        self.presses: list[str] = []
        self.is_away = False

    async def accept(self, event: MessageEvent) -> None:
        self._keep()
        self.accepted.append(event)

    async def edited(self, event: MessageEvent) -> None:
        self._keep()
        self.edits.append(event.text)

    async def deleted(self, source: SessionSource, message_id: str) -> None:
        self._keep()
        self.deletions.append(message_id)

    async def pressed(self, press: ButtonPress) -> str:
        self._keep()
        self.presses.append(press.value)
        return "Thank you, it goes on."

    def _keep(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the disk is away")


class Harbour:
    """The page, served on a separate loop."""

    def __init__(self) -> None:
        self.agent = FakeAgent()
        self.stores = MemoryRunStores().chat
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}/channels/chat"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="chat page")
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.app = Starlette()
        await self._begin()
        config = uvicorn.Config(
            self.app, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=2
        )
        self.server = uvicorn.Server(config)
        self._ready.set()
        await self.server.serve(sockets=[self.listener])

    async def _begin(self) -> None:
        self.adapter = WebAdapter(WebOptions(token=TOKEN, name="Ada", title="Harbour office"))
        self.adapter.set_message_handler(self.agent)
        self.adapter.web_chats, self.adapter.files = self.stores.web_chats, self.stores.files
        await self.adapter.connect()
        self.app.router.routes[:] = [Mount("/channels", routes=list(self.adapter.routes()))]

    def restart(self) -> None:
        """Serve the page by another adapter, which knows only the stored data."""
        self.run(self.adapter.disconnect())
        self.run(self._begin())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something on the page's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def answer(self, text: str, *, to: str, final: bool = True, **more: Any) -> str:
        told = {"answers": [to], "final": final, **more}
        return self.run(self.adapter.send("Ada", text, to, told)).message_id

    def asked(self) -> str:
        """Return the id of the newest message."""
        message_id = self.agent.accepted[-1].message_id
        assert message_id is not None
        return message_id

    def close(self) -> None:
        self.run(self.adapter.disconnect())
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        self.listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def harbour() -> Iterator[Harbour]:
    made = Harbour()
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser, harbour: Harbour) -> Browser:
    """The chat, opened by a person who has signed in."""
    browser.ask("Network.clearBrowserCookies")
    browser.open(harbour.address)
    sign_in(browser)
    return browser


def sign_in(window: Browser) -> None:
    window.see("document.querySelector('#token').focus()")
    window.ask("Input.insertText", text=TOKEN)
    window.events.clear()
    window.press("Enter", 13)
    window.wait_for("Page.loadEventFired")
    soon(window, "document.querySelector('#link.up') !== null")


def soon(window: Browser, expression: str) -> None:
    """Return once an expression is true in the page."""
    running.soon(
        lambda: window.see(expression) is True,
        lambda: (expression, window.see("document.body.innerText"), window.complaints()),
    )


def write(window: Browser, *lines: str) -> None:
    """Write into the box, with Shift+Enter between lines, and send with Enter."""
    for number, text in enumerate(lines):
        if number:
            for kind, more in (("keyDown", {"text": "\r"}), ("keyUp", {})):
                window.ask(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key="Enter",
                    code="Enter",
                    windowsVirtualKeyCode=13,
                    modifiers=8,
                    **more,
                )
        window.ask("Input.insertText", text=text)
    window.press("Enter", 13)


def send(window: Browser, *lines: str) -> None:
    """Write, and return once the server has the message."""
    write(window, *lines)
    soon(window, f"{STATE} === 'sent'")


def reload(window: Browser) -> None:
    window.events.clear()
    window.ask("Page.reload")
    window.wait_for("Page.loadEventFired")


def said(window: Browser, kind: str = "message") -> list[str]:
    """Return the words of the entries of a kind, as the page shows them."""
    found = window.see(f"[...document.querySelectorAll('#log .{kind} .body')].map(one => one.innerText)")
    assert isinstance(found, list)
    return found


STATE = "document.querySelector('#log .message:last-child .state')?.textContent"


def test_a_message_is_sent_kept_and_answered_in_place(page: Browser, harbour: Harbour) -> None:
    assert page.see("document.activeElement.id") == "text"
    send(page, "Is the light on?", "The north one.")
    (event,) = harbour.agent.accepted
    assert event.text == "Is the light on?\nThe north one."
    assert said(page) == ["Is the light on?\nThe north one."]
    assert page.see("document.querySelector('#text').value") == ""
    harbour.run(harbour.adapter.send_typing("Ada"))
    soon(page, "!document.querySelector('#typing').hidden")
    draft = harbour.answer("The north", to=event.message_id, final=False)
    soon(page, "document.querySelector('.answer.draft')?.getAttribute('aria-busy') === 'true'")
    assert page.see("document.querySelector('#typing').hidden") is True
    harbour.run(
        harbour.adapter.edit_message("Ada", draft, "The north light", {"answers": [event.message_id]})
    )
    soon(page, "document.querySelector('.answer .body').innerText === 'The north light'")
    harbour.answer("The north light is on.", to=event.message_id)
    soon(page, "document.querySelector('.answer:not(.draft) .body')?.innerText === 'The north light is on.'")
    assert len(said(page, "answer")) == 1
    soon(page, f"{STATE} === undefined && document.querySelector('.message .state').textContent === 'read'")
    assert page.see("document.activeElement.id") == "text"
    assert not page.complaints()
    assert all(one.startswith(harbour.address.rpartition("/")[0]) for one in page.fetched())


FAILING = """
window.posts = 0;
const wire = window.fetch;
window.fetch = (to, options) => {
  if (options?.method !== "POST" || (window.posts += 1) > %d) return wire(to, options);
  return Promise.reject(new TypeError("Failed to fetch"));
};
"""
STATES = "[...document.querySelectorAll('#log .message .state')].map(one => one.textContent).join()"


def test_a_message_that_the_server_cannot_store_is_sent_by_itself_after_a_reload(
    page: Browser, harbour: Harbour
) -> None:
    harbour.answer("Earlier in this conversation", to="nothing-of-ours")
    soon(page, "document.querySelectorAll('.answer').length === 1")
    harbour.agent.is_away = True
    write(page, "Do not lose this")
    soon(page, f"{STATE}?.startsWith('not sent yet')")
    reload(page)
    soon(page, f"{STATE}?.startsWith('not sent yet')")  # still below the answer that came before
    assert said(page) == ["Do not lose this"]
    harbour.agent.is_away = False
    soon(page, f"{STATE} === 'sent'")
    assert [one.text for one in harbour.agent.accepted] == ["Do not lose this"]
    reload(page)
    soon(page, f"{STATE} === 'sent'")
    assert said(page) == ["Do not lose this"]


def test_messages_whose_requests_fail_are_sent_by_themselves_and_in_order(
    page: Browser, harbour: Harbour
) -> None:
    page.see(FAILING % 3)
    write(page, "A")
    soon(page, f"{STATES} !== ''")
    write(page, "B")
    soon(page, f"{STATES}.includes('not sent yet')")
    soon(page, f"{STATES} === 'sent,sent'")
    assert page.see("document.querySelector('#link.up') !== null")  # the events were never cut off
    assert [one.text for one in harbour.agent.accepted] == ["A", "B"]
    assert said(page) == ["A", "B"]


def test_a_message_that_the_server_refuses_is_not_repeated_and_holds_up_no_other(
    page: Browser, harbour: Harbour
) -> None:
    page.see(FAILING % 0)
    page.see("document.querySelector('#text').value = 'x '.repeat(50001)")
    page.see("document.querySelector('#text').dispatchEvent(new Event('input'))")
    page.see("document.querySelector('#composer').requestSubmit()")
    soon(page, f"{STATES}.startsWith('not sent: ')")
    write(page, "Short")
    soon(page, f"{STATES}.startsWith('sent,')")
    page.see("dispatchEvent(new Event('online'))")
    write(page, "Shorter")
    soon(page, f"{STATES}.startsWith('sent,sent,not sent: ')")
    assert [one.text for one in harbour.agent.accepted] == ["Short", "Shorter"]
    assert page.see("window.posts") == 3
    page.see("document.querySelector('.failed button').click()")  # "Send again"
    soon(page, "window.posts === 4")


def test_a_message_written_without_a_connection_is_sent_once_when_it_is_back(
    page: Browser, harbour: Harbour
) -> None:
    def network(*, is_there: bool) -> None:
        rate = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        page.ask("Network.emulateNetworkConditions", offline=not is_there, **rate)

    for text, ends_events in (("Written at sea", False), ("Written in port", True)):
        network(is_there=False)
        write(page, text)
        soon(page, f"{STATE}?.startsWith('not sent yet')")
        if ends_events:
            harbour.run(harbour.adapter.disconnect())
            soon(page, "document.querySelector('#link.up') === null")
            harbour.run(harbour.adapter.connect(is_reconnect=True))
        network(is_there=True)
        soon(page, f"{STATE} === 'sent'")
    assert [one.text for one in harbour.agent.accepted] == ["Written at sea", "Written in port"]


def test_a_message_that_the_server_accepts_after_a_restart_connects_the_page_at_once(
    page: Browser, harbour: Harbour
) -> None:
    page.see("""
        const later = window.setTimeout;  // no pause ends by itself
        window.setTimeout = (act, ms, ...more) => (ms >= 1000 ? 0 : later(act, ms, ...more));
    """)
    harbour.restart()
    soon(page, "document.querySelector('#link.up') === null")
    write(page, "Are you back?")
    soon(page, "document.querySelector('#link.up') !== null")
    soon(page, f"{STATE} === 'sent'")


def test_a_message_can_be_edited_and_deleted(page: Browser, harbour: Harbour) -> None:
    send(page, "Frist")
    press = "[...document.querySelectorAll('.message button')].find(one => one.textContent === '{}').click()"
    page.see(press.format("Edit"))
    assert page.see("document.querySelector('#text').value") == "Frist"
    page.see("document.querySelector('#text').select()")
    write(page, "First")
    soon(page, "document.querySelector('.message .body').innerText === 'First'")
    assert harbour.agent.edits == ["First"]
    page.see(press.format("Delete"))
    soon(page, "document.querySelector('.message.gone') !== null")
    assert harbour.agent.deletions == [harbour.agent.accepted[0].message_id]
    assert said(page) == ["deleted"]
    assert not page.complaints()


def test_a_card_is_answered_by_a_button(page: Browser, harbour: Harbour) -> None:
    card = Card(
        text="May I run `pier light south on`?",
        buttons=(Button(label="Allow", value="approve 1"), Button(label="Refuse", value="deny 1")),
    )
    sent = harbour.run(harbour.adapter.send_card("Ada", card))
    soon(page, "document.querySelectorAll('.card .choices button').length === 2")
    page.see("document.querySelector('.card .choices button').click()")
    soon(page, "document.querySelector('.card .note').textContent === 'Thank you, it goes on.'")
    assert harbour.agent.presses == ["approve 1"]
    harbour.run(harbour.adapter.update_card("Ada", sent.message_id, card.answered("Thank you, it goes on.")))
    soon(page, "document.querySelectorAll('.card .choices button').length === 0")
    assert "Thank you, it goes on." in said(page, "card")[0]
    assert page.see("document.querySelector('.card .note').textContent") == ""  # the card says it once
    assert not page.complaints()


CHOICES = (
    "[...document.querySelectorAll('.card .choices button')].map(one => [one.textContent, one.disabled])"
)
CARD_NOTE = "document.querySelector('.card .note').textContent"


def ask(window: Browser, harbour: Harbour) -> str:
    """Show a question with buttons on the page, and return the id of its card."""
    buttons = (Button(label="Allow", value="approve 1"), Button(label="Refuse", value="deny 1"))
    sent = harbour.run(harbour.adapter.send_card("Ada", Card(text="May I?", buttons=buttons)))
    soon(window, "document.querySelectorAll('.card .choices button').length === 2")
    return str(sent.message_id)


def test_a_button_that_is_pressed_without_a_server_is_sent_by_itself_also_after_a_reload(
    page: Browser, harbour: Harbour
) -> None:
    ask(page, harbour)
    harbour.agent.is_away = True
    page.see("document.querySelector('.card .choices button').click()")
    soon(page, f"{CARD_NOTE}.startsWith('“Allow” is not sent yet: ')")
    assert page.see(CHOICES) == [["Allow", True], ["Refuse", True], ["Do not send it", False]]
    reload(page)
    soon(page, f"{CARD_NOTE}.startsWith('“Allow” is not sent yet: ')")
    harbour.agent.is_away = False
    soon(page, f"{CARD_NOTE} === 'Thank you, it goes on.'")
    assert page.see(CHOICES) == [["Allow", False], ["Refuse", False]]
    assert harbour.agent.presses == ["approve 1"]
    reload(page)
    soon(page, "document.querySelectorAll('.card .choices button').length === 2")
    assert harbour.agent.presses == ["approve 1"]


def test_a_button_that_is_not_sent_yet_can_be_taken_back_and_another_one_pressed(
    page: Browser, harbour: Harbour
) -> None:
    ask(page, harbour)
    harbour.agent.is_away = True
    page.see("document.querySelector('.card .choices button').click()")
    soon(page, "document.querySelectorAll('.card .choices button').length === 3")
    page.see("document.querySelectorAll('.card .choices button')[2].click()")
    assert page.see(CHOICES) == [["Allow", False], ["Refuse", False]]
    assert page.see(CARD_NOTE) == ""
    harbour.agent.is_away = False
    page.see("document.querySelectorAll('.card .choices button')[1].click()")
    soon(page, f"{CARD_NOTE} === 'Thank you, it goes on.'")
    assert harbour.agent.presses == ["deny 1"]


def test_a_message_that_waits_says_so_beside_its_time_until_it_is_read(
    page: Browser, harbour: Harbour
) -> None:
    send(page, "And the south one?")
    harbour.run(harbour.adapter.send("Ada", "Queued: it is next.", None, {"waits_for": harbour.asked()}))
    soon(page, "document.querySelector('.message .turn')?.textContent === 'Queued: it is next.'")
    assert said(page, "answer") == []
    harbour.answer("It is off.", to=harbour.asked())
    soon(page, "document.querySelector('.message .state').textContent === 'read'")
    assert page.see("document.querySelector('.message .turn')") is None


def test_a_page_that_was_cut_off_comes_back_and_misses_nothing(page: Browser, harbour: Harbour) -> None:
    send(page, "Before the cut")
    harbour.run(harbour.adapter.disconnect())
    soon(page, "document.querySelector('#link.up') === null")
    message_id = harbour.agent.accepted[0].message_id or ""
    harbour.answer("Said meanwhile", to=message_id)
    harbour.run(harbour.adapter.connect(is_reconnect=True))
    soon(page, "document.querySelector('#link.up') !== null")
    soon(page, "document.querySelectorAll('.answer').length === 1")
    assert (said(page), said(page, "answer")) == (["Before the cut"], ["Said meanwhile"])


def test_what_anybody_writes_does_nothing(page: Browser, harbour: Harbour) -> None:
    send(page, *HOSTILE.split("\n"))
    message_id = harbour.agent.accepted[0].message_id or ""
    harbour.answer(HOSTILE, to=message_id)
    soon(page, "document.querySelectorAll('.answer').length === 1")
    card = Card(text=HOSTILE, buttons=(Button(label="<b>x</b>", value="x"),))
    harbour.run(harbour.adapter.send_card("Ada", card))
    soon(page, "document.querySelectorAll('.card').length === 1")
    acting = page.see(f"({ACTING.strip()}).filter(one => !one.startsWith('<script src'))")
    # The script itself sets the height of the box, and the page has pictures of its own on its buttons.
    own = ("<textarea", '<svg aria-hidden="true"><use href="#i-', '<svg class="icons"')
    assert [one for one in acting if not one.startswith(own)] == []
    assert (
        page.see("document.querySelectorAll('#log img, #log iframe, #log script, #log u, #log i').length")
        == 0
    )
    links = page.see("[...document.querySelectorAll('#log a')].map(one => [one.href, one.rel, one.target])")
    assert links == [["https://example.org/?a=", "noopener noreferrer nofollow", "_blank"]] * 3
    assert "<script>alert(2)</script>" in said(page, "answer")[0]
    assert not page.complaints()


LONG = """# The lights

Some **bold** words, *others*, and [a link](https://harbour.example/x).

| light | state |
|---|---|
| north | on |

```sh
pier status
```

- one
- two
"""


def test_an_answer_is_rendered_while_it_grows_and_what_stands_stays(page: Browser, harbour: Harbour) -> None:
    send(page, "Tell me of the lights")
    to = harbour.asked()
    draft = harbour.answer(LONG[:60], to=to, final=False)
    soon(page, "document.querySelector('.answer.draft h1')?.textContent === 'The lights'")
    page.see("window.heading = document.querySelector('.answer h1')")
    for length in (80, 120, 150, 170, len(LONG)):
        harbour.run(harbour.adapter.edit_message("Ada", draft, LONG[:length], {"answers": [to]}))
    soon(page, "document.querySelectorAll('.answer .body > ul > li').length === 2")
    harbour.run(
        harbour.adapter.edit_message("Ada", draft, LONG + "\nDone.", {"answers": [to], "final": True})
    )
    soon(
        page, "document.querySelector('.answer:not(.draft) .body')?.lastElementChild.textContent === 'Done.'"
    )
    assert page.see("window.heading === document.querySelector('.answer h1')") is True
    found = page.see(
        "['h1', 'strong', 'em', 'table', 'pre', 'li'].map(one => document.querySelectorAll(`.answer ${one}`).length)"
    )
    assert found == [1, 1, 1, 1, 1, 2]
    link = "(one => [one.href, one.target, one.rel])(document.querySelector('.answer a'))"
    assert page.see(link) == ["https://harbour.example/x", "_blank", "noopener noreferrer nofollow"]
    page.see("navigator.clipboard.writeText = async (text) => void (window.copied = text)")
    page.see("document.querySelector('.answer .code .copy').click()")
    soon(page, "window.copied === 'pier status'")
    page.see("document.querySelector('.answer .meta .copy').click()")
    soon(page, "window.copied?.startsWith('# The lights')")
    assert not page.complaints()


def test_the_answer_that_is_written_can_be_stopped_by_button_and_by_key(
    page: Browser, harbour: Harbour
) -> None:
    send(page, "Tell me everything")
    to = harbour.asked()
    assert page.see("document.querySelector('#stop').hidden") is True
    harbour.answer("Once upon", to=to, final=False)
    soon(page, "!document.querySelector('#stop').hidden")
    page.see("document.querySelector('#stop').click()")
    soon(page, "document.querySelector('#status').textContent === 'Thank you, it goes on.'")
    assert harbour.agent.presses == ["stop"]
    harbour.answer("Once upon\n\nStopped.", to=to)
    soon(page, "document.querySelector('#stop').hidden")
    assert said(page, "answer") == ["Once upon\n\nStopped."]
    page.press("Escape", 27)
    send(page, "Go on")
    harbour.run(harbour.adapter.send_typing("Ada"))
    soon(page, "!document.querySelector('#stop').hidden")
    page.press("Escape", 27)
    soon(page, "document.querySelector('#status').textContent === 'Thank you, it goes on.'")
    assert harbour.agent.presses == ["stop", "stop"]


def titles(window: Browser) -> list[str]:
    found = window.see("[...document.querySelectorAll('#conversations .title')].map(one => one.title)")
    assert isinstance(found, list)
    return found


def test_conversations_are_begun_chosen_renamed_and_deleted(page: Browser, harbour: Harbour) -> None:
    send(page, "The north light")
    page.see("document.querySelector('#new').click()")
    soon(page, "document.querySelector('#log').children.length === 0 && document.activeElement.id === 'text'")
    send(page, "The south light")
    soon(page, "document.querySelectorAll('#conversations li').length === 2")
    assert titles(page) == ["The south light", "The north light"]
    assert page.see("document.querySelector('[aria-current]').title") == "The south light"
    first = harbour.agent.accepted[0].message_id or ""
    harbour.answer("It is **on**.", to=first)
    soon(page, "document.querySelector('#conversations li').classList.contains('unread')")
    assert titles(page) == ["The north light", "The south light"]
    assert said(page, "answer") == []
    page.see("document.querySelector('#conversations .title').click()")
    soon(page, "document.querySelectorAll('.answer').length === 1")
    assert (said(page), said(page, "answer")) == (["The north light"], ["It is on."])
    page.see("document.querySelector('[aria-label=\"Rename The north light\"]').click()")
    soon(page, "document.activeElement.matches('#conversations input')")
    page.ask("Input.insertText", text="Lamps <b>")
    page.press("Enter", 13)
    soon(page, "document.querySelector('#title').textContent === 'Lamps <b>'")
    assert page.see("document.activeElement.id") == "text"
    page.see("document.querySelector('[aria-label^=\"Delete Lamps\"]').click()")
    soon(page, "document.querySelector('#ask').open")
    assert page.see("document.activeElement.textContent") == "Cancel"
    page.press("Enter", 13)
    soon(page, "!document.querySelector('#ask').open")
    assert len(titles(page)) == 2
    page.see("document.querySelector('[aria-label^=\"Delete Lamps\"]').click()")
    page.see("document.querySelector('#ask .danger').click()")
    soon(page, "document.querySelectorAll('#conversations li').length === 1")
    assert titles(page) == ["The south light"]
    assert page.see("document.querySelector('#title').textContent") == "New chat"
    assert not page.complaints()


def test_a_conversation_is_found_by_words_of_its_title_also_if_the_list_does_not_show_it_yet(
    page: Browser, harbour: Harbour
) -> None:
    for number in range(120):
        place = {"thread_id": f"number-{number}"}
        harbour.run(harbour.adapter.send("Ada", f"Pier {number}", metadata=place))
    page.open(harbour.address)
    soon(page, "document.querySelectorAll('#conversations li').length === 50")
    soon(page, "document.querySelector('#link.up') !== null")
    page.see("document.querySelector('#seek').focus()")
    page.ask("Input.insertText", text="PIER 7")
    soon(page, "document.querySelectorAll('#conversations li').length === 11")
    assert set(titles(page)) == {"Pier 7", *(f"Pier {number}" for number in range(70, 80))}
    page.ask("Input.insertText", text="x")
    soon(page, "!document.querySelector('#none').hidden")
    page.see("document.querySelector('#seek').value = ''")
    page.see("document.querySelector('#seek').dispatchEvent(new Event('input'))")
    soon(page, "document.querySelectorAll('#conversations li').length === 120")


def test_what_is_being_written_belongs_to_its_conversation_and_survives_a_restart(
    page: Browser, harbour: Harbour
) -> None:
    send(page, "About the pier")
    soon(page, "document.querySelector('#title').textContent === 'About the pier'")
    page.ask("Input.insertText", text="half a thought about the pier")
    page.see("document.querySelector('#new').click()")
    soon(page, "document.querySelector('#title').textContent === 'New chat'")
    assert page.see("document.querySelector('#text').value") == ""
    page.ask("Input.insertText", text="a new thought")
    soon(page, "document.querySelector('[title=\"About the pier\"]') !== null")
    page.see("document.querySelector('[title=\"About the pier\"]').click()")
    soon(page, "document.querySelector('#text').value === 'half a thought about the pier'")
    page.see("document.querySelector('#new').click()")
    soon(page, "document.querySelector('#text').value === 'a new thought'")
    harbour.restart()
    reload(page)
    soon(page, "document.querySelector('#link.up') !== null")
    assert page.see("document.querySelector('#text').value") == "a new thought"
    page.ask("Network.clearBrowserCookies")
    page.open(harbour.address)
    sign_in(page)
    assert page.see("document.querySelector('#text').value") == "a new thought"
    page.see("document.querySelector('#text').focus()")
    page.press("Enter", 13)
    soon(page, f"{STATE} === 'sent'")
    assert harbour.agent.accepted[-1].text == "a new thought"
    soon(page, "document.querySelector('[title=\"About the pier\"]') !== null")
    page.see("document.querySelector('[title=\"About the pier\"]').click()")
    soon(page, "document.querySelector('#text').value === 'half a thought about the pier'")


def test_a_change_of_a_message_leaves_the_text_that_is_being_written(page: Browser, harbour: Harbour) -> None:
    send(page, "Is the lihgt on?")
    page.ask("Input.insertText", text="And the pier?")
    page.see("document.querySelector('#log .message .meta button').click()")
    assert page.see("document.querySelector('#text').value") == "Is the lihgt on?"
    harbour.agent.is_away = True
    page.see("document.querySelector('#text').value = ''")
    write(page, "Is the light on?")
    soon(page, "document.querySelector('#log .note').textContent.startsWith('not edited')")
    assert page.see("document.querySelector('#text').value") == "Is the light on?"
    harbour.agent.is_away = False
    page.see("document.querySelector('#text').focus()")
    page.press("Enter", 13)
    soon(page, "document.querySelector('#log .message .body').innerText === 'Is the light on?'")
    assert page.see("document.querySelector('#text').value") == "And the pier?"


def test_a_run_that_waits_for_an_answer_can_be_stopped(page: Browser, harbour: Harbour) -> None:
    send(page, "Delete it")
    assert page.see("document.querySelector('#stop').hidden") is True
    card = Card(text="May I?", buttons=(Button(label="Approve", value="approve 1"),))
    draft = harbour.answer("I have looked.", to=harbour.asked(), final=False)
    harbour.run(harbour.adapter.send_typing("Ada"))
    sent = harbour.run(harbour.adapter.send_card("Ada", card, {"read": [harbour.asked()]}))
    soon(page, "document.querySelectorAll('.card .choices button').length === 1")
    page.press("Escape", 27)  # what the agent wrote before it asked may still be shown as a draft
    assert page.see("document.querySelector('#stop').disabled") is False
    harbour.run(harbour.adapter.edit_message("Ada", draft, "I have looked.", {"final": True}))
    soon(page, "document.querySelector('.answer.draft') === null")
    page.press("Escape", 27)
    assert harbour.agent.presses == []
    page.see("document.querySelector('#stop').click()")
    soon(page, "document.querySelector('#status').textContent === 'Thank you, it goes on.'")
    assert harbour.agent.presses == ["stop"]
    harbour.run(harbour.adapter.update_card("Ada", sent.message_id, card.answered("No longer asked.")))
    soon(page, "document.querySelector('#stop').hidden")


def test_reasoning_is_folded_and_no_part_of_the_answer(page: Browser, harbour: Harbour) -> None:
    send(page, "Which light?")
    to, first = harbour.asked(), "<b>North</b> is broken"
    draft = harbour.answer("", to=to, final=False, reasoning=first)
    soon(page, "document.querySelector('.reasoning summary')?.textContent === 'Reasoning…'")
    words = "document.querySelector('.reasoning .words').textContent"
    assert page.see(words) == first
    assert page.see("document.querySelector('.reasoning').open") is False
    assert said(page, "answer") == [""]
    page.see("document.querySelector('.reasoning summary').click()")
    told = {"answers": [to], "reasoning": f"{first}, so"}
    harbour.run(harbour.adapter.edit_message("Ada", draft, "", told))
    soon(page, f"{words}.endsWith('so')")
    assert page.see("document.querySelector('.reasoning').open") is True
    page.see("document.querySelector('.reasoning summary').click()")
    harbour.answer("The **south** light.", to=to, reasoning=f"{first}, so south.")
    soon(page, "document.querySelector('.reasoning summary')?.textContent === 'Reasoning'")
    assert said(page, "answer") == ["The south light."]
    root = page.ask("Accessibility.getFullAXTree")["nodes"]
    heard = [str(one.get("name", {}).get("value", "")) for one in root if not one["ignored"]]
    assert any("south" in one for one in heard)
    assert not any("North" in one for one in heard)
    page.open(harbour.address)
    soon(page, f"document.querySelector('.reasoning') !== null && {words}.endsWith('so south.')")
    assert page.see("document.querySelector('.reasoning').open") is False
    assert page.see("document.querySelectorAll('.reasoning .words b').length") == 0


def test_older_messages_are_read_when_one_scrolls_up_to_them(page: Browser, harbour: Harbour) -> None:
    for number in range(100):
        harbour.run(harbour.adapter.send("Ada", f"Message {number}"))
    reload(page)
    soon(page, "document.querySelectorAll('.answer').length === 40")
    assert said(page, "answer")[0] == "Message 60"
    page.see("document.querySelector('#scroll').scrollTop = 0")
    soon(page, "document.querySelectorAll('.answer').length === 80")
    assert int(str(page.see("document.querySelector('#scroll').scrollTop"))) > 1_000
    page.see("document.querySelector('#scroll').scrollTop = 0")
    soon(page, "document.querySelectorAll('.answer').length === 100")
    assert said(page, "answer") == [f"Message {number}" for number in range(100)]
    assert page.see("document.querySelector('#older').hidden") is True


DROP = """(() => {
  const carried = new DataTransfer();
  for (const [name, size] of %s) carried.items.add(new File([new Uint8Array(size).fill(97)], name));
  for (const kind of ["dragenter", "drop"])
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
})()"""


def test_files_are_dropped_sent_and_those_that_are_too_large_are_named(
    page: Browser, harbour: Harbour
) -> None:
    page.see(DROP % '[["notes.txt", 3000], ["film.bin", 20000001], ["spare.txt", 10]]')
    soon(
        page,
        "document.querySelectorAll('#chosen li').length === 3 && !document.querySelector('#chosen progress')",
    )
    assert page.see("document.querySelector('#drop').hidden") is True
    assert "20.0 MB" in str(page.see("document.querySelector('#chosen .failed .reason').textContent"))
    for name in ("film.bin", "spare.txt"):
        page.see(f"document.querySelector('[aria-label=\"Remove {name}\"]').click()")
    send(page, "Read this")
    (event,) = harbour.agent.accepted
    assert [(one.name, one.size) for one in event.media] == [("notes.txt", 3000)]
    assert page.see("document.querySelector('#log .file').textContent") == "notes.txt3 kB"
    assert page.see("document.querySelector('#chosen').hidden") is True
    got = "fetch(document.querySelector('#log .file').href).then(one => one.text()).then(one => window.got = one.length)"
    page.see(got)
    soon(page, "window.got === 3000")


UPLOADS_FAIL = """
window.uploads = 0;
const opened = XMLHttpRequest.prototype.open;
XMLHttpRequest.prototype.open = function (method, to) {
  return opened.call(this, method, (window.uploads += 1) > %d ? to : "//nowhere.invalid/");
};
"""
CHOSEN = "document.querySelectorAll('#chosen li').length === 1 && !document.querySelector('#chosen progress')"


def test_a_message_whose_upload_fails_is_sent_by_itself_and_before_the_next(
    page: Browser, harbour: Harbour
) -> None:
    page.see(UPLOADS_FAIL % 3)
    page.see(DROP % '[["notes.txt", 3000]]')
    soon(page, "document.querySelector('#chosen .reason')?.textContent.startsWith('not uploaded yet')")
    write(page, "Read this")
    write(page, "Then answer")
    soon(page, f"{STATES}.startsWith('not sent yet: notes.txt: ')")
    soon(page, f"{STATES} === 'sent,sent'")
    assert [(one.text, [file.name for file in one.media]) for one in harbour.agent.accepted] == [
        ("Read this", ["notes.txt"]),
        ("Then answer", []),
    ]
    assert page.see("document.querySelector('#log .file').textContent") == "notes.txt3 kB"


def test_a_file_that_was_uploaded_before_a_restart_is_uploaded_again(page: Browser, harbour: Harbour) -> None:
    page.see(DROP % '[["notes.txt", 3000]]')
    soon(page, CHOSEN)
    harbour.restart()
    send(page, "Read this")
    (event,) = harbour.agent.accepted
    assert [(one.text, one.media[0].name) for one in [event]] == [("Read this", "notes.txt")]


def test_a_message_whose_file_was_lost_by_a_reload_says_so_and_can_be_written_again(
    page: Browser, harbour: Harbour
) -> None:
    page.see(UPLOADS_FAIL % 1_000)
    page.see(DROP % '[["notes.txt", 3000]]')
    write(page, "Read this")
    soon(page, f"{STATE}?.startsWith('not sent yet: notes.txt: ')")
    page.events.clear()
    page.ask("Page.reload")
    page.wait_for("Page.javascriptDialogOpening")  # the browser asks whether to leave the page
    page.ask("Page.handleJavaScriptDialog", accept=True)
    page.wait_for("Page.loadEventFired")
    soon(page, f"{STATE}?.startsWith('not sent: the page was loaded again')")
    write(page, "Another")
    soon(page, f"{STATES}.startsWith('sent,not sent: ')")
    labels = "[...document.querySelectorAll('.message.failed button')].map(one => one.textContent)"
    assert page.see(labels) == ["Edit", "Discard"]
    press = "[...document.querySelectorAll('.message.failed button')].find(one => one.textContent === 'Edit').click()"
    page.see(press)
    assert page.see("document.querySelector('#text').value") == "Read this"
    assert said(page) == ["Another"]
    assert [one.text for one in harbour.agent.accepted] == ["Another"]


def test_a_message_waits_until_a_file_that_is_refused_is_removed(page: Browser, harbour: Harbour) -> None:
    page.see(DROP % '[["film.bin", 20000001]]')
    write(page, "Look")
    soon(page, "document.querySelector('#status').textContent.startsWith('Remove the files')")
    assert (said(page), page.see("document.querySelector('#text').value")) == ([], "Look")
    page.see("document.querySelector('[aria-label=\"Remove film.bin\"]').click()")
    page.press("Enter", 13)
    soon(page, f"{STATE} === 'sent'")


def test_an_empty_conversation_suggests_what_to_write(page: Browser, harbour: Harbour) -> None:
    idea = "[...document.querySelectorAll('#ideas button')].find(one => one.textContent === '{}')"
    page.see(f"{idea.format('Set a reminder')}.click()")
    assert page.see("document.querySelector('#text').value") == "/remind 30m "
    assert page.see("document.activeElement.id") == "text"
    page.see(f"{idea.format('List the commands')}.click()")
    soon(page, f"{STATE} === 'sent'")
    assert [one.text for one in harbour.agent.accepted] == ["/help"]
    assert page.see(f"{idea.format('List the commands')}.checkVisibility()") is False


FAR = "(one => one.scrollHeight - one.scrollTop - one.clientHeight)(document.querySelector('#scroll'))"


def test_the_newest_message_stays_in_sight_while_files_are_chosen(page: Browser, harbour: Harbour) -> None:
    page.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    for number in range(20):
        harbour.run(harbour.adapter.send("Ada", f"Message {number}\n\nand more"))
    soon(page, "document.querySelectorAll('.answer').length === 20")
    names = [f"a-file-with-a-long-name-{number}.txt" for number in range(5)]
    page.see(DROP % [[name, 10] for name in names])
    soon(page, "document.querySelectorAll('#chosen li').length === 5")
    soon(page, f"{FAR} < 2")
    page.see("document.querySelector('#scroll').scrollTop = 300")
    soon(page, "!document.querySelector('#newest').hidden")
    for name in names[:2]:
        page.see(f"document.querySelector('[aria-label=\"Remove {name}\"]').click()")
    soon(page, "document.querySelectorAll('#chosen li').length === 3")
    assert page.see("document.querySelector('#scroll').scrollTop") == 300


def test_a_question_stays_in_sight_when_it_says_what_came_of_its_button(
    page: Browser, harbour: Harbour
) -> None:
    for number in range(20):
        harbour.run(harbour.adapter.send("Ada", f"Message {number}\n\nand more"))
    ask(page, harbour)
    soon(page, f"{FAR} < 2")
    page.see("document.querySelector('.card .choices button').click()")
    soon(page, f"{CARD_NOTE} === 'Thank you, it goes on.'")
    soon(page, f"{FAR} < 2")


def test_a_failed_answer_can_be_asked_for_again(page: Browser, harbour: Harbour) -> None:
    send(page, "Is it on?")
    to = harbour.asked()
    harbour.answer("The model is away.", to=to, error="away")
    soon(page, "document.querySelector('.answer.failed.last .again') !== null")
    page.see("document.querySelector('.answer .again').click()")
    soon(page, f"{STATE} === 'sent'")
    assert harbour.agent.accepted[-1].text == "/retry"
    assert page.see("getComputedStyle(document.querySelector('.answer .again')).display") == "none"


def test_on_a_phone_the_list_is_behind_a_button(page: Browser, harbour: Harbour) -> None:
    page.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    write(page, "Hello")
    soon(page, "document.querySelectorAll('#conversations li').length === 1")
    soon(page, "getComputedStyle(document.querySelector('#side')).visibility === 'hidden'")
    page.see("document.querySelector('#open-side').click()")
    soon(page, "document.activeElement.id === 'new'")
    page.press("Escape", 27)
    soon(page, "getComputedStyle(document.querySelector('#side')).visibility === 'hidden'")
    assert page.see("document.activeElement.id") == "text"
    assert page.see("document.documentElement.scrollWidth") <= 390
    page.see("document.querySelector('#open-side').click()")
    soon(page, "!document.querySelector('#shade').hidden")
    page.ask("Emulation.setDeviceMetricsOverride", width=1440, height=800, deviceScaleFactor=1, mobile=False)
    soon(page, "document.querySelector('#shade').hidden")
    assert page.see("document.body.classList.contains('listed')") is False


def test_long_texts_stay_within_the_page_and_old_answers_are_read_undisturbed(
    page: Browser, harbour: Harbour
) -> None:
    page.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    harbour.answer("w" * 3_000 + "\n" + "```\n" + "x" * 500 + "\n```", to="nothing-of-ours")
    soon(page, "document.querySelectorAll('.answer').length === 1")
    assert page.see("document.documentElement.scrollWidth") <= 390
    assert page.see("(one => one.scrollWidth > one.clientWidth)(document.querySelector('pre'))") is True
    page.see("document.querySelector('#scroll').scrollTop = 0")
    harbour.answer("News", to="nothing-of-ours-2")
    soon(page, "!document.querySelector('#newest').hidden")
    below = "document.querySelector('#newest').getBoundingClientRect().bottom"
    assert page.see(f"{below} <= document.querySelector('#composer').getBoundingClientRect().top") is True
    assert page.see("document.querySelector('#scroll').scrollTop") == 0
    page.see("document.querySelector('#newest').click()")
    soon(page, "document.querySelector('#newest').hidden")


def test_it_can_be_used_by_ear_and_by_keyboard(page: Browser) -> None:
    tree = page.ask("Accessibility.getFullAXTree")["nodes"]
    named = {
        (one["role"]["value"], one.get("name", {}).get("value")) for one in tree if not one.get("ignored")
    }
    assert {("textbox", "Your message"), ("button", "Send"), ("log", "Conversation")} <= named
    assert ("heading", "Harbour office") in named
    assert page.see("document.querySelector('#log').getAttribute('aria-live')") == "polite"
    assert ("button", "Attach files") in named
    for reached in ("attach", "send"):
        page.press("Tab", 9)
        assert page.see("document.activeElement.id") == reached


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_it_fits_light_dark_and_narrow(browser: Browser, harbour: Harbour, width: int, dark: bool) -> None:
    browser.ask("Network.clearBrowserCookies")
    browser.open(harbour.address, width=width, dark=dark)
    assert browser.see("document.documentElement.scrollWidth") <= width
    sign_in(browser)
    send(browser, "Good evening. Is the north light on?")
    harbour.answer(ANSWER, to=harbour.asked())
    buttons = (Button(label="Allow", value="approve 1"), Button(label="Refuse", value="deny 1"))
    harbour.run(
        harbour.adapter.send_card("Ada", Card(text="May I run `pier light south on`?", buttons=buttons))
    )
    soon(browser, "document.querySelectorAll('.card .choices button').length === 2")
    harbour.agent.is_away = True
    write(browser, "And who is on duty?")
    soon(browser, "document.querySelector('.message.failed') !== null")
    harbour.run(harbour.adapter.send_typing("Ada"))
    soon(browser, "!document.querySelector('#typing').hidden")
    assert browser.see("document.documentElement.scrollWidth") <= width
    ground = str(browser.see("getComputedStyle(document.body).backgroundColor"))
    assert (sum(int(one) for one in ground.removeprefix("rgb(").removesuffix(")").split(",")) < 200) is dark
