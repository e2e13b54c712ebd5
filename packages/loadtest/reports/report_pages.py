"""Renderer of the sweep and comparison pages from the templates in this folder.

An HTML page is one self-contained file with its charts, without scripts or external files. Text from a server or a user is escaped in it and in Markdown.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.nodes import EvalContext

FOLDER: Final = Path(__file__).parent
_MARKUP: Final = re.compile(
    r"<(?=[A-Za-z/!?])|\](?=\s*[(\[])|(?<![\w.])@(?=\w)|(?<=:)/(?=/)|(?<=\bwww)\.", re.IGNORECASE
)
"""Start of a tag, end of a link's text, start of a mention, and an address, in Markdown."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys, such as escape sequences, except a tab and the end of a line."""


@cache
def terms() -> Mapping[str, Mapping[str, str]]:
    """Return the terms by their keys, each with its `name` and `meaning`."""
    return tomllib.loads((FOLDER / "terms.toml").read_text(encoding="utf-8"))


@cache
def _environment() -> "Environment":
    import jinja2  # noqa: PLC0415 - takes 0.1 s
    from markupsafe import Markup  # noqa: PLC0415 - the same

    @jinja2.pass_eval_context
    def escaped(context: "EvalContext", value: object) -> object:
        """Escape in HTML, in Markdown only tags, links, addresses and mentions. Objects with `__html__` are already escaped."""
        if hasattr(value, "__html__"):
            return value
        if not context.autoescape:
            return _MARKUP.sub(lambda found: f"&#{ord(found[0])};" if found[0] != "<" else "&lt;", str(value))
        return Markup(escape(str(value)))  # noqa: S704 - escaped here

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        finalize=escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    cast("dict[str, object]", found.globals).update(
        style=(FOLDER / "report.css").read_text(encoding="utf-8"),
        terms=terms(),
    )
    return found


def page(template: str, **data: object) -> str:
    """Return a page. Raises UndefinedError if its template uses a name that `data` lacks."""
    return _CONTROL.sub("", _environment().get_template(template).render(data))
