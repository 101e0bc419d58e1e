"""An S3 server on this machine, and its address in the environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import boto3
import pytest
from moto import backends
from moto.s3 import utils
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

SECRET = "a-key-that-no-log-shows"


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def _newest_of_each(store: utils._VersionedKeyStore) -> Iterator[tuple[str, Any]]:
    """Read from one copy. Moto's own looks up each key again, and fails if it was deleted since."""
    for key, versions in dict(store).items():
        yield key, versions[-1]


@contextmanager
def serve(bucket: str = "lab") -> Iterator[str]:
    """Serve one empty bucket; yield its URL. Processes that start meanwhile find it, too."""
    with serve_with_outages(bucket) as (url, _):
        yield url


@contextmanager
def serve_with_outages(
    bucket: str = "lab",
) -> Iterator[tuple[str, Callable[[], AbstractContextManager[None]]]]:
    """Do the same; yield also what ends the server for a while, which then has all it had."""
    modules = frozenset(backends.list_of_moto_modules())
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()

    @contextmanager
    def outage() -> Iterator[None]:
        nonlocal server
        server.stop()
        try:
            yield
        finally:
            server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
            server.start()

    access = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    S3FileSystem.clear_instance_cache()  # it keeps the address that it found first
    try:
        with pytest.MonkeyPatch.context() as patch:  # and not `patch.dict`, which would take back
            for name, value in access.items():  # the token that Ray remembers
                patch.setenv(name, value)
            # For each request the server looks through a folder, and writes a line of log.
            patch.setattr(backends, "list_of_moto_modules", lambda: modules)
            patch.setattr(utils._VersionedKeyStore, "items", _newest_of_each)
            patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
            boto3.client("s3").create_bucket(Bucket=bucket)
            yield f"s3://{bucket}", outage
    finally:
        server.stop()
        S3FileSystem.clear_instance_cache()
