"""Mail for tests of the pages, and Markdown that tries to act in a reader's browser."""

import hashlib
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from PIL import Image
from starlette.applications import Starlette

from postroom.contracts.choices import Importance, RecipientKind
from postroom.contracts.mail import Agent, Attachment, Message
from postroom.stores.mail.access import MailWrites
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.web.pages import page_routes

NOW = 1_790_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE


@asynccontextmanager
async def reader_of(store: SqliteStore, clock: ManualClock) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a browser that reads the pages of a store, without permission to change anything."""
    app = Starlette(routes=page_routes(store.runs.store, clock=clock))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8765", headers={"Accept": "text/html"}
    ) as client:
        yield client


HOSTILE = (
    "<script>alert(1)</script>",
    "<ScRiPt src=//evil.example/x.js></sCrIpT>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<img src=x onerror=alert(1)>",
    '<img src="x" onerror="alert(1)" style="display:none">',
    "![x](https://evil.example/pixel.png)",
    '![x](https://evil.example/a.png "title" onerror=alert(1))',
    "![x](javascript:alert(1))",
    "![<script>alert(1)</script>](https://evil.example/a.png)",
    '![a"><svg onload=alert(1)>](https://evil.example/"onerror="alert(1))',
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\nscript:alert(1))",
    "[x](java&#x09;script:alert(1))",
    "[x](&#106;&#97;&#118;&#97;&#115;&#99;&#114;&#105;&#112;&#116;&#58;alert(1))",
    "[x](&#x6A&#x61&#x76&#x61&#x73&#x63&#x72&#x69&#x70&#x74&#x3A;alert(1))",
    "[x](javascript&colon;alert&lpar;1&rpar;)",
    "[x](%6a%61%76%61%73%63%72%69%70%74:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x](<\tjavascript:alert(1)>)",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](data:image/svg+xml,<svg onload=alert(1)>)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example/)",
    "[x](/logout)",
    "[x](#main)",
    "[x](blob:https://evil.example/1)",
    "[x][1]\n\n[1]: javascript:alert(1)",
    "[x][1]\n\n[1]: JAVASCRIPT&colon;alert(1) 'onclick=alert(1)'",
    "<javascript:alert(1)>",
    "<data:text/html,<script>alert(1)</script>>",
    "<vbscript:alert(1)>",
    '<https://evil.example/"onmouseover="alert(1)>',
    "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "<style>body{background:url(https://evil.example/)}</style>",
    '<div style="position:fixed;inset:0;background:url(javascript:alert(1))">x</div>',
    '<a href="javascript:alert(1)">x</a>',
    '<a href="https://ok.example" onclick="alert(1)" target="_blank">x</a>',
    "<iframe src=javascript:alert(1)></iframe>",
    '<iframe srcdoc="<script>alert(1)</script>"></iframe>',
    "<object data=javascript:alert(1)></object><embed src=javascript:alert(1)>",
    '<form action="https://evil.example"><button formaction=javascript:alert(1)>x</button></form>',
    '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    "<base href=https://evil.example/><link rel=stylesheet href=//evil.example/x.css>",
    '<input autofocus onfocus="alert(1)"><details open ontoggle=alert(1)>',
    "<!--><script>alert(1)</script>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?php echo 1 ?><!DOCTYPE html>",
    "</div></article></main><h1>Forged</h1>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    '```"><script>alert(1)</script>\n</code></pre><script>alert(1)</script>\n```',
    "``<script>alert(1)</script>``",
    "    <script>alert(1)</script>",
    '[a](https://ok.example "x\\"onmouseover=alert(1) y=\\"")',
    "[a](https://ok.example/'onmouseover='alert(1))",
    "|<img src=x onerror=alert(1)>|\n|:-:|\n|[x](javascript:alert(1))|",
    "# <svg onload=alert(1)>\n> <b onclick=alert(1)>x</b>",
    "**[x](javascript:alert(1))** ~~<u onclick=alert(1)>~~ *<a name=main id=main class=badge>*",
    "[![x](javascript:alert(1))](javascript:alert(1))",
    "\u2028<script>alert(1)</script>\u2029\x00<script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;alert(1)&#60;/script&#62;",
)


def picture(*, size: tuple[int, int] = (64, 40), kind: str = "PNG") -> bytes:
    """Return a picture of one colour."""
    out = io.BytesIO()
    Image.new("RGB", size, "#2a62ad").save(out, kind)
    return out.getvalue()


class Writer:
    """Writes messages in few words."""

    def __init__(self, writes: MailWrites) -> None:
        self.writes = writes

    def project(self, slug: str, path: str) -> int:
        """Store a project."""
        return self.writes.insert_project(
            slug=slug, human_key=path, spelling=path, git_identity="", owner="ana", now=NOW - 24 * HOUR
        ).id

    def agent(self, project_id: int, name: str, task: str = "") -> Agent:
        """Store an agent."""
        return self.writes.insert_agent(
            project_id, name=name, program="claude-code", model="opus", task_description=task, now=NOW - HOUR
        )

    def send(
        self,
        sender: Agent,
        subject: str,
        body: str,
        *,
        to: tuple[Agent, ...] = (),
        cc: tuple[Agent, ...] = (),
        bcc: tuple[Agent, ...] = (),
        thread: str | None = None,
        importance: Importance = "normal",
        ack: bool = False,
        reply_to: int | None = None,
        project: int | None = None,
        at: int = NOW - 10 * MINUTE,
    ) -> Message:
        """Store a message with its recipients."""
        sent = self.writes.insert_message(
            project_id=sender.project_id if project is None else project,
            sender=sender,
            thread_id=thread,
            subject=subject,
            body_md=body,
            importance=importance,
            ack_required=ack,
            topic="",
            broadcast=False,
            reply_to=reply_to,
            now=at,
        )
        named: tuple[tuple[RecipientKind, tuple[Agent, ...]], ...] = (("to", to), ("cc", cc), ("bcc", bcc))
        for kind, agents in named:
            for agent in agents:
                self.writes.insert_recipient(sent.id, agent, kind)
        return sent

    def attach(
        self, message: Message, name: str, media_type: str, content: bytes, preview: bytes = b""
    ) -> str:
        """Attach bytes to a message, with a preview if `preview` is given; return their SHA-256."""
        stored = [hashlib.sha256(one).hexdigest() for one in (content, preview)]
        self.writes.insert_blob(stored[0], content)
        if preview:
            self.writes.insert_blob(stored[1], preview)
        attachment = Attachment(
            sha256=stored[0],
            name=name,
            media_type=media_type,
            size=len(content),
            preview_sha256=stored[1] if preview else None,
        )
        self.writes.insert_attachment(message.id, attachment)
        return stored[0]

    def reserve(
        self, agent: Agent, pattern: str, *, exclusive: bool = True, reason: str = "", at: int = NOW
    ) -> int:
        """Reserve a pattern for an hour."""
        prefix = pattern.split("*")[0].rstrip("/")
        return self.writes.insert_reservation(
            agent, pattern=pattern, prefix=prefix, exclusive=exclusive, reason=reason, ttl=HOUR, now=at
        ).id
