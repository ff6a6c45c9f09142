"""Public weights before the first trial: the section ``pretrain`` of a spec, trained once or read.

Training runs in the process of ``dpsweep run``, with all cores of its machine or its GPU, before
any trial. The weights are found again by any study with the same section and the same records.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import DataError, Mistake
from dpsweep.foundation.file_paths import matching
from dpsweep.foundation.words import counted
from dpsweep.planning.networks import network_of_start, networks_of
from dpsweep.planning.public_records import is_same_content
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.data.public import without_defaults
from dpsweep.spec.facts import describe_pretraining, file_of
from dpsweep.spec.pretrain import RANDOM_PROCESS, PretrainSpec
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.data.public.stretching import is_stretchable
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.networks.pretrained.weights import PRETRAIN

if TYPE_CHECKING:
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.networks.pretrain_settings import PretrainSettings

#: What a configuration and the section must agree on: hyperparameter -> key of the section.
_SHARED = {
    "model.name": "model",
    "model.norm": "norm",
    "model.image_size": "resize",
    "model.options": "options",
    "model.stem": "stem",
}
_OF_DATA = ("dataset", "path", "num_classes", "image_size", "channels")
_OF_TRAINING = (
    "model",
    "norm",
    "objective",
    "resize",
    "epochs",
    "lr",
    "batch",
    "weight_decay",
    "momentum",
    "holdout",
    "augment",
    "options",
    "stem",
)


def pretrain_problems(spec: SweepSpec, space: SearchSpace) -> list[Mistake]:
    """Return what is wrong about pre-training.

    Args:
        spec: A valid spec.
        space: Its search space.
    """
    block, networks = spec.pretrain, networks_of(space)
    users = None if networks is None else _users(networks)
    key = "search.space.model.checkpoint"
    if spec.start is not None and users is not None:
        of_start = _users(network_of_start(spec))
        key = "start.hyperparameters.model.checkpoint" if of_start and not users else key
        users += of_start
    if block is None:
        if not users:
            return []
        problem = "pretrain stands for the weights of the section pretrain, which is missing"
        fix = "add the section pretrain: with classes or dataset, and model; or name a file"
        return [Mistake(key, problem, fix)]
    problems = []
    if users == []:
        problem = "no trial can start from it: model.checkpoint is never pretrain"
        fix = "add model.checkpoint: pretrain to search.space, or remove the section"
        problems.append(Mistake("pretrain", problem, fix))
    if block.checkpoint is not None:
        if not file_of(block).is_file():
            problem = f"no file {block.checkpoint}"
            problems.append(Mistake("pretrain.checkpoint", problem, "give an existing file"))
        return problems
    for name, key in _SHARED.items():
        own = getattr(block, key)
        others = dict.fromkeys(values[name] for values in users or [] if values[name] != own)
        if others:
            shown = " and ".join("null" if other is None else str(other) for other in others)
            problem = (
                f"is {'null' if own is None else own}, but trials that start from it have {name}"
            )
            problems.append(Mistake(f"pretrain.{key}", f"{problem} {shown}", "make them equal"))
    if any(values["model.normalize"] is not None for values in users or []):
        problem = (
            "images are not normalised in pre-training, and model.normalize does it afterwards"
        )
        problems.append(
            Mistake("pretrain", problem, "leave model.normalize out where trials start from it")
        )
    if block.model == "linear" and not _keeps_classifier(spec):
        problem = "linear is a classifier and nothing else, and other classes need a new one"
        problems.append(
            Mistake("pretrain.model", problem, "use a network with layers below the classifier")
        )
    with contextlib.suppress(DataError):  # the study's own data are missing: said elsewhere
        problems += _record_problems(spec, block, describe_dataset(spec.data))
    return problems


def _users(networks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those networks that start from pre-trained weights."""
    return [network for network in networks if network["model.checkpoint"] == PRETRAIN]


def _record_problems(spec: SweepSpec, block: PretrainSpec, info: DatasetInfo) -> Iterator[Mistake]:
    """Yield what is wrong about the public records, from headers and names alone."""
    shape, key, fix = info.input_shape, "pretrain", "give records of the same shape"
    if block.classes is not None:
        num_classes = open_source(spec.data).num_classes
        if max(block.classes) >= num_classes:
            problem = (
                f"has {max(block.classes)}, but the dataset has the classes 0 to {num_classes - 1}"
            )
            yield Mistake("pretrain.classes", problem, "give class numbers of the dataset")
    elif block.dataset == RANDOM_PROCESS:
        if len(shape) != 3:
            yield Mistake("pretrain.dataset", f"{RANDOM_PROCESS} are images", "use other records")
    elif block.dataset is not None:
        if is_same_content(spec.data.path, block.path):
            problem = "has the content of the study's own data, which are private"
            yield Mistake("pretrain.path", problem, "name another file")
            return
        try:
            shape = open_source(block.as_data()).input_shape
        except DataError as error:
            yield Mistake(
                key, error.message.replace("data.", "pretrain."), error.fix or "correct it"
            )
            return
    elif info.num_public < 2:
        yield Mistake(
            key,
            f"data.public has {counted(info.num_public, 'record')}",
            "raise data.public.fraction",
        )
    elif spec.start is not None and block.objective in ("classes", "classes_and_rotations"):
        problem = f"{block.objective} reads the labels of the pool, which trials buy one by one"
        yield Mistake("pretrain.objective", problem, "use rotations, or other public records")
    is_resized = block.resize is not None and is_stretchable(shape, info.input_shape)
    if shape != info.input_shape and not is_resized:
        if is_stretchable(shape, info.input_shape):
            fix = "give both the same size: pretrain.resize, and model.image_size in the space"
        theirs, own = ("x".join(map(str, s)) for s in (shape, info.input_shape))
        yield Mistake(key, f"its records are {theirs}, those of the study {own}", fix)
    if block.augment and len(shape) != 3:
        yield Mistake("pretrain.augment", "needs images", "remove it")
    if block.objective == "views" and len(shape) != 3:
        yield Mistake("pretrain.objective", "views needs images", "use classes")
    if "rotations" in block.objective and (len(shape) != 3 or shape[1] != shape[2]):
        yield Mistake("pretrain.objective", f"{block.objective} needs square images", "use classes")


def plan_pretraining(spec: SweepSpec) -> str:
    """Return what a run will do about pre-training, in a line; empty without the section.

    Whether weights are there is looked up by the settings: records are not opened for a plan, so
    the run may still find that these have changed.
    """
    line, block = describe_pretraining(spec), spec.pretrain
    if block is None or block.checkpoint is not None:
        return line
    wanted = settings_of(spec).facts
    store = spec.storage.pretrained_path
    for path in matching(store, "*.json"):
        facts = json.loads(path.read_text())
        if facts["settings"] == wanted and facts["source"] == source_of(spec, block):
            return f"{line}: done already ({facts['address'][:12]}), if the records are the same"
    return f"{line}: to be done first, by this machine"


def settings_of(spec: SweepSpec) -> PretrainSettings:
    """Return what the section trains; ``checkpoint`` must not be set. Loads torch."""
    from dpsweep.trainables.networks.pretrain_settings import PretrainSettings

    block = spec.pretrain
    assert block is not None
    if block.classes is not None:
        num_classes = len(block.classes)
    elif block.dataset == RANDOM_PROCESS:
        num_classes = 1
    elif block.dataset is not None:
        num_classes = open_source(block.as_data()).num_classes
    else:
        num_classes = describe_dataset(spec.data).num_classes
    return PretrainSettings(
        num_classes=num_classes,
        keeps_classifier=_keeps_classifier(spec),
        seed=spec.seed if block.seed is None else block.seed,
        **{key: getattr(block, key) for key in _OF_TRAINING},
    )


def source_of(spec: SweepSpec, block: PretrainSpec) -> dict[str, Any]:
    """Return which records are meant, as the spec says it."""
    own = spec.data.model_dump(mode="json")
    if block.classes is not None:
        return {**{key: own[key] for key in _OF_DATA}, "classes": list(block.classes)}
    if block.dataset is not None:
        other = block.model_dump(mode="json")
        counted = {} if block.num_records is None else {"num_records": block.num_records}
        return {key: other[key] for key in _OF_DATA} | counted
    public = {"pollution": None, **without_defaults(own["public"])}  # as it was before new keys
    return {"part": "public", "of": {**own, "public": public}}


def _keeps_classifier(spec: SweepSpec) -> bool:
    """Say whether the network learns the very classes of the private task.

    The study's own public part has them, unless each episode has its own classes.
    """
    block = spec.pretrain
    assert block is not None
    is_own = block.classes is None and block.dataset is None
    return is_own and spec.episodes is None and block.objective == "classes"
