import asyncio
import re
import threading
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom import markdown
from postroom.contracts.errors import TooLarge
from postroom.markdown import (
    AS_WRITTEN,
    INLINE_LIMIT,
    MARKDOWN_LIMIT,
    MAX_LOOKS,
    PARSER,
    PLAIN_SHOWN,
    Markdown,
    to_html,
)
from table_rows import each_row
from web_samples import HOSTILE

TAGS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "pre", "code"),
    *("em", "strong", "s", "a", "div", "table", "thead", "tbody", "tr", "th", "td", "span"),
}
REL = "noopener noreferrer nofollow"


class Seen(HTMLParser):
    """Collects what an HTML text holds."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.others = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        self.others.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def allowed(tag, attribute, value):
    if tag == "a":
        web = value.lower().startswith(("http://", "https://", "mailto:"))
        return {"href": web, "title": True, "rel": value == REL}.get(attribute, False)
    if attribute == "data-language":
        return tag == "pre" and re.fullmatch(r"[\w+#.-]{1,30}", value) is not None
    if attribute == "dir":
        return value == "auto" and tag in {"ul", "ol", "blockquote"}
    if attribute == "tabindex":
        return value == "0" and tag in {"pre", "div"}
    if attribute == "class":
        return (tag, value) in {
            ("div", "wide"),
            ("pre", "plain"),
            ("li", "task"),
            *(("span", mark) for mark in ("added", "removed", "place")),
            *((cell, f"align-{way}") for cell in ("th", "td") for way in ("center", "right")),
        }
    return tag == "ol" and attribute == "start" and value.isdigit()


def assert_harmless(html):
    seen = Seen(html)
    assert not seen.others
    assert {tag for tag, _ in seen.elements} <= TAGS
    wrong = [
        (tag, attribute, value)
        for tag, attributes in seen.elements
        for attribute, value in attributes.items()
        if not allowed(tag, attribute, value)
    ]
    assert not wrong
    assert all(attributes.get("rel") == REL for tag, attributes in seen.elements if tag == "a")


def test_nothing_that_acts_survives(subtests: pytest.Subtests) -> None:
    for body in HOSTILE:
        with subtests.test(body=body):
            assert_harmless(to_html(body))


pieces = st.sampled_from(
    [*HOSTILE, "\n", "\n\n", "> ", "- ", "|", "|-|\n", "`", "```\n", "**", "[", "](", ")", "<", "&", "\x00"]
)


@settings(max_examples=150)
@given(st.lists(st.one_of(pieces, st.text(max_size=20)), max_size=12).map("".join))
def test_no_text_at_all_yields_more_than_the_allow_list(body):
    assert_harmless(to_html(body))


def test_markdown_is_rendered(subtests: pytest.Subtests) -> None:
    for body, html in [
        ("*a* **b** ~~c~~ `d`", "<p><em>a</em> <strong>b</strong> <s>c</s> <code>d</code></p>\n"),
        ("# one\n### three", "<h3>one</h3>\n<h5>three</h5>\n"),
        ("```py\na < b\n```", '<pre data-language="py" tabindex="0"><code>a &lt; b\n</code></pre>\n'),
        ("```<b>\n```", '<pre tabindex="0"><code></code></pre>\n'),
        (
            "[a](https://ok.example/?q=1&r=2)",
            f'<p><a href="https://ok.example/?q=1&amp;r=2" rel="{REL}">a</a></p>\n',
        ),
        (
            "<mailto:ana@ok.example>",
            f'<p><a href="mailto:ana@ok.example" rel="{REL}">mailto:ana@ok.example</a></p>\n',
        ),
        (
            "![a chart](https://ok.example/c.png)",
            f'<p><a href="https://ok.example/c.png" rel="{REL}">a chart</a></p>\n',
        ),
        (
            "![](https://ok.example/c.png)",
            f'<p><a href="https://ok.example/c.png" rel="{REL}">picture</a></p>\n',
        ),
        ("[there](src/app.py)", f'<p><a rel="{REL}">there</a></p>\n'),
        (
            "see https://ok.example/?q=1&r=2, www.ok.example, main.py and ana@ok.example",
            f'<p>see <a href="https://ok.example/?q=1&amp;r=2" rel="{REL}">https://ok.example/?q=1&amp;r=2</a>, '
            "www.ok.example, main.py and ana@ok.example</p>\n",
        ),
        (
            "- [ ] open\n- [x] *done*\n- [y] no box\n- [z](https://ok.example)",
            '<ul dir="auto">\n<li class="task">☐ open</li>\n<li class="task">☑ <em>done</em></li>\n'
            f'<li>[y] no box</li>\n<li><a href="https://ok.example" rel="{REL}">z</a></li>\n</ul>\n',
        ),
        (
            "```diff\n--- a\n+++ b\n@@ -1 +1 @@\n c\n-<d>\n+e\n\n```",
            '<pre data-language="diff" tabindex="0"><code>--- a\n+++ b\n<span class="place">@@ -1 +1 @@\n</span> c\n'
            '<span class="removed">-&lt;d&gt;\n</span><span class="added">+e\n</span>\n</code></pre>\n',
        ),
        ("```\n+e\n```", '<pre tabindex="0"><code>+e\n</code></pre>\n'),
        ("3. c", '<ol start="3" dir="auto">\n<li>c</li>\n</ol>\n'),
        ("> q", '<blockquote dir="auto">\n<p>q</p>\n</blockquote>\n'),
        ("a <b>bold</b>", "<p>a &lt;b&gt;bold&lt;/b&gt;</p>\n"),
    ]:
        with subtests.test(body=body, html=html):
            assert to_html(body) == html


def test_headings_keep_their_level_where_a_page_asks_for_that():
    assert to_html("# a\n## b", headings=AS_WRITTEN) == "<h1>a</h1>\n<h2>b</h2>\n"
    assert to_html("# a\n## b") == "<h3>a</h3>\n<h4>b</h4>\n"


def test_only_a_picture_that_came_with_the_message_is_shown_in_its_place():
    came = {"a plot.png": "/previews/ab?message=1"}
    assert to_html("![a **plot**](a%20plot.png)", came) == (
        '<p><img src="/previews/ab?message=1" alt="a plot"></p>\n'
    )
    for body in ("![x](other.png)", "![x](/previews/ab?message=1)", "![x](https://evil.example/a.png)"):
        assert "<img" not in to_html(body, came)
    assert "<img" not in to_html("<img src='/previews/ab?message=1'>", came)


def test_a_table_is_wrapped_and_aligned_by_classes():
    html = to_html("|a|b|c|\n|:-|:-:|-:|\n|1|2|3|")
    assert html.startswith('<div class="wide" tabindex="0"><table>')
    assert '<td>1</td>\n<td class="align-center">2</td>\n<td class="align-right">3</td>' in html
    assert "style" not in html


def test_half_a_surrogate_pair_and_a_nul_become_marks():
    assert to_html("a\ud800b\x00c") == "<p>a?b\ufffdc</p>\n"


def test_quotations_of_quotations_keep_their_text():
    assert "deep" in to_html("> " * 50 + "deep")


async def test_a_body_over_the_limit_is_plain_text_cut_and_escaped():
    body = "<script>*x*" * (MARKDOWN_LIMIT // 11 + 1)
    shown = (await Markdown().render({1: body}))[1]
    assert shown.cut
    assert shown.size == len(body)
    assert shown.html.startswith('<pre class="plain" tabindex="0">&lt;script&gt;*x*')
    assert_harmless(shown.html)
    assert Seen(shown.html).text == body[:PLAIN_SHOWN]


async def test_a_body_at_the_limit_is_rendered():
    shown = (await Markdown().render({1: "é" * (MARKDOWN_LIMIT // 2)}))[1]
    assert not shown.cut
    assert shown.size == MARKDOWN_LIMIT


def test_words_that_name_something_become_links_except_in_code_and_in_links():
    known = {"#12": "/p/shop/m/12", "@lena": "/p/shop/agents/lena", "@a_b.c-d": "/p/shop/agents/a_b.c-d"}

    def linked(text: str) -> list[str]:
        return re.findall(r'<a href="(/[^"]+)"', to_html(text, references=known))

    assert to_html("See #12, @lena.", references=known) == (
        '<p>See <a href="/p/shop/m/12" rel="noopener noreferrer nofollow">#12</a>, '
        '<a href="/p/shop/agents/lena" rel="noopener noreferrer nofollow">@lena</a>.</p>\n'
    )
    assert len(linked("- **#12** (#12)\n- @a_b.c-d: _@lena_\n\n|#12|\n|-|\n|@lena|")) == 6
    for text in (
        *(
            *("`#12`", "```\n@lena\n```", "    #12", "[#12](https://a.b)", "https://a.b/#12"),
            "https://a.b/@lena",
        ),
        *(
            *("#13", "#120", "a#12", "##12", "#12b", "&#12;", "x@lena", "@lenas", "@lena_", "me@lena.de"),
            "@@lena",
        ),
    ):
        assert linked(text) == [], text
    assert to_html("#12 @lena") == "<p>#12 @lena</p>\n"


async def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(monkeypatch):
    rendered = []
    monkeypatch.setattr(markdown, "to_html", lambda text, *_, **__: rendered.append(text[0]) or text)
    pages = Markdown(remembered=30)
    for message in ("a", "b", "c", "a", "d", "a", "b"):
        assert (await pages.render({1: message * 10}))[1].html == message * 10
    assert rendered == ["a", "b", "c", "d", "b"]


@each_row("size, elsewhere", [(INLINE_LIMIT, False), (INLINE_LIMIT + 1, True)])
async def test_much_markdown_is_rendered_off_the_loop(monkeypatch, size, elsewhere):
    threads = []
    monkeypatch.setattr(
        markdown, "to_html", lambda text, *_, **__: threads.append(threading.current_thread()) or text
    )
    await Markdown().render({1: "a" * (size - 1), 2: "b"})
    assert {thread is not threading.main_thread() for thread in threads} == {elsewhere}


async def test_two_pages_are_rendered_one_after_the_other(monkeypatch):
    running, most = 0, 0
    guard = threading.Lock()

    def slow(text, pictures, references, *, headings):
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with guard:
            running -= 1
        return text

    monkeypatch.setattr(markdown, "to_html", slow)
    pages = Markdown()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for message in "abcd":
            group.create_task(pages.render({1: message * (INLINE_LIMIT + 1)}))
    assert most == 1


async def test_what_turns_the_direction_of_writing_is_named() -> None:
    shown = await Markdown().render({1: "before \u202eback\u2066 \x1b[31mred"})
    assert Seen(shown[1].html).text.strip() == "before \\u202eback\\u2066 \\x1b[31mred"


@each_row(
    "body",
    {
        "brackets": "[" * 30_000,
        "links": "[" * 20_000 + "](" * 12_000,
        "pictures": "![" * 30_000,
        "a wide table": "|" + "a|" * 500 + "\n|" + "-|" * 500 + "\n" + ("|" + "a|" * 500 + "\n") * 60,
        "a table of empty cells": "|" + "a|" * 500 + "\n|" + "-|" * 500 + "\n" + "|a\n" * 20_000,
    }.values(),
)
async def test_markdown_that_takes_too_much_work_is_plain_text(body: str):
    env: dict[str, Any] = {"pictures": {}}
    with pytest.raises(TooLarge):
        PARSER.parse(body, env)
    assert env["looks"] <= MAX_LOOKS + 1
    shown = (await Markdown().render({1: body}))[1]
    assert shown.tangled
    assert shown.cut is (len(body) > PLAIN_SHOWN)
    assert shown.html.startswith('<pre class="plain"')


async def test_a_long_message_of_links_and_tables_is_no_tangle():
    link, row = "[a *link* to it](https://example.org/page) and `code`\n\n", "| a | b | c |\n"
    bodies = {1: link * (MARKDOWN_LIMIT // len(link)), 2: row + "|-|-|-|\n" + row * 4_000}
    assert not any(shown.tangled or shown.cut for shown in (await Markdown().render(bodies)).values())


@each_row("body", ["> " * 5_000 + "x", "\n".join("  " * at + "- a" for at in range(200))])
def test_what_is_nested_deep_scrolls_by_itself(body: str):
    assert to_html(body).startswith('<div class="wide" tabindex="0">')
    assert to_html(body).rstrip().endswith("</div>")
    assert "wide" not in to_html("> > a\n\n- b\n  - c\n    - d")
