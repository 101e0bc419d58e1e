"""The fields of a spec as a page, from the tables that the documentation has, too.

Runs in the service's process.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

from markupsafe import Markup

from eigensweep.search_spaces import tables


@cache
def write_fields() -> Markup:
    """Return the tables as HTML; headings can be linked to, and cells say what they hold."""
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
    return Markup(reader.renderer.render(tokens, reader.options, {}))
