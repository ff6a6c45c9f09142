"""The benchmark of networks: its own steps, on the smallest of its networks."""

import importlib
import json

import pytest
import torch
from import_graph import ROOT


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    torch.set_num_threads(1)
    return importlib.import_module("bench_networks")


def test_every_variant_takes_a_step_and_moves_what_it_trains(bench):
    for variant in bench.VARIANTS:
        made = bench.Bench("vit-b16", small=True, device="cpu")
        models = []
        build = made.model
        made.model = lambda build=build, models=models: models.append(build()) or models[-1]
        step = made.step_of(variant)
        (model,) = models
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        step()
        moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        assert moved == trained, variant
        assert "cls_token" not in trained
        if variant == bench.BIASES:
            assert {n for n in trained if not n.endswith("bias")} == {"head.weight"}
        else:
            assert len(trained) == len(before) - 2  # but class token and positions


@pytest.mark.slow
def test_the_table_names_its_sizes_and_a_peer_that_refuses(bench, monkeypatch, capsys):
    step = bench.opacus_step

    def refusing(model, data, optimizer, *, ghost):
        if ghost:
            raise NotImplementedError("no rule for\nthis layer")
        return step(model, data, optimizer, ghost=ghost)

    monkeypatch.setattr(bench, "opacus_step", refusing)
    words = ["--small", "--case", "linear", "--rounds", "1", "--steps", "1"]
    bench.main([*words, "--memory-repeats", "0"])
    out = capsys.readouterr().out
    assert "| linear head, 512 features, batch 512 | ms | whole network takes |" in out
    assert "| Opacus ghost | refused: NotImplementedError: no rule for this layer | |" in out
    bench.main([*words, "--json"])
    section = json.loads(capsys.readouterr().out)
    (result,), (table,) = section["figures"].values(), section["tables"]
    assert len(table["columns"]) == 5
    names = {"dpsweep", "not private", "Opacus hooks"}
    assert (set(result["ms"]), set(result["refused"])) == (names, {"Opacus ghost"})
    assert set(result["MiB"]) == names
    assert min(result["ms"].values()) > 0


def test_ours_may_not_refuse(bench, monkeypatch):
    def broken(model, batch, **more):
        raise ValueError("ours")

    monkeypatch.setattr(bench, "make_engine", broken)
    with pytest.raises(ValueError, match="ours"):
        bench.steps_of_case(bench.Bench("linear", small=True, device="cpu"))


def test_a_table_of_a_gpu_stands_above_a_line_on_it(bench, monkeypatch):
    machine = importlib.import_module("hardware")
    monkeypatch.setattr(machine, "_card", lambda: "a card, 80 GiB, driver 1, CUDA 2")
    assert ": a card, 80 GiB, driver 1, CUDA 2, " in machine.machine("cuda")
    assert "card" not in machine.machine("cpu")
    assert f"torch {torch.__version__.partition('+')[0]}" in machine.machine("cpu")


def test_networks_are_small_on_the_cpu_alone(bench, monkeypatch, tmp_path):
    from tests.benchmarks import run

    commands = []
    monkeypatch.setattr(run, "_one", lambda command, *_, **__: not commands.append(command))
    for device in ("cpu", "cuda"):
        words = ["--device", device, "--only", "networks", "--out", str(tmp_path / "page.md")]
        assert run.main(words) == 0
    assert ["--small" in command for command in commands] == [True, False]
