"""A strategy: a name, a sentence, and how it makes a spec of a base spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.preflight import preflight
from dpsweep.spec.search.probe import NOISE_LR, NOISE_SCALE, PROBE
from dpsweep.spec.space.parameter import Parameter
from dpsweep.spec.space.parameters import parse_space, reachable
from dpsweep.spec.study import SweepSpec

#: Keys of a base spec that say nothing of how its range is searched.
_KEPT_OF_PRIVACY = ("delta", "neighboring_relation", "dataset_ledger")
_CAPS_OF_LEDGER = ("dataset_epsilon", "dataset_delta")
_KEPT_OF_SEARCH = ("metric", "mode", "max_concurrent")
_LONGEST_NAME = 64

#: Makes the spec of a strategy of a base spec and the epsilon of everything.
Make = Callable[[SweepSpec, float], SweepSpec]


@dataclass(frozen=True)
class Strategy:
    """One honest way to search: all of it, search included, costs at most one epsilon.

    Attributes:
        name: Its word on a command line.
        title: Its name in a table.
        about: One sentence: what is run, and how it is accounted for.
        make: Makes the spec; ``spec`` checks both ends of it.
    """

    name: str
    title: str
    about: str
    make: Make = field(repr=False, compare=False)

    def spec(self, base: SweepSpec, *, epsilon: float) -> SweepSpec:
        """Return the spec that searches the base's range by this strategy.

        Guarantees:
            What the study declares to cost is at most ``epsilon`` at the base's delta. It claims no
            more than its accounting mode says: all of the sweep under composed, the release of the
            winner alone under select.

        Args:
            base: Names dataset, method and fixed hyperparameters, and searches one range.
            epsilon: Of everything, search included.
        Raises:
            BadInputError: The base searches something else than one such range, or nothing that
                this strategy runs fits into ``epsilon``.
            SpecError: The base has something that this strategy excludes; all of it at once.
        """
        epsilon = validate.positive("epsilon", epsilon)
        searched_range(base)
        spec = self.make(base, epsilon)
        preflight(spec)
        return spec


def searched_range(base: SweepSpec) -> Parameter:
    """Return the one range that a base spec searches.

    Raises:
        BadInputError: It searches nothing, several parameters, or one whose best value depends on
            epsilon; or trials are no single runs on all private records.
    """
    for section in ("start", "episodes"):
        if getattr(base, section) is not None:
            raise BadInputError(
                f"strategies are compared for runs on all private records, and the spec has "
                f"{section}",
                fix=f"remove {section}",
            )
    searched = [p for p in reachable(parse_space(base.search.space)[0]) if p.kind != "fixed"]
    example = f"{NOISE_SCALE}: {{loguniform: [0.05, 500]}}"
    if len(searched) != 1:
        names = ", ".join(parameter.name for parameter in searched) or "nothing"
        raise BadInputError(
            f"a base spec searches one range, and this one searches {names}",
            fix=f"give all other parameters one value, and search {example}",
        )
    (parameter,) = searched
    if parameter.name not in (NOISE_LR, NOISE_SCALE) or parameter.kind != "loguniform":
        raise BadInputError(
            f"strategies are compared on a loguniform range of {NOISE_SCALE} or {NOISE_LR}, and "
            f"{parameter.name} is {parameter.kind}",
            because="the best value of others moves with the epsilon of a trial",
            fix=f"give it one value, and search {example}",
        )
    return parameter


def study(
    base: SweepSpec,
    name: str,
    *,
    privacy: Mapping[str, Any],
    search: Mapping[str, Any],
    scheduler: Mapping[str, Any] | None = None,
    domain: Any = None,
) -> SweepSpec:
    """Return the base spec with another search and accounting.

    Scores that cost something are few: each trial makes one report, and one a rung.

    Args:
        base: The base spec.
        name: Of the strategy, for the name of the study.
        privacy: Keys besides delta, neighbouring relation and dataset ledger.
        search: Keys besides metric, mode, concurrency and space.
        scheduler: That section; None: fifo.
        domain: Takes the place of the searched range; None: that range itself.
    Raises:
        SpecError: The base has something that these do not go with.
    """
    raw = base.to_dict()
    kept = {key: raw["privacy"][key] for key in _KEPT_OF_PRIVACY}
    if kept["dataset_ledger"] is not None and privacy["accounting"] != "unaccounted":
        kept |= {key: raw["privacy"][key] for key in _CAPS_OF_LEDGER}
    else:
        del kept["dataset_ledger"]
    space = dict(base.search.space)
    if domain is not None:
        space[searched_range(base).name] = domain
    kept_of_search = {key: raw["search"][key] for key in _KEPT_OF_SEARCH}
    if search.get("strategy") == PROBE == base.search.strategy:
        kept_of_search["probe"] = raw["search"]["probe"]
    changes: dict[str, Any] = {
        "name": f"{base.name[: _LONGEST_NAME - len(name) - 1]}-{name}",
        "privacy": {**kept, **privacy},
        "search": {**kept_of_search, **search, "space": space},
        "scheduler": dict(scheduler or {"type": "fifo"}),
    }
    if base.data.validation.visibility == "noisy":
        changes["report"] = {"points": 1}
    return SweepSpec(**{**raw, **changes})
