"""Shares of a GPU's memory, on GPUs that are made up."""

import types

import pytest
import torch
from blobs import blobs
from gpus import GIB, FakeGpu
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.foundation.errors import ResourceError
from dpsweep.trainables.data import dataset
from dpsweep.trainables.data.dataset import training_tensors
from dpsweep.trainables.devices import sharing
from dpsweep.trainables.devices.sharing import (
    CONTEXT_BYTES,
    MIB,
    TorchGpu,
    allowed_bytes,
    hold_to_share,
    is_kept_there,
    machine_bytes,
    packing,
    records_there,
    share_of,
    visible_gpu,
)


@pytest.mark.parametrize(("share", "total"), [(0.5, 80 * GIB), (0.3333, 24 * GIB), (0.1, 16 * GIB)])
def test_a_process_is_held_to_its_share_less_its_context(share, total):
    gpu = FakeGpu(total)
    hold_to_share(share, gpu)
    assert gpu.fraction() * total + CONTEXT_BYTES == pytest.approx(share * total, abs=2)


@pytest.mark.parametrize(("device", "index"), [("cuda", 3), ("cuda:1", 1)])
def test_torch_is_asked_about_one_gpu_by_its_number(monkeypatch, device, index):
    """Its own functions run, up to where they would need a GPU."""
    asked = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda *given: asked.append(given), raising=False
    )
    monkeypatch.setattr(torch._C, "_cuda_getMemoryFraction", lambda gpu: gpu / 10, raising=False)
    cuda = types.SimpleNamespace(cudaMemGetInfo=lambda gpu: (gpu, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    gpu = TorchGpu(device)
    hold_to_share(0.5, gpu)
    assert asked == [((4 * GIB - CONTEXT_BYTES) / (8 * GIB), index)]
    assert (gpu.fraction(), gpu.free(), gpu.total()) == (index / 10, index, 8 * GIB)


@pytest.mark.parametrize("share", [0, 1, 2])
def test_whole_gpus_and_the_cpu_are_under_no_limit(share):
    gpu = FakeGpu()
    hold_to_share(share, gpu)
    assert gpu.fractions == []


@given(st.integers(1, 60), st.integers(61, 300).map(lambda n: n * GIB))
def test_as_many_processes_as_are_placed_never_take_more_than_there_is(trials, total):
    share = share_of(trials)
    assert trials * share <= 1
    if trials > 1:
        taken = trials * (allowed_bytes(share, total) + CONTEXT_BYTES)
        assert taken <= total
        assert (trials + 1) * share > 1 or share_of(trials + 1) == share


def test_a_share_without_room_for_a_context_is_refused():
    with pytest.raises(ResourceError) as caught:
        hold_to_share(0.05, FakeGpu(8 * GIB))
    assert str(caught.value).startswith("a share of 0.05 of this GPU is too small for a trial")
    assert "409 MiB of 8192 MiB, and a process takes 1024 MiB" in str(caught.value)
    assert "raise resources.gpu" in str(caught.value)


def test_records_stay_on_a_shared_gpu_whoever_came_first():
    room = (0.5 * 80 * GIB - CONTEXT_BYTES) / 4
    for free in (80 * GIB, 41 * GIB, GIB):
        gpu = FakeGpu(free_bytes=free)
        hold_to_share(0.5, gpu)
        assert is_kept_there(int(room) - 1, gpu)
        assert not is_kept_there(int(room) + 2, gpu)
        assert records_there(100 * GIB, 0.5, 80 * GIB) == pytest.approx(room, abs=1)


def test_with_a_whole_gpu_it_is_what_is_free():
    gpu = FakeGpu(free_bytes=8 * GIB)
    assert is_kept_there(2 * GIB, gpu)
    assert not is_kept_there(2 * GIB + 1, gpu)


def test_training_asks_for_the_share_and_not_for_what_is_free(monkeypatch):
    data = blobs(1000, (12,))
    num_bytes = data.parts["private"][0].nbytes
    gpu = FakeGpu(total_bytes=8 * num_bytes)
    monkeypatch.setattr(dataset, "TorchGpu", lambda device: gpu)
    gpu.set_fraction(0.49)  # a quarter of it is a little less than the records take
    inputs, labels = training_tensors(data, "private", "cuda")
    assert {inputs.device.type, labels.device.type} == {"cpu"}
    moved = []
    monkeypatch.setattr(torch, "empty", lambda shape, **to: moved.append(to) or torch.zeros(shape))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    gpu.set_fraction(0.51)
    inputs, _ = training_tensors(data, "private", "cuda")
    assert [to["device"] for to in moved] == ["cuda"]
    assert torch.equal(inputs, torch.from_numpy(data.parts["private"][0]))


@given(
    st.integers(CONTEXT_BYTES, 100 * GIB),
    st.integers(4 * GIB, 200 * GIB),
    st.integers(0, 50 * GIB),
)
def test_as_many_are_packed_as_have_what_they_need_and_no_more(need, total, records):
    def fits(trials):
        share = share_of(trials)
        return need + records_there(records, share, total) <= share * total

    packed = packing(need, total, records)
    if packed is None:
        assert not fits(1)
        return
    assert packed.share == share_of(packed.trials)
    assert fits(packed.trials)
    assert not fits(packed.trials + 1)


def test_the_memory_of_a_machine_is_that_of_its_container(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_CGROUP_LIMIT", tmp_path / "memory.max")
    whole = machine_bytes()
    assert whole > 256 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_bytes() == whole
    (tmp_path / "memory.max").write_text(f"{64 * MIB}\n")
    assert machine_bytes() == 64 * MIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
def test_no_gpu_is_none():
    assert visible_gpu() is None
