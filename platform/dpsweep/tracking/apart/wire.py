"""Messages between a driver and the process of its tracker: lines of JSON, and one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from dpsweep.foundation.errors import BadInputError, SweepError
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking.base import (
    ExperimentDeletedError,
    StoreDamagedError,
    StoreRefusedError,
    TrackingRefusedError,
)
from dpsweep.tracking.model_label import ModelLabel

#: Errors that a spool tells apart; any other is told by its name and text.
_ERRORS: dict[str, type[SweepError]] = {
    kind.__name__: kind
    for kind in (
        ExperimentDeletedError,
        StoreDamagedError,
        StoreRefusedError,
        BadInputError,
        SweepError,
    )
}


class StoreFailedError(Exception):
    """A library's error in the tracker's process; the library need not be loaded here.

    Attributes:
        kind: Name of its class.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


def send(stream: IO[bytes], message: Mapping[str, Any], content: bytes = b"") -> None:
    """Write one message, with a file's content behind it.

    Raises:
        OSError: Nobody reads it.
    """
    stream.write(json.dumps({**message, "num_bytes": len(content)}).encode() + b"\n" + content)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read one message and the content behind it; None where the other side has ended."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    message: dict[str, Any] = json.loads(line)
    content = stream.read(message["num_bytes"])
    return (message, content) if len(content) == message["num_bytes"] else None


def from_error(error: Exception) -> dict[str, Any]:
    """Return an error as a message holds it: its text for a person, never the records behind it."""
    if isinstance(error, TrackingRefusedError):
        return {"refused": list(error.refused)}
    if isinstance(error, SweepError):
        kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS)
        of = {"message": error.message, "because": error.because, "fix": error.fix}
        return {"kind": kind, "of": of}
    return {"kind": type(error).__name__, "text": str(error)}


def to_error(message: Mapping[str, Any]) -> Exception:
    """Return the error of ``from_error``."""
    if "refused" in message:
        return TrackingRefusedError(message["refused"])
    if "text" in message:
        return StoreFailedError(message["kind"], message["text"])
    of = message["of"]
    return _ERRORS[message["kind"]](of["message"], because=of["because"], fix=of["fix"])


def from_label(label: ModelLabel) -> dict[str, Any]:
    """Return a model's label as a message holds it."""
    return asdict(label)


def to_label(message: Mapping[str, Any]) -> ModelLabel:
    """Return the label of ``from_label``."""
    return ModelLabel(**message)


def from_graph(graph: ModelGraph) -> tuple[dict[str, Any], bytes]:
    """Return what a message says of a graph, and the file to send behind it."""
    words = {k: v for k, v in vars(graph).items() if k != "archive"}
    return words, graph.archive


def to_graph(message: Mapping[str, Any], archive: bytes) -> ModelGraph:
    """Return the graph of ``from_graph``."""
    return ModelGraph(**{**message, "archive": archive, "shape": tuple(message["shape"])})
