"""The fields of a spec as a page, from the tables that the documentation has, too.

Runs in the service's process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from eigensweep.search_spaces import tables

if TYPE_CHECKING:
    from markdown_it.token import Token


@cache
def write_fields() -> Markup:
    """Return the tables as HTML; headings can be linked to, and cells say what they hold.

    Each section can be folded, those of single models and tasks within theirs.
    """
    from markdown_it import MarkdownIt  # a service starts without it

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(tables.markdown())
    heads: list[str] = []
    column = 0
    for token, inner in pairwise(tokens):
        if token.type == "heading_open":
            words = re.sub(r"[^\w\- ]", "", inner.content.lower())
            token.attrSet("id", words.replace(" ", "-"))
        elif token.type == "table_open":
            token.attrSet("class", "cards")
            heads.clear()
        elif token.type == "th_open":
            heads.append(inner.content)
        elif token.type == "tr_open":
            column = 0
        elif token.type == "td_open":
            if column:
                token.attrSet("data-label", heads[column])
            column += 1
    return Markup(reader.renderer.render([*_fold(tokens)], reader.options, {}))


def _fold(tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens, with each heading as the summary of what follows up to the next one."""
    from markdown_it.token import Token

    def write(html: str) -> Token:
        return Token("html_block", "", 0, content=html)

    open_tags: list[str] = []
    for token in tokens:
        if token.type == "heading_open":
            while open_tags and open_tags[-1] >= token.tag:  # h3 is below h2
                open_tags.pop()
                yield write("</details>\n")
            open_tags.append(token.tag)
            yield write('<details class="fold" open data-folds><summary>')
        yield token
        if token.type == "heading_close":
            yield write("</summary>\n")
    yield from (write("</details>\n") for _ in open_tags)
