"""Images that are kept as bytes: as an array on numpy's side, as a tensor on torch's."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import DataError, ResourceError
from dpsweep.trainables.data.dataset import tensor_of
from dpsweep.trainables.data.hashes import hash_of_parts, hashes_of, part_hash
from dpsweep.trainables.data.kept import pixels as module
from dpsweep.trainables.data.kept.pixels import PixelFile, Pixels, taken
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine
from dpsweep.trainables.gradients.per_example import OpacusEngine

RNG = np.random.default_rng(3)
BYTES = RNG.integers(0, 256, (50, 3, 4, 5), dtype=np.uint8)
FLOATS = BYTES.astype(np.float32) / 255


@pytest.fixture(params=["memory", "file"])
def pixels(request, tmp_path):
    if request.param == "memory":
        return Pixels(BYTES)
    path = tmp_path / "entry.npy"
    path.write_bytes(b"header!" + BYTES.tobytes())
    return Pixels(PixelFile(path, 7, BYTES.shape))


CHOICES = [
    slice(3, 9),
    slice(None),
    slice(0, 0),
    slice(40, 99, 3),
    [4, 5, 6, 1, 1, 49, -1],
    np.arange(50) % 3 == 0,
    np.zeros(0, np.int64),
]


@pytest.mark.parametrize("index", CHOICES, ids=str)
def test_rows_are_those_of_the_array(pixels, index):
    chosen = pixels[index]
    assert isinstance(chosen, Pixels)
    assert chosen.shape == FLOATS[index].shape
    made = np.asarray(chosen)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, FLOATS[index])  # to the last bit
    np.testing.assert_array_equal(np.asarray(taken(chosen, slice(1, 3))), FLOATS[index][1:3])
    flat = chosen.reshape((len(chosen), 60))
    np.testing.assert_array_equal(np.asarray(flat), FLOATS[index].reshape(-1, 60))
    assert (len(chosen), chosen.ndim, chosen.nbytes) == (len(made), 4, made.nbytes)


def test_hashes_are_those_of_the_array(pixels, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 60 * 4 * 7)  # seven records at once
    assert [len(block) for block in pixels.blocks()] == [7] * 7 + [1]
    assert part_hash(pixels) == part_hash(FLOATS)
    labels, none = np.arange(50), (FLOATS[:0], np.arange(0))
    parts = {"private": (FLOATS, labels), "public": none, "validation": none, "test": none}
    lazy = {**parts, "private": (pixels, labels), "test": (pixels[:0], none[1])}
    assert hash_of_parts(lazy, ["a"]) == hash_of_parts(parts, ["a"])
    hashes, named, bare = hashes_of(lazy, ["a"])
    assert hashes == {part: part_hash(inputs) for part, (inputs, _) in parts.items()}
    assert (named, bare) == (hash_of_parts(parts, ["a"]), hash_of_parts(parts))


def test_a_pickle_holds_the_rows_or_the_path(pixels):
    chosen = pixels[10:12]
    shipped = pickle.dumps(chosen)
    np.testing.assert_array_equal(np.asarray(pickle.loads(shipped)), FLOATS[10:12])
    assert len(shipped) < 1000
    for row in (0, 49):  # of other records, nothing
        assert BYTES[row].tobytes()[:30] not in shipped


def test_what_is_gone_or_cut_is_told(tmp_path):
    path = tmp_path / "entry.npy"
    path.write_bytes(BYTES.tobytes()[:-1])
    pixels = Pixels(PixelFile(path, 0, BYTES.shape))
    assert len(np.asarray(pixels[:49])) == 49
    with pytest.raises(DataError, match="cut short"):
        np.asarray(pixels[48:])
    shipped = pickle.dumps(pixels)
    path.unlink()
    np.asarray(pixels[:2])  # still open here
    with pytest.raises(ResourceError, match="cannot be read") as caught:
        np.asarray(pickle.loads(shipped))
    assert "storage.features" in caught.value.fix


def test_a_tensor_makes_the_rows_that_are_asked_for(pixels, monkeypatch):
    whole, made = torch.from_numpy(FLOATS), []
    real = Pixels.__array__

    def counted(self, *args, **kwargs):
        made.append(len(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Pixels, "__array__", counted)
    tensor = tensor_of(pixels)
    assert (tensor.shape, tensor.dtype, len(tensor)) == (whole.shape, torch.float32, 50)
    assert tensor.is_floating_point()
    assert tensor.nbytes == whole.nbytes
    assert not made
    index = torch.tensor([3, 7, 8])
    for chosen, expected in (
        (tensor[index], whole[index]),
        (tensor.index_select(0, index), whole[index]),
        (tensor[5:9], whole[5:9]),
        (tensor[5:9].to("cpu", torch.float64), whole[5:9].double()),
        (tensor[np.array([1, 2])], whole[[1, 2]]),
        (tensor[torch.arange(50) > 45], whole[46:]),
        (tensor[:1].flatten(1), whole[:1].flatten(1)),
    ):
        assert type(chosen) is torch.Tensor
        assert torch.equal(chosen, expected)
    assert sum(made) == 3 + 3 + 4 + 4 + 2 + 4 + 1
    del made[:]
    assert [len(block) for block in tensor.split(20)] == [20, 20, 10]
    assert sum(made) == 50


def test_any_other_operation_is_right(pixels):
    whole, tensor = torch.from_numpy(FLOATS), tensor_of(pixels)
    assert torch.equal(tensor.flatten(1), whole.flatten(1))
    assert torch.equal(tensor * 2, whole * 2)
    assert torch.equal(tensor[:, 1], whole[:, 1])
    assert torch.equal(tensor[torch.tensor([[0, 1]])], whole[torch.tensor([[0, 1]])])
    assert torch.equal(tensor.index_select(1, torch.tensor([2])), whole[:, 2:])
    assert torch.equal(tensor.mean(0), whole.mean(0))
    layer = torch.nn.Conv2d(3, 2, 3)
    assert torch.equal(layer(tensor[4:6]), layer(whole[4:6]))


@pytest.mark.parametrize("make", [LinearHeadEngine, OpacusEngine], ids=["linear head", "network"])
def test_a_step_reads_the_records_of_its_batch_alone(pixels, monkeypatch, make):
    """One step of a linear head once read all records, and took their bytes in memory."""
    rows, labels = np.array([3, 40, 41, 7]), torch.arange(50) % 10
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 10))
    engine = (
        LinearHeadEngine(network[1], None, expected_batch=4)
        if make is LinearHeadEngine
        else OpacusEngine(network, 4)
    )
    expected = engine.clipped_gradient_sum(torch.from_numpy(FLOATS), labels, rows, 1.0)
    expected = [part.clone() for part in expected]
    read = []
    array = Pixels.__array__

    def counted(self, *arguments, **options):
        read.append(len(self))
        return array(self, *arguments, **options)

    monkeypatch.setattr(Pixels, "__array__", counted)
    sums = engine.clipped_gradient_sum(tensor_of(pixels), labels, rows, 1.0)
    for one, other in zip(sums, expected):
        torch.testing.assert_close(one, other)
    assert max(read) <= 4
