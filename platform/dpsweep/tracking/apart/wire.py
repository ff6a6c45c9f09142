"""Messages between a driver and the process of its tracker: lines of JSON, and one file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import IO, Any

from dpsweep.foundation.errors import SweepError
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.model_label import ModelLabel

#: The line after which there is nothing but answers: a site may print as Python starts.
READY = b"dpsweep: tracker ready\n"


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
    """Return an error as a message holds it: its kind and its words for a person."""
    if isinstance(error, TrackingRefusedError):
        return {"refused": list(error.refused)}
    kinds = [each.__name__ for each in type(error).__mro__]
    if isinstance(error, SweepError):
        return {
            "kinds": kinds,
            "of": {"message": error.message, "because": error.because, "fix": error.fix},
        }
    return {"kinds": kinds, "text": str(error)}


def to_error(message: Mapping[str, Any]) -> Exception:
    """Return the error of ``from_error``: of its kind, or of the nearest that is loaded here."""
    if "refused" in message:
        return TrackingRefusedError(message["refused"])
    if "text" in message:
        return StoreFailedError(message["kinds"][0], message["text"])
    loaded: dict[str, type[SweepError]] = {kind.__name__: kind for kind in _below(SweepError)}
    kind = next(loaded[name] for name in message["kinds"] if name in loaded)
    error: SweepError = kind.__new__(kind)  # the constructors of some take other arguments
    SweepError.__init__(error, **message["of"])
    return error


def _below(kind: type[SweepError]) -> Iterator[type[SweepError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _below(each)


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
