"""Traces: spans of what happens from a post to a trial's evaluations, sent by OpenTelemetry.

Off unless `set_up` is given an endpoint. Then nothing of OpenTelemetry is imported, and a span
costs one comparison. A process hands its place in the trace on as a text: W3C's `traceparent`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

STANDARD: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables of OpenTelemetry that turn traces on, too; it reads its others by itself."""
PATH: Final = "/v1/traces"
LONGEST_EXPORT: Final = 2.0
"""Seconds that a process waits for a collector that does not answer."""
TRACEPARENT: Final = "traceparent"

Attributes = Mapping[str, str | int | float]

_provider: TracerProvider | None = None
_tracer: Tracer | None = None


def find_endpoint(own: str | None) -> str | None:
    """Return where spans go: to our own setting, else to what the standard variables say."""
    if own is not None:
        return own.rstrip("/") + ("" if own.rstrip("/").endswith(PATH) else PATH)
    traces, everything = (os.environ.get(name) for name in STANDARD)
    return traces or (everything.rstrip("/") + PATH if everything else None)


def set_up(part: str, endpoint: str | None) -> None:
    """Send the spans of this process to an endpoint; None: make no spans. `part` names it."""
    if endpoint is None or is_on():
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning(
            "no traces: %s; pip install '.[traces]' in the checkout's folder brings it", error
        )
        return
    # A provider of our own: the global one is MLflow's and FastAPI's to look at.
    named = Resource.create({"service.name": "eigensweep", "eigensweep.part": part})
    provider = TracerProvider(resource=named)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=LONGEST_EXPORT)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    use(provider)


def use(provider: TracerProvider | None) -> None:
    """Make spans with a provider, None: make none."""
    global _provider, _tracer
    _provider = provider
    _tracer = None if provider is None else provider.get_tracer("eigensweep")


def is_on() -> bool:
    """Return whether this process makes spans."""
    return _tracer is not None


def flush() -> None:
    """Send what has ended, within about `LONGEST_EXPORT`: this process may be killed soon."""
    if _provider is not None:
        _provider.force_flush(int(LONGEST_EXPORT * 1000))


@contextmanager
def span(name: str, parent: str | None = None, **attributes: str | int | float) -> Iterator[None]:
    """Trace what happens meanwhile. The parent is the span around it, unless one is given."""
    if _tracer is None:
        yield
        return
    from opentelemetry.trace import use_span

    with use_span(_begin(name, parent, attributes), end_on_exit=True):
        yield


class OpenSpan:
    """A span that ends when it is told to; what happens in `within` is below it."""

    def __init__(self, name: str, parent: str | None, **attributes: str | int | float) -> None:
        self._span = None if _tracer is None else _begin(name, parent, attributes)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Make spans that begin meanwhile children of this one."""
        if self._span is None:
            yield
            return
        from opentelemetry.trace import use_span

        with use_span(self._span, end_on_exit=False):
            yield

    def rename(self, name: str) -> None:
        """Give it a better name, which is known only now."""
        if self._span is not None:
            self._span.update_name(name)

    def end(self, **attributes: str | int | float) -> None:
        """End it with what is known now."""
        if self._span is not None:
            self._span.set_attributes(_prefix(attributes))
            self._span.end()
            self._span = None


def record(name: str, parent: str | None, began: float, **attributes: str | int | float) -> None:
    """Trace what began at a time, in seconds since 1970, and ends now."""
    if _tracer is not None:
        _begin(name, parent, attributes, began).end()


def carry() -> str | None:
    """Return this place in the trace as a text for another process, None if there is none."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def _begin(
    name: str, parent: str | None, attributes: Attributes, began: float | None = None
) -> Span:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert _tracer is not None
    context = None
    if parent is not None:
        context = TraceContextTextMapPropagator().extract({TRACEPARENT: parent})
    start = int((time.time() if began is None else began) * 1e9)
    return _tracer.start_span(name, context, attributes=_prefix(attributes), start_time=start)


def _prefix(attributes: Attributes) -> dict[str, str | int | float]:
    return {f"eigensweep.{name}": value for name, value in attributes.items()}
