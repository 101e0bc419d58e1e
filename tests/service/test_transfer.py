"""What an answer costs on its way: nothing where it is known, and less where it is large."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from helpers.played import play
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from eigensweep.service.api.transfer import Compression, Validators


@pytest.fixture
def here(client: TestClient, spec: Any) -> str:
    """The address of an experiment that waits."""
    return str(client.post("/v1/experiments", json=spec()).headers["Location"])


class TestValidators:
    def test_an_answer_that_is_the_same_is_not_sent_again(self, client, here):
        for path in (here, "/v1/experiments", f"{here}/trials", "/v1/models", "/v1/cluster"):
            first = client.get(path)
            known = {"If-None-Match": first.headers["ETag"]}
            again = client.get(path, headers=known)
            assert (again.status_code, again.content) == (304, b""), path
            assert client.get(path, headers={"If-None-Match": "*"}).status_code == 304
            assert again.headers["ETag"] == first.headers["ETag"]
            assert "content-length" not in again.headers

    def test_a_large_file_that_is_known_is_not_sent_again(self, tmp_path):
        (file := tmp_path / "large.svg").write_bytes(b"<svg/>" * 20_000)  # it comes in pieces
        app = Starlette(routes=[Route("/v1/file", lambda _: FileResponse(file))])
        client = TestClient(Compression(Validators(app)))
        first = client.get("/v1/file")
        known = {"If-None-Match": first.headers["ETag"]}
        again = client.get("/v1/file", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        file.write_bytes(b"<svg/>" * 30_000)
        assert len(client.get("/v1/file", headers=known).content) == 180_000

    def test_one_that_has_changed_is_sent(self, client, here):
        known = {"If-None-Match": client.get(here).headers["ETag"]}
        assert client.get(here, headers=known).status_code == 304
        client.post(f"{here}/prioritize", json={"priority": 3})
        answer = client.get(here, headers=known)
        assert (answer.status_code, answer.json()["priority"]) == (200, 3)
        client.post(f"{here}/cancel")
        assert client.get(here, headers=known).json()["state"] == "cancelled"

    def test_no_cache_between_us_and_the_client_may_keep_it(self, client, here):
        told = client.get(here).headers
        assert told["Cache-Control"] == "private, no-cache"
        assert told["Vary"].split(", ") == ["Authorization", "Cookie", "Accept-Encoding"]
        known = client.get(here, headers={"If-None-Match": told["ETag"]})
        assert (known.status_code, known.headers["Vary"]) == (304, told["Vary"])

    def test_an_error_or_a_change_has_none(self, client, here):
        assert "ETag" not in client.get("/v1/experiments/none").headers
        assert "ETag" not in client.post(f"{here}/cancel").headers

    def test_it_does_not_depend_on_how_the_answer_is_sent(self, client, here):
        plain = client.get(here, headers={"Accept-Encoding": "identity"})
        packed = client.get(here, headers={"Accept-Encoding": "gzip"})
        assert plain.headers["ETag"] == packed.headers["ETag"]
        assert plain.headers["ETag"].startswith("W/")


class TestCompression:
    @pytest.mark.parametrize("path", ["{}", "/v1/models", "/openapi.json", "/"])
    def test_a_large_answer_is_sent_compressed_to_who_takes_that(self, client, here, path):
        path = path.format(here)
        with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
            sent = b"".join(answer.iter_raw())
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert (answer.headers["Content-Encoding"], "Content-Encoding" in plain.headers) == (
            "gzip",
            False,
        )
        assert gzip.decompress(sent) == plain.content
        assert len(sent) < len(plain.content) / 2

    def test_events_and_small_answers_are_sent_as_they_are(self, client, record, settings):
        ledger = play(client, record, Path(settings.storage_folder))
        ledger.end("completed")
        taken = {"Accept-Encoding": "gzip"}
        for path in (f"/v1/experiments/{ledger.experiment_id}/events", "/healthz"):
            assert "Content-Encoding" not in client.get(path, headers=taken).headers
