"""The pages as those read them who do not see them, or not well: axe-core finds nothing, in light and dark."""

import importlib.util
import os
from pathlib import Path

import pytest

from e2e.test_page_in_a_browser import ADDRESSES, site

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

__all__ = ["site"]

TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
SEEN_AS = ((360, False), (1440, True))
"""Width, and whether in dark: every pair of colours and both forms of a table, in two looks and not in four."""
RUN = """
axe.run(document, {runOnly: {type: 'tag', values: %s}, resultTypes: ['violations', 'incomplete']}).then(found =>
  ({ran: found.passes.length + found.violations.length,
    wrong: found.violations.map(one => one.id + ': ' + one.nodes.slice(0, 3).map(node => node.html.slice(0, 200)
             + ' (' + node.failureSummary.split('\\n').slice(1).join(' ').slice(0, 300) + ')').join(' | '))}))
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core; without it the tests are skipped, and fail where the whole suite must run."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("axe-core-python is not installed")
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def examined(browser, axe: str) -> list[str]:
    """Return what axe finds wrong in the page that is open."""
    browser.ask("Runtime.evaluate", expression=axe)
    told = browser.ask(
        "Runtime.evaluate", expression=RUN % list(TAGS), awaitPromise=True, returnByValue=True
    )["result"]["value"]
    assert told["ran"] > 20
    return told["wrong"]


def test_nothing_is_found_wrong_with_a_page(site, browser, axe):
    paths = (f"/p/orchard/m/{site.message}", f"/p/orchard/m/{site.hostile}", "/p/orchard/timeline")
    wrong = {}
    for path in (*ADDRESSES, *paths):
        for width, dark in SEEN_AS:
            browser.open(site.address + path, width=width, dark=dark)
            wrong[path, width, dark] = examined(browser, axe)
    assert {page: found for page, found in wrong.items() if found} == {}


def test_what_is_wrong_would_be_found(site, browser, axe):
    browser.open(site.address + "/")
    browser.see("document.documentElement.removeAttribute('lang')")
    browser.see("document.body.insertAdjacentHTML('beforeend', '<img src=x><input>')")
    browser.see("document.querySelector('main').style.color = '#ccc'")
    wrong = {one.partition(":")[0] for one in examined(browser, axe)}
    assert {"html-has-lang", "image-alt", "label", "color-contrast"} <= wrong
