"""Deployment settings, read from the environment once, when a process starts."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from eigensweep.common.aside import call_aside
from eigensweep.common.logs import LogFormat
from eigensweep.common.variables import expand_home
from eigensweep.service.settings.webhook_rules import HTTPS_PORT, KEY_PREFIX, check_url
from eigensweep.store.places.files import is_url
from eigensweep.store.places.object_files import KEYS, LIBRARIES
from eigensweep.store.upkeep.thinning import Keep

PATIENCE_SECONDS: Final = 3.0
"""How long MLflow may take to answer."""
LONGEST_WORDS: Final = 300
"""Letters of what MLflow answers instead of a success that are told."""

OFF: Final = "off"
SHORTEST_SECRET: Final = 16
"""Signs of the secret that webhooks are signed with, and of that between us and a proxy."""


def _read_path(given: object) -> object:
    """Return a path without spaces around it; quotes belong to the file that it was read from."""
    text = given.strip() if isinstance(given, str) else given
    if isinstance(text, str) and text[:1] in ("'", '"'):
        raise ValueError(f"the path {text} begins with a quote; write it without")
    return text


def _check_address(given: str) -> str:
    if not re.match(r"https?://[^/\s]", given):
        raise ValueError(f"an address begins with http:// or https://, such as http://{given}")
    return given


Address = Annotated[str, AfterValidator(_check_address)]
Folder = Annotated[
    Path, BeforeValidator(_read_path), AfterValidator(lambda path: expand_home(path).absolute())
]
"""A path made absolute, so that it does not depend on the working folder."""


def _check_storage(given: object) -> str:
    """Return a folder made absolute, or the URL of an object store without a slash at its end."""
    if not isinstance(given, str | Path):
        raise ValueError(f"a store is {STORES}")
    place = str(_read_path(given))
    if re.match(r"(s3|gs):/?(?!/)", place):
        raise ValueError(f"a store is {STORES}; two slashes follow {place[:3]}")
    if not is_url(place):
        return str(expand_home(place).absolute())
    parts = urlsplit(place)
    if parts.scheme not in LIBRARIES:
        raise ValueError(
            f"a store is {STORES}; got {parts.scheme}://... A commit needs a store that refuses to "
            "write over an object (a conditional put), and Eigensweep knows how to ask only these"
        )
    if not parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"a store is {STORES}; got something else behind {parts.scheme}://")
    if "@" in parts.netloc:
        raise ValueError(f"a store's address names no key: {KEYS[parts.scheme]}")
    return parts.scheme + place[len(parts.scheme) :].rstrip("/")


STORES: Final = "a folder, s3://bucket/prefix or gs://bucket/prefix"

Storage = Annotated[str, BeforeValidator(_check_storage)]


class StartError(RuntimeError):
    """The service cannot start with its settings; the message says what to do."""


def explain_settings(error: ValidationError) -> list[str]:
    """Return what is wrong with each setting, in words that begin with its variable."""
    told = []
    for one in error.errors():
        name, *inner = [str(part) for part in one["loc"]] or [""]
        label = f"EIGENSWEEP_{name.upper()}: " if name else ""
        label += f"{'.'.join(inner)}: " if inner else ""
        told.append(label + one["msg"].removeprefix("Value error, "))
    return told


def read_version() -> str:
    """Return the version of the installed package, "0" if only its sources are there."""
    try:
        return version("eigensweep")
    except PackageNotFoundError:
        return "0"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


API: Final = "/api/2.0/mlflow/experiments/search"
CREDENTIALS: Final = "~/.mlflow/credentials"


@dataclass(frozen=True)
class Mlflow:
    """An MLflow server, as the service reaches it and as people do."""

    uri: str
    pages: str
    """Address of its pages for browsers."""
    token: str | None = field(default=None, repr=False)
    """What it wants to be sent; None: nothing. With a token the service hands its pages on."""
    explain_end: Callable[[], str] = field(default=str, repr=False, compare=False)
    """Returns why it ended by itself, if it did and that is known; else no words."""
    service: str = field(default="", repr=False)
    """The service's own address, if `pages` are below it."""
    _late: list[Future[str | None]] = field(default_factory=list, repr=False, compare=False)
    """Answers that did not come in time: none is asked for anew beside them."""

    def make_local(self, link: str | None) -> str | None:
        """Return a link to its pages for a browser that shows the service's pages.

        Below the service it is a path: the browser may have come by another name of the machine,
        through a tunnel or a proxy.

        >>> Mlflow("http://db:5000", "http://me/mlflow", service="http://me").make_local(
        ...     "http://me/mlflow/#/runs/1"
        ... )
        '/mlflow/#/runs/1'
        """
        return None if link is None else link.removeprefix(self.service)

    def find_problem(self) -> str | None:
        """Return why it cannot be used now, None if it answers within `PATIENCE_SECONDS`."""
        self._late[:] = [each for each in self._late if not each.done()]
        asked = self._late.pop() if self._late else call_aside(self._ask, "mlflow")
        try:
            return asked.result(PATIENCE_SECONDS)
        except TimeoutError:  # its name is looked up yet, or it answers drop by drop
            self._late.append(asked)
            return f"no answer within {PATIENCE_SECONDS:g} s"

    def _ask(self) -> str | None:
        import httpx2

        # What drivers ask, and with what they ask: /health would answer whatever the secret is.
        token, auth = self.token, None
        try:
            if token is None and (auth := find_mlflow_user()) is None:
                token = os.environ.get("MLFLOW_TRACKING_TOKEN")
        except (ConfigParserError, UnicodeDecodeError) as error:
            kind = type(error).__name__  # the error itself may tell the password
            return f"MLflow's client cannot read {CREDENTIALS} ({kind}): mend or remove that file"
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # As MLflow's client: through a proxy of the environment, but not to this machine.
        client = httpx2.Client(
            headers=headers,
            auth=auth,
            timeout=PATIENCE_SECONDS,
            trust_env=not is_loopback(urlsplit(self.uri).hostname or ""),
        )
        url = f"{self.uri.rstrip('/')}{API}?max_results=1"
        try:
            with client, client.stream("GET", url) as answer:
                if answer.status_code == 401:
                    lacks = "it wants one: set EIGENSWEEP_MLFLOW_TOKEN"
                    has = "it is the server of another secret"
                    return f"it answers 401: {lacks if self.token is None else has}"
                kind = answer.headers.get("content-type", "")
                is_json = kind.startswith("application/json")
                if not answer.is_success:
                    said = next(answer.iter_text(LONGEST_WORDS), "") if is_json else ""
                    words = (f"it answers {answer.status_code}", " ".join(said.split()))
                    return ": ".join(filter(None, words))
                if not is_json:
                    return f"instead of MLflow something else answers, with {kind or 'no type'}"
                return None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return "; ".join(filter(None, (f"no answer ({error})", self.explain_end())))


def find_mlflow_user() -> tuple[str, str] | None:
    """Return the user and the password that MLflow's client sends to a server without a secret.

    Raises:
        ConfigParserError, UnicodeDecodeError: where that client, too, ends with an error.
    """
    kept = ConfigParser()
    kept.read(os.path.expanduser(CREDENTIALS))  # there may be no home
    names = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
    in_file = {name: kept.get("mlflow", name, fallback="") for name in names}
    user, password = (os.environ.get(name) or in_file[name] for name in names)
    return (user, password) if user and password else None


RELATIVE: Final = re.compile(r"(sqlite(?:\+\w+)?:///(?:file:)?+)(?!/)")
"""How a URL of SQLite begins whose file has no whole path."""
DRIVERS: Final = re.compile(r"sqlite(\+pysqlite)?|postgres(ql)?(\+psycopg)?")
"""How the URL of a record may begin."""


class Settings(BaseSettings):
    """Deployment choices. Scientific choices belong to the spec and never live here."""

    # A variable that is empty is one that is not set, as for the client. Errors may be mailed.
    model_config = SettingsConfigDict(
        env_prefix="EIGENSWEEP_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    home: Folder = Field(default_factory=lambda: user_data_path("eigensweep"))
    """Folder of everything that the service keeps, for one service at a time.

    Delete it for a clean start.
    """
    host: str = "127.0.0.1"
    """Address to listen on. An address that other machines can reach needs a token."""
    port: int = Field(default=8642, ge=1, le=65535)
    """Port of the API. If the default is taken, the next free one is used.

    If a port that was set is taken, the service does not start.
    """
    token: SecretStr | None = None
    """Token of who runs the service, with scope `admin`.

    None: only tokens of users, and none is needed while there is no such token. It consists of
    letters, digits and signs of ASCII, without spaces.
    """
    rate_limit: str | None = None
    """Requests that one token may send from one address, such as `600/minute`, or `off`.

    None: off on loopback, 3000/minute elsewhere.
    """
    audit_entries: int = Field(default=100_000, ge=100)
    """How many deeds the audit log keeps, and how many refusals beside them."""
    proxy_addresses: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = ()
    """Addresses or networks of proxies before the service, separated by commas.

    A proxy is believed about the address of who asks (`X-Forwarded-For`), and no one else is.
    """
    proxy_secret: SecretStr | None = None
    """Secret that a proxy sends in `X-Eigensweep-Proxy-Secret`; it then names the user.

    None: a proxy names no users.
    """
    proxy_scopes: Annotated[dict[str, Literal["read", "submit", "admin"]], NoDecode] = {}
    """Scope of each group that a proxy names: `lab=submit,leads=admin`; `*` is everybody."""
    proxy_user_header: str = "X-Forwarded-User"
    """Header in which the proxy names the user."""
    proxy_groups_header: str = "X-Forwarded-Groups"
    """Header in which the proxy names the user's groups, separated by commas."""
    data_root: Folder | None = None
    """Folder of the corpora; None: `data` in the home folder."""
    results: Folder | None = None
    """Folder of results of reproductions, as `eigensweep reproduce --results` keeps them.

    What is found there is not trained again when a reproduction is asked for. None: no results.
    """
    database_url: str | None = None
    """SQLAlchemy URL of the record, relative to the home; None: SQLite in the home folder."""
    mlflow_uri: Address | None = None
    """Address of a running MLflow server; None: the service starts one."""
    mlflow_pages: str | None = None
    """Address of MLflow for browsers, used in the links of answers, and on pages if it is set.

    None: /mlflow of the service where it has the secret of the server, else `mlflow_uri`.
    """
    mlflow_token: SecretStr | None = None
    """Secret of the MLflow server at `mlflow_uri`; the service then hands on its pages.

    None: that server answers everybody.
    """
    mlflow_port: int = Field(default=5000, ge=1, le=65535)
    """Port of the MLflow server that the service starts; the rule of `port` applies."""
    ray_address: str | None = None
    """Address of a running Ray cluster; None: the service starts Ray on this machine."""
    cpus: int | None = Field(default=None, ge=1)
    """Processors for the Ray that the service starts; None: all that it may use."""
    storage: Storage | None = None
    """Folder of checkpoints and curves, the same on every node, or `s3://bucket/prefix`, or
    `gs://bucket/prefix`.

    None: in the home folder. Keys come from the variables `AWS_*` or a profile, for `gs` from
    `GOOGLE_APPLICATION_CREDENTIALS`, or from the role of the machine, on every node.
    """
    max_experiments: int | None = Field(default=None, ge=1)
    """How many experiments run at once, as far as half of the memory holds their drivers; the
    others wait in the queue. A user none of whose experiments runs gets one beyond that, up to 8
    in all, unless more than two drivers only wait for MLflow.

    None: 2, and 8 on a running Ray cluster.
    """
    retries: int = Field(default=3, ge=0)
    """How often a trial is started again after its process was lost, and not its node."""
    checkpoint_seconds: float = Field(default=10.0, gt=0)
    """Seconds of training that a lost process costs at most."""
    least_free_mb: float = Field(default=512, ge=0, allow_inf_nan=False)
    """Free megabytes of the disks of home and store below which no new trial begins.

    Trials that run go on, and new ones begin when there is room again. 0: it is not looked at.
    """
    retention: Literal["all", "last", "best", "none"] = "all"
    """Which checkpoints stay of trials of experiments that are over: `all`, or only the `last`
    of each seed, only the weights of its `best` evaluation, or `none`.

    The service removes the others `retention_days` after the end. Curves and results stay. With
    `best` and `none` no trial can train on with a longer budget.
    """
    retention_days: float = Field(default=30, ge=0, le=36_500)
    """Days after an experiment's end at which `retention` applies to it."""
    retention_hours: float = Field(default=1, gt=0, le=24 * 366)
    """Hours between two looks whether `retention` applies to an experiment."""
    webhook_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts that webhooks may be sent to, separated by commas, such as `hooks.example.org`.

    Nothing is sent while there is none. A port other than 443 is part of it: `host:8443`.
    """
    webhook_networks: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = ()
    """Networks of your own that webhooks may go to, separated by commas, such as `10.1.0.0/16`.

    To other addresses that are not public nothing is sent.
    """
    webhook_urls: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses that are told how every experiment ends, separated by commas; https only."""
    webhook_secret: SecretStr | None = None
    """Secret that webhooks are signed with; None: only allowed while no host is named."""
    otlp_endpoint: Address | None = None
    """Address of an OpenTelemetry collector (OTLP over HTTP) that traces are sent to.

    None: what OTEL_EXPORTER_OTLP_ENDPOINT says; without that, there are no traces.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level of log lines on the console."""
    log_format: LogFormat = "text"
    """Form of log lines: `text`, or `json`, one object a line with experiment and trial."""

    @field_validator("token", "mlflow_token", "webhook_secret", "proxy_secret")
    @classmethod
    def _require_plain_signs(cls, token: SecretStr | None) -> SecretStr | None:
        secret = token.get_secret_value() if token else ""
        if not re.fullmatch(r"[!-~]*", secret):
            raise ValueError(
                "a token consists of letters, digits and signs of ASCII, without spaces; "
                "`openssl rand -hex 32` prints one"
            )
        return token if secret else None

    @field_validator("home")
    @classmethod
    def _require_a_plain_home(cls, home: Path) -> Path:
        if "?" in str(home):
            raise ValueError(f"{home} has a '?', which ends a path in the address of a database")
        return home

    @field_validator("database_url")
    @classmethod
    def _require_a_database(cls, url: str | None) -> str | None:
        if url is None:
            return None
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        with suppress(ArgumentError, ValueError):
            found = make_url(url)
            file = (found.database or "").removeprefix("file:")
            is_in_memory = url.startswith("sqlite") and file in ("", ":memory:")
            if DRIVERS.fullmatch(found.drivername) and not is_in_memory:
                return url
        raise ValueError(  # the URL is not told, as it may have a password
            "this is no URL of SQLite or PostgreSQL, such as sqlite:////srv/record.db or "
            "postgresql://eigensweep@db/eigensweep; SQLite needs a file, and psycopg is the "
            "only driver for PostgreSQL"
        )

    @field_validator("webhook_hosts", "webhook_urls", mode="before")
    @classmethod
    def _split_at_commas(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        return tuple(each.strip() for each in given.split(",") if each.strip())

    @field_validator("webhook_hosts")
    @classmethod
    def _require_names(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if addresses := [each for each in given if "/" in each]:
            raise ValueError(f"'{addresses[0]}' is an address; a host is hooks.example.org alone")
        return tuple(each.removesuffix(f":{HTTPS_PORT}") for each in given)

    @model_validator(mode="after")
    def _require_whole_webhooks(self) -> Settings:
        for url in self.webhook_urls:
            check_url(url, self.webhook_hosts)
        secret = self.webhook_secret.get_secret_value() if self.webhook_secret else ""
        if secret.startswith(KEY_PREFIX):
            try:
                base64.b64decode(secret.removeprefix(KEY_PREFIX), validate=True)
            except ValueError as error:
                raise ValueError(
                    f"EIGENSWEEP_WEBHOOK_SECRET begins with {KEY_PREFIX}, so Base64 must follow; "
                    "leave that out for any other secret"
                ) from error
        if self.webhook_hosts and len(secret) < SHORTEST_SECRET:
            raise ValueError(
                f"webhooks are signed: set EIGENSWEEP_WEBHOOK_SECRET to at least {SHORTEST_SECRET} "
                "signs; `openssl rand -hex 32` prints some"
            )
        return self

    @field_validator("rate_limit")
    @classmethod
    def _require_a_rate(cls, rate: str | None) -> str | None:
        from limits import parse_many

        if rate not in (None, OFF):
            try:
                (only,) = parse_many(rate)
                if only.amount < 1:
                    raise ValueError
            except ValueError:
                raise ValueError(
                    f"'{rate}' is no rate; write a number and a unit, such as 600/minute, or off"
                ) from None
        return rate

    @field_validator("proxy_addresses", "webhook_networks", mode="before")
    @classmethod
    def _read_networks(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        return tuple(ip_network(each.strip()) for each in given.split(",") if each.strip())

    @field_validator("proxy_scopes", mode="before")
    @classmethod
    def _read_scopes(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        pairs = [each.partition("=") for each in given.split(",") if each.strip()]
        if any(not group.strip() or not equals for group, equals, _ in pairs):
            raise ValueError(f"'{given}' has not the form group=scope,group=scope")
        return {group.strip(): scope.strip() for group, _, scope in pairs}

    @model_validator(mode="after")
    def _require_a_whole_proxy(self) -> Settings:
        secret = self.proxy_secret.get_secret_value() if self.proxy_secret else ""
        if not secret and not self.proxy_scopes:
            return self
        if not (secret and self.proxy_scopes and self.proxy_addresses):
            raise ValueError(
                "a proxy that names users needs EIGENSWEEP_PROXY_ADDRESSES, "
                "EIGENSWEEP_PROXY_SECRET and EIGENSWEEP_PROXY_SCOPES, all three"
            )
        if len(secret) < SHORTEST_SECRET:
            raise ValueError(
                f"EIGENSWEEP_PROXY_SECRET has at least {SHORTEST_SECRET} signs; "
                "`openssl rand -hex 32` prints one"
            )
        return self

    @property
    def corpora(self) -> Path:
        """Folder of the corpora."""
        return self.data_root or self.home / "data"

    @property
    def database(self) -> str:
        """URL of the record's database; a file of SQLite has its whole path, from the home folder.

        So all commands mean the same file, wherever they are called.
        """
        if not self.database_url:
            return f"sqlite:///{self.home / 'eigensweep.db'}"
        url = re.sub("^postgres(?=[:+])", "postgresql", self.database_url)
        found = RELATIVE.match(url)
        return url if found is None else f"{found[1]}{self.home}/{url[found.end() :]}"

    @property
    def storage_folder(self) -> str:
        """Folder of checkpoints and curves, or a URL."""
        return self.storage or str(self.home / "storage")

    @property
    def disk_folders(self) -> dict[str, Path]:
        """The folders whose disks fill up, by what they are."""
        folders = {"home": self.home}
        if not is_url(self.storage_folder):
            folders["storage"] = Path(self.storage_folder)
        return folders

    @property
    def keep(self) -> Keep | None:
        """The rule of `retention`; None: all checkpoints stay."""
        return None if self.retention == "all" else self.retention

    @property
    def least_free_bytes(self) -> int:
        """Free space below which no new trial begins."""
        return round(self.least_free_mb * 1e6)
