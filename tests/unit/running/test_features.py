"""Frozen features before the first trial: which are needed, how they are computed and told."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dpsweep.cli.app import app
from dpsweep.cli.doctor import feature_stores
from dpsweep.cluster.base import ClusterTarget
from dpsweep.cluster.local import LocalTarget
from dpsweep.foundation.errors import (
    BadInputError,
    DataError,
    InfeasibleBudgetError,
    ModelError,
    ResourceError,
    SpecError,
    SweepError,
)
from dpsweep.planning.preflight import Preflight, preflight
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import Plan
from dpsweep.running import features
from dpsweep.running.features import prefetch, specs_of_space
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.features.store import FeatureStore


class Frozen(TRAINABLES["non_private"]):
    """A method on frozen features; only what says which ones."""

    hyperparameters: ClassVar = (
        Hyperparameter("features.name", "str", "identity", "Features."),
        Hyperparameter("features.scale", "float", 1.0, "Changes nothing."),
        Hyperparameter("normalize.kind", "str", "group", "Norm."),
        Hyperparameter("normalize.groups", "int", 1, "Groups."),
        Hyperparameter("optim.lr", "float", 0.1, "No matter here."),
    )

    @classmethod
    def extractor(cls, hparams: Mapping[str, Any], info: Any) -> FeatureSpec | None:
        if hparams["features.name"] == "raw":
            return None
        is_group = hparams["normalize.kind"] == "group"
        norm = f"group:{hparams['normalize.groups']}" if is_group else hparams["normalize.kind"]
        return FeatureSpec.of(hparams["features.name"], norm=norm)


class Ear(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


class Here:
    """Computes in this process, and counts what it was given."""

    def __init__(self) -> None:
        self.num_jobs = 0

    def map(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        for job in jobs:
            self.num_jobs += 1
            yield function(job)


@pytest.fixture
def data() -> SweepData:
    """1,250 records; more than one process is worth."""
    from blobs import blobs  # not above: Ray's workers import this file, and no helpers

    return blobs(1000, (12,), num_validation=200, num_test=50)


@pytest.fixture
def check(tmp_path: Path, data: SweepData) -> Callable[..., Preflight]:
    def make(
        space: Mapping[str, Any],
        accounting: str = "unaccounted",
        *,
        visibility: str = "public",
        **storage: Any,
    ) -> Preflight:
        dealt = {"fraction": 0.04}
        privacy = {"accounting": accounting, "trial_epsilon": 2.0}
        spec = SweepSpec(
            name="frozen",
            data={"dataset": "digits", "validation": {"visibility": visibility}, "test": dealt},
            privacy=privacy,
            search={"space": {"method": "dp_sgd"}},
            storage={"path": str(tmp_path / "studies"), **storage},
        )
        given = SearchSpace.from_spec({"method": "frozen", **space})
        budget = PrivacyBudget(2.0, 1e-5)
        methods = {"frozen": Frozen, "dp_sgd": TRAINABLES["dp_sgd"]}
        return Preflight(spec, given, data.info, methods, budget)

    return make


def norms(specs: list[FeatureSpec] | None) -> list[str] | None:
    return None if specs is None else [spec.norm for spec in specs]


GROUPS = {"choice": [1, 2, 3], "when": {"normalize.kind": "group"}}


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({}, ["group:1"]),
        ({"normalize.groups": 2, "optim.lr": {"loguniform": [0.1, 1]}}, ["group:2"]),
        ({"normalize.kind": "l2", "normalize.groups": {"choice": [1, 2]}}, ["l2"]),
        (
            {"normalize.kind": {"choice": ["group", "l2"]}, "normalize.groups": GROUPS},
            ["group:1", "group:2", "group:3", "l2"],
        ),
        ({"features.name": "raw"}, []),
        ({"method": "dp_sgd", "optim.lr": 1.0}, []),
        (
            {
                "method": {"choice": ["dp_sgd", "frozen"]},
                "normalize.kind": {"choice": ["l2", "group"], "when": {"method": "frozen"}},
            },
            ["l2", "group:1"],
        ),
        ({"normalize.kind": "none"}, []),  # the records themselves
        ({"features.scale": {"uniform": [1, 2]}}, ["group:1"]),
        ({"normalize.groups": {"int": [1, 3]}}, None),
        ({"normalize.groups": {"choice": [1, 2]}, "features.scale": {"uniform": [0, 1]}},
         ["group:1", "group:2"]),
    ],
)  # fmt: skip
def test_the_space_says_which_features_its_trials_can_need(
    space: dict[str, Any], expected: list[str] | None, check: Callable[..., Preflight]
) -> None:
    assert norms(specs_of_space(check(space), Ear())) == expected


def test_too_many_kinds_are_left_to_the_trials(
    check: Callable[..., Preflight], monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"normalize.groups": {"choice": [1, 2, 3, 4]}}
    monkeypatch.setattr(features, "MAX_SPECS", 4)
    assert len(specs_of_space(check(space), Ear()) or []) == 4
    monkeypatch.setattr(features, "MAX_SPECS", 3)
    assert specs_of_space(check(space), Ear()) is None
    monkeypatch.setattr(features, "_MAX_POINTS", 3)
    monkeypatch.setattr(features, "MAX_SPECS", 64)
    assert specs_of_space(check(space), Ear()) is None


def test_features_that_cannot_be_had_are_told_and_refused_if_there_are_no_others(
    check: Callable[..., Preflight],
) -> None:
    ear = Ear()
    space = {"normalize.groups": {"choice": [5, 3]}}  # of 12 features
    assert norms(specs_of_space(check(space), ear)) == ["group:3"]
    assert ear.messages == [
        "features: trials that need them will fail: 5 groups do not divide the 12 channels of the "
        "features"
    ]
    with pytest.raises(ModelError, match="5 groups do not divide"):
        specs_of_space(check({"normalize.groups": 5}), ear)


def test_prefetched_features_are_found_by_trials(
    check: Callable[..., Preflight], data: SweepData, tmp_path: Path
) -> None:
    checked, ear, here = check({"normalize.groups": {"choice": [1, 2]}}), Ear(), Here()
    ready = prefetch(checked, data, here, ear)  # type: ignore[arg-type]
    assert ready == tmp_path / "studies" / ".features"
    store = FeatureStore(ready)
    assert store.max_bytes == 50 * 2**30
    for groups in (1, 2):
        assert store.missing(data, FeatureSpec.of("identity", norm=f"group:{groups}")) == []
    assert here.num_jobs == 2 * 4  # blocks of 1000, 200 and 50 records
    for groups, message in zip((1, 2), ear.messages, strict=True):
        assert message.startswith(f"features: identity (group:{groups}): 1,250 records computed in")
    again = prefetch(checked, data, here, ear)  # type: ignore[arg-type]
    assert again == ready
    assert (here.num_jobs, len(ear.messages)) == (8, 2)


def test_few_records_are_not_worth_another_process(
    check: Callable[..., Preflight], data: SweepData
) -> None:
    info = replace(data.info, num_private=data.info.num_validation)
    small = replace(data, info=info, parts={**data.parts, "private": data.parts["validation"]})
    here = Here()
    ready = prefetch(check({}), small, here, Ear())  # type: ignore[arg-type]
    assert here.num_jobs == 0
    assert FeatureStore(ready).missing(small, FeatureSpec.of("identity", norm="group:1")) == []


def test_the_trials_that_will_run_can_be_named(
    check: Callable[..., Preflight], data: SweepData
) -> None:
    hparams = {h.name: h.default for h in Frozen.hyperparameters} | {"normalize.groups": 3}
    task = TrialTask(0, "frozen", hparams, Plan(()), 1.0, is_private=False)
    checked = check({"normalize.groups": {"choice": [1, 2, 3]}})
    ready = prefetch(checked, data, Here(), Ear(), tasks=[task])  # type: ignore[arg-type]
    store = FeatureStore(ready)
    kept = [
        g
        for g in (1, 2, 3)
        if not store.missing(data, FeatureSpec.of("identity", norm=f"group:{g}"))
    ]
    assert kept == [3]


def test_without_features_nothing_is_made(check: Callable[..., Preflight], data: SweepData) -> None:
    ready = prefetch(check({"method": "dp_sgd"}), data, Here(), Ear())  # type: ignore[arg-type]
    assert ready is not None
    assert not ready.exists()


def test_a_selection_leaves_no_trace_of_what_its_trials_asked_for(
    check: Callable[..., Preflight], data: SweepData
) -> None:
    space = {"normalize.groups": {"int": [1, 3]}}
    chosen = prefetch(check(space, "select"), data, Here(), Ear())  # type: ignore[arg-type]
    assert chosen is None
    listed = prefetch(check({}, "select"), data, Here(), Ear())  # type: ignore[arg-type]
    assert listed is not None
    times = {path: path.stat().st_mtime_ns for path in listed.iterdir()}
    time.sleep(0.01)
    FeatureStore(listed).open(data, FeatureSpec.of("identity", norm="group:1"))
    assert times == {path: path.stat().st_mtime_ns for path in listed.iterdir()}


def said(
    checked: Preflight, data: SweepData, monkeypatch: pytest.MonkeyPatch, seconds: float = 3.0
) -> list[str]:
    """Return the lines of a pass in which each block takes some time."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(features.time, "monotonic", lambda: next(clock))
    ear = Ear()
    prefetch(checked, data, Here(), ear)  # type: ignore[arg-type]
    return ear.messages


def test_progress_is_told_every_few_seconds_in_declared_numbers(
    check: Callable[..., Preflight], data: SweepData, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(data, info=replace(data.info, num_private=2250))
    assert said(check({}), declared, monkeypatch) == [
        "features: identity (group:1): 90% of 2,500 records, 1 s left",
        "features: identity (group:1): 2,500 records computed in 15 s",
    ]


@pytest.mark.parametrize("num_private", [5120, 5121, 6000, 9216, 9217, 10_240])
def test_no_number_of_a_line_depends_on_how_many_records_there_are(
    check: Callable[..., Preflight], monkeypatch: pytest.MonkeyPatch, num_private: int
) -> None:
    """As many steps are told of ten blocks as of twenty, each as slow as it may be."""
    from blobs import blobs

    data = blobs(num_private, (2,), num_validation=200, num_test=50)
    declared = replace(data, info=replace(data.info, num_private=10_240))
    told = [line.split(",")[0] for line in said(check({}), declared, monkeypatch, 6.0)]
    shares = [f"{(n * 1024) / 10_490:.0%} of 10" for n in range(1, 11)]
    assert told == [
        f"features: identity (group:1): {text}" for text in [*shares, "100% of 10", "10"]
    ]


@pytest.mark.parametrize(
    ("visibility", "share", "those"),
    [
        ("public", "83% of 1,200 records, 2 s left", "1,200 records"),
        ("exact", "", "1,000 records"),
    ],
)
def test_the_size_of_a_private_part_of_its_own_is_not_told(
    check: Callable[..., Preflight],
    data: SweepData,
    monkeypatch: pytest.MonkeyPatch,
    visibility: str,
    share: str,
    those: str,
) -> None:
    own = replace(data, info=replace(data.info, has_own_test=True, has_own_validation=True))
    lines = said(check({}, visibility=visibility), own, monkeypatch)
    ends = f"{those} and those of private parts of their own computed in 15 s"
    assert lines == [f"features: identity (group:1): {text}" for text in [share, ends] if text]


def test_too_little_room_for_all_kinds_is_told_before_the_first_trial(
    check: Callable[..., Preflight], data: SweepData
) -> None:
    size = 1250 * 12 * 4
    checked = check({"normalize.groups": {"choice": [1, 2]}}, features_gb=1.5 * size / 2**30)
    with pytest.raises(ResourceError, match="do not fit"):
        prefetch(checked, data, Here(), Ear())  # type: ignore[arg-type]


def test_an_interruption_keeps_whole_parts_and_the_same_call_goes_on(
    check: Callable[..., Preflight], data: SweepData, tmp_path: Path
) -> None:
    class Impatient(Here):
        def map(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
            for result in super().map(function, jobs):
                if self.num_jobs == 3:
                    raise KeyboardInterrupt
                yield result

    with pytest.raises(KeyboardInterrupt):
        prefetch(check({}), data, Impatient(), Ear())  # type: ignore[arg-type]
    root = tmp_path / "studies" / ".features"
    assert FeatureStore(root).num_entries() == 1
    assert not list(root.glob("*.part"))
    (whole,) = root.glob("*.npy")
    made = whole.stat().st_mtime_ns
    prefetch(check({}), data, Here(), Ear())  # type: ignore[arg-type]
    assert whole.stat().st_mtime_ns == made
    assert FeatureStore(root).num_entries() == 3


def test_the_store_has_a_place_of_its_own() -> None:
    given = {
        "name": "a",
        "data": {"dataset": "digits", "validation": {"visibility": "public"}},
        "privacy": {"accounting": "unaccounted", "trial_epsilon": 1.0},
        "search": {"space": {"method": "dp_sgd"}},
    }
    spec = SweepSpec(**given)
    assert spec.storage.features_path == Path("studies/.features").resolve()
    spec = SweepSpec(**given, storage={"features": "elsewhere", "features_gb": 2})
    assert spec.storage.features_path == Path("elsewhere").resolve()
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


def test_doctor_shows_and_cleans_the_store(
    data: SweepData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    spec = FeatureSpec.of("identity", norm="l2")
    held = FeatureStore(tmp_path / ".features").open(data, spec)
    run = CliRunner().invoke
    shown = run(app, ["doctor", "--root", str(tmp_path), "-f", "json"])
    assert f"3 files of 1 GiB or less in {tmp_path}/.features" in shown.output
    assert (
        "at most 1 GiB are in use"
        in run(app, ["doctor", "--clean", "--root", str(tmp_path)]).output
    )
    del held
    cleaned = run(app, ["doctor", "--clean", "--root", str(tmp_path), "-f", "json"])
    assert cleaned.exit_code == 0
    assert "removed_gib" in cleaned.output
    assert "in use" not in cleaned.output
    assert FeatureStore(tmp_path / ".features").num_entries() == 0


def test_doctor_knows_the_stores_that_studies_name(data: SweepData, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    elsewhere, root = tmp_path / "elsewhere", tmp_path / "studies"
    (root / "a").mkdir(parents=True)
    (root / "a" / "spec.yaml").write_text(f"storage: {{features: {elsewhere}}}\n")
    FeatureStore(elsewhere).open(data, FeatureSpec.of("identity", norm="l2"))
    assert [store.root for store in feature_stores(root)] == [root / ".features", elsewhere]
    cleaned = CliRunner().invoke(app, ["doctor", "--clean", "--root", str(root), "-f", "json"])
    assert [row["removed_gib"] > 0 for row in json.loads(cleaned.output)] == [False, True]
    assert FeatureStore(elsewhere).num_entries() == 0
    missing = CliRunner().invoke(app, ["doctor", "--clean", "--root", str(tmp_path / "none")])
    assert isinstance(missing.exception, BadInputError)


SCATTERNET: dict[str, Any] = {
    "method": "scatternet",
    "features.name": "none",
    "batch.expected": 64,
}
SELECT: dict[str, Any] = {"accounting": "select", "selection": {"mean": 5, "shape": 1}}


def read(
    space: Mapping[str, Any], privacy: Mapping[str, Any] | None = None, **storage: Any
) -> SweepSpec:
    return SweepSpec(
        name="a",
        data={
            "dataset": "digits",
            "validation": {"visibility": "public"},
            "public": {"fraction": 0.1},
        },
        privacy={"trial_epsilon": 2.0, **(privacy or {"accounting": "unaccounted"})},
        search={"sampler": "random", "space": space},
        storage=storage,
    )


def test_a_folder_that_cannot_hold_features_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    for name, told in (("file", "is a file"), ("open", "others may list")):
        with pytest.raises(SpecError) as error:
            preflight(read(SCATTERNET, features=str(tmp_path / name)))
        (mistake,) = error.value.mistakes
        assert told in mistake.what
        assert "storage.features" in mistake.key
        preflight(read({"method": "dp_sgd"}, features=str(tmp_path / name)))  # it needs none
    preflight(read(SCATTERNET, features=str(tmp_path / "new" / "folder")))
    assert not (tmp_path / "new").exists()


def test_more_private_records_than_there_are_is_a_mistake() -> None:
    with pytest.raises(SpecError, match="5000 is more than the 1258 declared private records"):
        preflight(read({**SCATTERNET, "train.num_private": {"choice": [100, 5000]}}))
    preflight(read({**SCATTERNET, "train.num_private": 1258}))


def test_a_selection_keeps_no_private_report() -> None:
    space = {"method": "adamix", "features.name": "none", "adamix.private_report": True}
    with pytest.raises(SpecError, match="keeps no figure of a trial"):
        preflight(read(space, SELECT))
    preflight(read(space))


@pytest.mark.parametrize(
    "privacy",
    [
        {"accounting": "composed", "study_epsilon": 6.0},
        {"accounting": "public"},
    ],
)
def test_nothing_that_claims_keeps_a_private_report(privacy) -> None:
    space = {"method": "adamix", "features.name": "none", "adamix.private_report": True}
    with pytest.raises(SpecError, match="exact figures of private records, which") as refused:
        preflight(read(space, privacy))
    assert "accounting: unaccounted" in str(refused.value)


def test_a_method_that_spends_nothing_has_a_plan() -> None:
    space = {"method": "adamix", "features.name": "none", "adamix.variant": "only_public"}
    privacy = {"accounting": "composed", "study_epsilon": 6.0}
    figures = summarize_plan(preflight(read(space, privacy))).composed
    assert figures is not None
    assert figures.fits == (math.inf,) * 3


def test_the_reason_of_a_missing_plan_comes_with_its_own_remedy() -> None:
    text = read({**SCATTERNET, "heads.count": 4}).to_yaml()
    noisy = ["data.validation.visibility=noisy", "data.validation.noise_std=0.02"]
    checked = preflight(SweepSpec.from_yaml(text, overrides=noisy))
    with pytest.raises(InfeasibleBudgetError) as error:
        _ = checked.sample
    assert "heads.count=4" in str(error.value.because)
    assert error.value.fix == "set heads.count: 1, or use public validation records"


def _square(job: tuple[int, np.ndarray]) -> int:
    number, block = job
    if number < 0:
        raise DataError("negative", fix="count up")
    if number > 100:
        raise ValueError(f"record {number}")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    return int(number**2 + block.sum())


@pytest.mark.ray
def test_a_cluster_maps_jobs_and_stops_at_an_error(ray_cluster: Any, tmp_path: Path) -> None:
    taken: list[int] = []

    def jobs(*numbers: int) -> Iterator[tuple[int, np.ndarray]]:
        for number in numbers:
            taken.append(number)
            yield number, np.ones(3, np.float32)

    target: ClusterTarget = LocalTarget(ClusterSpec(), ResourcesSpec(cpu=2), tmp_path)
    with target:
        assert sorted(target.map(_square, jobs(*range(8)))) == [n * n + 3 for n in range(8)]
        taken.clear()
        with pytest.raises(DataError, match="negative") as caught:
            list(target.map(_square, jobs(-1, *range(100))))
        assert caught.value.fix == "count up"
        assert len(taken) < 50  # taken as there is room
        with pytest.raises(SweepError, match=r"^a worker failed with ValueError$"):
            list(target.map(_square, jobs(1, 101)))
        with pytest.raises(SweepError) as caught_of_other:
            list(target.map(_square, jobs(101)))
        assert caught_of_other.value.__cause__ is None  # it has the words of the worker's error
        assert caught_of_other.value.__suppress_context__
        with pytest.raises(ResourceError, match="no node can run"):
            next(target.map(_square, jobs(1), num_cpus=1000))
