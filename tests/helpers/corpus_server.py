"""A file server on this machine that can break connections and ignore ranges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class CorpusServer(ThreadingHTTPServer):
    """Serves `files` by path; the first `cuts` answers break off after `whole` bytes.

    With `takes_ranges` False, it always sends whole files.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.cuts, self.whole = 0, 0
        self.failures = 0
        """How many of the next answers are 503."""
        self.takes_ranges = True
        self.first: int | None = None
        """Where the part begins that is sent in place of the one that was asked for."""
        self.requests: list[tuple[str, str | None]] = []
        """Path and range of each request."""
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: CorpusServer

    def do_GET(self) -> None:
        range_header = self.headers["Range"]
        self.server.requests.append((self.path, range_header))
        content = self.server.files.get(self.path)
        if content is None or self.server.failures:
            self.send_error(503 if self.server.failures else 404)
            self.server.failures = max(0, self.server.failures - 1)
            return
        first = 0
        if range_header is not None and self.server.takes_ranges:
            first = int(range_header.removeprefix("bytes=").removesuffix("-"))
            if first >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            first = first if self.server.first is None else self.server.first
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        rest = content[first:]
        if self.server.cuts:
            self.server.cuts -= 1
            rest = rest[: self.server.whole]
        self.wfile.write(rest)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@contextmanager
def serving() -> Iterator[CorpusServer]:
    """Lend a server that answers until the end of the block."""
    server = CorpusServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
