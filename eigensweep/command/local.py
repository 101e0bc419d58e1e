"""The service's own routes, answered by this process: for a terminal where no service is asked.

It loads FastAPI and what the routes need, so it is imported only then.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import httpx2
import typer
from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.client import Client
from eigensweep.command.frame import read_settings
from eigensweep.common.private_folders import make_private, private_umask
from eigensweep.service.api.routes.accounts import create_accounts_app
from eigensweep.service.record import migrations
from eigensweep.service.record.leadership import Leadership
from eigensweep.service.record.sql import database
from eigensweep.service.settings import StartError

PATIENCE_SECONDS: Final = 10.0
"""How long a command waits for a service that begins on a new record, and makes its schema."""


class LocalClient(Client):
    """A client whose service is an application in this process.

    Without one, it knows models, tasks, presets and previews.

    Raises:
        InputError: if the settings are wrong.
    """

    def __init__(self, app: FastAPI | None = None) -> None:
        self.url = "http://here"
        if app is None:
            from eigensweep.service.api.app import create_local_app  # it loads all pages

            app = create_local_app(read_settings())
        self._http = httpx2.Client(base_url=self.url, transport=_InProcess(app))


def open_accounts(command: str) -> Client:
    """Return a client for users, tokens and the audit log in the database of the settings.

    The database is made or brought to the newest schema first. The audit log names the `command`.

    Raises:
        InputError: if the settings are wrong.
        StartError, SQLAlchemyError, OSError: if the database cannot be used.
    """
    settings = read_settings()
    with private_umask():
        file = database.file_of(settings.database)
        if file is not None and settings.home in file.parents:
            make_private(settings.home)
        _bring_up_to_date(settings.database)
    return LocalClient(create_accounts_app(settings, command))


def _bring_up_to_date(url: str) -> None:
    """Give a database this version's schema, unless a service of another version works with it.

    Raises:
        StartError: if one does, or the schema cannot be brought up to date.
    """
    leadership, deadline = Leadership(url), time.monotonic() + PATIENCE_SECONDS
    try:
        while True:
            with migrations.try_database(url):
                schema, newest = migrations.compare_versions(url)
                if schema == newest:
                    return
                leads = leadership.hold()
            if leads and schema is None:
                place = database.show_place(url)
                words = f"a new record is made at {place}; is that the place of your service?"
                typer.echo(f"{words} EIGENSWEEP_HOME names its home folder", err=True)
            if leads or schema not in (None, *migrations.list_revisions()):
                migrations.migrate(url)  # or say that it is newer
                return
            if time.monotonic() > deadline:
                raise StartError(
                    f"a service works with this record, whose schema is {schema or 'none'} and not "
                    f"{newest}: end it first, or call the command of its version"
                )
            time.sleep(0.2)
    finally:
        leadership.stop()


class _InProcess(httpx2.BaseTransport):
    def __init__(self, app: FastAPI) -> None:
        self._app = httpx2.ASGITransport(app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return asyncio.run(self._answer(request))
        except SQLAlchemyError as error:
            raise httpx2.TransportError(str(error)) from error

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._app.handle_async_request(request)
        content = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)
