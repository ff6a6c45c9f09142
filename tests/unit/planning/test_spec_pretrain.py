"""The section pretrain: what is wrong about it, what it makes, and what is told of it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from image_sets import mnist

from dpsweep.cli.app import app
from dpsweep.foundation.errors import SpecError, StudyError
from dpsweep.foundation.logs import read_log
from dpsweep.planning.preflight import preflight
from dpsweep.planning.pretrain import plan_pretraining, settings_of
from dpsweep.planning.reading import read_spec
from dpsweep.results import study_card
from dpsweep.results.origins import weights_path
from dpsweep.results.study import SweepResult
from dpsweep.running import entries
from dpsweep.running.pretrain import _public_records, pretrained_weights
from dpsweep.spec.data.places import is_same_data
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer, Study
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.state import PRETRAINING
from dpsweep.trainables.data.kept.files import locked
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.public.stretching import coloured
from dpsweep.trainables.networks.build import build_model

GOOD = """\
name: split
data:
  dataset: digits
  classes: [5, 6, 7]
  validation: {fraction: 0.2, visibility: public}
pretrain:
  classes: [0, 1, 2]
  model: tanh_cnn
  epochs: 1
privacy: {delta: 1e-5, trial_epsilon: 2.0, accounting: unaccounted}
search:
  space:
    method: dp_sgd
    model.name: tanh_cnn
    model.checkpoint: {choice: [pretrain, null]}
"""


def write(folder, text):
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def lines_of(path, *sets):
    """Return the lines a user sees, with the directory cut off."""
    with pytest.raises(SpecError) as error:
        preflight(read_spec(path, overrides=sets))
    return str(error.value).replace(f"{path.parent}/", "").splitlines()


MISTAKES = [
    (
        "classes: [0, 1, 2]",
        "classes: [0, 1, 5]",
        "sweep.yaml:7 pretrain.classes: has class 5, which data.classes makes private (no class can be both)",
    ),
    (
        "  classes: [5, 6, 7]\n",
        "",
        "sweep.yaml:6 pretrain.classes: needs data.classes: records of all classes are private without it "
        "(give data.classes, the classes of the private task)",
    ),
    (
        "classes: [0, 1, 2]",
        "classes: [0, 12]",
        "sweep.yaml:7 pretrain.classes: has 12, but the dataset has the classes 0 to 9 (give class numbers of the dataset)",
    ),
    ("classes: [0, 1, 2]", "classes: [0]", "sweep.yaml:7 pretrain.classes: must name at least two classes, got [0]"),
    (
        "  classes: [0, 1, 2]\n",
        "",
        "sweep.yaml:6 pretrain: has no public records to train on (give classes or dataset here, or data.public.fraction)",
    ),
    (
        "epochs: 1",
        "dataset: fashion_mnist",
        "sweep.yaml:9 pretrain.dataset: stands beside classes, which are of the study's own dataset (keep one of the two)",
    ),
    (
        "classes: [0, 1, 2]",
        "dataset: digits",
        "sweep.yaml:7 pretrain.dataset: is the study's own data, of which records are private "
        "(name classes of it (pretrain.classes), or use data.public and leave dataset out)",
    ),
    ("epochs: 1", "path: x", "sweep.yaml:9 pretrain.path: has no meaning without dataset (remove it)"),
    ("epochs: 1", "epochs: 0", "sweep.yaml:9 pretrain.epochs: must be >= 1, got 0"),
    ("epochs: 1", "holdout: 1", "sweep.yaml:9 pretrain.holdout: must be < 1, got 1"),
    (
        "  model: tanh_cnn\n",
        "",
        "sweep.yaml:6 pretrain.model: is missing (name the network, as model.name in the space does)",
    ),
    (
        "epochs: 1",
        "checkpoint: w.pt",
        "sweep.yaml:7 pretrain.classes: has no meaning beside checkpoint (keep one of the two)",
    ),
    (
        "[pretrain, null]",
        "[null]",
        "sweep.yaml:6 pretrain: no trial can start from it: model.checkpoint is never pretrain "
        "(add model.checkpoint: pretrain to search.space, or remove the section)",
    ),
    (
        "  model: tanh_cnn\n",
        "  model: tanh_cnn_deep\n",
        "sweep.yaml:8 pretrain.model: is tanh_cnn_deep, but trials that start from it have model.name tanh_cnn (make them equal)",
    ),
    (
        "epochs: 1",
        "norm: group",
        "sweep.yaml:9 pretrain.norm: is group, but trials that start from it have model.norm refuse (make them equal)",
    ),
    (
        "epochs: 1",
        "resize: 16",
        "sweep.yaml:9 pretrain.resize: is 16, but trials that start from it have model.image_size null (make them equal)",
    ),
    (
        "  dataset: digits\n",
        "  dataset: digits\n  task: multi_label\n",
        "sweep.yaml:7 pretrain: trains classifiers of images and features, and of nothing else (name a file: pretrain.checkpoint)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "data", "expected"),
    [
        ({"dataset": "npz", "path": "a/../b.npz"}, {"dataset": "npz", "path": "b.npz"}, True),
        ({"dataset": "npz", "path": "a.npz"}, {"dataset": "npz", "path": "b.npz"}, False),
        ({"dataset": "fashion_mnist", "path": "copy"}, {"dataset": "fashion_mnist"}, True),
        ({"dataset": "fashion_mnist"}, {"dataset": "digits"}, False),
        ({}, {"dataset": "digits"}, False),
    ],
)
def test_private_data_are_told_from_other_data(block, data, expected):
    assert is_same_data(block, data) is expected


@pytest.mark.parametrize(
    ("data", "other", "expected"),
    [
        ("d", "d/train", True),  # what is read of the first one
        ("d/train", "d", True),
        ("d", "d/train/cats", True),
        ("d", "d/public", False),
        ("flat", "flat/cats", True),
        ("d", "flat", False),
    ],
)
def test_a_folder_is_told_by_what_is_read_of_it(tmp_path, data, other, expected):
    for name in ("d/train/cats", "d/public/cats", "flat/cats"):
        (tmp_path / name).mkdir(parents=True)
    raw, block = (
        {"dataset": "image_folder", "path": str(tmp_path / name)} for name in (data, other)
    )
    assert is_same_data(block, raw) is expected


def test_a_hard_link_is_the_same_data(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"1")
    (tmp_path / "b.npz").hardlink_to(tmp_path / "a.npz")
    (tmp_path / "c.npz").write_bytes(b"1")
    raw, link, copy = ({"dataset": "npz", "path": str(tmp_path / f"{n}.npz")} for n in "abc")
    assert is_same_data(link, raw)
    assert not is_same_data(copy, raw)


def test_the_good_spec_is_good(tmp_path):
    spec = read_spec(write(tmp_path, GOOD))
    preflight(spec)
    assert spec.pretrain.classes == (0, 1, 2)
    settings = settings_of(spec)
    assert (settings.num_classes, settings.keeps_classifier, settings.seed) == (3, False, 0)


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES)
def test_one_mistake_makes_its_line(tmp_path, old, new, said):
    assert GOOD.count(old) == 1
    assert said in lines_of(write(tmp_path, GOOD.replace(old, new)))


def test_the_word_needs_the_section(tmp_path):
    start, end = GOOD.index("pretrain:\n"), GOOD.index("privacy:")
    (line,) = lines_of(write(tmp_path, GOOD[:start] + GOOD[end:]))
    assert line.startswith("sweep.yaml:11 search.space.model.checkpoint: pretrain stands for")


def test_mistakes_come_together_with_all_others(tmp_path):
    text = GOOD.replace("epochs: 1", "epochs: 1.5\n  momentum: 1\n  hold: 1")
    text = text.replace("delta: 1e-5", "delta: 2")
    found = [line.split(":")[0:2] for line in lines_of(write(tmp_path, text))]
    assert [int(place[1].split()[0]) for place in found] == [9, 10, 11, 12]


def test_only_trials_that_start_from_the_weights_must_fit_them(tmp_path):
    space = "{choice: [tanh_cnn, linear]}\n    model.norm: {choice: [group, frozen]}"
    text = GOOD.replace("model.name: tanh_cnn", f"model.name: {space}")
    text = text.replace("[pretrain, null]}", "[pretrain], when: {model.name: tanh_cnn}}")
    (line,) = lines_of(write(tmp_path, text))
    assert "have model.norm group and frozen" in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["pretrain.dataset=fashion_mnist"], "its records are 1x28x28, those of the study 1x8x8"),
        (["pretrain.dataset=npz", "pretrain.path=no.npz", "pretrain.num_classes=3"], "no file no"),
        (["pretrain.dataset=npz", "pretrain.path=a.npz"], "pretrain.num_classes: is missing: npz"),
        (["data.public.fraction=0.0005"], "data.public has 0 records"),
        (["pretrain.model=linear", "search.space.model.name=linear", "pretrain.classes=[0, 1]"],
         "linear is a classifier and nothing else"),
    ],
)  # fmt: skip
def test_public_records_must_fit_the_study(tmp_path, changes, said):
    text = GOOD.replace("  classes: [0, 1, 2]\n", "")
    if "fashion" in changes[0]:
        folder = tmp_path / "fashion"
        folder.mkdir()
        for part in ("train", "t10k"):
            for kind in ("images-idx3", "labels-idx1"):
                (folder / f"{part}-{kind}-ubyte.gz").touch()
        changes = [*changes, f"pretrain.path={folder}"]
    (line,) = lines_of(write(tmp_path, text), *changes)
    assert said in line


def test_the_classifier_is_kept_for_the_same_classes_alone(tmp_path):
    path = write(tmp_path, GOOD.replace("  classes: [0, 1, 2]\n", ""))
    own = settings_of(read_spec(path, overrides=["data.public.fraction=0.2"]))
    assert (own.keeps_classifier, own.num_classes) == (True, 3)
    np.savez(tmp_path / "o.npz", x_train=np.zeros((9, 4), np.float32), y_train=np.zeros(9, int))
    words = ["dataset=npz", f"path={tmp_path / 'o.npz'}", "num_classes=7", "seed=4"]
    other = settings_of(read_spec(path, overrides=[f"pretrain.{word}" for word in words]))
    assert (other.keeps_classifier, other.num_classes, other.seed) == (False, 7, 4)


class Trained(Exception):
    pass


class Ear(Observer):
    def __init__(self):
        self.messages = []

    def on_message(self, text):
        self.messages.append(text)


@pytest.fixture
def open_study(tmp_path):
    """Open studies of the good spec that share a store; returns (study, file of weights)."""
    opened = []

    def make(*sets, observer=None):
        path = write(tmp_path, GOOD)
        store = [f"storage.path={tmp_path / 'studies'}", "cluster.num_cpus=1"]
        spec = read_spec(path, overrides=[*store, *sets])
        study = Study(spec)
        opened.append(study)
        data = load_dataset(spec.data)
        return study, pretrained_weights(spec, study, data, observer or Ear())

    yield make
    for study in opened:
        study.close()


def test_weights_are_trained_once_and_found_again(open_study, monkeypatch):
    ear = Ear()
    study, weights = open_study(observer=ear)
    address = study.view.pretrained["address"]
    assert weights == study.spec.storage.pretrained_path / f"{address}.safetensors"
    assert weights == weights_path(study.spec, study.view)
    assert ear.messages[-1].startswith("pretrain: tanh_cnn, 1 epoch, loss")
    said = plan_pretraining(study.spec)
    assert said.startswith("tanh_cnn on classes 0, 1, 2 of digits, 1 epoch: done already")

    def refuse(*args, **options):
        raise Trained

    monkeypatch.setattr("dpsweep.trainables.networks.pretraining.pretrain_network", refuse)
    other, again = open_study("name=another", "search.space.optim.lr=0.3", observer=ear)
    assert again == weights
    assert other.view.pretrained == study.view.pretrained
    assert "found" in ear.messages[-1]
    with pytest.raises(Trained):  # another seed is another training
        open_study("name=third", "pretrain.seed=1")


def test_a_study_does_not_go_on_from_other_weights(open_study, monkeypatch):
    study, weights = open_study()
    spec, raw = study.spec, load_dataset(study.spec.data)
    address, content = study.view.pretrained["address"], weights.read_bytes()
    weights.unlink()
    assert pretrained_weights(spec, study, raw, Ear()).read_bytes() == content
    events = [record["event"] for record in read_log(study.files.journal)]
    assert events == ["pretrained"]  # once, whatever was computed anew
    study.view.pretrained["sha256"] = "0" * 64
    with pytest.raises(StudyError, match="sha256 0000000000"):
        pretrained_weights(spec, study, raw, Ear())
    monkeypatch.setattr(torch, "__version__", "99.0")
    with pytest.raises(StudyError, match=f"address {address[:12]}") as caught:
        pretrained_weights(spec, study, raw, Ear())
    assert "version of torch" in caught.value.because


def test_two_at_once_compute_once(open_study):
    study, weights = open_study()
    raw, lock = load_dataset(study.spec.data), weights.with_suffix(".lock")
    ear, found = Ear(), []

    def wait():
        found.append(pretrained_weights(study.spec, study, raw, ear))

    with locked(lock):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.3)
        assert ear.messages == ["pretrain: waiting for another process"]
    thread.join(30)
    assert found == [weights]


def test_a_file_stands_for_the_word_too(open_study, tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(1)}, path)
    sets = [f"pretrain={{checkpoint: {path}}}"]
    study, weights = open_study(*sets)
    assert weights == weights_path(study.spec, study.view) == path
    assert plan_pretraining(study.spec) == f"the file {path}"
    assert (
        SweepSpec.from_yaml(study.files.spec).pretrain == study.spec.pretrain
    )  # what `status` and `best` read
    tracker = MemoryTracker()
    tracker.handle([started(), *read_log_after(study)])
    assert PRETRAINING not in tracker.runs  # nothing was trained
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(StudyError, match="began with other pre-trained weights"):
        pretrained_weights(study.spec, study, load_dataset(study.spec.data), Ear())
    missing = GOOD.replace(
        GOOD[GOOD.index("  classes: [0") : GOOD.index("privacy:")], "  checkpoint: no.pt\n"
    )
    (line,) = lines_of(write(tmp_path, missing))
    assert line == "sweep.yaml:7 pretrain.checkpoint: no file no.pt (give an existing file)"


def started():
    return {
        "seq": 0,
        "time_ms": 1,
        "event": "study_started",
        "name": "split",
        "params": {},
        "tags": {},
    }


def read_log_after(study):
    return [{**record, "seq": record["seq"] + 1} for record in read_log(study.files.journal)]


@pytest.mark.parametrize("accounting", ["unaccounted", "select"])
def test_tracking_has_one_public_run_of_it(open_study, accounting):
    study, weights = open_study()
    first = {**started(), "tags": {"dp.accounting": accounting}}
    tracker = MemoryTracker()
    for _ in range(2):  # a replay changes nothing
        tracker.handle([first, *read_log_after(study)])
    assert set(tracker.runs) == {None, PRETRAINING}
    run = tracker.runs[PRETRAINING]
    facts = json.loads(weights.with_suffix(".json").read_text())
    assert (run.status, run.parent_run_id) == ("FINISHED", tracker.runs[None].run_id)
    assert (run.tags["dpsweep.role"], run.tags["dp.records"]) == ("pretrain", "public")
    assert run.tags["dpsweep.pretrained"] == facts["address"]
    assert run.params["pretrain.epochs"] == "1"
    assert run.params["pretrain.records"] == str(facts["records"]) == "537"
    for name in ("loss", "accuracy", "holdout_accuracy"):
        assert run.history(f"pretrain/{name}") == [(1, facts["epochs"][0][name])]
    assert run.artifacts == [str(weights.with_suffix(".json"))]


def test_card_and_trials_name_the_weights(open_study):
    study, _data = open_study()
    address = study.view.pretrained["address"]
    card = study_card.card(SweepResult.of(study))
    line = "- Starts from weights trained on public records: tanh_cnn on classes 0, 1, 2 of digits, 1 epoch"
    assert f"{line} ({address})\n" in card
    assert "- Classes: 5, 6, 7: records of no others\n" in card
    checked = preflight(study.spec)
    tasks = [
        checked.admit(0, {"method": "dp_sgd", "model.checkpoint": c}) for c in ("pretrain", None)
    ]
    events = [entries.trial_started(study.spec, task, study.view.pretrained) for task in tasks]
    assert [event.tags.get("dpsweep.pretrained") for event in events] == [address, None]
    assert events[0].hparams["model.checkpoint"] == "pretrain"


def test_plan_and_validate_say_what_will_be_done(tmp_path, capsys):
    path = write(tmp_path, GOOD)
    sets = ["--set", f"storage.path={tmp_path / 'studies'}"]
    app(["validate", str(path), *sets], standalone_mode=False)
    told = "tanh_cnn on classes 0, 1, 2 of digits, 1 epoch: to be done first, by this machine"
    assert f"pretrain: {told}\n" in capsys.readouterr().err
    app(["plan", str(path), "--json", *sets], standalone_mode=False)
    record = json.loads(capsys.readouterr().out)
    assert record["pretrain"] == told
    assert record["estimate"]["configurations_measured"] > 0  # before the weights are there


def test_public_parts_and_other_datasets_give_their_training_records(tmp_path):
    text = GOOD.replace("  classes: [0, 1, 2]\n", "")
    spec = read_spec(write(tmp_path, text), overrides=["data.public.fraction=0.2"])
    data = load_dataset(spec.data)
    inputs, labels = _public_records(spec, spec.pretrain, data)
    assert inputs is data.parts["public"][0]
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.random((7, 1, 8, 8)).astype("f4"), "y_train": np.arange(7) % 4}
    np.savez(Path(tmp_path) / "other.npz", **arrays)
    sets = ["pretrain.dataset=npz", f"pretrain.path={tmp_path}/other.npz", "pretrain.num_classes=4"]
    spec = read_spec(write(tmp_path, text), overrides=sets)
    inputs, labels = _public_records(spec, spec.pretrain, data)
    assert np.array_equal(inputs, arrays["x_train"])
    assert labels.tolist() == arrays["y_train"].tolist()
    assert settings_of(spec).num_classes == 4


def test_records_of_idx_files_are_arrays_as_they_are_trained_on(tmp_path):
    mnist(tmp_path)
    text = GOOD.replace("classes: [0, 1, 2]", f"dataset: mnist\n  path: {tmp_path}\n  resize: 16")
    text = text.replace(
        "tanh_cnn\n    model.ch", "tanh_cnn\n    model.image_size: 16\n    model.ch"
    )
    spec = read_spec(write(tmp_path, text))
    inputs, _ = _public_records(spec, spec.pretrain, load_dataset(spec.data))
    assert (type(inputs), inputs.shape, inputs.dtype) == (np.ndarray, (40, 1, 28, 28), np.float32)


def test_what_was_trained_without_normalisation_gets_none(tmp_path):
    text = GOOD.replace(
        "    model.checkpoint:", "    model.normalize: imagenet\n    model.checkpoint:"
    )
    lines = lines_of(write(tmp_path, text))
    assert any(
        "pretrain: images are not normalised in pre-training, and model.normalize does" in line
        for line in lines
    )
    info = describe_dataset(read_spec(write(tmp_path, GOOD)).data)
    network = build_model("tanh_cnn", info, seed=0, normalize="imagenet")[-1]
    torch.save(network.state_dict(), tmp_path / "w.pt")  # of a file only its user knows
    named = text[: text.index("pretrain:")] + f"pretrain: {{checkpoint: {tmp_path / 'w.pt'}}}\n"
    preflight(read_spec(write(tmp_path, named + text[text.index("privacy:") :])))


def test_records_of_another_size_are_resized_where_both_sections_say_so(tmp_path):
    """The public images have 28 pixels, the digits 8; the network sees 16 of each."""
    grey = np.zeros((50, 1, 28, 28), np.float32)
    np.savez(tmp_path / "big.npz", x_train=grey, y_train=np.arange(50) % 3)
    other = f"dataset: npz\n  path: {tmp_path / 'big.npz'}\n  num_classes: 3"
    text = GOOD.replace("classes: [0, 1, 2]", other)
    (said,) = lines_of(write(tmp_path, text))
    assert "its records are 1x28x28, those of the study 1x8x8" in said
    assert "give both the same size: pretrain.resize, and model.image_size" in said
    resized = text.replace("epochs: 1", "epochs: 1\n  resize: 16")
    (said,) = lines_of(write(tmp_path, resized))
    assert "trials that start from it have model.image_size null" in said
    resized = resized.replace(
        "tanh_cnn\n    model.ch", "tanh_cnn\n    model.image_size: 16\n    model.ch"
    )
    assert preflight(read_spec(write(tmp_path, resized))).spec.pretrain.resize == 16
    colour = np.zeros((50, 3, 28, 28), np.float32)
    np.savez(tmp_path / "big.npz", x_train=colour, y_train=np.arange(50) % 3)
    assert preflight(read_spec(write(tmp_path, resized))).spec.pretrain.resize == 16
    (said,) = lines_of(write(tmp_path, text))
    assert "its records are 3x28x28" in said
    odd = np.zeros((50, 4, 28, 28), np.float32)
    np.savez(tmp_path / "big.npz", x_train=odd, y_train=np.arange(50) % 3)
    (said,) = lines_of(write(tmp_path, resized))
    assert "its records are 4x28x28" in said


def test_colours_of_other_records_become_those_of_the_study(tmp_path):
    colour = np.random.default_rng(0).random((50, 3, 12, 12), dtype=np.float32)
    np.savez(tmp_path / "big.npz", x_train=colour, y_train=np.arange(50) % 3)
    other = f"dataset: npz\n  path: {tmp_path / 'big.npz'}\n  num_classes: 3\n  resize: 16"
    text = GOOD.replace("classes: [0, 1, 2]", other)
    text = text.replace(
        "tanh_cnn\n    model.ch", "tanh_cnn\n    model.image_size: 16\n    model.ch"
    )
    spec = preflight(read_spec(write(tmp_path, text))).spec
    inputs, labels = _public_records(spec, spec.pretrain, load_dataset(spec.data))
    assert inputs.shape == (50, 1, 12, 12)
    assert np.array_equal(inputs, coloured(colour, (1, 8, 8)))
    assert labels.tolist() == (np.arange(50) % 3).tolist()
