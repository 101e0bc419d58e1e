"""Headers of every page for browsers. Runs in the service's process.

A page loads scripts, styles and data from the service alone, nothing in the text of a page is ever
run, and no other site can show a page in a frame. Source: Content Security Policy Level 3 (W3C).
"""

from __future__ import annotations

from typing import Final

PAGE_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
