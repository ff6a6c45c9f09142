"""Whole launches without Ray, killed at any write, in directories where anything may be deleted.

What runs is the product's own: ``run_checked``, the ledgers, the journal, Optuna, the execution of
a trial. Only the cluster and Tune's loop are replaced. ``ran`` is the truth: the events whose
steps were executed, whatever the files say afterwards.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from no_cluster import NoCluster
from whole_studies import make_spec

from dpsweep import sweep
from dpsweep.foundation import durable
from dpsweep.foundation.errors import SweepError
from dpsweep.ledgers.dataset import read_dataset_ledger
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import Plan
from dpsweep.results.study import load_sweep
from dpsweep.running import entries, features
from dpsweep.running.modes import final_run, probing, searching
from dpsweep.running.nodes import cluster
from dpsweep.running.stage import Stage
from dpsweep.schedulers.base import BarrierPolicy
from dpsweep.spec.study import SweepSpec
from dpsweep.study import study
from dpsweep.study.trial import Decision, TrialState
from dpsweep.trainables.execution import checkpoints
from dpsweep.trainables.execution.execution import TrialExecution
from dpsweep.trainables.execution.pace import Pace
from dpsweep.trainables.methods.dp_sgd import DPSGD

#: Files of a study, and how often all of a kind are deleted. What is left is worse than nothing.
KINDS = {
    "journal.jsonl": 0.6, "optuna.db": 0.6, "trials/*/*.json": 0.6, "trials/*/*.ckpt": 0.6,
    "ledger/trial-*.jsonl": 0.6, "ledger/study.jsonl": 0.02, "spec.yaml": 0.02,
    "data.sha256": 0.3, "lock": 0.3,
}  # fmt: skip
DELTA, TRIAL, STUDY, CAP = 1e-4, 2.0, 4.5, 10.0


class Killed(BaseException):
    """What is left of a process after ``kill -9``: nothing more is written."""


class MortalStudies:
    """Launches of one spec, again and again, under a random schedule of kills and deletions."""

    def __init__(self, root: Path, seed: int, monkeypatch, *, accounting: str):
        self.rng = random.Random(seed)
        self.root, self.accounting = root, accounting
        self.mode = "composed" if accounting in ("declared", "probe", "prefix") else accounting
        self.accountant = "pld" if accounting == "probe" else "rdp"
        self.budget = root / "digits.budget"
        self.study = root / "studies" / "mortal"
        self.ran: dict[str, dict[int, Plan]] = defaultdict(lambda: defaultdict(Plan))
        self.filters = {}
        self.num_launches = self.num_kills = self.num_refused = 0
        self._now: tuple[str, int] | None = None
        self._dead = False
        self._chance = 0.0
        self._deletes = False
        self._time = 0.0
        self._open: list[durable.DurableLog] = []
        self._patch(monkeypatch)

    @property
    def num_run(self) -> int:
        """Events that were executed, in all."""
        return sum(len(plan) for ran in self.ran.values() for plan in ran.values())

    @property
    def spec(self) -> SweepSpec:
        privacy = {
            "delta": DELTA, "trial_epsilon": TRIAL, "accounting": self.mode,
            "dataset_ledger": str(self.budget), "dataset_epsilon": CAP, "dataset_delta": 9e-4,
        }  # fmt: skip
        if self.mode == "composed":
            privacy["study_epsilon"] = STUDY
        if self.accounting in ("declared", "prefix"):
            privacy["composition"] = "declared"
        raw = make_spec(self.root, "mortal", tracking={"uri": None}, privacy=privacy)
        if self.accounting == "public":
            raw["data"]["public"] = {"fraction": 0.3}
        raw["search"] |= {"num_trials": 3, "space": {
            "method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]}, "train.max_steps": 4,
            "batch.expected": 64,
        }}  # fmt: skip
        if self.accounting == "prefix":
            raw["scheduler"] = {"type": "noisy_prefix"}
            raw["search"]["space"] |= {"noise.prefix_factor": 3, "noise.prefix_share": 0.5}
        raw["report"] = {"points": 2}
        if self.accounting == "probe":
            raw["search"] = {"strategy": "probe", "probe": {"num_probes": 3, "epsilon": 0.8}}
            raw["search"]["space"] = {
                "method": "dp_sgd", "optim.noise_lr": {"loguniform": [0.1, 100]},
                "train.max_steps": 4, "batch.expected": 64,
            }  # fmt: skip
        return SweepSpec(**raw)

    def _patch(self, monkeypatch):
        append, write = durable.DurableLog.append, durable.write_atomically
        opened = durable.DurableLog.__init__

        def mortal_open(log, path, **options):
            opened(log, path, **options)
            self._open.append(log)

        def mortal_append(log, record):
            self._may_die()
            result = append(log, record)
            self._may_die()
            return result

        def mortal_write(path, content, **options):
            self._may_die()
            write(path, content, **options)

        def run(method, start, stop, known=DPSGD.run):
            known(method, start, stop)
            study, trial = self._now
            self.ran[study][trial] = self.ran[study][trial] + self._charges.slice(start, stop)

        monkeypatch.setattr(durable.DurableLog, "__init__", mortal_open)
        monkeypatch.setattr(durable.DurableLog, "append", mortal_append)
        for module in (study, entries, checkpoints):
            monkeypatch.setattr(module, "write_atomically", mortal_write)
        monkeypatch.setattr(DPSGD, "run", run)
        monkeypatch.setattr(cluster, "TARGETS", {"local": NoCluster})
        monkeypatch.setattr(Stage, "execute", lambda *given: self._execute(*given))
        for module in (searching, final_run, probing, features):
            monkeypatch.setattr(module, "prefetch", lambda *args, **more: None)

    def _may_die(self):
        if self._deletes and self.rng.random() < self._chance / 2:
            self.delete(0.15)
        if self._dead or self.rng.random() < self._chance:
            self._dead = True
            raise Killed

    def _clock(self):
        """Return the time of a clock on which some steps take long: these are charged alone."""
        self._time += self.rng.choice([0.0, 1.0, 40.0])
        return self._time

    def _execute(self, stage, source, target):
        """Do what Tune does, one trial at a time."""
        stage.begin(source)
        stage._max_concurrent = 1
        while (task := source.next_task(num_running=0) or self._promoted(stage)) is not None:
            self._now, self._charges = (stage.ledger.study_id, task.trial), task.charges
            self.filters[stage.ledger.study_id] = stage.composition
            execution = TrialExecution(
                stage.study.files.trial(task.trial), task, settings=stage.settings(),
                data=stage.data, pace=Pace(self._clock),
            )  # fmt: skip
            try:
                is_paused = self._run(stage, execution)
            finally:
                execution.close()
            if not is_paused:
                stage.on_end(task.trial)
        moving = stage.study.view.count(TrialState.RUNNING)
        return "interrupted" if moving or not source.is_exhausted else "finished"

    @staticmethod
    def _run(stage, execution):
        """Run a trial to its end, or until the policy lets it wait; return whether it does."""
        while True:
            report = stage.on_report(execution.advance())
            verdict = stage.policy.on_report(report)
            if report.done:
                return False
            if verdict.rung is not None:
                stage.on_verdict(report, verdict)
            if verdict.decision is Decision.PAUSE:
                stage.on_pause(report.trial)
                execution.pause()
                return True

    @staticmethod
    def _promoted(stage):
        """Return the task of the next trial that passes the barrier; without one, end all others."""
        if not isinstance(stage.policy, BarrierPolicy):
            return None
        view, policy = stage.study.view, stage.policy
        paused = {n for n, trial in view.trials.items() if trial.state is TrialState.PAUSED}
        stage.live |= {n: stage.study.last_report(n) for n in paused}
        waiting = set(paused)
        while (trial := policy.choose_at_barrier(waiting, stage.running)) is not None:
            if stage._may_resume(trial):
                stage.on_verdict(stage.live[trial], policy.standing(trial))
                return stage.study.files.task(trial)
            waiting.remove(trial)
        for trial in sorted(paused):
            stage.on_verdict(stage.live[trial], policy.standing(trial))
            stage.on_end(trial)
        return None

    def launch(self, *, chance: float, deletes: bool = False) -> str:
        """Run the spec once; return how that went."""
        self.num_launches += 1
        self._dead, self._chance, self._deletes = False, chance, deletes
        try:
            sweep.run_checked(preflight(self.spec))
        except Killed:
            self.num_kills += 1
            for log in self._open:  # as the system does for a process
                log.close()
            return "killed"
        except SweepError as error:
            self.num_refused += 1
            return f"refused: {error.message}"
        finally:
            self._chance = 0.0
        return "ran"

    def delete(self, share: float) -> None:
        """Delete a random subset of the files of the study: all of some kinds, or one by one."""
        files = sorted(p for p in self.study.rglob("*") if p.is_file())
        if self.rng.random() < 0.6:
            most = 10 if self.rng.random() < 0.4 else 1  # all of what only trials leave behind
            gone = [kind for kind, often in KINDS.items() if self.rng.random() < most * often]
            files = [p for p in files if any(p.match(kind) for kind in gone)]
            share = 1.0
        for path in files:
            if self.rng.random() < share:
                path.unlink()
        if self.rng.random() < 0.5:  # an empty folder tells of its files
            for folder in sorted((p for p in self.study.rglob("*") if p.is_dir()), reverse=True):
                if not any(folder.iterdir()):
                    folder.rmdir()

    def check(self) -> str:
        """Compare what the files claim with what ran; return what they say of the study."""
        self._check_dataset()
        try:
            result = load_sweep("mortal", root=self.study.parent)
            claims = result.claims
            statement, trials = result.study_statement(), result.results
        except SweepError as error:
            return f"refused: {error.message}"
        ran = self.ran.get(claims.account.study_id, {})
        for trial in trials:
            alone = epsilon_of(
                ran.get(trial.trial_id, Plan()), delta=DELTA, accountant=self.accountant
            )
            assert trial.epsilon >= alone * (1 - 1e-9), (trial.trial_id, trial.epsilon, alone)
        if statement is None:
            return "nothing is claimed"
        self._check_spent(claims.account.study_id, statement.epsilon)
        return "claimed"

    def _check_spent(self, study_id: str, epsilon: float):
        ran = self.ran.get(study_id, {})
        everything = Plan(tuple(run for plan in ran.values() for run in plan.runs)).merged()
        if self.mode == "composed":
            assert epsilon == STUDY
            used = self.filters.get(study_id)
            assert not (everything and used is None)
            assert used is None or not used.is_over(used.cost(everything)), everything
            if self.accounting == "prefix":
                beyond = [
                    n for n, plan in ran.items() if any(r.phase == "train" for r in plan.runs)
                ]
                assert len(beyond) <= 1, ran
        else:
            spent = epsilon_of(everything, delta=DELTA, accountant=self.accountant)
            assert spent <= epsilon * (1 + 1e-9), (spent, epsilon)

    def _check_dataset(self):
        account = read_dataset_ledger(self.budget)
        charged = {study.study_id: study.epsilon for study in account.studies}
        assert account.epsilon <= CAP
        for study_id, ran in self.ran.items():
            if any(run.part == "private" for plan in ran.values() for run in plan.runs):
                assert study_id in charged
                if account.broken is None:
                    self._check_spent(study_id, charged[study_id])
