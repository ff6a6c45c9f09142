"""Policies on a real local Ray: real pauses, real promotions, the order of what is written."""

import dataclasses
import gc
import json
import os
import time
import warnings
from pathlib import Path

import pytest
from ray import tune
from ray.tune.search import Searcher

from dpsweep.foundation.errors import StorageError
from dpsweep.schedulers.epsilon_halving import EpsilonHalving
from dpsweep.schedulers.noisy_prefix import NoisyPrefix
from dpsweep.schedulers.ray_adapter import PastTune, PolicyScheduler, TuneListener
from dpsweep.study.trial import Decision, TrialReport

pytestmark = pytest.mark.ray
SLOTS, NUM_TRIALS, LAST = 2, 9, 4  # rungs at steps 1 and 2; a trial ends at step 4
SCORES = [0.41, 0.72, 0.13, 0.94, 0.35, 0.56, 0.87, 0.28, 0.69]


def trainable():
    """Return a class that Ray pickles by value: workers cannot import this module."""

    class Steps(tune.Trainable):
        """Counts steps and incarnations in its own directory, and reports like DPTrainable."""

        def setup(self, config):
            self.state = None

        @property
        def path(self):
            return Path(self.config["directory"]) / "state.json"

        def step(self):
            # Until there are two actors: one alone would be fast enough for all. Not for ever: on
            # a busy machine Ray may lose the CPU of a placement group that is removed while it
            # is created (ray-project/ray#64693).
            deadline = time.monotonic() + 30
            second = Path(self.config["directory"], "../1/state.json")
            while self.config["trial"] == 0 and not second.exists():
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            if self.state is None:  # as DPTrainable: a trial is opened by its first step
                old = json.loads(self.path.read_text()) if self.path.exists() else {}
                self.state = {
                    "step": old.get("step", 0),
                    "pids": [*old.get("pids", []), os.getpid()],
                }
            self.state["step"] += 1
            self.path.write_text(json.dumps(self.state))
            step, trial = self.state["step"], self.config["trial"]
            report = TrialReport(
                trial,
                step,
                {"score": SCORES[trial]},
                step / 2,
                rung=min(step, 2),
                done=step == LAST,
            )
            return {"done": report.done, "report": dataclasses.asdict(report), **report.metrics}

        def save_checkpoint(self, checkpoint_dir):
            flag = self.path.with_name("die-in-save")
            if flag.exists():
                flag.unlink()
                os._exit(1)
            (Path(checkpoint_dir) / "pointer.json").write_text("{}")

        def load_checkpoint(self, checkpoint_dir):
            pass

        def reset_config(self, new_config):
            self.state = None
            return True

    return Steps


class Study(Searcher):
    """Searcher and listener of a made-up study; notes every call and counts who runs."""

    def __init__(self, root, earlier=()):
        super().__init__()
        self.root, self.calls, self.reports = root, [], []
        self.running, self.most_at_once, self.scheduler = set(), 0, None
        self.waiting = [n for n in range(NUM_TRIALS) if n not in earlier]
        self.earlier = list(earlier)
        self.is_done = False
        for number in range(NUM_TRIALS):
            self.directory(number).mkdir(exist_ok=True)

    def directory(self, number):
        return self.root / str(number)

    def state(self, number):
        return json.loads((self.directory(number) / "state.json").read_text())

    def suggest(self, trial_id):
        if self.earlier:
            number = self.earlier.pop(0)
            return {"trial": number, "directory": str(self.directory(number)), "cpu": 1, "gpu": 0}
        if not self.waiting:
            self.is_done = True
            return Searcher.FINISHED
        if len(self.running) >= SLOTS or self.scheduler.is_resuming:
            return None
        number = self.waiting.pop(0)
        self.note("suggest", number)
        self.start(number)
        return {"trial": number, "directory": str(self.directory(number)), "cpu": 1, "gpu": 0}

    def start(self, number):
        self.running.add(number)
        self.most_at_once = max(self.most_at_once, len(self.running))

    def may_resume(self, number):
        if len(self.running) >= SLOTS:
            return False
        self.note("resume", number)
        self.start(number)
        return True

    def note(self, *call):
        self.calls.append(call)

    def on_report(self, report):
        self.note("report", report.trial, report.step)
        self.reports.append(report)
        return report

    def on_verdict(self, report, verdict):
        self.note("verdict", report.trial, report.step, verdict.decision.value)

    def on_pause(self, trial):
        self.note("pause", trial)
        self.running.discard(trial)

    def on_end(self, trial, *, died=False):
        self.note("died" if died else "end", trial)
        self.running.discard(trial)

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass

    def __getstate__(self):
        return {"metric": None, "mode": None}

    def of(self, number):
        """Return the calls about one trial, without its number."""
        return [(call[0], *call[2:]) for call in self.calls if call[1] == number]


def halving(variant, factor=3):
    return EpsilonHalving(
        metric="score", maximize=True, num_rungs=2, variant=variant, reduction_factor=factor
    )


def run(study, policy, *, may_resume=None, paused=()):
    study.scheduler = PolicyScheduler(
        policy,
        study,
        may_resume=may_resume or study.may_resume,
        search_is_done=lambda: study.is_done,
        paused=paused,
    )
    tuner = tune.Tuner(
        tune.with_resources(trainable(), {"cpu": 1}),
        tune_config=tune.TuneConfig(
            search_alg=study,
            scheduler=study.scheduler,
            num_samples=-1,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(study.root / "ray"),
            verbose=0,
            callbacks=[TuneListener(study)],
            failure_config=tune.FailureConfig(max_failures=3),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    return tuner.fit()


def check_replay(study, policy):
    """The verdicts in the log are those of a policy that is shown the reports of the log."""
    replayed = []
    for report in study.reports:
        verdict = policy.on_report(report)
        if verdict.rung is not None:
            replayed.append(("verdict", report.trial, report.step, verdict.decision.value))
    told = [
        call
        for before, call in zip(study.calls, study.calls[1:], strict=False)
        if call[0] == "verdict" and before[0] == "report"
    ]
    assert told == replayed


@pytest.fixture(autouse=True)
def _quiet(ray_cluster, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", str(SLOTS))
    monkeypatch.setenv("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")


def test_stop(tmp_path):
    study = Study(tmp_path)
    run(study, halving("stop"))
    check_replay(study, halving("stop"))
    for number in range(NUM_TRIALS):
        calls = study.of(number)
        step = study.state(number)["step"]
        assert [c[0] for c in calls].count("report") == step
        assert calls[-1] == ("end",)
        if step == LAST:
            assert calls[-2] == ("report", LAST)
        else:
            assert calls[-3:] == [("report", step), ("verdict", step, "stop"), ("end",)]
        assert len(study.state(number)["pids"]) == 1
    assert study.state(3)["step"] == LAST  # nobody is better
    assert study.state(2)["step"] == 1  # all are better, two of them came before
    assert study.most_at_once == SLOTS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fails_at", ["report", "end", "verdict"])
def test_what_cannot_be_written_ends_the_run_and_no_trial_is_tried_again(tmp_path, fails_at):
    """Tune takes an error at a trial's end for a crash of its process, which it would repeat."""

    class FullDisk(Study):
        def on_report(self, report):
            if fails_at == "report" and report.done:
                raise StorageError("the disk is full", fix="make room")
            return super().on_report(report)

        def on_verdict(self, report, verdict):
            if fails_at == "verdict":
                raise StorageError("the disk is full", fix="make room")
            super().on_verdict(report, verdict)

        def on_end(self, trial, *, died=False):
            assert not died
            if fails_at == "end":
                raise StorageError("the disk is full", fix="make room")
            super().on_end(trial, died=died)

    study = FullDisk(tmp_path)
    with pytest.raises(PastTune) as caught:
        run(study, halving("stop"))
    assert isinstance(caught.value.error, StorageError)
    study.scheduler.release_actors()
    paths = [study.directory(number) / "state.json" for number in range(NUM_TRIALS)]
    states = [json.loads(path.read_text()) for path in paths if path.exists()]
    assert states
    assert all(len(state["pids"]) == 1 for state in states)
    del caught, study
    with warnings.catch_warnings():  # Tune leaves its own files open, for Python to close
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_promote(tmp_path):
    study = Study(tmp_path)
    run(study, halving("promote"))
    check_replay(study, halving("promote"))
    assert not study.running
    reached = {number: study.state(number)["step"] for number in range(NUM_TRIALS)}
    steps = {n: [c[1] for c in study.of(n) if c[0] == "report"] for n in reached}
    # Every trial went on from where it was paused: no step was reported twice or left out.
    assert steps == {number: list(range(1, step + 1)) for number, step in reached.items()}
    assert min(reached.values()) == 1
    assert reached[3] == LAST
    # The three best of nine are promoted, whoever else was before; all others wait at a rung.
    assert all(reached[number] >= 2 for number in (3, 6, 1))
    assert set(reached.values()) <= {1, 2, LAST}
    pause = ["report", "verdict", "pause"]
    go_on = ["resume", "verdict"]
    ways = {
        1: ["suggest", *pause, "verdict", "end"],
        2: ["suggest", *pause, *go_on, *pause, "verdict", "end"],
        LAST: ["suggest", *pause, *go_on, *pause, *go_on, "report", "report", "end"],
    }
    for number, step in reached.items():
        assert [call[0] for call in study.of(number)] == ways[step]
        assert len(study.state(number)["pids"]) == {1: 1, 2: 2, LAST: 3}[step]
    given_up = [n for n, step in reached.items() if step < LAST]
    assert study.calls[-2 * len(given_up) :] == [
        call
        for n in given_up
        for call in (("verdict", n, reached[n], Decision.STOP.value), ("end", n))
    ]
    # Paused trials occupy nothing: the others ran in the same two slots, on reused actors.
    assert study.most_at_once == SLOTS
    pids = [pid for number in reached for pid in study.state(number)["pids"]]
    assert len(set(pids)) < len(pids) / 2


def test_a_barrier(tmp_path):
    study, policy = Study(tmp_path), NoisyPrefix(metric="score", maximize=True, keep=2)
    run(study, policy)
    reached = {number: study.state(number)["step"] for number in range(NUM_TRIALS)}
    assert {number for number, step in reached.items() if step == LAST} == {3, 6}
    assert {step for number, step in reached.items() if number not in (3, 6)} == {1}
    names = [call[0] for call in study.calls]
    resumed = [place for place, call in enumerate(study.calls) if call[0] == "resume"]
    assert [study.calls[place][1] for place in resumed] == [3, 6]  # the best one first
    assert names[: resumed[0]].count("pause") == NUM_TRIALS  # nobody goes on before all are there
    for number, step in reached.items():
        way = ["resume", "verdict", *["report"] * (LAST - 1)] if step == LAST else ["verdict"]
        calls = [call[0] for call in study.of(number)]
        assert calls == ["suggest", "report", "verdict", "pause", *way, "end"]
    assert study.most_at_once == SLOTS
    assert not study.running


@pytest.mark.slow
def test_promotions_come_before_new_trials(tmp_path):
    study = Study(tmp_path)
    run(study, halving("promote", factor=2))
    order = [call[:2] for call in study.calls if call[0] in ("suggest", "resume")]
    first = next(place for place, call in enumerate(order) if call[0] == "resume")
    # As soon as two are paused the better one goes on, when at most one other trial runs.
    assert 2 <= first <= 3


def test_nothing_hangs_when_no_trial_may_go_on(tmp_path):
    asked = []
    study = Study(tmp_path)
    run(study, halving("promote"), may_resume=lambda number: asked.append(number) or False)
    assert [study.state(number)["step"] for number in range(NUM_TRIALS)] == [1] * NUM_TRIALS
    assert {3, 6, 1} <= set(asked)
    for number in range(NUM_TRIALS):
        assert [call[0] for call in study.of(number)] == [
            "suggest", "report", "verdict", "pause", "verdict", "end",
        ]  # fmt: skip


def test_an_actor_that_dies_while_it_saves_leaves_its_trial_paused(tmp_path):
    study = Study(tmp_path)
    for number in (2, 3):
        (study.directory(number) / "die-in-save").touch()
    run(study, halving("promote"))
    check_replay(study, halving("promote"))
    assert not (study.directory(2) / "die-in-save").exists()
    assert study.state(2) == {
        "step": 1,
        "pids": study.state(2)["pids"][:1],
    }  # the worst, never run on
    assert study.state(3)["step"] == LAST
    calls = study.of(3)
    assert calls[1:6] == [
        ("report", 1), ("verdict", 1, "pause"), ("pause",), ("resume",), ("verdict", 1, "continue"),
    ]  # fmt: skip
    assert calls[-1] == ("end",)


@pytest.mark.slow
def test_trials_that_an_earlier_launch_paused(tmp_path):
    earlier = [TrialReport(n, 1, {"score": SCORES[n]}, 0.5, rung=1) for n in range(4)]
    policy = halving("promote", factor=2)
    for report in earlier:
        policy.on_report(report)
        (tmp_path / str(report.trial)).mkdir()
        state = {"step": 1, "pids": [0]}
        (tmp_path / str(report.trial) / "state.json").write_text(json.dumps(state))
    study = Study(tmp_path, earlier=[report.trial for report in earlier])
    run(study, policy, paused=earlier)
    steps = [study.state(number)["step"] for number in range(NUM_TRIALS)]
    assert (steps[3], steps[2]) == (LAST, 1)
    assert study.calls[:2] == [("resume", 3), ("verdict", 3, 1, "continue")]
    assert [call[0] for call in study.of(2)] == ["verdict", "end"]
    assert all(study.of(number)[-1] == ("end",) for number in range(NUM_TRIALS))
