"""What ``dpsweep plan`` says of memory: what was measured, how many trials fit, what to set."""

import json
import time

import pytest
import torch
from gpus import GIB, FakeGpu
from raised import PanicException, raising
from whole_studies import make_spec

from dpsweep.cli.app import app
from dpsweep.planning import forecast
from dpsweep.planning.costs import memory as costs
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.devices.peaks import PeakMemory
from dpsweep.trainables.devices.sharing import CONTEXT_BYTES, MIB
from dpsweep.trainables.execution import measure as measuring
from dpsweep.trainables.execution.measure import Measurement, measure
from dpsweep.trainables.methods.dp_sgd import DPSGD

SPACE = {"method": "dp_sgd", "train.max_steps": 5}


@pytest.fixture
def plan(tmp_path, capsys):
    """Return a function that plans a study: what it prints, and what it says beside that."""

    def run(*options, **changes):
        spec = make_spec(tmp_path, search__space=SPACE, **changes)
        (tmp_path / "spec.yaml").write_text(json.dumps(spec))
        app(["plan", str(tmp_path / "spec.yaml"), *options], standalone_mode=False)
        said = capsys.readouterr()
        return " ".join(said.out.split()), said.err

    return run


def on_gpu(monkeypatch, allocated, total=80 * GIB):
    """Let every configuration take so much of a made-up GPU."""
    peak = PeakMemory("cuda", allocated, int(1.1 * allocated), CONTEXT_BYTES)
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: Measurement(0.1, 0.1, 1000, peak))
    monkeypatch.setattr(costs, "visible_gpu", lambda: FakeGpu(total))


def test_memory_is_measured_on_the_cpu_and_said(plan):
    record = json.loads(plan("--json")[0])
    (figures,) = record["estimate"]["memory"]
    assert (figures["method"], figures["device"], figures["fits"]) == ("dp_sgd", "cpu", True)
    assert 20 * MIB < figures["context_bytes"] < 4 * GIB
    assert 0 < figures["allocated_bytes"] < figures["needed_bytes"] < figures["available_bytes"]
    words, said = plan()
    assert "A trial took up to " in words
    assert "of memory, measured on the CPU" in words
    assert "warning" not in said


def test_more_trials_at_once_than_a_machine_holds_are_warned_of(plan, monkeypatch):
    monkeypatch.setattr(costs, "machine_bytes", lambda: 100 * MIB)
    _, said = plan("--set", "cluster.num_cpus=2", "--set", "resources.cpu=1")
    (line,) = [line for line in said.splitlines() if "warning" in line]
    assert line.startswith("warning: 2 trials of dp_sgd at once need ")
    assert "this machine has 100 MiB; fix: search.max_concurrent: 1," in line


def test_trials_are_packed_by_what_one_takes(plan, monkeypatch):
    on_gpu(monkeypatch, 15 * GIB)  # 18.75 with the margin, and a context: 19.5 of 80
    words, said = plan("--set", "resources.gpu=0.25", "--set", "cluster.num_gpus=1")
    assert "warning" not in said
    assert "A trial took up to 17.5 GiB of the GPU (tensors 15.0 GiB," in words
    assert "with a margin of 25% it needs 19.8 GiB: 4 trials fit on one GPU" in words
    assert "with resources.gpu: 0.25." in words


@pytest.mark.parametrize(
    ("share", "total", "fix"),
    [
        (0.2, 80 * GIB, "lower batch.physical, or set resources.gpu: 0.25"),
        (1, 16 * GIB, "lower batch.physical"),
    ],
)
def test_a_share_below_the_measured_peak_is_one_line_with_a_fix(
    plan, monkeypatch, share, total, fix
):
    on_gpu(monkeypatch, 15 * GIB, total)
    words, said = plan("--set", f"resources.gpu={share}", "--set", "cluster.num_gpus=1")
    (line,) = [line for line in said.splitlines() if "warning" in line]
    assert line.startswith(f"warning: resources.gpu={share} is 16.0 GiB of a GPU of ")
    assert line.endswith(f"a trial of dp_sgd needs 19.8 GiB (with a margin of 25%); fix: {fix}")
    assert ("more than one GPU has (16.0 GiB)." in words) == (total == 16 * GIB)


def test_a_method_with_a_share_of_its_own_is_told_its_own_key(plan, monkeypatch):
    on_gpu(monkeypatch, 15 * GIB)
    share = "resources.by_method={dp_sgd: {gpu: 0.125}}"
    _, said = plan("--set", share, "--set", "cluster.num_gpus=1")
    assert "warning: resources.by_method.dp_sgd.gpu=0.125 is 10.0 GiB" in said
    assert said.strip().endswith("or set resources.by_method.dp_sgd.gpu: 0.25")


def test_records_that_stay_on_the_gpu_are_counted(tmp_path, monkeypatch):
    on_gpu(monkeypatch, 15 * GIB)
    checked = preflight(SweepSpec(**make_spec(tmp_path, resources={"cpu": 1, "gpu": 0.5})))
    found = forecast.estimate(checked, checked.sample, num_trials=2)
    peak = found.memory[0].peak
    assert found.memory[0].need == peak.need + checked.info.num_private * 64 * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
def test_without_a_gpu_nothing_is_measured_and_that_is_said(plan):
    words, _ = plan("--set", "resources.gpu=0.5", "--set", "cluster.num_gpus=1")
    assert "Time and memory are not forecast: dp_sgd could not be measured: " in words
    assert "this machine has no GPU that torch can use" in words


@pytest.mark.parametrize("error", [SystemExit(0), PanicException("at 5")])
def test_a_method_that_ends_the_program_is_not_measured(plan, monkeypatch, error):
    monkeypatch.setattr(DPSGD, "prepare", raising(error, module="others.nets"))
    words, _ = plan()
    assert f"could not be measured: {type(error).__name__}: {error}" in words


def measured(checked, seconds=60.0):
    task = next(task for task in checked.sample if len(task.plan))
    return measure(
        DPSGD, task.hparams, task.plan, checked.info,
        threads=1, device="cpu", deadline=time.monotonic() + seconds,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(measuring._meter("cpu") is None, reason="this system tells no peaks")
def test_a_peak_is_of_steps_in_whole_batches_or_it_is_none(tmp_path, monkeypatch):
    gradient = DPSGD._gradient

    def taking(self, position):
        torch.ones(64 * MIB)  # 256 MiB
        return gradient(self, position)

    monkeypatch.setattr(DPSGD, "_gradient", taking)
    space = {**SPACE, "batch.expected": 512}
    checked = preflight(SweepSpec(**make_spec(tmp_path, search__space=space)))
    assert 250 * MIB < measured(checked).memory.allocated < 500 * MIB

    def slow(self, position):
        time.sleep(0.3)
        return gradient(self, position)

    monkeypatch.setattr(DPSGD, "_gradient", slow)
    assert measured(checked, seconds=1.0).memory is None
