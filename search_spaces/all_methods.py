"""One spec over all methods that fit the data: every method as many trials, at one epsilon each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.search_spaces.own_data import (
    OwnData,
    delta_of,
    on_own_encoder,
    on_own_records,
)
from dpsweep.search_spaces.presets import space_text
from dpsweep.search_spaces.recommended import methods_for, recommended
from dpsweep.search_spaces.starter import budget_for, data_section

_SPEC = """\
# Every method that fits the data, {shares}, all at one epsilon.
# Check it with `dpsweep plan FILE`, start it with `dpsweep run FILE`, and then:
#   dpsweep report {name} --by method --costs
# All methods share the private records; some also use public weights or public records, which that
# table says. Run times and memory it shows under `accounting: unaccounted` alone, as they tell of
# the sizes of batches.

name: {name}
seed: 0                        # initial weights; noise and batches stay secret

data:
{data}\
  public: {{fraction: {public}}}  {pad}# share of all records that is declared public
  privacy_unit: example        # whose data one record is
{start}
privacy:
  accounting: composed         # everything may be shown: all trials together cost study_epsilon
  trial_epsilon: {epsilon:<14}# of each method's every trial
  study_epsilon: {study:<14g}# room for all of them
  delta: {delta}
  accountant: rdp

search:
  sampler: {sampler}
  num_trials: {trials}
  metric: validation/accuracy
  points_to_evaluate:{points}
  space:                       # each parameter by method
{space}
scheduler: {{type: fifo}}        # every trial to its end, so that all have spent the same
report: {{points: 1}}            # scored once, at the end
resources: {{cpu: 1, gpu: 0}}    # of one trial
tracking: {{uri: "sqlite:///mlflow.db"}}
storage: {{path: studies}}
"""

#: No more of the records than this are declared public: all methods share what is left.
MOST_PUBLIC = 0.1
#: Trials of each method where one is not enough.
TRIALS = 4
#: Share of epsilon that a start has of which a trial is left something.
LEAVING = 0.7


@dataclass(frozen=True)
class AllMethods:
    """What one spec over several methods says.

    Attributes:
        methods: Their names.
        space: ``search.space``: a choice of methods, and all else by method.
        points: ``search.points_to_evaluate``: the methods in turn, so that each has its share.
        public: Share of the records that is declared public.
        start: Section ``start``, for methods whose trials start from a model it trains.
    """

    methods: tuple[str, ...]
    space: Mapping[str, Any]
    points: tuple[Mapping[str, str], ...]
    public: float
    start: str = ""

    @property
    def num_trials(self) -> int:
        """Trials of all methods together."""
        return max(len(self.points), len(self.methods))


def all_methods(dataset: str, *, is_searched: bool) -> AllMethods:
    """Return one space over all methods with something recommended for a dataset.

    Where trials of a method start from a model that the section ``start`` trains, one release has
    all of epsilon, and one leaves a share of it to what a trial asks.

    Args:
        dataset: Value of ``data.dataset``.
        is_searched: Whether each method has its recommended ranges and ``TRIALS`` trials, or one
            trial of the configuration that needs no search.
    """
    spaces, start = {}, ""
    epsilon = float(budget_for(dataset)[0])
    for method in methods_for(dataset):
        ours = recommended(method)
        space = ours.space(dataset) if is_searched else ours.single(dataset)
        if space is None:
            continue
        spaces[method] = space
        if ours.start:
            releases = f"[{LEAVING * epsilon:.2g}, {epsilon:g}]"
            line = f"epsilons: {releases:<18} "
            start = re.sub(r"epsilons: \[[^]]*\] *", line, ours.start_section(dataset))
    return AllMethods(
        tuple(spaces),
        _union(spaces),
        tuple({"method": method} for method in spaces) * TRIALS if is_searched else (),
        min(MOST_PUBLIC, max(recommended(m).public_share(dataset) for m in spaces)),
        start,
    )


def _union(spaces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one space: what methods say of a parameter, each in its branch."""
    names = dict.fromkeys(name for space in spaces.values() for name in space if name != "method")
    union: dict[str, Any] = {"method": {"choice": list(spaces)}}
    for name in names:
        branches = {m: space[name] for m, space in spaces.items() if name in space}
        union[name] = {"by": {"method": branches}}
    return union


def all_methods_spec(dataset: str, *, is_searched: bool, own: OwnData | None = None) -> str:
    """Return a commented YAML spec over all methods that fit a dataset.

    Args:
        dataset: Value of ``data.dataset``.
        is_searched: See ``all_methods``.
        own: Data of one's own, of this dataset; the study is called by them.

    Raises:
        BadInputError: Fewer than two methods fit.
    """
    every = all_methods(dataset, is_searched=is_searched)
    if len(every.methods) < 2:
        named = ", ".join(every.methods) or "no method"
        raise BadInputError(
            f"there is nothing to compare: {named} has a recommendation for {dataset}",
            fix="leave --no-search out" if not is_searched else "write a spec of your own",
        )
    data, subject = data_section(dataset, own)
    epsilon, _, _ = budget_for(dataset)
    delta = delta_of(dataset, data)
    space = every.space
    if own is not None:
        counts = [name for method in every.methods for name in recommended(method).of_public]
        space = on_own_records(on_own_encoder(space, own), counts, own, every.public)
    points = "".join(f"\n    - {{method: {point['method']}}}" for point in every.points)
    why = {"method": "each has its own branch below; remove one here to leave it out"}
    return _SPEC.format(
        shares=f"{TRIALS} trials each" if is_searched else "one trial each without a search",
        name=f"{subject}-all-methods-eps{epsilon[0]}",
        data=data,
        public=f"{every.public:g}",
        pad=" " * (7 - len(f"{every.public:g}")),
        start=f"\n{every.start}" if every.start else "",
        epsilon=epsilon,
        study=together(float(epsilon), float(delta), every.num_trials),
        delta=delta,
        sampler="tpe" if is_searched else "grid",
        trials=every.num_trials,
        points=points or " []",
        space=space_text(space, why),
    )


def together(epsilon: float, delta: float, num_trials: int) -> float:
    """Return a study's epsilon that has room for some trials of one epsilon each, rounded up.

    Trials are taken for Gaussian mechanisms, whose composition is one (Dong, Roth & Su 2022,
    corollary 3.3); what it is by the study's own rule, ``dpsweep plan`` says.

    >>> together(1.0, 1e-5, 1), together(1.0, 1e-5, 4)
    (1.2, 2.5)
    """
    one = GaussianFilter.at(target_epsilon=epsilon, delta=delta)
    return math.ceil(11.5 * one.spent_epsilon({"private": one.budget * num_trials})) / 10
