"""Learning curves of a trial in a tracking store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

from dpsweep.tracking.mlflow_reader import MLflowReader, StoredRun
from dpsweep.tracking.schema import CURVE, EPSILON


class Curves(Sequence[dict[str, Any]]):
    """The reports of a trial, read from the store when they are first looked at.

    It equals each sequence of the same points. Pickled or copied it is a plain list of them, so
    that no reader of the store goes along.
    """

    def __init__(self, reader: MLflowReader, run: StoredRun) -> None:
        self._reader, self._run = reader, run

    @cached_property
    def _points(self) -> list[dict[str, Any]]:
        spent = self._reader.history(self._run, EPSILON)
        points: dict[int, dict[str, float]] = {}
        for name in self._run.metrics:
            if name.startswith(CURVE):
                for step, value in self._reader.history(self._run, name):
                    points.setdefault(step, {})[name.removeprefix(CURVE)] = value
        rows = []
        for step, metrics in sorted(points.items()):
            then = [epsilon for at, epsilon in spent if at == step]  # later ones: lost charges
            before = [epsilon for at, epsilon in spent if at < step]
            epsilon = then[0] if then else max(before, default=None)
            rows.append({"step": step, "epsilon": epsilon, "metrics": metrics})
        return rows

    def best(self, metric: str, is_maximized: bool) -> tuple[float | None, int, dict[str, float]]:
        """Return the best report so far by a score: value, step, scores; none without one."""
        scored = [point for point in self._points if metric in point["metrics"]]
        if not scored:
            return None, self.last_step, self._points[-1]["metrics"] if self._points else {}
        sign = 1.0 if is_maximized else -1.0
        best = max(scored, key=lambda point: (sign * point["metrics"][metric], -point["step"]))
        return best["metrics"][metric], best["step"], best["metrics"]

    @property
    def last_step(self) -> int:
        """Step of the last report; 0 before the first."""
        return int(self._points[-1]["step"]) if self._points else 0

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._points)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(other) == self._points

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __reduce__(self) -> tuple[object, ...]:
        return list, (self._points,)
