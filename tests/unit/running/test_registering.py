"""A trial's model in MLflow's registry: the same answers, the same claim, and no dpsweep."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from selections import go_without_ray, select_spec
from studies_here import run_here
from whole_studies import cli_here, make_spec

from dpsweep import load_sweep, register_model, sweep
from dpsweep.foundation.errors import BadInputError, NothingWithinBudgetError, StudyError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.results.choosing import Limits
from dpsweep.results.claims import Claims
from dpsweep.running import registering
from dpsweep.running.giving_up import give_up_claim
from dpsweep.study.study import Study
from dpsweep.tracking import open_spool
from dpsweep.tracking.mlflow_models import LoggedModels
from dpsweep.tracking.mlflow_reader import MLflowReader
from dpsweep.tracking.registry.versions import ModelRegistry
from dpsweep.trainables.data.loading import describe_dataset, load_dataset, split_slots
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.execution.finished.trials import export_model
from dpsweep.trainables.features import choice

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow and torch.export warn of themselves

TERMS = ("dp.delta", "dp.unit", "dp.adjacency", "dp.sampling", "dp.accountant", "dp.accounting")
PRIVACY = {
    "composed": {"study_epsilon": 6.0},
    "public": {},
}


def spec_of(root, mode, name=None, **changes):
    data = {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "test": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.2},
    }
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": mode, **PRIVACY[mode]}
    shorter = {"report": {"points": 2}, **changes}
    raw = make_spec(root, name or mode, privacy=privacy, data=data, **shorter)
    raw["search"] |= {"num_trials": 2}
    raw["search"]["space"] = {
        "method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]}, "train.max_steps": 20,
    }  # fmt: skip
    return raw


def on_features(root):
    """A study whose trials read frozen features of the images."""
    raw = spec_of(root, "composed", name="features")
    raw["search"]["space"] |= {
        "method": "scatternet",
        "features.name": "scatternet",
        "normalize.groups": 3,
    }
    return raw


ASK = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"dpsweep", "opacus", "timm", "kymatio", "ray", "optuna"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Blocked())
import mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
images, answers = np.load("raw.npz")["images"], {}
for name in sys.argv[2:]:
    model = mlflow.pyfunc.load_model(f"models:/{name}@champion")
    answers[name] = model.predict(images).to_dict("list")
assert "dpsweep" not in sys.modules
with open("answers.json", "w") as file:
    json.dump(answers, file)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What is kept for later registrations, in place of the tester's own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("DPSWEEP_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module", autouse=True)
def _small_scattering():
    """The frozen features of these tests: exporting those of a real study takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "SCATTERING", {"depth": 1, "angles": 2})
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("composed")


@pytest.fixture(scope="module")
def result(root):
    with pytest.MonkeyPatch.context() as patch:
        return run_here(patch.setattr, spec_of(root, "composed"))


@pytest.fixture(scope="module")
def uri(root):
    return f"sqlite:///{root}/mlflow.db"


@pytest.fixture(scope="module")
def registered(result):
    return register_model(result)


@pytest.fixture
def client(uri):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def whole_label(client, name, version):
    """Return tags, description, metadata and card of a version, as whoever gets it has them."""
    import mlflow

    mlflow.set_tracking_uri(client.tracking_uri)
    entry = client.get_model_version(name, version)
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/{name}/{version}"))
    metadata = yaml.safe_load((folder / "MLmodel").read_text())["metadata"]["dpsweep"]
    return entry.tags, entry.description, metadata, (folder / "privacy_card.md").read_text()


def raw_test_records(result):
    """Return the raw test images of the study, and their labels."""
    from sklearn.datasets import load_digits

    info = describe_dataset(result.spec.data)
    rows = split_slots(info, open_source(result.spec.data), None)["test"]
    digits = load_digits()
    return digits.images[rows], digits.target[rows]


def test_the_best_trial_is_registered_with_the_claim_of_its_study(result, registered, client):
    best = result.best()
    assert (registered.name, registered.version, registered.trial) == ("composed", 1, best.trial_id)
    assert (registered.uri, registered.is_new) == ("models:/composed@champion", True)
    tags, description, metadata, card = whole_label(client, "composed", "1")
    epsilon = result.study_statement().epsilon
    said = [
        registered.claim.epsilon, registered.to_dict()["claim"]["epsilon"],
        float(tags["dp.study_epsilon"]), metadata["claim"]["epsilon"],
    ]  # fmt: skip
    assert max(abs(one - epsilon) for one in said) < 1e-6
    assert all(tags[name] for name in TERMS)
    assert tags["dp.claim"] == metadata["claim_in_words"] == registered.claim.one_line()
    assert description.index("6.0000") < description.index("which is *not* the claim")
    assert "epsilon <= 6 at delta = 1e-05" in card
    assert metadata["trial_alone"]["is_the_claim"] is False
    assert abs(metadata["trial_alone"]["epsilon"] - best.epsilon) < 1e-6
    assert client.get_model_version_by_alias("composed", "champion").version in (1, "1")
    assert client.get_model_version("composed", "1").run_id == best.run_id


def test_an_epsilon_that_does_not_exist_is_null_in_the_record(registered):
    free = dataclasses.replace(registered.alone, epsilon=math.inf)
    record = dataclasses.replace(registered, claim=None, alone=free).to_dict()
    assert record["trial_alone"]["epsilon"] is None
    assert record["trial_alone"]["is_the_claim"] is False
    both = dataclasses.replace(registered, claim=free, alone=free).to_dict()
    assert (both["claim"]["epsilon"], both["trial_alone"]["is_the_claim"]) == (None, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["composed", "features"])
def test_it_answers_as_the_trial_where_dpsweep_is_not(name, root, result, answers):
    of_study = load_sweep(name, root=root / "studies")
    images, labels = raw_test_records(of_study)
    shares = shares_of_the_trial(of_study, images)
    got = np.stack([answers[name][f"probability/{digit}"] for digit in range(10)], axis=1)
    assert np.abs(got - shares).max() < 1e-6
    assert (answers[name]["class"].astype(int) == shares.argmax(1)).all()
    assert np.abs(answers[name]["probability"] - shares.max(1)).max() < 1e-6
    accuracy = (answers[name]["class"].astype(int) == labels).mean()
    assert abs(accuracy - of_study.best().metrics["test/accuracy"]) < 1e-6
    assert len({tuple(row) for row in shares.round(6)}) > 100


@pytest.fixture(scope="module")
def answers(root, registered, uri):
    """What the models answer, by column, in a process that cannot import what this one has."""
    folder = root / "elsewhere"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "log_best_model", lambda *_, **more: None)  # its export takes seconds
        other = run_here(patch.setattr, on_features(root))
    register_model(other)
    shutil.rmtree(other.spec.storage.features_path, ignore_errors=True)
    np.savez(folder / "raw.npz", images=raw_test_records(other)[0])
    (folder / "ask.py").write_text(ASK)
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "ask.py", uri, "composed", "features"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    columns = json.loads((folder / "answers.json").read_text())
    return {
        name: {column: np.array(values) for column, values in of_model.items()}
        for name, of_model in columns.items()
    }


def shares_of_the_trial(result, images):
    """Return probabilities by the trial's own checkpoint, from inputs as the data reader has them."""
    best, data = result.best(), load_dataset(result.spec.data)
    model, _ = export_model(
        result.files.trial(best.trial_id), result.task(best.trial_id), study_seed=result.spec.seed,
        data=data,
    )  # fmt: skip
    inputs, _ = data.parts["test"]
    assert np.array_equal(inputs[:, 0] * 16, images)
    with torch.no_grad():
        return torch.softmax(model(torch.from_numpy(np.array(inputs))).double(), 1).numpy()


def test_registering_it_does_not_change_what_else_is_read_from_the_store(result, registered, uri):
    best = result.best()
    stored = load_sweep("mlflow:composed/composed", tracking_uri=uri).best()
    assert stored.model_uri == best.model_uri == load_sweep(
        "composed", root=result.files.path.parent
    ).best().model_uri  # fmt: skip
    with pytest.raises(StudyError, match="files are not here"):
        register_model(load_sweep("mlflow:composed/composed", tracking_uri=uri))


def test_the_same_trial_makes_no_second_version_and_the_alias_moves(result, registered, client):
    best, other = registered.trial, 1 - registered.trial
    again = register_model(result)
    assert (again.version, again.is_new, again.moved_from) == (1, False, None)
    second = register_model(result, other)
    assert (second.version, second.is_new, second.moved_from) == (2, True, 1)
    assert int(client.get_model_version_by_alias("composed", "champion").version) == 2
    back = register_model(result, best)
    assert (back.version, back.is_new, back.moved_from) == (1, False, 2)
    elsewhere = register_model(result, best, name="elsewhere", alias="candidate")
    assert (elsewhere.uri, elsewhere.version) == ("models:/elsewhere@candidate", 1)
    listed = client.search_model_versions("name = 'composed'")
    assert sorted(int(version.version) for version in listed) == [1, 2]
    versions = [client.get_model_version(n, "1") for n in ("composed", "elsewhere")]
    assert len({version.model_id for version in versions}) == 1  # one copy of the model


def test_a_registration_that_was_killed_is_completed(result, registered, client, monkeypatch):
    from mlflow import MlflowClient

    def die(*arguments, **options):
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(MlflowClient, "create_model_version", die)
    other = 1 - registered.trial
    with pytest.raises(BadInputError, match="does not take the model") as error:
        register_model(result, other, name="killed")
    assert "the server is gone" in error.value.because
    monkeypatch.undo()
    monkeypatch.setattr(registering.Package, "save", die)  # it is stored already
    assert register_model(result, other, name="killed").version == 1


def test_the_command_line_registers_and_asks(result, registered, root, uri, tmp_path):
    studies = ("--root", root / "studies")
    done = cli_here("register", "composed", *studies, "-f", "json")
    record = json.loads(done.stdout)
    assert abs(record["claim"]["epsilon"] - 6.0) < 1e-6
    assert "nothing new" in done.stderr
    table = cli_here("register", "composed", *studies).stdout
    assert "epsilon=6.0000 at delta=1e-05" in " ".join(table.split())
    images, _ = raw_test_records(result)
    np.savez(tmp_path / "x.npz", inputs=images[:3])
    store = ("--tracking-uri", uri)
    asked = cli_here(
        "predict", "models:/composed@champion", tmp_path / "x.npz", *store, "-f", "json"
    )
    assert asked.returncode == 0, asked.stderr
    rows = json.loads(asked.stdout)
    assert asked.stderr.index("claim: epsilon=6.0000") == 0
    shares = shares_of_the_trial(result, raw_test_records(result)[0])[:3]
    for number, row in enumerate(rows):
        assert row["record"] == f"{tmp_path}/x.npz:{number}"
        assert abs(row["probability"] - shares[number].max()) < 1e-6
    out = tmp_path / "answers.csv"
    of_study = cli_here("predict", "composed", tmp_path / "x.npz", *studies, "--to", out)
    assert of_study.returncode == 0, of_study.stderr
    assert "claim: epsilon=6.0000" in of_study.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == 4
    assert abs(float(lines[1].split(",")[2]) - rows[0]["probability"]) < 1e-6
    takes = cli_here("predict", "models:/composed/1", *store)
    assert "arrays of float64 of shape [8, 8]" in takes.stdout


@pytest.mark.slow
def test_predict_says_each_mistake_in_a_line(registered, root, uri, tmp_path):
    store, studies = ("--tracking-uri", uri), ("--root", root / "studies")
    np.savez(tmp_path / "bad.npz", inputs=np.zeros((2, 7, 7)))
    missing = tmp_path / "no.npz"
    for arguments, words in [
        (("models:/composed@nobody", *store), "there is no model models:/composed@nobody"),
        (("models:/composed/99", *store), "there is no model models:/composed/99"),
        (("models:/nothing", *store), "names no version of a model"),
        (("models:/composed/1", "--tracking-uri", f"sqlite:///{tmp_path}/no.db"), "no tracking store"),
        (("models:/composed/1", "--trial", "0", *store), "of one trial already"),
        (("models:/composed/1", missing, *store), "is not there"),
        (("models:/composed/1", tmp_path / "bad.npz", *store), "shape (7, 7), and the model takes"),
        (("models:/composed/1", missing, "--to", "a.doc", *store), "does not end in .csv"),
        (("composed", *store, *studies), "needs no tracking store"),
        (("nobody", *studies), "no study 'nobody'"),
    ]:  # fmt: skip
        done = cli_here("predict", *arguments)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        assert (done.returncode, len(errors)) == (2, 1), done.stderr
        assert words in " ".join(done.stderr.split()), done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trial": 99}, "has no trial 99"),
        ({"alias": "v3"}, "'v3' cannot be an alias"),
        ({"alias": "a b"}, "'a b' cannot be an alias"),
        ({"name": "a/b"}, "'a/b' cannot be the name"),
        ({"tracking_uri": "sqlite:///nowhere.db"}, "no tracking store at"),
        ({"tracking_uri": "mlruns"}, "is a directory"),
    ],
)
def test_mistakes_are_refused_before_a_model_is_built(result, options, words, monkeypatch):
    monkeypatch.setattr(registering, "_package", None)
    with pytest.raises(BadInputError, match=words) as error:
        register_model(result, **options)
    assert error.value.exit_code == 2
    assert "\n" not in error.value.message


def test_a_trial_that_is_named_is_not_chosen(result, root):
    done = cli_here("register", "composed", "0", "--by", "mean", "--root", root / "studies")
    assert done.returncode == 2
    assert "there is none to choose" in done.stderr
    done = cli_here("register", "composed", "--max-delta", "-1", "--root", root / "studies")
    assert "--max-delta must be >= 0" in done.stderr


@pytest.mark.parametrize("chooser", [{"limits": Limits(max_epsilon=0.1)}, {"by": "mean"}])
def test_nor_is_one_that_is_named_in_python(result, chooser, monkeypatch):
    """Limits that a trial is beyond were passed over, and it became the champion."""
    monkeypatch.setattr(registering, "_package", None)
    with pytest.raises(BadInputError, match="trial 0 is named, so there is none to choose"):
        register_model(result, 0, **chooser)


@pytest.mark.slow
def test_a_store_that_lacks_the_run_is_refused(result, tmp_path):
    from mlflow import MlflowClient

    other = f"sqlite:///{tmp_path}/other.db"
    MlflowClient(tracking_uri=other).search_experiments()
    with pytest.raises(BadInputError, match="is not in the tracking store"):
        register_model(result, tracking_uri=other)


def test_what_processes_wait_at_lies_in_the_cache(registered, cache):
    assert (cache / "registering").is_dir()


def test_a_run_that_was_deleted_is_to_be_restored(result, registered, client, monkeypatch):
    run_id = result.best().run_id
    client.delete_run(run_id)
    try:
        with pytest.raises(BadInputError, match="was deleted in MLflow") as error:
            register_model(result)
        assert f"mlflow runs restore --run-id {run_id}" in error.value.fix
        again = load_sweep("composed", root=result.files.path.parent)
        monkeypatch.setattr(again, "_run_ids", {})  # once a launch has seen that
        with pytest.raises(StudyError, match="has no run in a tracking store") as error:
            register_model(again)
        assert "restore it there" in error.value.fix
    finally:
        client.restore_run(run_id)


def test_no_trial_within_the_limits_exits_as_best_does(result):
    with pytest.raises(NothingWithinBudgetError):
        register_model(result, limits=Limits(max_epsilon=0.1))


@pytest.mark.parametrize("limit", [{"max_epsilon": 0.1}, {"max_delta": 1e-9}])
def test_limits_are_arguments_as_those_of_best_are(result, limit, monkeypatch):
    monkeypatch.setattr(registering, "_package", None)
    with pytest.raises(NothingWithinBudgetError) as refused:
        register_model(result, **limit)
    with pytest.raises(NothingWithinBudgetError) as expected:
        result.best(**limit)
    assert str(refused.value) == str(expected.value)
    with pytest.raises(BadInputError, match="limits stand beside"):
        register_model(result, **limit, limits=Limits(max_epsilon=1.0))
    with pytest.raises(BadInputError, match="has no method 'bitfitt'"):
        register_model(result, method="bitfitt")
    with pytest.raises(BadInputError, match="trial 0 is named"):
        register_model(result, 0, **limit)


def test_a_study_that_runs_or_tracks_nothing_is_refused(result, monkeypatch):
    again = load_sweep("composed", root=result.files.path.parent)
    tracking = again.spec.tracking.model_copy(update={"uri": None})
    monkeypatch.setattr(again, "spec", again.spec.model_copy(update={"tracking": tracking}))
    with pytest.raises(StudyError, match="has no tracking store"):
        register_model(again)
    monkeypatch.setattr(type(again), "state", "running")
    with pytest.raises(StudyError, match="is running"):
        register_model(again)


def test_a_trial_that_did_not_finish_is_refused(result, monkeypatch):
    again = load_sweep("composed", root=result.files.path.parent)
    failed = type(again.view.trials[0].state)("failed")
    monkeypatch.setattr(again.view.trials[0], "state", failed)
    with pytest.raises(BadInputError, match="delivers no model: it is failed"):
        register_model(again, 0)


def test_other_data_are_refused(result, tmp_path, monkeypatch):
    shutil.copytree(result.files.path, tmp_path / "composed")
    (tmp_path / "composed" / "data.sha256").write_text("names " + "0" * 64)
    moved = load_sweep("composed", root=tmp_path)
    with pytest.raises(StudyError, match="not those that it was launched on"):
        register_model(moved, name="moved")


def test_language_models_are_refused(result, monkeypatch):
    again = load_sweep("composed", root=result.files.path.parent)
    data = again.spec.data.model_copy(update={"task": "causal_lm"})
    monkeypatch.setattr(again, "spec", again.spec.model_copy(update={"data": data}))
    with pytest.raises(BadInputError, match="answer in tokens"):
        register_model(again)


@pytest.mark.slow
def test_a_claim_that_is_lost_is_lost_on_every_version(tmp_path):
    from mlflow import MlflowClient

    with pytest.MonkeyPatch.context() as patch:
        result = run_here(patch.setattr, spec_of(tmp_path, "public"))
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    final = result.best()
    for trial in result.view.trials:
        if trial != final.trial_id:  # what the search tried is not handed on
            with pytest.raises(BadInputError, match="is not its final run"):
                register_model(result, trial)
    made = register_model(result)
    assert (made.trial, made.claim) == (final.trial_id, final.statement)
    tags, *_ = whole_label(client, "public", "1")
    assert float(tags["dp.study_epsilon"]) == pytest.approx(final.epsilon, abs=1e-6)
    register_model(result, name="second")
    client.create_registered_model("own")  # by a user, of the network that the study logged
    network = client.get_logged_model(final.model_uri.removeprefix("models:/"))
    client.create_model_version(
        "own",
        network.artifact_location,
        final.run_id,
        description="mine",
        model_id=network.model_id,
    )
    register_model(result)
    assert client.get_model_version("own", "1").tags == {}
    study = Study(result.spec)
    ledger = StudyLedger(study.files.ledger)
    give_up_claim(study, ledger, "a pruner was attached")
    ledger.close()
    study.close()
    with open_spool(result.files, result.spec.tracking) as spool:
        assert spool.flush(60)
    for name in ("public", "second"):
        tags, description, metadata, card = whole_label(client, name, "1")
        assert tags["dp.downgraded"] == metadata["downgraded"] == "a pruner was attached"
        assert (tags["dp.accounting"], metadata["claim"]) == ("unaccounted", None)
        assert tags["dp.claim"].startswith("none")
        assert tags["dp.study_epsilon"] == "none: downgraded"
        for text in (description, card, metadata["claim_in_words"], tags["dp.claim"]):
            assert f"epsilon={final.epsilon:.4f}" not in text
        assert "given up" in description
    own = client.get_model_version("own", "1")
    assert own.tags["dp.downgraded"] == "a pruner was attached"
    assert own.description == "mine"
    again = register_model(load_sweep("public", root=result.files.path.parent), name="third")
    assert again.claim is None
    tags, _, metadata, _ = whole_label(client, "third", "1")
    assert (tags["dp.accounting"], metadata["claim"]) == ("unaccounted", None)
    asked = cli_here("predict", "models:/public/1", "--tracking-uri", client.tracking_uri)
    assert "claim: none" in asked.stderr
    assert "was given up, for good: a pruner was attached" in " ".join(asked.stderr.split())


def test_a_claim_that_ledgers_refute_is_lost_at_the_next_launch(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    raw = spec_of(tmp_path, "composed")
    result = run_here(monkeypatch.setattr, raw)
    for trial in (0, 1):  # one of them is not the best, and was not logged before
        register_model(result, trial, name=f"of-{trial}")
    monkeypatch.setattr(Claims, "_broken_by_ledgers", lambda claims: "the ledgers add up to more")
    run_here(monkeypatch.setattr, raw)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    for trial in (0, 1):
        tags, description, metadata, card = whole_label(client, f"of-{trial}", "1")
        assert tags["dp.downgraded"] == metadata["downgraded"] == "the ledgers add up to more"
        assert metadata["claim"] is None
        assert tags["dp.claim"].startswith("none")
        for text in (description, card):
            assert "the ledgers add up to more" in text
            assert "epsilon=6.0000" not in text


@pytest.mark.slow
def test_a_model_whose_files_were_moved_is_made_again(tmp_path, monkeypatch):
    """A version without files was handed out as a new one, and no command led out of it."""
    from mlflow import MlflowClient

    raw = spec_of(tmp_path, "composed")
    result = run_here(monkeypatch.setattr, raw)
    assert register_model(result).version == 1
    artifacts = tmp_path / "mlartifacts"
    artifacts.rename(tmp_path / "elsewhere")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client, store = MlflowClient(tracking_uri=uri), ("--tracking-uri", uri)
    asked = cli_here("predict", "models:/composed@champion", *store)
    assert (asked.returncode, "there is no model" in asked.stderr) == (2, False)
    words = " ".join(asked.stderr.split())
    assert f"the files of models:/composed@champion cannot be had from file://{tmp_path}" in words
    assert "`dpsweep register` make a new version" in words

    other = register_model(result, name="other")
    again = register_model(result)
    assert (other.version, again.version, again.is_new, again.moved_from) == (1, 2, True, 1)
    for name, version in (("other", "1"), ("composed", "2")):
        tags, _, metadata, _ = whole_label(client, name, version)
        assert metadata["claim"]["epsilon"] == pytest.approx(6.0, abs=1e-6)
        assert tags["dp.claim"] == metadata["claim_in_words"]
    assert cli_here("predict", "models:/composed@champion", *store).returncode == 0
    assert (register_model(result).version, register_model(result).is_new) == (2, False)

    before = result.best().model_uri
    result = run_here(monkeypatch.setattr, raw)  # a launch stores the network anew, too
    assert result.best().model_uri != before
    network = client.get_logged_model(result.best().model_uri.removeprefix("models:/"))
    assert Path(network.artifact_location.removeprefix("file://"), "MLmodel").is_file()
    reader = MLflowReader(uri)
    (stored,) = reader.studies(name="composed")
    assert reader.models(stored)[result.best().run_id] == result.best().model_uri

    study = Study(result.spec)
    ledger = StudyLedger(study.files.ledger)
    give_up_claim(study, ledger, "a pruner was attached")
    ledger.close()
    study.close()
    said = []
    with open_spool(result.files, result.spec.tracking, said.append) as spool:
        assert spool.flush(60)
    assert sum("wherever they are, they keep the claim" in line for line in said) == 2
    for version in ("1", "2"):
        tags = client.get_model_version("composed", version).tags
        assert tags["dp.downgraded"] == "a pruner was attached"
    assert whole_label(client, "composed", "2")[2]["claim"] is None


def test_a_label_that_cannot_be_written_makes_no_version(result, registered, client, monkeypatch):
    monkeypatch.setattr(LoggedModels, "label", lambda *_: ["model m: its file MLmodel is old"])
    with pytest.raises(BadInputError, match="its file MLmodel is old"):
        register_model(result, name="unlabelled")
    assert list(client.search_model_versions("name = 'unlabelled'")) == []


def test_two_registrations_at_once_make_one_version(result, registered, client, monkeypatch):
    inside, most, place = [], [], ModelRegistry.place

    def slow(self, *arguments):
        inside.append(self)
        most.append(len(inside))
        time.sleep(0.5)
        try:
            return place(self, *arguments)
        finally:
            inside.remove(self)

    monkeypatch.setattr(ModelRegistry, "place", slow)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: register_model(result, name="at-once"), range(2)))
    assert most == [1, 1]
    assert sorted((one.version, one.is_new) for one in both) == [(1, False), (1, True)]


def test_nor_do_two_of_other_machines(result, registered, client, monkeypatch):
    """Whose locks are not seen: the registry is asked again before a version is made."""
    store, uri = LoggedModels.store, client.tracking_uri

    def overtaken(self, name, run_id, *more):
        made = store(self, name, run_id, *more)
        monkeypatch.setattr(LoggedModels, "store", store)
        assert ModelRegistry(uri, run_id).place("overtaken", "first", package, name).is_new
        return made

    with registering._package(result, registered.trial) as package:
        monkeypatch.setattr(LoggedModels, "store", overtaken)
        registry = ModelRegistry(uri, result.best().run_id)
        placed = registry.place("overtaken", "second", package, "overtaken")
    assert (placed.version, placed.is_new) == (1, False)
    aliases = client.get_registered_model("overtaken").aliases
    assert {name: int(version) for name, version in aliases.items()} == {"first": 1, "second": 1}


def test_of_a_selection_the_winner_alone_is_registered(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    go_without_ray(monkeypatch.setattr, tmp_path)
    spec = select_spec(tmp_path)
    tracking = spec.tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/mlflow.db"})
    result = sweep.run_sweep(spec.model_copy(update={"tracking": tracking}))
    made = register_model(result)
    assert made.trial == 0
    assert made.claim == made.alone == result.study_statement()
    with pytest.raises(BadInputError, match="has no trial 1"):
        register_model(result, 1)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    tags, _, metadata, _ = whole_label(client, "selection", "1")
    assert math.isclose(float(tags["dp.study_epsilon"]), made.claim.epsilon, abs_tol=1e-6)
    assert "dp.trial_epsilon" not in tags
    assert set(metadata["scores"]) <= set(result.best().metrics)
