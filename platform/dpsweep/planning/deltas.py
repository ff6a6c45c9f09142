"""Which delta a study may have: below 1 / N, for N records that it protects.

Publishing one record at random, as it is, is (0, 1 / N)-DP. A guarantee with ``delta`` >= 1 / N
therefore protects nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import Mistake
from dpsweep.privacy.terms import shown_delta
from dpsweep.spec.deltas import derived_delta
from dpsweep.study.files import stored_yaml
from dpsweep.study.launched import is_new

if TYPE_CHECKING:
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.data.dataset import DatasetInfo


def delta_problems(
    spec: SweepSpec, info: DatasetInfo, *, has_private_method: bool
) -> Iterator[Mistake]:
    """Yield what is wrong about a spec's deltas.

    Every part that is protected counts: the private records that trials train on (those of one
    episode, where there are episodes), and validation records with noisy scores. A delta must be
    below 1 / N of each.

    Args:
        spec: A valid spec.
        info: Declared sizes of the data of one trial.
        has_private_method: Whether any method of the space is private.
    """
    protected = {}
    if has_private_method:
        protected["private"] = info.num_private
    if spec.data.validation.visibility == "noisy":
        protected["validation"] = info.num_validation
    if not protected:
        return
    part = max(protected, key=lambda name: protected[name])
    most = protected[part]
    fix = f"{derived_delta(most):g}, or leave it out"
    deltas = {"delta": spec.privacy.delta, "dataset_delta": spec.privacy.dataset_delta}
    for key, delta in deltas.items():
        if delta is not None and delta >= 1 / max(most, 1):
            of = "of one episode " if spec.episodes is not None else ""
            problem = (
                f"{delta:g} is not below 1 / {most} = {1 / max(most, 1):.3g}, for {most} declared "
                f"{part} records {of}: publishing one of them at random would keep that guarantee"
            )
            how = fix if key == "delta" else "as much below it as the sum of the studies' deltas"
            yield Mistake(f"privacy.{key}", problem.replace(" :", ":"), how)


def with_launched_delta(spec: SweepSpec) -> SweepSpec:
    """Return a spec that names no delta with the one its study began with, if it has begun.

    An earlier version derived another one: what a study began with, it keeps.
    """
    if spec.names_delta or is_new(spec):
        return spec
    try:
        path = spec.storage.root / spec.name / "spec.yaml"
        launched: Any = stored_yaml(path)["privacy"]["delta"]
    except (OSError, ValueError, KeyError, TypeError):
        return spec  # new, or damaged, which is told where it is opened
    if not isinstance(launched, float) or not 0 < launched < 1:
        return spec
    return spec.with_delta(launched)


def delta_note(spec: SweepSpec) -> str:
    """Say which delta a spec has that names none; empty for one that does."""
    if spec.names_delta:
        return ""
    return (
        f"privacy.delta is not given: it is {shown_delta(spec.privacy.delta)}, from the declared "
        "number of records or from the launch of the study; name it to have another"
    )
