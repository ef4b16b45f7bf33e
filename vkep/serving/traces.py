"""Spans of OpenTelemetry, where it is installed: ``opentelemetry-instrument vkep serve ...`` exports them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any


@functools.cache
def _tracing() -> Any:
    """OpenTelemetry's modules of traces and of propagation, or None."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    return trace, propagate


@contextlib.contextmanager
def span(name: str, headers: Mapping[str, str] | None = None, **attributes: Any) -> Iterator[Any]:
    """A ``with`` block as a span, below the one that a request's ``headers`` name. Yields it, or None without OpenTelemetry."""
    if (tracing := _tracing()) is None:
        yield None
        return
    trace, propagate = tracing
    context = propagate.extract(headers) if headers is not None else None
    kind = trace.SpanKind.SERVER if headers is not None else trace.SpanKind.INTERNAL
    with trace.get_tracer("vkep").start_as_current_span(name, context, kind, attributes) as one:
        yield one
