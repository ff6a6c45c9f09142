"""The networks of a space, and whether the files with their initial weights fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import BadInputError, Mistake
from dpsweep.planning.start import start_methods
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.search_spaces.draws import bounds_of
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.methods.model_knobs import MODEL_HYPERPARAMETERS, front_of
from dpsweep.trainables.networks.pretrained.weights import PRETRAIN, WORDS

if TYPE_CHECKING:
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.data.dataset import DatasetInfo

NETWORK = tuple(knob.name for knob in MODEL_HYPERPARAMETERS)


def networks_of(space: SearchSpace) -> list[Mapping[str, Any]] | None:
    """Return the hyperparameters ``NETWORK`` of every configuration that has them, each once.

    Returns:
        In the order of the space; None where there are too many to list.
    """
    names = {"method", *NETWORK}
    for parameter in reversed(space.parameters):  # conditions stand before what they are for
        if parameter.name in names:
            names |= set(parameter.when)
    chosen = [bounds_of(parameter) for parameter in space.parameters if parameter.name in names]
    try:
        points = SearchSpace(chosen).grid()
    except BadInputError:
        return None
    networks: list[Mapping[str, Any]] = []
    methods = TRAINABLES.loadable()
    for point in points:
        if point["method"] not in methods:
            continue
        declared = methods[point["method"]].hyperparameters
        own = {parameter.name for parameter in declared}
        values = resolve(declared, {name: value for name, value in point.items() if name in own})
        if "model.checkpoint" in values:
            network = {name: values.get(name) for name in NETWORK}
            if network not in networks:
                networks.append(network)
    return networks


def network_of_start(spec: SweepSpec) -> list[Mapping[str, Any]]:
    """Return the network of a spec's start, as ``networks_of`` does; none without a start."""
    if spec.start is None:
        return []
    if spec.start.method not in start_methods():
        return []  # told with the start
    declared = TRAINABLES[spec.start.method].hyperparameters
    hparams = spec.start.hyperparameters
    valid = {
        parameter.name: hparams[parameter.name]
        for parameter in declared
        if parameter.name in hparams and not parameter.problem(hparams[parameter.name])
    }  # what is wrong is told with the start
    values = resolve(declared, valid)
    return [{name: values[name] for name in NETWORK}]


def weights_problems(spec: SweepSpec, space: SearchSpace, info: DatasetInfo) -> list[Mistake]:
    """Return files of weights that cannot be read or do not fit.

    Each is loaded into the network of every configuration that starts from it, as a trial would.

    Args:
        spec: A valid spec.
        space: Its search space.
        info: Shapes and classes of the data.
    """
    problems = list(_misfits("search.space", networks_of(space) or [], spec, info))
    problems += _misfits("start.hyperparameters", network_of_start(spec), spec, info)
    return list(dict.fromkeys(problems))


def _misfits(
    above: str, networks: Sequence[Mapping[str, Any]], spec: SweepSpec, info: DatasetInfo
) -> Iterator[Mistake]:
    for network in networks:
        named, key = network["model.checkpoint"], f"{above}.model.checkpoint"
        if named == PRETRAIN and spec.pretrain is not None:
            named, key = spec.pretrain.checkpoint, "pretrain.checkpoint"
        path = None if named is None or named in WORDS else Path(named).expanduser()
        if path is None or not path.is_file() or not _is_buildable(network, info):
            continue  # what else is wrong is told by the method
        try:
            _build(network, info, path)
        except BadInputError as error:
            problem = f"{error.message} ({network['model.name']})"
            yield Mistake(key, problem, error.fix or "give other weights")


def _is_buildable(network: Mapping[str, Any], info: DatasetInfo) -> bool:
    try:
        _build(network, info, None)
    except BadInputError:
        return False
    return True


def _build(network: Mapping[str, Any], info: DatasetInfo, path: Path | None) -> None:
    from dpsweep.trainables.networks.build import build_model

    build_model(
        network["model.name"],
        info,
        seed=0,
        checkpoint=None if path is None else str(path.resolve()),
        **front_of(network),
    )
