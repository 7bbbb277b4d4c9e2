"""The templates, and the few words they may use. Everything is escaped unless it was made safe in code."""

from importlib import resources

from jinja2 import DictLoader, Environment, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from postroom.mail.projects import PEOPLE_SLUG
from postroom.web import links
from postroom.web.assets import asset_link
from postroom.web.files import PICTURES
from postroom.web.reading import awaited
from postroom.web.wording import (
    absolute,
    clip,
    extension,
    folder_name,
    gist,
    initials,
    lasting,
    lines,
    moment,
    one_line,
    relative,
    size_text,
    tone,
)


def render(template: str, **values: object) -> bytes:
    """Fill a template; `now` among the values is the instant that relative times are told from."""
    # Halves of surrogate pairs, which no store but the one in memory can hold, become question marks.
    return _ENVIRONMENT.get_template(f"{template}.html").render(**values).encode("utf-8", "replace")


def _environment() -> Environment:
    """Return the environment with every template read, so that no request waits for a disk."""
    files = (one for one in (resources.files("postroom.web") / "templates").iterdir() if one.is_file())
    made = Environment(
        loader=DictLoader({one.name: one.read_text("utf-8") for one in files}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(link=links, asset=asset_link, pictures=PICTURES, people_slug=PEOPLE_SLUG)
    made.filters.update(
        absolute=absolute,
        awaited=awaited,
        clip=clip,
        extension=extension,
        folder_name=folder_name,
        gist=gist,
        initials=initials,
        lasting=lasting,
        line=one_line,
        moment=moment,
        said=lines,
        size=size_text,
        tone=tone,
        when=_when,
    )
    return made


@pass_context
def _when(context: Context, instant: int) -> Markup:
    """Render an instant relative to the page's own, with the moment itself for machines and for a pointer."""
    now: int = context["now"]
    words = relative(instant, now)
    known = moment(instant)
    if known is None:
        return Markup("<span>{}</span>").format(words)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(known, absolute(instant), words)


_ENVIRONMENT = _environment()
