"""A server of Google Cloud Storage on this machine, and its address in the environment.

The emulator does all but one thing: it writes over objects whatever the condition of a put says. So
`_insert` stands before it and refuses, as the real one does, what must not exist yet but does. The
emulator answers one request after another, so nothing comes between the look and the put. It also
drops a carriage return at the end of what is put; nothing that the store puts ends with one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from unittest.mock import patch

from fsspec.config import conf
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.server import HANDLERS, create_server
from gcsfs.core import GCSFileSystem

(UPLOADS,) = (methods for _, methods in HANDLERS if objects.insert in methods.values())


def _insert(request: Any, response: Any, storage: Any) -> None:
    """Refuse a put that is asked for generation 0 where the object exists; else let it through."""
    bucket, query = request.params["bucket_name"], request.query
    name = query["name"][0] if "name" in query else request.data["meta"]["name"]
    if query.get("ifGenerationMatch") == ["0"] and _exists(storage, bucket, name):
        response.status = HTTPStatus.PRECONDITION_FAILED
        response.json({"error": {"code": 412, "message": "conditionNotMet"}})
    else:
        objects.insert(request, response, storage)


def _exists(storage: Any, bucket: str, name: str) -> bool:
    try:
        storage.get_file_obj(bucket, name)
    except NotFound:
        return False
    return True


@contextmanager
def serve(bucket: str = "lab") -> Iterator[str]:
    """Serve one empty bucket; yield its URL. Processes that start meanwhile find it, too."""
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=bucket)
    GCSFileSystem.clear_instance_cache()  # it keeps the address that it found first
    try:
        with patch.dict(UPLOADS, {"POST": _insert}):
            server.start()
            address = f"http://127.0.0.1:{server._api._httpd.server_port}"
            access = {"STORAGE_EMULATOR_HOST": address, "FSSPEC_GS_TOKEN": "anon"}
            with patch.dict(os.environ, access), patch.dict(conf, gs={"token": "anon"}):
                yield f"gs://{bucket}"
    finally:
        server.stop()
        GCSFileSystem.clear_instance_cache()
