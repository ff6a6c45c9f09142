"""The graph of a network: any number of records, no code, no record."""

import gc
import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from dpsweep.study import model_graph
from dpsweep.study.model_graph import ModelGraph


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    ).train()


@pytest.fixture(scope="module")
def graph(network):
    return ModelGraph.of(network, np.full((1, 1, 8, 8), 0.123456, np.float32))


@pytest.mark.filterwarnings("ignore")  # torch.export warns of itself
def test_it_answers_as_the_network_for_any_number_of_records(network, graph):
    loaded = torch.export.load(io.BytesIO(graph.archive)).module()
    for number in (1, 2, 7):
        x = torch.randn(number, 1, 8, 8)
        assert torch.allclose(loaded(x), network.eval()(x), atol=1e-6)


def test_it_says_what_goes_in_and_comes_out(graph):
    assert (graph.dtype, graph.shape, graph.rank) == ("float32", (1, 8, 8), 2)
    assert graph.zeros().shape == (2, 1, 8, 8)
    assert graph.torch_version == torch.__version__
    tokens = ModelGraph.of(torch.nn.Embedding(5, 4), np.ones((1, 6), np.int64))
    assert (tokens.dtype, tokens.shape, tokens.rank) == ("int64", (6,), 3)
    assert ModelGraph.of(torch.nn.Linear(4, 3), torch.ones(9, 4)).shape == (4,)


def test_no_garbage_is_searched_for_while_it_is_made_and_its_failure_ends_that(monkeypatch):
    """Of 1.5 s for loading torch.export that was a third."""
    seen, as_it_is = [], model_graph.trace

    def trace(model, records):
        seen.append(gc.isenabled())
        return as_it_is(model, records)

    monkeypatch.setattr(model_graph, "trace", trace)
    ModelGraph.of(torch.nn.Linear(4, 3), torch.ones(9, 4))
    assert (seen, gc.isenabled()) == ([False], True)
    with pytest.raises(RuntimeError):
        ModelGraph.of(torch.nn.Linear(4, 3), torch.ones(9, 5))
    assert gc.isenabled()


def test_no_record_is_in_it(graph):
    """Its example is one of zeros, whatever it was given."""
    value = np.float32(0.123456).tobytes()
    with zipfile.ZipFile(io.BytesIO(graph.archive)) as archive:
        assert all(value not in archive.read(name) for name in archive.namelist())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["export", pytest.param("load", marks=pytest.mark.slow)])
def test_nobody_else_has_a_place_of_torchs_compiler(graph, tmp_path, monkeypatch, way):
    """Torch makes /tmp/torchinductor_USER, which anybody may have made first, as a file."""
    (tmp_path / "torchinductor_zed").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "zed")
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "model.pt2").write_bytes(graph.archive)
    code = {
        "export": """
import numpy, torch
from dpsweep.study.model_graph import ModelGraph
ModelGraph.of(torch.nn.Linear(3, 2), numpy.zeros((1, 3), numpy.float32))
""",
        "load": """
import sys, torch
from dpsweep.foundation.kept import keep_compiled
keep_compiled()
torch.export.load(sys.argv[1])
""",
    }[way]
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt2")]
    assert subprocess.run(command, check=False).returncode == 0
    (place,) = (tmp_path / "cache").glob("torch-*")
    assert place.is_dir()
