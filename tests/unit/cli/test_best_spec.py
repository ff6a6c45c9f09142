"""``best --as-spec``: the best configuration of any study is a spec that the tool takes back."""

import re
import shutil
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from raw_specs import LEFT_OUT, changed
from whole_studies import cli_here, make_spec
from written_studies import COMPOSED as BUDGET
from written_studies import write_study

from dpsweep.cli.best_spec import cost_text, spec_of_trial, spec_text
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.search_spaces import preset_spec, preset_titles, starter_spec
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import enforced_terms
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialState, TrialTask
from dpsweep.trainables import TRAINABLES

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
TEXTS = {
    **{f"preset {name}": preset_spec(name) for name in preset_titles()},
    **{f"starter {data}": starter_spec(data) for data in ("digits", "npz", "image_folder", "text")},
    **{
        f"starter {method}": starter_spec("fashion_mnist", method)
        for method in ("dp_sgd", "scatternet", "adamix", "bitfit", "sparse", "active_learning")
    },
    **{f"example {path.stem}": path.read_text() for path in EXAMPLES},
}


METHOD = "active_learning"
PLAN = Plan((EventRun(PoissonGaussian(4.0, 0.1), 10),))


class OneTrial(SweepResult):
    """A study of one trial, of which nothing is on record but how it was admitted."""

    def __init__(self, spec, task):
        self.spec, self._task = spec, task

    def task(self, number):
        return self._task


def some_points(spec, count=3):
    """Return some configurations of a space."""
    space = SearchSpace.from_spec(spec.space)
    rng = np.random.default_rng(0)
    return [space.sample(rng) for _ in range(count)]


def whole(method, values):
    """Return every hyperparameter of a configuration, as a trial has it."""
    given = {key: value for key, value in values.items() if key not in ("method", EPISODE)}
    return resolve(TRAINABLES[method].hyperparameters, given)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("preset") and n % 3 else ())
        for n, name in enumerate(TEXTS)
    ],
)
def test_a_configuration_of_each_paper_and_starter_is_a_spec_again(name):
    spec = read_spec(TEXTS[name])
    for point in some_points(spec):
        task = TrialTask(
            spec.num_starts, point["method"], whole(point["method"], point), PLAN, 1.0, True
        )
        found = spec_of_trial(OneTrial(spec, task), spec.num_starts)
        again = read_spec(found.to_yaml())  # as `validate` reads it: methods, ranges, every rule
        (only,) = SearchSpace.from_spec(again.search.space).grid()
        assert only["method"] == point["method"]
        assert whole(only["method"], only) == task.hparams
        assert again.name == f"{spec.name[:59]}-best"
        assert again.scheduler.type == "fifo"
        assert again.privacy.dataset_ledger == spec.privacy.dataset_ledger


ACTIVE = {
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.3},
    },
    "start": {
        "epsilons": [1.0, 2.0],
        "runs": 2,
        "hyperparameters": {"model.name": "tanh_cnn", "batch.expected": 90, "train.max_steps": 20},
    },
    "privacy": {
        "accounting": "composed", "trial_epsilon": 3.0, "study_epsilon": 9.0, "delta": 1e-5,
    },
    "search/sampler": "grid",
    "search/space": {
        "method": "active_learning",
        "start.epsilon": 1.0,
        "start.run": 1,
        "select.by": {"choice": ["margin", "near_private"]},
        "select.candidates": 200,
        "labels.max": 50,
    },
}  # fmt: skip
PRETRAINED = {
    "data/classes": [5, 6, 7, 8, 9],
    "pretrain": {"classes": [0, 1, 2, 3, 4], "model": "tanh_cnn", "epochs": 1},
    "search/sampler": "grid",
    "search/space": {
        "method": "dp_sgd",
        "model.name": "tanh_cnn",
        "model.checkpoint": {"choice": ["pretrain", None]},
        "batch.expected": 100,
    },
}
COMPOSED = {"privacy/accounting": "composed", "privacy/study_epsilon": 6.0}
# Name -> changes of a study on digits, the accounting of its best configuration, its budget.
STUDIES = {
    "composed, halved, noisy": (
        {
            **COMPOSED,
            "data/validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.02},
            "scheduler": {"type": "epsilon_halving"},
            "search/max_time": 60,
            "search/space/noise.target_epsilon": {"choice": [1, 2]},
        },
        "composed",
        2.0,
    ),
    "adamix without its noise": (
        {
            **COMPOSED,
            "data/public": {"fraction": 0.1},
            "search/space": {
                "method": "adamix", "noise.noise_multiplier": None, "train.max_steps": 5,
            },
        },
        "composed",
        2.0,
    ),
    "noise that is searched": (
        {
            **COMPOSED,
            "search/space": {
                "method": "dp_sgd", "batch.expected": 90, "train.max_steps": 10,
                "noise.noise_multiplier": {"choice": [4.0, 6.0, 9.0]},
            },
        },
        "composed",
        2.0,
    ),
    "two goals": (
        {
            **COMPOSED,
            "search/sampler": "nsga2",
            "search/objectives": ["validation/accuracy", "dp/epsilon"],
        },
        "composed",
        2.0,
    ),
    "first points": (
        {"search/points_to_evaluate": [{"optim.lr": 1.0}]}, "unaccounted", None,
    ),
    "select": (
        {
            "privacy/accounting": "select",
            "privacy/selection": {"mean": 4},
            "privacy/study_epsilon": 9.0,
            "search/num_trials": LEFT_OUT,
        },
        "composed",
        2.0,
    ),
    "public by pld": (
        {
            "privacy/accounting": "public",
            "privacy/accountant": "pld",
            "data/public": {"fraction": 0.2},
        },
        "public",
        None,
    ),
    "exact, without privacy": (
        {
            "data/validation/visibility": "exact",
            "search/space": {"method": {"choice": ["dp_sgd", "non_private"]}, "optim.lr": 0.5},
        },
        "unaccounted",
        None,
    ),
    "episodes": (
        {
            "episodes": {"shots": 5, "queries": 5, "number": 3},
            "search/sampler": LEFT_OUT,
            "search/num_trials": LEFT_OUT,
            "search/space": {"method": "dp_sgd", "optim.lr": {"choice": [0.1, 1]},
                             "batch.expected": 10, "train.max_steps": 3},
        },
        "unaccounted",
        None,
    ),
    "start": (ACTIVE, "composed", 3.0),
    "pretrained": (PRETRAINED, "unaccounted", None),
}  # fmt: skip


SLOW = pytest.param("public by pld", marks=pytest.mark.slow)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [SLOW if n == SLOW.values[0] else n for n in STUDIES])
def test_the_best_of_every_mode_is_planned_as_it_was(name, tmp_path):
    """The spec passes what ``validate`` checks, and the trial it plans trains by the same plan."""
    changes, accounting, budget = STUDIES[name]
    checked = preflight(SweepSpec(**changed(make_spec(tmp_path), changes)))
    study = Study(checked.spec)
    tasks = list(checked.start_tasks)
    is_grid = checked.spec.search.sampler == "grid"
    for point in checked.space.grid() if is_grid else checked.draw(6):
        tasks.append(checked.admit(len(tasks), point))
    for task in tasks:
        study.write_task(task)
    StudyLedger(study.files.ledger, terms=enforced_terms(checked.spec)).close()
    study.close()
    result = load_sweep(checked.spec.name, root=tmp_path / "studies")
    for task in tasks:
        again = preflight(read_spec(spec_of_trial(result, task.trial).to_yaml()))
        again.check_some_plan()
        choose_composition(again)
        choose_selection(again)
        assert (again.num_trials, again.spec.privacy.accounting) == (
            1 if checked.spec.episodes is None else 3, accounting,
        )  # fmt: skip
        is_start = task.trial < checked.spec.num_starts
        assert (again.spec.start is not None) == (checked.spec.start is not None and not is_start)
        assert (again.spec.pretrain is not None) == (
            task.hparams.get("model.checkpoint") == "pretrain"
        )
        point = dict(again.space.grid()[0])
        if EPISODE in point:
            point[EPISODE] = task.hparams[EPISODE]
        planned = again.admit(task.trial, point)
        ignored = {"noise.target_epsilon"} if is_start else set()
        assert {k: v for k, v in planned.hparams.items() if k not in ignored} == {
            k: v for k, v in task.hparams.items() if k not in ignored
        }
        assert planned.plan == task.plan
        assert planned.inherited == task.inherited
        if budget is not None and not is_start:
            least = most = budget
            if "start" in changes:
                most = checked.spec.privacy.study_epsilon
            elif task.planned_epsilon < 0.99 * budget:  # it has its own noise, or its own target
                # A filter of one order cannot do with less than a per cent more, where that is tiny.
                least, most = task.planned_epsilon, 1.03 * task.planned_epsilon + 1e-4
            assert least <= again.spec.privacy.study_epsilon <= most
            assert again.spec.privacy.trial_epsilon <= most


@pytest.fixture
def finished(tmp_path):
    """A study of three trials that has finished, without a run."""
    ledger = {"dataset_ledger": str(tmp_path / "digits.budget"), "dataset_epsilon": 20.0}
    write_study(tmp_path, [1, 0.5, 1], privacy={**BUDGET, **ledger, "dataset_delta": 1e-4})
    return tmp_path


def test_the_file_says_where_it_is_from_and_what_it_costs(finished):
    found = cli_here("best", "digits", "--root", finished / "studies", "--as-spec")
    assert found.returncode == 0, found.stderr
    comment = " ".join(
        line.removeprefix("#").strip() for line in found.stdout.splitlines() if line[:1] == "#"
    )
    assert "trial 0 of study 'digits', validation/accuracy=0.5000" in comment
    assert "SPENDS PRIVACY AGAIN: epsilon <= 2.0000 for all that it releases" in comment
    for term in ("delta=1e-05", "unit=example", "add_or_remove_one", "sampling=poisson", "rdp",
                 "accounting=composed", "dataset's ledger is charged once more",
                 "winner's curse"):  # fmt: skip
        assert term in comment
    (finished / "best.yaml").write_text(found.stdout)
    valid = cli_here("validate", finished / "best.yaml")
    assert valid.returncode == 0, valid.stderr
    assert re.search("study 'digits-best', at most 1 trial", valid.stderr)
    spec = read_spec(finished / "best.yaml")
    assert spec.privacy.dataset_ledger == str(finished / "digits.budget")
    refused = cli_here("best", "digits", "--root", finished / "studies", "--as-spec", "-f", "json")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_start_run_that_is_the_best_is_run_alone(tmp_path):
    checked = preflight(SweepSpec(**changed(make_spec(tmp_path), ACTIVE)))
    study = Study(checked.spec)
    study.write_task(checked.start_tasks[0])
    StudyLedger(study.files.ledger, terms=enforced_terms(checked.spec)).close()
    study.close()
    result = load_sweep(checked.spec.name, root=tmp_path / "studies")
    spec = spec_of_trial(result, 0)
    assert (spec.privacy.trial_epsilon, spec.privacy.study_epsilon) == (2.0, 2.0)
    best = SimpleNamespace(
        trial_id=0, metric="validation/accuracy", value=0.5, state=TrialState.FINISHED
    )
    assert "epsilon <= 2.0000" in spec_text(result, best)


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Studies of an earlier version, to be run again."""
    shutil.copytree(Path(__file__).parents[2] / "golden" / "old_studies", tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "studies"


def reproduce(*arguments):
    return cli_here("reproduce", *arguments, "--dry-run")


@pytest.mark.parametrize("name", ["composed", "unaccounted", "public", "select", "features"])
def test_a_trial_is_reproduced_as_a_study_that_passes_every_check(old, name):
    done = reproduce(name, "0", "--root", old)
    assert done.returncode == 0, done.stderr
    checked = preflight(read_spec(done.stdout))
    choose_composition(checked)
    assert checked.spec.name == f"{name}-trial-0"
    assert load_sweep(name, root=old).trial(0).config["method"] == checked.spec.space["method"]
    assert not (old / checked.spec.name).exists()


def test_repetitions_fit_into_the_budget_that_is_asked_for_them(old):
    done = reproduce("composed", "0", "--seeds", "3", "--root", old)
    assert done.returncode == 0, done.stderr
    checked = preflight(read_spec(done.stdout))
    plan = load_sweep("composed", root=old).files.task(0).full_plan
    chosen = choose_composition(checked)
    cost = 3 * max(chosen.cost(plan).values())
    assert 0.97 * chosen.budget < cost <= chosen.budget
    assert checked.spec.space["train.repeat"] == {"choice": [0, 1, 2]}
    assert f"{checked.spec.privacy.study_epsilon:.4f}" in done.stdout.split("name:")[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["public", "0", "--seeds", "2"], "has one private run"),
        (["composed", "77"], "has no trial 77"),
        (["composed", "0", "--name", "composed"], "composed"),
        (["composed", "0", "--name", "a/b"], "a/b"),
        (["composed", "0", "--seeds", "0"], "--seeds"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_in_a_line(old, arguments, says):
    done = reproduce(*arguments, "--root", old)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("changes", "event", "is_free"),
    [
        ({}, "public", True),
        ({}, "private", False),
        ({}, "validation", False),
        ({"start": {**ACTIVE["start"]}}, "public", False),  # which is trained anew
        ({"data/validation": {"fraction": 0.2, "visibility": "exact"}}, "public", False),
        ({"privacy/dataset_ledger": "d.budget", "privacy/dataset_epsilon": 9}, "public", False),
    ],
)
def test_a_configuration_that_reads_no_private_record_spends_nothing(
    tmp_path, changes, event, is_free
):
    alone = {"finetune.recipe": "labels_only", "select.by": "random", "labels.max": 50}
    network = {"hyperparameters": {"model.name": "tanh_cnn"}}
    start = {"start": {"runs": 0, **network}, "search/space": {"method": METHOD, **alone}}
    if "exact" in str(changes):
        changes = {**changes, "privacy/accounting": "unaccounted", "privacy/study_epsilon": None}
    if "privacy/dataset_ledger" in changes:
        changes = {**changes, "privacy/dataset_delta": 1e-4}
    spec = SweepSpec(
        **changed(make_spec(tmp_path, "free"), {**deepcopy(ACTIVE), **start, **changes})
    )
    plan = Plan((EventRun(PoissonGaussian(4.0, 0.1), 10, part=event),))
    task = TrialTask(spec.num_starts, METHOD, whole(METHOD, alone), plan, 0.0, True)
    said = cost_text(SimpleNamespace(name="free"), spec, task)
    assert ("SPENDS PRIVACY AGAIN: epsilon <= " in said) is not is_free
    if is_free:
        assert said == "Running it reads no private record: all of its plan is on public ones."
