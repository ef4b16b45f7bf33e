"""Logs of a service: a line for each request, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, TextIO

from vkep.text import one_line

#: requests, with the values of each as the record's ``fields``
access = logging.getLogger("vkep.serving.access")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        pieces = [self.formatTime(record), record.levelname, record.getMessage()]
        pieces += [f"{name}={one_line(str(value))}" for name, value in fields.items()]
        if record.exc_info:
            pieces.append(f"\n{self.formatException(record.exc_info)}")
        return " ".join(pieces)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def to_stream(form: str, stream: TextIO | None = None) -> logging.Handler:
    """Write the log of vkep and of the server to a stream (standard error) alone, as ``form`` says: "text" or "json"."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    for name, level in (("vkep", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
    return handler
