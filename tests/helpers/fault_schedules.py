"""Sweeps on three nodes of one machine, with faults at seeded moments; what ran is counted outside.

The network of the sweep is a file of its own, which notes every step before it is run. So the
truth does not come from what dpsweep writes.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import yaml
from ray.cluster_utils import Cluster
from whole_studies import children, kill_driver, make_spec, openings

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import steps_charged, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep
from dpsweep.study.files import StudyFiles
from dpsweep.study.trial import TrialState

NETS = """
import os, time
from pathlib import Path

from torch import nn

from dpsweep.trainables.methods.dp_sgd import DPSGD

run = DPSGD.run


def noted(method, start, stop):
    line = f"{method._context.trial} {start} {stop}\\n"
    file = os.open(Path(__file__).parent / "ran.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
    time.sleep(0.04 * (stop - start))
    run(method, start, stop)


DPSGD.run = noted


class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        channels, height, width = input_shape
        self.fc = nn.Linear(channels * height * width, num_classes)

    def forward(self, x):
        return self.fc(x.flatten(1))

    def get_classifier(self):
        return self.fc
"""
FAULTS = ("node removed", "actor killed", "actor told to leave", "driver killed")
AWAY_S = 2.0  # how long a killed database is away
STEPS = 24
_PATIENCE_S = 600.0


class ThreeNodes:
    """A Ray cluster of three nodes on this machine; the head is never removed."""

    def __init__(self):
        quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
        # Without it, `address: auto` of whoever else is on this machine would come here.
        with mock.patch("ray._private.utils.write_ray_address"):
            self.cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": quick},
            )
        self._num_added = 0
        for _ in range(2):
            self._add_node()

    def _add_node(self) -> None:
        """Let a node come that unpacks what is shipped to it into a directory of its own.

        Nodes of one session share it else, which nodes of several machines would not.
        """
        self._num_added += 1
        name = f"runtime_resources_{self._num_added}"
        self.cluster.add_node(num_cpus=1, runtime_env_dir_name=name)

    @property
    def address(self) -> str:
        return self.cluster.address

    def replace_node(self, rng: random.Random) -> None:
        """Kill all processes of a node, then let another one come."""
        nodes = sorted(self.cluster.worker_nodes, key=lambda node: node.raylet_socket_name)
        self.cluster.remove_node(rng.choice(nodes), allow_graceful=False)
        self._add_node()

    def end(self) -> None:
        self.cluster.shutdown()


class FaultySweep:
    """One sweep under one seeded schedule.

    Args:
        root: An empty directory.
        nodes: Where it runs.
        seed: Of the schedule: which faults in which order, at which moments.
        num_trials: Of the sweep.
        faults: Each of them comes once.
        max_failures: Of a trial.
        server: The PostgreSQL server (``tests.helpers.postgres``) that its ledgers are on; it is
            killed, too, and started again. None: they are files.
    """

    def __init__(
        self, root, nodes, seed, *, num_trials, faults=FAULTS, max_failures=3, server=None
    ):
        self.root, self.nodes, self.num_trials, self.server = root, nodes, num_trials, server
        if server is not None:
            faults = (*faults, "database killed")
        self.rng = random.Random(seed)
        self.faults = self.rng.sample(faults, len(faults))
        (root / "nets.py").write_text(NETS)
        spec = make_spec(
            root, "faulty", report={"points": 4},
            cluster={"target": "ray", "address": nodes.address},
            resources={"cpu": 1, "max_failures": max_failures},
        )  # fmt: skip
        address = None if server is None else server.make(f"seed-{seed}")
        if address is not None:
            spec["storage"]["database"] = address
        spec["search"] |= {"num_trials": num_trials, "space": {
            "method": "dp_sgd", "model.name": "nets:Net", "optim.lr": {"loguniform": [0.1, 4]},
            "train.max_steps": STEPS, "batch.expected": 64,
        }}  # fmt: skip
        self.path = root / "faulty.yaml"
        self.path.write_text(yaml.safe_dump(spec))
        files = StudyFiles(root / "studies", "faulty", address)
        self.ledger, self.journal = files.ledger, files.journal
        self.happened, self.kept, self.num_launches = [], {}, 0
        self.process = None

    def change(self, *, nets: str, resources: dict) -> None:
        """Add to the file of the network, and to what the spec says of resources."""
        with (self.root / "nets.py").open("a") as file:
            file.write(nets)
        spec = yaml.safe_load(self.path.read_text())
        spec["resources"] |= resources
        self.path.write_text(yaml.safe_dump(spec))

    def start(self) -> None:
        self.num_launches += 1
        with (self.root / "stderr.txt").open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dpsweep", "run", str(self.path)],
                cwd=self.root, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
            )  # fmt: skip

    def run(self) -> None:
        """Launch until it is done; each fault comes when so many more reports have come."""
        self.start()
        deadline, seen = time.monotonic() + _PATIENCE_S, 0
        waiting = list(self.faults)
        apart = max(1, 4 * self.num_trials // (len(waiting) + 2))
        due = self.rng.randint(1, apart)
        while True:
            assert time.monotonic() < deadline, self.words()
            if self.process.poll() is not None:
                assert self.process.returncode == 0, self.words()
                break
            seen = self.num_reports()
            if waiting and seen >= due and self.happens(waiting[0]):
                self.happened.append(waiting.pop(0))
                due = seen + self.rng.randint(1, apart)
            time.sleep(0.05)
        assert not waiting, f"it was over before {waiting}"

    def happens(self, fault: str) -> bool:
        """Let a fault happen; False if there is nothing it could hit now."""
        self.note_kept()
        if fault == "node removed":
            self.nodes.replace_node(self.rng)
        elif fault == "driver killed":
            kill_driver(self.process, self.ledger)
            self.start()
        elif fault == "database killed":
            self.server.kill()
            time.sleep(AWAY_S)
            self.server.start()
        else:
            actors = self.actors()
            if not actors:
                return False
            number = signal.SIGKILL if fault == "actor killed" else signal.SIGTERM
            try:
                os.kill(self.rng.choice(actors), number)
            except ProcessLookupError:  # its trial has ended meanwhile
                return False
        return True

    def actors(self) -> list[int]:
        """Return the processes that have opened a trial's ledger and still live."""
        pids = {pid for pids in openings(self.ledger).values() for pid in pids}
        return sorted(pid for pid in pids if Path(f"/proc/{pid}").exists())

    def num_reports(self) -> int:
        try:
            journal = read_log(self.journal)
        except FileNotFoundError:
            return 0
        return sum(record["event"] in ("trial_report", "trial_ended") for record in journal)

    def note_kept(self) -> None:
        """Remember the scores of trials that have ended: no fault may change them."""
        if self.journal.exists():
            view = load_sweep("faulty", root=self.root / "studies").view
            done = (t for t in view.trials.values() if t.state is TrialState.FINISHED)
            self.kept |= {trial.trial: (trial.value, trial.step) for trial in done}

    def words(self) -> str:
        return f"{self.happened}: " + (self.root / "stderr.txt").read_text()[-4000:]

    def ran(self) -> Counter:
        """Return trial -> the steps that were begun, from what its own network noted."""
        ran = Counter()
        for line in (self.root / "ran.txt").read_text().splitlines():
            trial, start, stop = map(int, line.split())
            ran[trial] += stop - start
        return ran

    def check(self) -> None:
        """Hold the study to what ran, and everything that shows it to the study."""
        result, ran, said = (
            load_sweep("faulty", root=self.root / "studies"),
            self.ran(),
            self.words(),
        )
        trials = result.view.trials
        assert sorted(trials) == list(range(self.num_trials)), said
        assert {t.state for t in trials.values()} == {TrialState.FINISHED}, said
        for number, trial in trials.items():
            charged = steps_charged(result.files.ledger, number)
            spent = trial_spent(result.files.ledger, number)
            assert charged >= ran[number] >= trial.step, (number, charged, ran[number])
            assert len(spent) == trial.charged == charged
            assert trial.epsilon >= epsilon_of(spent, delta=result.spec.privacy.delta) * (1 - 1e-9)
            assert trial.epsilon <= result.spec.privacy.trial_epsilon
        for number, (value, step) in self.kept.items():
            assert (trials[number].value, trials[number].step) == (value, step)
        if self.kept:
            best = max(value for value, _ in self.kept.values())
            assert result.best().value >= best
        rows = children(self.root)
        assert [(state, int(number)) for state, number in rows] == [
            ("FINISHED", number) for number in range(self.num_trials)
        ]
        assert "Traceback" not in (self.root / "stderr.txt").read_text()
