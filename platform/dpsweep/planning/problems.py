"""Problems of a spec in view of its data, its methods and this machine's folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpsweep.cluster import TARGETS
from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import BadInputError, DataError, Mistake, StorageError
from dpsweep.foundation.file_paths import FilePath, cache_of, is_writable
from dpsweep.foundation.process.silence import unheard
from dpsweep.foundation.words import counted, listed
from dpsweep.planning.public_records import check_overlap, copies_note
from dpsweep.search.samplers import SAMPLERS
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.base import dotted
from dpsweep.spec.space.hyperparameters import retired_words
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import is_new
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData, is_far_above, is_far_below
from dpsweep.trainables.data.kept.files import is_open_to_others
from dpsweep.trainables.data.tasks import IGNORED
from dpsweep.trainables.hooks import ChecksRecords, FittedDefaults, OnFrozenFeatures
from dpsweep.trainables.method import Method
from dpsweep.trainables.methods.hyperparameters import ADAMS
from dpsweep.trainables.outside import asked

#: Above it, the bound admits a test for one record that hardly ever errs.
LOOSE_EPSILON = 20.0
#: On fewer validation records a note says what one of them is worth.
FEW_TO_COMPARE = 50
#: So many public validation records tell that a declared number of classes is a slip.
ENOUGH_TO_TELL = 50
_APART = "leave it out, or run it in a study of its own with accounting: unaccounted"
_EMPTY = "fill that part, or take it away from data.path"
#: What a space can give each hyperparameter.
Values = Mapping[str, Sequence[Any]]


def space_problems(
    spec: SweepSpec, values: Mapping[str, Sequence[Any]], info: DatasetInfo | None
) -> list[Mistake]:
    """Return what is wrong whatever the method."""
    problems = []
    wanted = [n for n in values.get("train.num_private", []) if isinstance(n, (int, float))]
    if info is not None and wanted and max(wanted) > info.num_private:
        problem = f"{max(wanted)} is more than the {info.num_private} declared private records"
        key = "search.space.train.num_private"
        problems.append(
            Mistake(key, problem, f"at most {info.num_private}, or leave it out for all")
        )
    reports = [
        n for n, choices in values.items() if n.endswith(".private_report") and True in choices
    ]
    if spec.privacy.mode.is_sealed:
        problem = "accounting select keeps no figure of a trial, and so no private report"
        problems += [Mistake(f"search.space.{name}", problem, "leave it out") for name in reports]
    elif spec.privacy.mode.is_accounted and is_new(spec):  # who reads it may choose what runs next
        covered = f"which {spec.privacy.accounting} cannot cover"
        problem = f"keeps exact figures of private records, {covered}"
        problems += [Mistake(f"search.space.{name}", problem, _APART) for name in reports]
    loadable = TRAINABLES.loadable()
    named = [name for name in values["method"] if name in loadable]
    methods = [loadable[name] for name in named]
    if spec.privacy.mode.is_accounted:
        for name in (name for name in named if not loadable[name].is_private):
            problem = f"{name} has no finite epsilon, so {spec.privacy.accounting} cannot cover it"
            problems.append(Mistake("search.space.method", problem, _APART))
    if is_new(spec):  # else it goes on
        old = [said for method in methods for said in retired_words(method.hyperparameters, values)]
        problems += [said.below("search.space") for said in dict.fromkeys(old)]
        declared = {name: loadable[name].hyperparameters for name in named}
        for parameter, winner in SearchSpace.from_spec(spec.space).overruled(declared):
            place = dotted(("search", "space", *parameter.path))
            problem = f"has no effect: {winner}, which is given too, wins over it"
            problems.append(
                Mistake(place, problem, f"leave one of the two out; --set {place}=null does")
            )
        for shape in ("noise.shape", "clip.shape"):
            ratio = shape.replace("shape", "end_ratio")
            is_constant = set(values.get(shape, ["constant"])) == {"constant"}
            if is_constant and len(values.get(ratio, ())) > 1:
                problem = f"is searched in vain: {shape} is constant"
                fix = f"leave it out, or let {shape} have other values"
                problems.append(Mistake(f"search.space.{ratio}", problem, fix))
    if any(issubclass(method, OnFrozenFeatures) for method in methods):
        of_folder = _folder_problems(spec.storage.features_path)
        problems += [Mistake("storage.features", problem, fix) for problem, fix in of_folder]
    return problems


def sealed_problems(spec: SweepSpec) -> list[Mistake]:
    """Return what accounting select cannot have: ledgers in a database, and ends by the clock.

    Trials that nobody may see are files: nothing but their own locks would keep two drivers of one
    selection apart. How long a trial takes depends on the records. No rule of the spec, by which
    studies of before are read.
    """
    if not spec.privacy.mode.is_sealed:
        return []
    problems = []
    if spec.storage.database is not None:
        problem = "is not for accounting select, which keeps sealed trials in files"
        problems.append(Mistake("storage.database", problem, "remove it; or accounting: composed"))
    if spec.resources.hang_minutes is not None:
        problem = "ends trials by how long they take, and select needs each run to its end"
        fix = "remove it; or accounting: composed" if is_new(spec) else "remove it"
        problems.append(Mistake("resources.hang_minutes", problem, fix))
    return problems


def target_problems(spec: SweepSpec) -> list[Mistake]:
    """Return what is wrong about the cluster target of another package; ours the spec knows."""
    if spec.cluster.target not in TARGETS.outside():
        return []
    try:
        target = TARGETS[spec.cluster.target]
    except BadInputError as error:
        return [Mistake("cluster.target", f"{error.message}: {error.because}", error.fix or "")]
    if spec.privacy.mode.is_sealed and not target.is_secret:
        problem = "does not keep traces of trials from others, and select needs them secret"
        return [Mistake("cluster.target", problem, "use local; or accounting: composed")]
    return []


def sampler_problems(spec: SweepSpec) -> list[Mistake]:
    """Return what is wrong about the sampler of another package; ours the spec knows."""
    if spec.search.sampler not in SAMPLERS.outside():
        return []
    from dpsweep.search.built_in import make_sampler

    try:
        make_sampler(spec.search.sampler, seed=0)
    except BadInputError as error:
        because = f": {error.because}" if error.because else ""
        return [Mistake("search.sampler", f"{error.message}{because}", error.fix or "")]
    return []


def barrier_problems(spec: SweepSpec, values: Mapping[str, Sequence[Any]]) -> list[Mistake]:
    """Return that no trial has a noisy prefix, at whose end its scheduler would compare it."""
    factors = values.get("noise.prefix_factor", [1])
    if spec.scheduler.type != "noisy_prefix" or any(factor != 1 for factor in factors):
        return []
    problem = "noisy_prefix compares trials at the end of their noisy prefix, and they have none"
    return [Mistake("scheduler.type", problem, "add noise.prefix_factor: 4 to search.space")]


def barrier_note(spec: SweepSpec, values: Mapping[str, Sequence[Any]]) -> str:
    """Return a line on rates that a noisy prefix does not rank, or nothing."""
    if spec.scheduler.type != "noisy_prefix" or len(values.get("optim.lr", ())) < 2:
        return ""
    if set(values.get("optim.name", ["sgd"])) <= set(ADAMS):
        return ""  # which divide by the noise themselves
    return (
        "the noisy prefix does not rank optim.lr, whose best value there is another one than in "
        "the rest of a trial: search optim.noise_lr, which follows the noise"
    )


def data_problems(spec: SweepSpec, info: DatasetInfo) -> list[Mistake]:
    """Return what the data lacks that the spec counts on, from headers, names and declarations."""
    problems = []
    if info.num_validation == 0:
        fraction = spec.data.validation.fraction
        problem = f"{spec.search.metric} needs validation records, and there are none"
        fix = f"{'raise' if fraction else 'set'} data.validation.fraction"
        if info.has_own_validation:
            problem += f": the validation part of {info.name} is empty"
            fix = _EMPTY
        elif fraction:
            problem += f": {fraction:g} of the declared records is less than one"
        problems.append(Mistake("search.metric", problem, fix))
    if spec.privacy.mode.is_public_search and info.num_public == 0:
        problem = "accounting public searches on public records, and none are declared"
        problems.append(Mistake("data.public", problem, "set data.public.fraction"))
    if spec.part_share is not None and info.num_private < 2:
        problem = "parts the private records, and there is one"
        problems.append(Mistake("search.on", problem, "leave it out"))
    is_first = is_new(spec)
    most = spec.data.max_private
    if is_first and most is not None and most > info.num_private:
        problem = f"{most} is more than the {info.num_private} declared private records"
        problems.append(Mistake("data.max_private", problem, "lower it, or leave it out for all"))
    if info.has_own_validation and spec.data.validation.visibility == "noisy":
        problem = f"the size of {info.name}'s own validation part is counted, not declared"
        fix = "noisy scores need a declared one: leave the part out and use validation.fraction"
        problems.append(Mistake("data.validation.visibility", problem, fix))
    if spec.data.test.visibility == "public" and info.num_test == 0:
        problem = f"public, but {info.name} has no test records to score"
        fix = "give data.test.fraction, or a dataset with a test part; or leave test out"
        if info.has_own_test:
            problem = f"public, but the test part of {info.name} is empty"
            fix = _EMPTY
        problems.append(Mistake("data.test.visibility", problem, fix))
    if info.is_far_smaller and is_first:
        problems.append(Mistake("data.num_records", *too_few(spec)))
    return problems


def too_few(spec: SweepSpec) -> tuple[str, str]:
    """Return what to say of data with less than half of the declared records, and how to fix it.

    How many there are stays unsaid: their number is private.
    """
    declared = spec.data.num_records
    opening = "" if declared is None else f"{declared} are declared, and "
    return (
        f"{opening}the data have less than half as many records",
        "correct data.path or data.num_records (a rounded number is fine); noise and sampling "
        "follow the declaration",
    )


def too_many(spec: SweepSpec) -> tuple[str, str]:
    """Return what to say of data with more than twice the declared records, and how to fix it."""
    return (
        f"{spec.data.num_records} are declared, and the data have more than twice as many records",
        "correct data.path or data.num_records (a rounded number is fine); sampling and the "
        "largest good delta follow the declaration",
    )


@unheard()
def check_records(
    spec: SweepSpec, methods: Mapping[str, type[Method]], data: SweepData, values: Values
) -> None:
    """Refuse records with which trials would fail or learn nothing, before any is trained on.

    Guarantees:
        Of the number of private records two bits are looked at, in a study that is not there yet:
        whether they are less than half of their declared number, or more than twice as many.
        Nothing about it is written down. See ``check_overlap`` for a public file. Methods look at
        public records (``ChecksRecords``), at their number where they are a share too.

    Args:
        spec: A checked spec.
        methods: Those of its space.
        data: All records.
        values: What the space can give each hyperparameter.
    Raises:
        DataError: There are too few, or far more than declared, or public ones are private.
    """
    info, parts = data.info, data.parts
    shown = {"validation": spec.data.validation.visibility, "test": spec.data.test.visibility}
    for part, visibility in shown.items():
        if visibility == "public" and len(parts[part][1]) == 0:
            raise DataError(
                f"no record of the data is in the {part} part, which is declared public",
                fix=f"correct data.path, data.num_records or data.{part}.fraction",
            )
    declared = {"private": info.num_private}
    if spec.data.validation.visibility != "public":
        declared["validation"] = info.num_validation
    is_first = is_new(spec)
    if is_first and any(is_far_below(len(parts[part][1]), n) for part, n in declared.items()):
        problem, fix = too_few(spec)
        raise DataError(problem, fix=fix)
    has_all = spec.data.max_private is None  # records without a slot are private then
    if is_first and has_all and is_far_above(len(parts["private"][1]), info.num_private):
        problem, fix = too_many(spec)
        raise DataError(problem, fix=fix)
    check_overlap(spec, data)
    for method in methods.values():
        if is_first and issubclass(method, ChecksRecords):  # later its space and data are fixed
            asked(method, "check_records", values, data, has_records=True)
    _check_classes(info, parts["validation"][1], shown["validation"], is_first=is_first)
    if is_first and info.task == "causal_lm":
        exact = [part for part, visibility in shown.items() if visibility in ("public", "exact")]
        _check_next_tokens({part: parts[part][1] for part in exact})


def _check_next_tokens(labels: Mapping[str, np.ndarray]) -> None:
    """Refuse parts of texts in which no token is predicted: nothing of them could be scored.

    Args:
        labels: Part -> next tokens, of those whose scores are shown as they are.
    """
    for part, tokens in labels.items():
        if (tokens == IGNORED).all():
            raise DataError(
                f"the {part} part has nothing to predict: no text of it has a token after another",
                fix="give texts of several tokens, not of padding alone; or correct data.path or "
                "data.tokenizer",
            )


def _check_classes(info: DatasetInfo, labels: Any, visibility: str, *, is_first: bool) -> None:
    """Refuse a number of classes of which public validation records have less than half."""
    if not is_first or visibility != "public" or info.task != "classification":
        return
    if len(labels) >= ENOUGH_TO_TELL and labels.max() < info.num_classes // 2:
        raise DataError(
            f"{info.num_classes} classes are declared, and no public validation record has one "
            f"above {labels.max()}",
            fix="correct data.num_classes, or give validation records of all classes",
        )


def record_notes(spec: SweepSpec, data: SweepData) -> list[str]:
    """Return what the records tell about what is declared of them; only where nothing is claimed.

    That is whether their number is off, classes that none has, and copies in a public file.
    """
    mode = spec.privacy.mode
    if mode.is_accounted:
        return []
    notes = copies_note(spec, data) + _empty_classes_note(data)
    if not 0.9 < len(data.parts["private"][1]) / data.info.num_private < 1.1:
        notes.append(
            f"note: data.num_records declares {data.info.num_private} private records, and the "
            "data have over 10% more or fewer; sampling follows the declaration"
        )
    return notes


def _empty_classes_note(data: SweepData) -> list[str]:
    """Return a line on classes that no record has, which a folder may be by mistake."""
    if data.info.task != "classification":
        return []
    used = {int(label) for _, labels in data.parts.values() for label in np.unique(labels)}
    empty = [name for label, name in enumerate(data.info.class_names) if label not in used]
    return [f"note: no record has class {listed(empty, 3)}"] if empty else []


def space_notes(
    space: SearchSpace, methods: Mapping[str, type[Method]], info: DatasetInfo
) -> list[str]:
    """Return what is valid in a space, but hardly meant so: of itself, and of its methods."""
    notes = space.notes()
    for name, method in methods.items():
        values = space.values(name)
        notes += asked(method, "notes", values)
        has_fitted = issubclass(method, FittedDefaults)
        fitted = asked(method, "fitted_defaults", values, info) if has_fitted else {}
        for key, value in fitted.items():
            notes.append(f"{key} of {name} is {value}: its default is too large for these data")
    return notes


def validation_note(info: DatasetInfo) -> str:
    """Return a line on a validation part in which one record decides, or nothing."""
    if not 0 < info.num_validation < FEW_TO_COMPARE:
        return ""
    points = 100 / info.num_validation
    few = counted(info.num_validation, "validation record")
    return f"{few}: one of them is {points:.3g} points of accuracy, which hardly tells trials apart"


def budget_note(spec: SweepSpec) -> str:
    """Return a line on a budget that hardly protects anybody, or nothing."""
    epsilon = spec.privacy.trial_epsilon
    if epsilon <= LOOSE_EPSILON:
        return ""
    return (
        f"privacy.trial_epsilon={epsilon:g} hardly protects anybody: 1 is strict, 8 is loose, and "
        f"above {LOOSE_EPSILON:g} the bound allows telling a record almost for sure"
    )


def task_problems(name: str, method: type[Method], info: DatasetInfo) -> list[Mistake]:
    """Return why a method cannot learn the task of the data, as ``Method.preflight`` does."""
    if info.task not in method.tasks:
        problem = f"{name} cannot learn {info.task}"
        able = [n for n, other in TRAINABLES.loadable().items() if info.task in other.tasks]
    elif info.text is not None and not method.reads_text:
        problem = f"{name} cannot learn from text"
        able = [n for n, other in TRAINABLES.loadable().items() if other.reads_text]
    else:
        return []
    return [Mistake("method", problem, f"use one of {', '.join(able)}")]


def _folder_problems(folder: FilePath) -> list[tuple[str, str]]:
    """Return why features cannot be kept in a folder, or a node's copies: (what, how to fix it)."""
    if isinstance(folder, BucketPath):
        try:
            folder = cache_of(folder)
        except StorageError as error:
            return [(f"{error.message}: {error.because}", error.fix or "")]
    if folder.exists() and not folder.is_dir():
        return [(f"{folder} is a file", "name a directory, or one that is not there yet")]
    if not is_writable(folder):
        return [(f"{folder} cannot be written to", "name a directory of yours")]
    if folder.exists() and is_open_to_others(folder):
        problem = f"others may list {folder}, and features are as private as records"
        return [(problem, f"chmod 700 {folder}, or name a directory that is not there yet")]
    return []
