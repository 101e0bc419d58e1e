"""HEAD wherever GET is answered."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/v1/models", "/v1/experiments", "/openapi.json", "/", "/nothing"],
)
def test_it_has_the_status_and_headers_of_get_and_no_body(client, path):
    get, head = client.get(path), client.head(path)
    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["content-length"] == get.headers["content-length"]
    assert head.content == b""


def test_a_stream_of_events_ends_where_it_would_begin(client, spec):
    here = client.post("/v1/experiments", json=spec()).headers["location"]
    head = client.head(f"{here}/events")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
