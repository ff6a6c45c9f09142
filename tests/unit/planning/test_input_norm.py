"""``optim.input_norm: public`` is a number of public records or of features, never of private ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from dpsweep.cli import app as cli
from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.loading import (
    describe_dataset,
    load_dataset,
    public_inputs,
    split_slots,
)
from dpsweep.trainables.features.blocks import features_of
from dpsweep.trainables.methods.input_norms import mean_norm

KEY = "search.space.optim.input_norm"
SPEC = """
name: norms
data: {dataset: digits, validation: {fraction: 0.2, visibility: noisy, noise_std: 0.1}}
privacy: {delta: 1.0e-5, trial_epsilon: 1.0, accounting: composed, study_epsilon: 4.0}
search:
  num_trials: 2
  space:
    method: dp_sgd
    model.name: linear
    optim.noise_scale: {loguniform: [1.5, 15]}
    optim.input_norm: public
report: {points: 1}
"""
PUBLIC = "data.public.fraction=0.2"
OF_VALIDATION = "data.validation={fraction: 0.2, visibility: public}"


def norm_of(*overrides):
    notes = []
    spec = read_spec(SPEC, overrides=overrides, say=notes.append)
    return spec.search.space["optim.input_norm"], spec, notes


def test_it_is_the_mean_norm_of_the_public_records():
    norm, spec, notes = norm_of(PUBLIC)
    inputs = load_dataset(spec.data).parts["public"][0]
    exact = np.linalg.norm(inputs.reshape(len(inputs), -1), axis=1).mean()
    assert norm == pytest.approx(float(exact), rel=1e-3)
    assert notes == [
        f"optim.input_norm: public is {norm:g}, the mean norm of {len(inputs)} public records"
    ]


def test_public_validation_records_do_where_there_are_no_others():
    norm, spec, _ = norm_of(OF_VALIDATION)
    assert norm == pytest.approx(mean_norm(load_dataset(spec.data).parts["validation"][0]), 1e-3)


@pytest.mark.parametrize("more", [(PUBLIC,), (OF_VALIDATION,)])
def test_no_private_record_moves_it(tmp_path, more):
    """All records but the public ones are replaced, by huge ones."""
    rng, path = np.random.default_rng(0), tmp_path / "records.npz"
    inputs = rng.normal(size=(300, 7)).astype(np.float32)
    labels = np.arange(300) % 2
    source = (
        "data.dataset=npz", f"data.path={path}", "data.num_records=300", "data.num_classes=2", *more
    )  # fmt: skip
    np.savez(path, x_train=inputs, y_train=labels)
    norm, spec, _ = norm_of(*source)
    slots = split_slots(describe_dataset(spec.data), open_classes(spec.data), None)
    part = "public" if more == (PUBLIC,) else "validation"
    others = np.setdiff1d(np.arange(300), slots[part])
    assert len(others) == 240
    changed = inputs.copy()
    changed[others] = 1e6
    np.savez(path, x_train=changed, y_train=labels)
    assert norm_of(*source)[0] == norm
    changed = inputs.copy()
    changed[slots[part][0]] = 1e6  # power: one public record does
    np.savez(path, x_train=changed, y_train=labels)
    assert norm_of(*source)[0] > 2 * norm


def test_trials_and_stored_specs_have_the_number():
    """A study goes on with it, and a trial is reproduced with it, whatever becomes of the word."""
    norm, spec, _ = norm_of(PUBLIC)
    assert spec.as_written()["search"]["space"]["optim.input_norm"] == norm
    again = read_spec(yaml.safe_dump(spec.as_written()))
    assert again.search.space == spec.search.space
    assert norm_of(PUBLIC)[1] == spec
    for task in preflight(spec).sample[:2]:
        assert task.hparams["optim.input_norm"] == norm


def test_a_plan_states_it_and_the_rate_that_follows(tmp_path):
    path = tmp_path / "norms.yaml"
    path.write_text(SPEC)
    words = ("plan", str(path), "--set", PUBLIC, "--set", "search.space.optim.noise_scale=5")
    done = CliRunner().invoke(cli.app, [*words, "--json"])
    assert done.exit_code == 0
    assert "note: optim.input_norm: public is 3.8" in done.stderr
    assert '"learning_rate"' in done.stdout


def test_pollution_is_left_out():
    polluted = norm_of("data.public={fraction: 0.2, pollution: {records: 300, kinds: [noise]}}")
    assert len(load_dataset(polluted[1].data).parts["public"][0]) == 359 + 300
    assert polluted[0] == norm_of(PUBLIC)[0]


def test_of_many_records_always_the_same_ones_do():
    data = read_spec(SPEC, overrides=[PUBLIC]).data
    few = public_inputs(data, most=50)
    assert len(few) == 50
    assert np.array_equal(few, public_inputs(data, most=50))
    rows = {row.tobytes() for row in load_dataset(data).parts["public"][0]}
    assert all(row.tobytes() in rows for row in few)


# --- Normalised records and features ------------------------------------------------------------


def test_records_that_a_network_normalises_count_as_it_sees_them():
    front = ("search.space.model.normalize=imagenet",)
    norm, spec, _ = norm_of(PUBLIC, *front)
    inputs = load_dataset(spec.data).parts["public"][0]
    mean = np.array([0.485, 0.456, 0.406])[:, None, None]
    std = np.array([0.229, 0.224, 0.225])[:, None, None]
    seen = (np.repeat(inputs, 3, axis=1) - mean) / std
    assert norm == pytest.approx(mean_norm(seen), rel=1e-3)
    larger = norm_of(PUBLIC, "search.space.model.image_size=16")[0]
    assert 1.8 < larger / mean_norm(inputs) < 2.1  # four times the pixels


SCATTERNET = ("search.space.method=scatternet",)


def test_features_count_as_they_are_trained_on():
    norm, spec, _ = norm_of(PUBLIC, *SCATTERNET)
    checked = preflight(spec)
    features = checked.methods["scatternet"].extractor(checked.sample[0].hparams, checked.info)
    inputs = load_dataset(spec.data).parts["public"][0]
    assert norm == pytest.approx(mean_norm(features_of(features, checked.info, inputs)), rel=1e-3)
    raw = norm_of(PUBLIC, *SCATTERNET, "search.space.features.name=none")
    assert raw[0] == norm_of(PUBLIC)[0]


@pytest.mark.parametrize("more", [(), (PUBLIC, "search.space.normalize.kind=private_data")])
def test_normalised_features_have_a_bound_by_construction(more):
    norm, _, notes = norm_of(*SCATTERNET, *more)
    assert norm == math.sqrt(81 * 2 * 2)
    assert notes == ["optim.input_norm: public is 18, by construction of the features"]
    assert norm_of(PUBLIC, *SCATTERNET)[0] < norm


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), r"digits has no public records: none are in data.public, and no validation"),
        ((PUBLIC, "search.space.model.name=tanh_cnn"), r"a linear model, and model.name is tanh"),
        ((PUBLIC, "search.space.model.name={choice: [linear, tanh_cnn]}"), "needs one value of"),
        ((PUBLIC, "search.space.model.image_size={choice: [8, 16]}"), "model.image_size, which"),
        ((*SCATTERNET, "search.space.normalize.kind=none"), "digits has no public records"),
        ((PUBLIC, *SCATTERNET, "search.space.normalize.groups={choice: [27, 81]}"), "needs one"),
        ((PUBLIC, "search.space.method={choice: [dp_sgd, scatternet]}"), "is not one number"),
    ],
)  # fmt: skip
def test_what_has_no_public_norm(overrides, said):
    with pytest.raises(SpecError, match=said) as refusal:
        norm_of(*overrides)
    assert len(refusal.value.mistakes) == 1
    assert refusal.value.mistakes[0].key.endswith("optim.input_norm")


def test_the_word_stands_alone():
    with pytest.raises(SpecError, match="must be a number, got 'public'"):
        norm_of(PUBLIC, f"{KEY}={{choice: [public, 1.0]}}")


def test_private_validation_records_are_no_public_ones():
    data = read_spec(SPEC, overrides=[f"{KEY}=1"]).data
    for visibility in ("noisy", "exact"):
        private = data.validation.model_copy(update={"visibility": visibility})
        with pytest.raises(DataError, match="no public records"):
            public_inputs(data.model_copy(update={"validation": private}), most=9)


def test_a_method_that_says_nothing_is_refused(monkeypatch):
    from dpsweep.planning import input_norm

    monkeypatch.setattr(input_norm, "TRAINABLES", {"dp_sgd": type("Silent", (), {})})
    with pytest.raises(SpecError, match="dp_sgd does not say what enters its linear layer"):
        norm_of(PUBLIC)
