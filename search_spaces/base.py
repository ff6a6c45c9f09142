"""SearchSpace: named parameters with conditions; suggests, samples, enumerates, checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.foundation.registry import did_you_mean, of_a_package
from dpsweep.search_spaces.draws import grid_values, sample_value, suggest_value
from dpsweep.spec.base import dotted, seen
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.space.parameter import Parameter, same_among
from dpsweep.spec.space.parameters import parse_space, reachable

if TYPE_CHECKING:
    import numpy as np
    import optuna


#: As many configurations in a row without a plan, and a space counts as having none.
MAX_INFEASIBLE_IN_A_ROW = 200


__all__ = ["MAX_GRID", "Parameter", "SearchSpace", "space_check"]

#: Grids beyond this size are refused: they are a slip, not a plan.
MAX_GRID = 100_000

Declared = Mapping[str, Sequence[Hyperparameter]]


class SearchSpace:
    """Parameters in an order in which each stands after those that its condition names.

    A parameter whose condition does not hold is absent from a configuration.

    >>> space = SearchSpace.from_spec({
    ...     "method": "dp_sgd",
    ...     "noise.end_ratio": {"uniform": [0.4, 1.5], "num": 2, "when": {"noise.shape": "cosine"}},
    ...     "noise.shape": {"choice": ["constant", "cosine"]},
    ... })
    >>> for point in space.grid():
    ...     print(point)
    {'method': 'dp_sgd', 'noise.shape': 'constant'}
    {'method': 'dp_sgd', 'noise.shape': 'cosine', 'noise.end_ratio': 0.4}
    {'method': 'dp_sgd', 'noise.shape': 'cosine', 'noise.end_ratio': 1.5}
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self._reachable = reachable(self.parameters)

    @classmethod
    def from_spec(cls, space: Mapping[str, Any]) -> SearchSpace:
        """Return the space that a spec's ``search.space`` describes.

        Raises:
            SpecError: With every mistake in it.
        """
        parameters, flaws = parse_space(space)
        if flaws:
            raise SpecError([flaw.below("search.space") for flaw in flaws])
        return cls(parameters)

    def active(self, values: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the parameters that have a meaning beside ``values``, in order.

        ``values`` needs to hold the choices that conditions ask for; an inactive parameter in it
        activates nothing.
        """
        values_so_far: dict[str, Any] = {}
        active = []
        for parameter in self.parameters:
            if parameter.is_active(values_so_far):
                active.append(parameter)
                if parameter.kind == "fixed":
                    values_so_far[parameter.name] = parameter.choices[0]
                elif parameter.name in values:
                    values_so_far[parameter.name] = values[parameter.name]
        return tuple(active)

    def suggest(self, trial: optuna.trial.BaseTrial) -> dict[str, Any]:
        """Return a configuration of Optuna's choice; fixed values are not asked for."""
        return self._build(lambda parameter: suggest_value(parameter, trial))

    def sample(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return a configuration at random, every range by its own distribution."""
        return self._build(lambda parameter: sample_value(parameter, rng))

    def _build(self, pick: Callable[[Parameter], Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.is_active(values):
                fixed = parameter.kind == "fixed"
                values[parameter.name] = parameter.choices[0] if fixed else pick(parameter)
        return values

    def named(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point with its parameters called as Optuna knows them (``Parameter.key``).

        Args:
            point: Values of some parameters, and of those that decide between their branches.
        """
        fixed = {p.name: p.choices[0] for p in self.parameters if p.kind == "fixed" and not p.by}
        values = {**fixed, **point}
        keys = {p.name: p.key for p in self.parameters if p.may_apply(values)}
        return {keys[name]: value for name, value in point.items()}

    def values(self, method: str | None = None) -> dict[str, list[Any]]:
        """Return what each parameter can be: its choices, its one value, or its two bounds.

        Of one with branches, all that they can be; what no configuration has is left out.

        Args:
            method: In configurations of this method alone; None: of any.
        """
        values: dict[str, list[Any]] = {}
        for parameter in self._reachable:
            if method is None or self._reaches(parameter, method):
                own = [parameter.low, parameter.high] if parameter.is_range else parameter.choices
                listed = values.setdefault(parameter.name, [])
                listed += [value for value in own if not same_among(value, listed)]
        return values

    def notes(self) -> list[str]:
        """Return a line for each parameter that no configuration has: its ``when`` never holds."""
        unused = []
        for parameter in self.parameters:
            if parameter in self._reachable:
                continue
            others = [p for p in self._reachable if p.name in parameter.when]
            name, waited = next(
                (name, values)
                for name, values in parameter.when.items()
                if not any(
                    other.name == name and any(same_among(c, values) for c in other.choices)
                    for other in others
                )
            )
            place = dotted(("search", "space", *parameter.path))
            words = " or ".join(map(str, waited))
            unused.append(f"{place} is never used: it waits for {name} = {words}")
        return unused

    def grid(self) -> list[dict[str, Any]]:
        """Return every configuration, ranges at ``num`` points from bound to bound.

        Raises:
            BadInputError: A range has no ``num``, or there are more than ``MAX_GRID``.
        """
        missing = [p.key for p in self._reachable if p.is_range and p.num is None]
        if missing:
            raise BadInputError(
                f"a grid needs the number of points of each range; without: {', '.join(missing)}",
                fix="add `num: 5` to each, or use choice",
            )
        points: list[dict[str, Any]] = []
        for point in self._points({}, 0):
            if len(points) == MAX_GRID:
                raise BadInputError(
                    f"the grid has more than {MAX_GRID} configurations",
                    because=", ".join(
                        f"{p.key}: {len(grid_values(p))}"
                        for p in self._reachable
                        if p.kind != "fixed"
                    ),
                    fix="lower `num`, or use sampler random or tpe",
                )
            points.append(point)
        return points

    def _points(self, values: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
        if index == len(self.parameters):
            yield dict(values)
            return
        parameter = self.parameters[index]
        if not parameter.is_active(values):
            yield from self._points(values, index + 1)
            return
        for value in grid_values(parameter):
            yield from self._points({**values, parameter.name: value}, index + 1)

    def check(
        self,
        hyperparameters_by_method: Declared,
        broken: Mapping[str, BadInputError] = MappingProxyType({}),
    ) -> list[Mistake]:
        """Say where the space and the methods' declared hyperparameters disagree.

        Args:
            hyperparameters_by_method: Declared hyperparameters of every known method.
            broken: Methods of packages that do not load, and why.
        Returns:
            Mistakes with ``search.space.<name>`` as their place; none for a fitting space.
        """
        mistakes = []
        methods: list[str] = []
        for parameter in self.parameters:
            if parameter.name == "method":
                for name in parameter.choices:
                    if name in hyperparameters_by_method:
                        methods.append(str(name))
                    elif name in broken:
                        mistakes.append(_unloadable(broken[str(name)]))
                    else:
                        mistakes.append(_unknown_method(name, list(hyperparameters_by_method)))
        # With no valid method left, keys that no method at all knows can still be told.
        is_certain = bool(methods)
        declared = {
            method: {h.name: h for h in hyperparameters_by_method[method]}
            for method in methods or hyperparameters_by_method
        }
        if not declared:
            return mistakes
        everything = {
            method: {h.name: h for h in own} for method, own in hyperparameters_by_method.items()
        }
        for parameter in self.parameters:
            wrong = [m for m in parameter.when.get("method", ()) if m not in everything]
            if wrong:
                mistakes.append(_no_such_method(parameter, wrong[0], list(everything)))
            elif parameter.name != "method":
                tables = declared
                if parameter not in self._reachable:  # of methods that the space has not
                    waited = {m: t for m, t in everything.items() if self._reaches(parameter, m)}
                    tables = waited or declared
                if not any(parameter.name in table for table in tables.values()):
                    mistakes.append(_unknown(parameter, tables, everything, is_certain=is_certain))
                elif is_certain:
                    mistakes += self._check(parameter, tables)
        return mistakes

    def overruled(self, hyperparameters_by_method: Declared) -> list[tuple[Parameter, str]]:
        """Return parameters that do nothing in any configuration, each with what wins over it.

        One that is null says so itself.

        Args:
            hyperparameters_by_method: Declared hyperparameters of the space's methods.
        """
        losing: dict[tuple[str | int, ...], tuple[Parameter, str]] = {}
        has_effect = set()
        for method, declared in hyperparameters_by_method.items():
            own = [p for p in self._reachable if self._reaches(p, method)]
            always = {p.name for p in own if p.when.keys() <= {"method"} and None not in p.choices}
            winners = {w.wins_over: w.name for w in declared if w.wins_over and w.name in always}
            names = {hyperparameter.name for hyperparameter in declared}
            for parameter in own:
                if parameter.name in winners and list(parameter.choices) != [None]:
                    losing[parameter.path] = (parameter, winners[parameter.name])
                elif parameter.name in names:
                    has_effect.add(parameter.path)
        return [pair for path, pair in losing.items() if path not in has_effect]

    def _check(
        self,
        parameter: Parameter,
        declared: Mapping[str, Mapping[str, Hyperparameter]],
    ) -> Iterator[Mistake]:
        where = dotted(("search", "space", *parameter.path))
        knowing = [method for method, table in declared.items() if parameter.name in table]
        reached = [method for method in declared if self._reaches(parameter, method)]
        if not reached:
            yield Mistake(where, "has no meaning for any method, by its `when`", "correct `when`")
        lacking = [method for method in reached if method not in knowing]
        if lacking:
            condition = knowing[0] if len(knowing) == 1 else f"[{', '.join(knowing)}]"
            yield Mistake(
                where,
                f"{' and '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no such "
                "hyperparameter",
                f"add `when: {{method: {condition}}}`"
                + (
                    f" to {{choice: [{seen(parameter.choices[0])}]}}"
                    if parameter.kind == "fixed"
                    else ""
                ),
            )
        problems = dict.fromkeys(
            problem
            for method in reached
            if method in knowing
            for problem in _problems(parameter, declared[method][parameter.name])
        )
        for wrong, fix in problems:
            yield Mistake(where, wrong, fix)

    def _reaches(self, parameter: Parameter, method: str) -> bool:
        """Return whether a parameter can have a meaning in a trial of ``method``."""
        for name, allowed in parameter.when.items():
            others = [other for other in self.parameters if other.name == name]
            if name == "method":
                if method not in allowed:
                    return False
            elif others and not any(self._reaches(other, method) for other in others):
                return False
        return True


#: Last words of names that people know from elsewhere, and what they are here.
_OTHER_WORDS = {
    "learning_rate": "optim.lr",
    "batch_size": "batch.expected",
    "max_norm": "clip.max_grad_norm",
    "clipping_norm": "clip.max_grad_norm",
    "num_epochs": "train.epochs",
    "steps": "train.max_steps",
    "sigma": "noise.noise_multiplier",
}


def _unknown(
    parameter: Parameter,
    declared: Mapping[str, Mapping[str, Hyperparameter]],
    everything: Mapping[str, Mapping[str, Hyperparameter]],
    *,
    is_certain: bool,
) -> Mistake:
    """Return what to say of a name that none of the methods ``declared`` has."""
    name, where = parameter.name, dotted(("search", "space", *parameter.path))
    owners = [method for method, table in everything.items() if name in table]
    has = f"{' and '.join(declared)} {'has' if len(declared) == 1 else 'have'} no such "
    wrong = (has if is_certain else "no method has such a ") + "hyperparameter"
    if owners:
        fix = f"leave it out, or search over a method that has it: {', '.join(owners)}"
        return Mistake(where, wrong, fix)
    names = sorted({other for table in declared.values() for other in table})
    last = name.rpartition(".")[2]
    meant = [_OTHER_WORDS.get(last, "")]
    meant += [other for other in names if other.rpartition(".")[2] == last]
    closest = next((other for other in meant if other in names), None)
    hint = f"did you mean {closest!r}?" if closest else did_you_mean(name, names)
    if not hint and not is_certain:
        hint = "`dpsweep describe METHOD` lists what a method has"
    near = [other for other in names if other.split(".")[0] == name.split(".")[0]]
    return Mistake(where, wrong, hint or f"known: {', '.join(near or names)}")


def space_check(
    declared: Callable[[], Declared], broken: Callable[[], Mapping[str, BadInputError]] = dict
) -> Callable[[Sequence[Parameter]], list[Mistake]]:
    """Return the ``check_space`` of ``SweepSpec.from_yaml`` for a table of declared methods."""
    return lambda parameters: SearchSpace(parameters).check(declared(), broken())


def _unloadable(error: BadInputError) -> Mistake:
    return Mistake(
        "search.space.method", f"{error.message}: {error.because}", error.fix or "remove it"
    )


def _unknown_method(name: Any, names: list[str]) -> Mistake:
    hint = did_you_mean(str(name), names)
    brought = of_a_package(str(name), names)
    fix = (hint + " " if hint else "") + (f"known: {', '.join(names)}{brought}" if names else "")
    return Mistake("search.space.method", f"unknown method {seen(name)}", fix)


def _no_such_method(parameter: Parameter, name: Any, names: list[str]) -> Mistake:
    its = "`by`" if parameter.by == "method" else "`when`"
    return Mistake(
        dotted(("search", "space", *parameter.path)),
        f"its {its} waits for method = {seen(name)}, which is no method",
        did_you_mean(str(name), names) or f"known: {', '.join(names)}",
    )


def _problems(parameter: Parameter, declared: Hyperparameter) -> Iterator[tuple[str, str]]:
    if not parameter.is_range:
        for value in parameter.choices:
            problem = declared.problem(value)
            if problem:
                yield problem, declared.doc
        return
    if declared.kind in ("str", "bool"):
        words = ", ".join(declared.choices or ()) if declared.kind == "str" else "true, false"
        yield f"takes no range, but {words or 'a word'}", f"write {{choice: [{words or '...'}]}}"
        return
    if declared.kind == "int" and not parameter.is_whole:
        better = "logint" if parameter.kind == "loguniform" else "int"
        yield f"takes whole numbers, {parameter.kind} gives fractions", f"use {better}"
        return
    for side, bound in (("lower", parameter.low), ("upper", parameter.high)):
        problem = declared.problem(bound)
        if problem:
            yield f"its {side} bound {problem}", declared.doc
