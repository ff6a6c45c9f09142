"""Frozen features before the first trial: which ones a study needs, computed once on all cores."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.search_spaces.draws import bounds_of
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import SweepData, is_size_told
from dpsweep.trainables.data.source import PARTS
from dpsweep.trainables.features.blocks import BLOCK_ROWS
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.features.store import Creation, FeatureStore
from dpsweep.trainables.hooks import features_of

if TYPE_CHECKING:
    from dpsweep.cluster.base import ClusterTarget
    from dpsweep.planning.preflight import Preflight

#: A space that can ask for more kinds of features leaves them to its trials.
MAX_SPECS = 64
_MAX_POINTS = 4096
_CHOOSING = ("features.", "normalize.")
#: Fewer records than this are done before a second process has loaded torch.
_FEW = 2 * BLOCK_ROWS
_EVERY_S = 5.0
#: Of a part under way; of one that has few blocks, fewer.
_STEPS = 10


def prefetch(
    checked: Preflight,
    data: SweepData,
    target: ClusterTarget,
    observer: Observer,
    *,
    tasks: Sequence[TrialTask] | None = None,
) -> FilePath | None:
    """Compute the frozen features that trials will ask for, and say where they are kept.

    All that the space can ask for, whichever of it is then asked for; so what is in the store
    tells nothing of the trials. Where that cannot be listed (too many kinds, or a range that
    changes the features), trials compute their own on demand: in the store, or under accounting
    ``select`` in memory, because the store would tell which trials there were. An interruption
    drops the part under way; the same call goes on after the parts that are complete.

    Args:
        checked: The checked spec.
        data: The raw records that the trials will get.
        target: Where to compute, connected.
        observer: Hears of progress.
        tasks: The very trials that will run, instead of all the space can hold.
    Returns:
        ``Supplies.feature_root``; features are opened by the trials.
    Raises:
        BadInputError: No features that can be asked for can be had, or there is no room for them.
    """
    storage = checked.spec.storage
    if tasks is None:
        specs = specs_of_space(checked, observer)
    else:
        values = [{"method": task.method, **task.hparams} for task in tasks]
        specs = _distinct(_specs_of(checked, values, observer))
    if specs is None and checked.spec.privacy.mode.is_sealed:
        return None
    root = storage.features_path
    if not specs:
        return root
    store = FeatureStore(root, int(storage.features_gb * 2**30))
    held = []  # what is mapped is not evicted for the next one: too little room is told at once
    sized = [part for part in PARTS if is_size_told(data.info, checked.spec.data, part)]
    for spec in specs:
        _compute(store, data, spec, target, observer, sized)
        held.append(store.open(data, spec))
    return root


def specs_of_space(checked: Preflight, observer: Observer) -> list[FeatureSpec] | None:
    """Return every kind of features that some configuration of the space trains on.

    Returns:
        Each kind once; None if there are more than ``MAX_SPECS``, or if a range changes them.
    Raises:
        BadInputError: There are some, and none of them can be had.
    """
    space = checked.space
    names = {p.name for p in space.parameters if p.name.startswith(_CHOOSING)} | {"method"}
    for parameter in reversed(space.parameters):  # conditions stand before what they are for
        if parameter.name in names:
            names |= set(parameter.when)
    chosen = [
        bounds_of(parameter)
        for parameter in space.parameters
        if parameter.name in names or (parameter.kind == "fixed" and set(parameter.when) <= names)
    ]
    ranges = {parameter.name for parameter in space.parameters if parameter.is_range}
    try:
        points = SearchSpace(chosen).grid()
    except BadInputError:  # more than any grid may have
        return None
    if len(points) > _MAX_POINTS:
        return None
    specs = _specs_of(checked, points, observer)
    kinds: dict[str, FeatureSpec | None] = {}
    for point, spec in zip(points, specs):
        rest = repr({name: value for name, value in point.items() if name not in ranges})
        if kinds.setdefault(rest, spec) != spec:
            return None
    distinct = _distinct(specs)
    return distinct if len(distinct) <= MAX_SPECS else None


def _specs_of(
    checked: Preflight, configurations: Sequence[Mapping[str, Any]], observer: Observer
) -> list[FeatureSpec | None]:
    """Return the features of each configuration (``method`` and hyperparameters); None for raw.

    Features that cannot be had are left to the trials, which then fail with the same reason.

    Raises:
        BadInputError: There is nothing else.
    """
    specs: list[FeatureSpec | None] = []
    errors: dict[str, BadInputError] = {}
    for values in configurations:
        method = checked.methods[values["method"]]
        hparams = {name: value for name, value in values.items() if name != "method"}
        spec = None
        try:
            spec = features_of(method, resolve(method.hyperparameters, hparams), checked.info)
            if spec is not None:
                spec.describe(checked.info)
        except BadInputError as error:
            errors.setdefault(error.message, error)
            spec = None
        specs.append(spec)
    if errors and not any(specs):
        raise next(iter(errors.values()))
    for message in errors:
        observer.on_message(f"features: trials that need them will fail: {message}")
    return specs


def _distinct(specs: Iterable[FeatureSpec | None]) -> list[FeatureSpec]:
    """Return each kind once; the records themselves need nothing computed."""
    return list(dict.fromkeys(spec for spec in specs if spec is not None and not spec.is_raw))


def _compute(
    store: FeatureStore,
    data: SweepData,
    spec: FeatureSpec,
    target: ClusterTarget,
    observer: Observer,
    sized: Collection[str],
) -> None:
    """Compute what is missing of one kind of features, part by part; of some the size is told."""
    missing = store.missing(data, spec)
    if not missing:
        return
    observer.on_stage(f"features: {spec.label}")
    sizes = {part: getattr(data.info, f"num_{part}") for part in missing}
    progress = _Progress(spec.label, {p: sizes[p] for p in missing if p in sized}, observer)
    is_small = sum(sizes.values()) <= _FEW
    for part in missing:
        with store.creating(data, spec, part, progress.on_wait) as creation:
            if creation is not None:
                progress.is_computed = True
                # Closed at once: an interruption must cancel what the cluster still computes.
                num_blocks = math.ceil(creation.num_rows / BLOCK_ROWS)
                with contextlib.closing(_filling(creation, store, target, is_small)) as blocks:
                    for done, _ in enumerate(blocks, 1):
                        progress.show(part, done, num_blocks)
        progress.finish(part)
    progress.end(len(missing))


def _filling(
    creation: Creation, store: FeatureStore, target: ClusterTarget, is_small: bool
) -> Generator[int, None, None]:
    if is_small:
        return creation.fill()
    return creation.fill(target.map, is_shared=store.bucket is None)


class _Progress:
    """Says how far the features of some parts are, a line every few seconds.

    The actual number of records is private, and so is the size of a private part of its own. What
    a line says depends on neither: a finished part counts as it is declared, and one under way in
    tenths, or in fewer steps where it has few blocks, so that as many steps are passed whatever
    the number of records is. (Of fewer than half of what is declared a launch tells anyway.) When
    a line comes depends on how long the work takes, as the end of the command does.

    Args:
        label: Of the features.
        sizes: Part -> declared records, of those parts whose size may be told.
        observer: Hears of progress.
    """

    def __init__(self, label: str, sizes: Mapping[str, int], observer: Observer) -> None:
        self.label, self.observer = label, observer
        self._sizes, self._declared = sizes, sum(sizes.values())
        self.is_computed = False
        self._finished, self._shown = 0, 0.0
        self._started = self._said = time.monotonic()

    def on_wait(self) -> None:
        """Say that another process is computing the same features."""
        self.observer.on_message(f"features: {self.label}: waiting for another process")

    def show(self, part: str, done: int, num_blocks: int) -> None:
        """Hear how many blocks of a part are done."""
        size = self._sizes.get(part, 0)
        steps = max(1, min(_STEPS, size // BLOCK_ROWS // 2))
        within = size * (done * steps // num_blocks) / steps
        now, share = time.monotonic(), (self._finished + within) / max(self._declared, 1)
        if now - self._said < _EVERY_S or not self._shown < share < 1:
            return
        self._said, self._shown = now, share
        left = math.ceil((now - self._started) * (1 - share) / share)
        self.observer.on_message(
            f"features: {self.label}: {share:.0%} of {self._declared:,} records, {left} s left"
        )

    def finish(self, part: str) -> None:
        """Hear that a part is done."""
        self._finished += self._sizes.get(part, 0)

    def end(self, num_parts: int) -> None:
        """Say what was computed, or that somebody else had done it."""
        seconds = time.monotonic() - self._started
        done = "computed in" if self.is_computed else "found ready after"
        of_others = (
            " and those of private parts of their own" if num_parts > len(self._sizes) else ""
        )
        self.observer.on_message(
            f"features: {self.label}: {self._declared:,} records{of_others} {done} {seconds:.0f} s"
        )
