"""Names of classes, names of scores, dotted names: what may be said, and how it is refused."""

import numpy as np
import pytest
from raw_specs import changed

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.adamix.parts import VARIANTS, parts_of

SPEC = {
    "name": "words",
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.2},
    },
    "privacy": {"accounting": "unaccounted", "trial_epsilon": 3.0, "delta": 1e-6},
    "search": {"space": {"method": "adamix", "features.name": "none", "public.shots": 2}},
}


@pytest.fixture
def make(tmp_path):
    def make(**changes):
        changes = {key.replace("__", "/"): value for key, value in changes.items()}
        return SweepSpec(**changed(SPEC, {"storage": {"path": str(tmp_path)}, **changes}))

    return make


def lines_of(call, *arguments, **named):
    with pytest.raises(SpecError) as error:
        call(*arguments, **named)
    return str(error.value).splitlines()


def npz(path, num_classes=3, inputs=None):
    rng = np.random.default_rng(0)
    inputs = rng.random((60, 1, 8, 8), np.float32) if inputs is None else inputs
    labels = np.arange(len(inputs)) % num_classes
    np.savez(path, x_train=inputs, y_train=labels)
    return {
        "dataset": "npz",
        "path": str(path),
        "num_records": len(inputs),
        "num_classes": num_classes,
        "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.2},
    }


# A variant that has another name now


OLD = {"search__space": {**SPEC["search"]["space"], "adamix.variant": "ppgd"}}


def test_a_new_study_does_not_take_the_pull_for_ppgd(make):
    (line,) = lines_of(preflight, make(**OLD))
    assert line.startswith(
        "search.space.adamix.variant: 'ppgd' is called public_pull: it is a pull"
    )
    assert line.endswith("(write public_pull, or private_public_gd for the paper's)")


def test_a_study_that_has_it_goes_on(make, tmp_path):
    spec = make(**OLD)
    (tmp_path / spec.name / "ledger").mkdir(parents=True)
    (tmp_path / spec.name / "ledger" / "study.jsonl").write_text("")  # it has begun
    (tmp_path / spec.name / "spec.yaml").write_text(spec.to_yaml())
    checked = preflight(SweepSpec.from_yaml(tmp_path / spec.name / "spec.yaml"))
    task = checked.admit(0, {**spec.search.space})
    assert task.hparams["adamix.variant"] == "ppgd"
    assert parts_of(task.hparams) == VARIANTS["public_pull"]
    again = TrialTask.from_json(task.to_json())
    assert parts_of(again.hparams) == VARIANTS["public_pull"]
    assert "ppgd" not in VARIANTS


# The delta of the private report


def test_the_private_report_has_the_study_s_delta(make):
    task = preflight(make()).admit(0, {**SPEC["search"]["space"]})
    assert task.hparams["adamix.report_delta"] == 1e-6
    given = {**SPEC["search"]["space"], "adamix.report_delta": 1e-3}
    assert preflight(make()).admit(0, given).hparams["adamix.report_delta"] == 1e-3


# Names of classes


def test_names_are_those_of_the_dataset_s_classes(tmp_path, make):
    data = npz(tmp_path / "a.npz")
    assert describe_dataset(make(data=data).data).class_names == ("0", "1", "2")
    spec = make(data={**data, "class_names": ["cat", "dog", "hen"]})
    assert describe_dataset(spec.data).class_names == ("cat", "dog", "hen")
    chosen = make(data={**data, "class_names": ["cat", "dog", "hen"], "classes": [2, 0]})
    assert describe_dataset(chosen.data).class_names == ("hen", "cat")
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    assert "class_names" not in make(data=data).to_yaml()  # as specs were before there were names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["cat", "dog"], "has 2 names, and the dataset has 3 classes"),
        (["cat", "dog", "cat"], "has the name 'cat' twice"),
        (["cat", "dog", 7], 'has a name that is no text: 7; put it in quotes: "7"'),
        (["cat", "dog", " "], "has a name that is no text: ' '"),
        ("cat, dog, hen", "must be a list of names, got 'cat, dog, hen'"),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path, make, names, said):
    data = {**npz(tmp_path / "a.npz"), "class_names": names}
    lines = lines_of(make, data=data)
    assert any(line.startswith(f"data.class_names: {said}") for line in lines), lines


def test_names_of_built_in_classes_and_of_folders_are_counted(tmp_path, make):
    lines = lines_of(make, data__class_names=["zero", "one"])
    assert lines[0].startswith("data.class_names: has 2 names, and the dataset has 10 classes")
    for name in ("a", "b", "c"):
        (tmp_path / "folders" / name).mkdir(parents=True)
    data = {
        "dataset": "image_folder",
        "path": str(tmp_path / "folders"),
        "num_records": 30,
        "image_size": 8,
        "validation": SPEC["data"]["validation"],
        "class_names": ["ant", "bee"],
    }
    with pytest.raises(DataError, match="has 2 names, and image_folder has 3 classes"):
        describe_dataset(make(data=data).data)


def test_an_attribute_s_name_is_one_of_a_metric(tmp_path, make):
    data = {**npz(tmp_path / "a.npz"), "task": "multi_label", "class_names": ["a", "b", "c:d?"]}
    del data["public"]
    space = {"search__space": {"method": "dp_sgd"}}
    lines = lines_of(make, data=data, **space)
    assert any(
        "'c:d?', and the name of an attribute is part of a metric's" in line for line in lines
    )
    make(data={**data, "class_names": ["eye_glasses", "b", "c-d"]}, **space)


def test_an_attribute_s_name_is_one_that_mlflow_takes(tmp_path, make):
    from mlflow.utils.validation import _validate_metric_name

    names = [".", "..", "a" * 225, "b" * 300]
    arrays = npz(tmp_path / "a.npz")
    data = {**arrays, "task": "multi_label", "num_classes": 4, "class_names": names}
    del data["public"]
    space = {"search__space": {"method": "dp_sgd"}}
    said = " ".join(lines_of(make, data=data, **space))
    assert "has '.', with which MLflow takes no metric" in said
    assert "has '..', with which MLflow takes no metric" in said
    assert "has 2 names of over 224 characters" in said
    make(data={**data, "class_names": ["...", "a.b", "a" * 224, "c"]}, **space)
    for name in ("...", "a.b", "a" * 224):
        _validate_metric_name(f"curve/validation/accuracy/{name}")


def test_text_starts_need_names_and_no_numbers(tmp_path, make):
    values = {"init.kind": ["text"], "features.name": ["clip/DIR"], "public.shots": [1]}

    def said(spec):
        info = describe_dataset(spec.data)
        return [entry for entry in AdaMix.preflight(values, info) if entry[0] == "init.kind"]

    data = npz(tmp_path / "a.npz")
    ((_, what, fix),) = said(make(data=data))
    assert what == "text encodes the names of classes, and those of npz are numbers"
    assert fix.startswith("name them, data.class_names: [")
    assert said(make(data={**data, "class_names": ["cat", "dog", "hen"]})) == []


# Images with their channels last


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (32, 32, 4), (17, 23, 3)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_channels_last_are_read(tmp_path, make, shape, kind):
    rows = np.random.default_rng(0).integers(0, 256, (60, *shape)).astype(kind)
    rows = rows if kind is np.uint8 else rows / np.float32(255)
    data = npz(tmp_path / "a.npz", inputs=rows)
    first = npz(tmp_path / "b.npz", inputs=np.ascontiguousarray(rows.transpose(0, 3, 1, 2)))
    last, first = (load_dataset(make(data=section).data) for section in (data, first))
    assert last.info.input_shape == (shape[2], *shape[:2])
    assert last.content_hash == first.content_hash
    assert 0 < last.parts["private"][0].max() <= 1


@pytest.mark.parametrize("shape", [(28, 20, 1), (3, 32, 3), (64, 8, 4)])
def test_an_axis_of_channels_that_cannot_be_told_is_asked_for(tmp_path, make, shape):
    data = npz(tmp_path / "a.npz", inputs=np.zeros((60, *shape), np.uint8))
    with pytest.raises(DataError, match="cannot be told") as caught:
        describe_dataset(make(data=data).data)
    assert caught.value.fix == "set data.layout: channels_last, or channels_first"
    last = make(data={**data, "layout": "channels_last"}).data
    assert describe_dataset(last).input_shape == (shape[2], *shape[:2])
    if shape[0] == 3:
        first = make(data={**data, "layout": "channels_first"}).data
        assert describe_dataset(first).input_shape == shape


@pytest.mark.parametrize(
    ("shape", "layout", "words"),
    [
        ((32, 32, 3), "channels_first", "makes images of 32 channels"),
        ((3, 32, 32), "channels_last", "makes images of 32 channels"),
        ((7,), "channels_last", "is for images"),
    ],
)
def test_a_layout_that_is_another(tmp_path, make, shape, layout, words):
    data = npz(tmp_path / "a.npz", inputs=np.zeros((60, *shape), np.float32))
    with pytest.raises(DataError, match=words):
        describe_dataset(make(data={**data, "layout": layout}).data)


@pytest.mark.parametrize(
    "shape", [(3, 3, 3), (64, 4, 4), (81, 7, 7), (1, 8, 8), (16, 3, 3), (1, 1, 3)]
)
def test_channels_first_are_not(tmp_path, make, shape):
    data = npz(tmp_path / "a.npz", inputs=np.zeros((60, *shape), np.float32))
    assert describe_dataset(make(data=data).data).input_shape == shape


# Scores to search by


@pytest.fixture
def texts(tmp_path, make):
    def texts(**search):
        data = {
            "dataset": "text",
            "task": "causal_lm",
            "path": str(tmp_path / "t.csv"),
            "num_records": 30,
            "tokenizer": str(tmp_path),
            "max_length": 8,
            "validation": SPEC["data"]["validation"],
        }
        space = {"method": "dp_sgd", "model.name": "text//models/x"}
        return make(data=data, search={"space": space, **search})

    return texts


def test_language_models_are_searched_by_perplexity(texts):
    spec = texts(metric="validation/perplexity", mode="min")
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    both = texts(
        sampler="nsga2",
        metric="validation/perplexity",
        mode="min",
        objectives=["validation/perplexity", "dp/epsilon"],
    )
    assert both.search.objectives == ("validation/perplexity", "dp/epsilon")
    (line,) = lines_of(texts, metric="validation/perplexity")
    assert line.startswith("search.mode: mode max with validation/perplexity looks for the worst")


def test_other_tasks_have_no_perplexity(make):
    (line,) = lines_of(make, search__metric="validation/perplexity", search__mode="min")
    assert line == (
        "search.metric: validation/perplexity is a score of language models, and the task is "
        "classification (use validation/loss, or data.task: causal_lm)"
    )


# Dotted names


FILE = """\
name: words
data:
  dataset: digits
  validation: {fraction: 0.2, visibility: public}
  public: {fraction: 0.3}
start:
  epsilons: [2.0]
  hyperparameters:
    model.name: tanh_cnn
    batch.expected: 90
    train.max_steps: 40
privacy: {delta: 1e-5, trial_epsilon: 2.0, accounting: unaccounted}
search:
  space:
    method: active_learning
    select.by: random
"""


def test_a_start_s_hyperparameters_are_overridden_by_their_names():
    key = "start.hyperparameters."
    sets = [f"{key}batch.expected=256", f"{key}optim.lr=0.5", f"{key}train.max_steps=null"]
    spec = SweepSpec.from_yaml(FILE, overrides=sets)
    assert spec.start.hyperparameters == {
        "model.name": "tanh_cnn",
        "batch.expected": 256,
        "optim.lr": 0.5,
    }


def test_a_start_s_hyperparameters_below_each_other_are_told_so():
    text = FILE.replace("    batch.expected: 90\n", "    batch: {expected: 90}\n")
    (line,) = lines_of(SweepSpec.from_yaml, text)
    assert line == (
        "<text>:10 start.hyperparameters.batch: is a mapping, and hyperparameters have dotted "
        "names (write `batch.expected:`)"
    )


def test_a_condition_that_cannot_hold_says_how_to_leave_its_parameter_out():
    text = FILE.replace(
        "    select.by: random\n",
        "    select.by: random\n    select.clusters: {choice: [5, 9], when: {select.by: near}}\n",
    )
    (line,) = lines_of(SweepSpec.from_yaml, text)
    assert line.endswith(
        "(select.by is 'random'; remove select.clusters, or --set search.space.select.clusters=null)"
    )
    assert SweepSpec.from_yaml(text, overrides=["search.space.select.clusters=null"])
