"""Episodes: whose records they are, what they depend on, and that trials run on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import DataError
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.episodes import Episodes
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.execution.finished.trials import export_model
from dpsweep.trainables.features import store as feature_store
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.features.store import FeatureParts, FeatureStore

CLASSES = 6
SIZES = {"private": 150, "validation": 120, "test": 90, "public": 60}
RULE = Episodes(3, 4, 2, 10, seed=0, with_test=True)
L2 = FeatureSpec.of("identity", norm="l2")


def make_pool(seed: int = 0, **labels: np.ndarray) -> SweepData:
    """Return records whose two values are the number of their part and of their row."""
    rng = np.random.default_rng(seed)
    parts = {}
    for number, (part, count) in enumerate(SIZES.items()):
        rows = np.arange(count, dtype=np.float32)
        inputs = np.stack([np.full_like(rows, number), rows], axis=1)
        parts[part] = (inputs, labels.get(part, rng.permutation(np.arange(count) % CLASSES)))
    names = tuple("abcdef")
    info = DatasetInfo("rows", (2,), CLASSES, *(SIZES[p] for p in
        ("private", "validation", "test", "public")), names)  # fmt: skip
    return SweepData(info, parts, f"hash {seed}", hashes={"private": "of the pool"})


POOL = make_pool()


def rows_of(data: SweepData, part: str) -> list[int]:
    return data.parts[part][0][:, 1].astype(int).tolist()


@settings(deadline=None, max_examples=40)
@given(
    ways=st.integers(2, CLASSES),
    shots=st.integers(1, 8),
    queries=st.integers(1, 8),
    number=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
    with_test=st.booleans(),
)
def test_an_episode_has_so_many_records_of_each_of_its_classes(
    ways: int, shots: int, queries: int, number: int, seed: int, with_test: bool
) -> None:
    rule = Episodes(ways, shots, queries, 10, seed, with_test)
    rule.check(POOL)
    drawn = rule.draw(POOL, number)
    wanted = {"private": shots, "validation": queries, "test": queries if with_test else 0}
    for place, part in enumerate(SIZES):
        inputs, labels = drawn.parts[part]
        rows = rows_of(drawn, part)
        assert len(set(rows)) == len(rows) == len(labels)
        assert (inputs[:, 0] == place).all()  # from its own part: private stays disjoint
        # Way w is one class of the pool, the one that the name says.
        for way, name in enumerate(drawn.info.class_names):
            originals = POOL.parts[part][1][np.array(rows, int)[labels == way]]
            assert set(originals) <= {"abcdef".index(name)}
            if part in wanted:
                assert len(originals) == wanted[part]
        if part in wanted:
            assert len(labels) == getattr(drawn.info, f"num_{part}")
    public = POOL.parts["public"][1]
    own = ["abcdef".index(name) for name in drawn.info.class_names]
    assert rows_of(drawn, "public") == np.flatnonzero(np.isin(public, own)).tolist()
    assert drawn.info.num_classes == len(set(own)) == ways


def test_an_episode_is_the_same_each_time_and_unlike_others() -> None:
    def drawn(rule: Episodes, number: int) -> tuple[Any, ...]:
        data = rule.draw(POOL, number)
        return (data.info.class_names, *(tuple(rows_of(data, part)) for part in SIZES))

    assert drawn(RULE, 3) == drawn(RULE, 3)
    assert len({drawn(RULE, number) for number in range(10)}) == 10
    assert drawn(RULE, 3) != drawn(replace(RULE, seed=1), 3)
    assert len({RULE.draw(POOL, number).content_hash for number in range(10)}) == 10


def test_every_record_and_every_class_can_be_drawn() -> None:
    seen = {row for number in range(150) for row in rows_of(RULE.draw(POOL, number), "private")}
    assert len(seen) == SIZES["private"]
    classes = np.concatenate([RULE.classes(number, CLASSES) for number in range(300)])
    assert np.bincount(classes, minlength=CLASSES) == pytest.approx([150] * CLASSES, abs=40)


def test_more_shots_hold_the_fewer_ones_and_are_scored_on_the_same_queries() -> None:
    few, many = RULE.draw(POOL, 2), replace(RULE, shots=9).draw(POOL, 2)
    assert few.info.class_names == many.info.class_names
    assert set(rows_of(few, "private")) < set(rows_of(many, "private"))
    for part in ("validation", "test"):
        assert rows_of(few, part) == rows_of(many, part)


def test_only_the_private_part_tells_which_private_records_are_drawn() -> None:
    other = make_pool(private=POOL.parts["private"][1][::-1].copy())
    ours, theirs = RULE.draw(POOL, 5), RULE.draw(other, 5)
    assert ours.info == theirs.info
    assert rows_of(ours, "private") != rows_of(theirs, "private")
    for part in ("validation", "test", "public"):
        assert rows_of(ours, part) == rows_of(theirs, part)


def test_a_class_that_lacks_records_is_named_before_anything_starts() -> None:
    labels = POOL.parts["private"][1].copy()
    labels[np.flatnonzero(labels == 4)[3:]] = 0  # three are left of class e
    short = make_pool(private=labels)
    with pytest.raises(DataError, match="class 'e' has fewer than 4 private records") as caught:
        RULE.check(short)
    assert "3" not in str(caught.value)  # not how many there are
    assert "lower episodes.shots" in str(caught.value)
    replace(RULE, shots=3).check(short)
    with pytest.raises(DataError, match=r"'a', 'b', 'c' and 3 more .* test records"):
        replace(RULE, queries=16).check(POOL)
    replace(RULE, queries=16, with_test=False).check(POOL)


def test_data_are_loaded_as_a_pool_and_handed_out_by_episode() -> None:
    spec = DataSpec(dataset="digits", validation={"fraction": 0.3, "visibility": "public"})
    rule = Episodes(5, 5, 15, 60, seed=7, with_test=False)
    pool = load_dataset(spec, rule)
    assert len(pool.parts["private"][1]) == pool.info.num_private == 1258
    drawn = pool.for_trial({EPISODE: 2, "optim.lr": 0.1})
    assert len(drawn.parts["private"][1]) == 25
    assert drawn.pool is pool
    assert drawn.episodes is None
    assert not drawn.hashes  # those of the pool would name other features
    assert drawn.for_trial({}) is drawn
    with pytest.raises(DataError, match="episodes cannot be drawn"):
        load_dataset(spec, replace(rule, shots=140))


def pooled(lab: Any, **changes: Any) -> SweepData:
    rule = replace(Episodes(2, 5, 4, 3, seed=0, with_test=True), **changes)
    lab.data = replace(lab.data, episodes=rule)
    return lab.data


def a_task(lab: Any, settings: Any, number: int, trial: int = 0) -> Any:
    given = {"batch.sample_rate": 1.0, "train.max_steps": 20, "optim.lr": 0.5}
    task = lab.task(settings, given, trial=trial)
    return replace(task, hparams={**task.hparams, EPISODE: number})


def test_a_trial_runs_on_its_episode_and_so_does_its_export(lab: Any) -> None:
    pool = pooled(lab)
    settings = lab.settings(report_every=20, show_test=True)
    task = a_task(lab, settings, 1)
    trial = lab.open(settings, task)
    drawn = pool.for_trial(task.hparams)
    for mine, theirs in zip(trial.method._data.parts["private"], drawn.parts["private"]):
        np.testing.assert_array_equal(mine, theirs)
    assert trial.method._expected_batch == 10
    (report,) = lab.finish(trial)
    # Shares of 2 * 4 records.
    assert report.metrics["validation/accuracy"] * 8 % 1 == 0
    assert report.metrics["test/accuracy"] * 8 % 1 == 0
    model, example = export_model(lab.directory(), task, study_seed=0, data=pool)
    outputs = model(torch.from_numpy(drawn.parts["test"][0]))
    assert outputs.shape == (8, 2)
    share = (outputs.argmax(1).numpy() == drawn.parts["test"][1]).mean()
    assert share == pytest.approx(report.metrics["test/accuracy"])
    assert model(torch.from_numpy(example)).shape == (1, 2)


def test_a_crashed_trial_goes_on_with_the_same_episode_and_its_own_ledger(lab: Any) -> None:
    pooled(lab)
    settings = lab.settings(report_every=5)
    task, other = a_task(lab, settings, 2), a_task(lab, settings, 0, trial=1)
    trial = lab.open(settings, task)
    before = trial.method._inputs.clone()
    lab.crash_in_segment(trial, 2)
    again = lab.open(settings, task)
    assert again.position == 5
    assert torch.equal(again.method._inputs, before)
    lab.finish(again)
    lab.run(settings, other)
    charged = [len(lab.open(settings, each).ledger) for each in (task, other)]
    # The crash cost the first one steps; the second one knows nothing of it.
    assert charged[0] == charged[1] == 20
    assert again.end < 20


def test_features_of_the_pool_are_computed_once_for_all_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_blobs: Callable[..., SweepData]
) -> None:
    pool, root = replace(make_blobs(), episodes=replace(RULE, ways=2)), tmp_path / ".features"
    store = FeatureStore(root)
    whole = store.open(pool, L2)

    def refuse(*_: Any) -> int:
        raise AssertionError("computed again")

    monkeypatch.setattr(feature_store, "compute_block", refuse)
    entries = sorted(path.name for path in (tmp_path / ".features").iterdir())
    for number in range(3):
        drawn = pool.for_trial({EPISODE: number})
        parts = FeatureParts(drawn, L2, root)
        for part in ("private", "validation", "test"):
            opened = parts[part]
            features, labels = opened.parts[part]
            np.testing.assert_array_equal(features, whole.parts[part][0][drawn.rows[part]])
            np.testing.assert_array_equal(labels, drawn.parts[part][1])
            assert opened.info.num_classes == 2
            assert (opened.info.features, opened.info.num_private) == (L2.key, 8)
            assert not features.flags.writeable
    assert sorted(path.name for path in (tmp_path / ".features").iterdir()) == entries


def test_without_a_store_features_of_the_episode_alone_are_computed(
    make_blobs: Callable[..., SweepData], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = replace(make_blobs(), episodes=replace(RULE, ways=2))
    drawn = pool.for_trial({EPISODE: 0})
    computed = []
    inner = feature_store.feature_blocks

    def watch(spec: FeatureSpec, info: DatasetInfo, inputs: np.ndarray) -> Any:
        computed.append(len(inputs))
        return inner(spec, info, inputs)

    monkeypatch.setattr(feature_store, "feature_blocks", watch)
    opened = FeatureParts(drawn, L2)["private"]
    assert computed == [8]
    rows = drawn.parts["private"][0]
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(opened.parts["private"][0], expected, rtol=1e-5)


def test_equal_parts_are_drawn_each_by_itself() -> None:
    rule, labels = replace(RULE, queries=RULE.shots), POOL.parts["private"][1]
    classes = rule.classes(1, CLASSES)
    private, queries = (rule._rows(part, 1, classes, labels) for part in ("private", "validation"))
    assert private.tolist() != queries.tolist()
