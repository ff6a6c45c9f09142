"""Shares of a real GPU: neighbours never take each other's memory."""

import gc
import subprocess
import sys

import pytest
import torch
from blobs import blobs

from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import training_tensors
from dpsweep.trainables.devices.peaks import PeakMeter
from dpsweep.trainables.devices.sharing import CONTEXT_BYTES, MIB, TorchGpu, allowed_bytes
from dpsweep.trainables.execution.actor import DPTrainable
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# Trains a little, takes all it may have, and keeps it until it is told to end.
NEIGHBOUR = """
import sys, torch
from dpsweep.trainables.devices.sharing import MIB, TorchGpu, hold_to_share

gpu = TorchGpu()
hold_to_share(float(sys.argv[1]), gpu)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
x = torch.randn(64, 3, 32, 32, device="cuda")
for _ in range(3):
    model(x).sum().backward()
held = []
try:
    while True:
        held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
print(torch.cuda.max_memory_reserved(), flush=True)
sys.stdin.read()
model(x[:1]).sum().backward()  # its own memory is still its own
print("trained", flush=True)
"""


def neighbour(share):
    return subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(share)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_context_is_counted_as_more_than_it_takes():
    free = TorchGpu().free()  # of this process the context is there already
    process = neighbour(0.5)
    reserved = int(process.stdout.readline())
    taken = free - TorchGpu().free()
    process.communicate("")
    assert 0 < taken - reserved <= CONTEXT_BYTES


def test_two_neighbours_take_all_they_may_at_once_and_neither_more_than_its_share():
    total = TorchGpu().total()
    give_back()
    share = TorchGpu().free() / total / 2  # the context of this process is there already
    both = [neighbour(share), neighbour(share)]
    reserved = [int(process.stdout.readline()) for process in both]
    for process in both:
        assert process.communicate("")[0].strip() == "trained"
    allowed = allowed_bytes(share, total)
    assert max(reserved) <= allowed
    assert min(reserved) >= allowed - 256 * MIB  # fragments


@pytest.fixture
def own_limit():
    """Let go of what earlier tests held, and give this process its whole GPU back."""
    give_back()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    give_back()


def give_back():
    gc.collect()
    torch.cuda.empty_cache()


def test_records_stay_where_a_quarter_of_the_share_holds_them(own_limit):
    data = blobs(4000, (1, 32, 32))
    total, num_bytes = TorchGpu().total(), data.parts["private"][0].nbytes
    for parts, device in ((3.9, "cpu"), (4.1, "cuda")):
        torch.cuda.set_per_process_memory_fraction(parts * num_bytes / total)
        inputs, _ = training_tensors(data, "private", "cuda")
        assert inputs.device.type == device


def held_by_a_step(data, task: TrialTask, physical):
    """Return what torch holds for a few steps with so many examples at once, in bytes."""
    method, meter = DPSGD(), PeakMeter("cuda")
    method.prepare(
        data, {**task.hparams, "batch.physical": physical}, task.plan, RunContext(0, 0, "cuda")
    )
    method.run(0, 3)
    return meter.peak().reserved


def test_a_batch_over_the_share_goes_on_with_a_smaller_one_inside_of_it(
    lab, own_limit, monkeypatch
):
    lab.data = blobs(6000, (1, 28, 28))
    settings = lab.settings()
    given = {"model.name": "tanh_cnn", "train.max_steps": 20, "batch.expected": 4096,
             "batch.physical": 8192, "noise.noise_multiplier": 50.0}  # fmt: skip
    task = lab.task(settings, given)
    small, large = (held_by_a_step(lab.data, task, n) for n in (1024, 8192))
    assert large - small > 64 * MIB
    give_back()
    share = (CONTEXT_BYTES + (small + large) // 2) / TorchGpu().total()
    lab.directory(0).mkdir(parents=True)
    (lab.directory(0) / "trial.json").write_text(task.to_json())
    monkeypatch.setattr("dpsweep.trainables.execution.actor.check_admitted", lambda *_: None)
    actor = object.__new__(DPTrainable)
    actor.config = {"trial": 0, "directory": str(lab.directory(0)), "cpu": 1, "gpu": share}
    actor.setup(actor.config, settings=settings, data=lab.data)
    torch.cuda.reset_peak_memory_stats()
    report = actor.step()["report"]
    assert (report["failure"], report["step"] > 0) == ("", True)
    assert "goes on with batch.physical=1024 instead of 8192" in report["note"]
    assert torch.cuda.max_memory_reserved() <= share * TorchGpu().total() - CONTEXT_BYTES
    actor.cleanup()
