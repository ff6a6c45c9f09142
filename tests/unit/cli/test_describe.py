"""`dpsweep describe`: hyperparameters of a method, and what it trains of a network."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from typing import Any

import pytest
import yaml
from machine import cpu_seconds, import_seconds
from typer.testing import CliRunner

from dpsweep.cli import app as cli
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.methods.dp_sgd import DPSGD

VIT = "vit_tiny_patch16_224"
KEYS = [
    "method", "model", "num_classes", "channels", "image_size", "num_parameters", "num_trainable",
    "num_bias", "bias_percent", "bias_percent_no_head", "note", "layers",
]  # fmt: skip
LAYER_KEYS = ["layer", "type", "num_parameters", "num_bias", "num_trainable"]


def describe(*words: str) -> Any:
    done = CliRunner().invoke(cli.app, ["describe", *words])
    assert done.exit_code == 0, done.output
    return done


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """Run the program; return what it says on stderr when it ends with bad input."""
    monkeypatch.setattr(sys, "argv", ["dpsweep", "describe", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_hyperparameters_without_a_model() -> None:
    rows = json.loads(describe("dp_sgd", "--json").stdout)
    assert [row["name"] for row in rows] == [p.name for p in DPSGD.hyperparameters]
    assert list(rows[0]) == ["name", "type", "default", "allowed", "changes_privacy", "about"]
    assert yaml.safe_load(describe("dp_sgd", "-f", "yaml").stdout) == rows


def test_json_keys() -> None:
    found = json.loads(
        describe("dp_sgd", "--model", f"timm/{VIT}", "--classes", "10", "--json").stdout
    )
    assert list(found) == KEYS
    assert all(list(row) == LAYER_KEYS for row in found["layers"])
    assert found["method"] == "dp_sgd"
    assert found["model"] == f"timm/{VIT}"
    assert (found["num_classes"], found["channels"], found["image_size"]) == (10, 3, None)
    assert found["num_trainable"] == found["num_parameters"] == 5_526_346
    assert found["num_parameters"] == sum(row["num_parameters"] for row in found["layers"])
    assert found["note"] is None


def test_every_format_has_the_same_figures() -> None:
    words = ("non_private", "--model", VIT)
    found = json.loads(describe(*words, "--json").stdout)
    assert json.loads(describe(*words, "-f", "json").stdout) == found
    assert yaml.safe_load(describe(*words, "-f", "yaml").stdout) == found
    rows = list(csv.DictReader(io.StringIO(describe(*words, "-f", "csv").stdout)))
    assert rows == [{key: str(value) for key, value in row.items()} for row in found["layers"]]
    table = describe(*words).stdout
    assert f"{found['bias_percent']:.4f}" in table
    assert "(network)" in table
    assert "blocks.11.mlp.fc2" in table


def test_batch_norm_is_said_in_a_note() -> None:
    words = ("dp_sgd", "--model", "resnet18")
    assert "BatchNorm (20 layers" in json.loads(describe(*words, "--json").stdout)["note"]
    assert "BatchNorm (20 layers" in describe(*words).stdout
    done = describe(*words, "-f", "csv")
    assert "BatchNorm (20 layers" in done.stderr
    assert "BatchNorm (20" not in done.stdout


def test_a_built_in_network() -> None:
    words = ("--model", "tanh_cnn", "--image-size", "28", "--channels", "1", "--classes", "10")
    assert json.loads(describe("dp_sgd", *words, "--json").stdout)["num_parameters"] == 26_010


def test_a_method_says_what_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    class Biases(DPSGD):
        name = "biases"

        @classmethod
        def trains(cls, name: str, parameter: Any, *, in_head: bool) -> bool:
            return name.rpartition(".")[2] == "bias"

    table = {**{name: TRAINABLES[name] for name in TRAINABLES}, "biases": Biases}
    monkeypatch.setattr("dpsweep.cli.verbs.describe.TRAINABLES", table)
    found = json.loads(describe("biases", "--model", VIT, "--json").stdout)
    assert found["num_trainable"] == found["num_bias"] == 26_728
    assert all(row["num_trainable"] == row["num_bias"] for row in found["layers"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dp_sgd", "--model", "vit_bse_patch16_224"), "did you mean 'vit_base_patch16_224'"),
        (("dp_sgd", "--model", "tanh_cnn"), "add --image-size PIXELS"),
        (("adamix", "--model", "resnet18"), "adamix has no model.name"),
        (("scatternet", "--model", "resnet18"), "scatternet cannot train resnet18"),
    ],
)
def test_what_cannot_be_described_is_one_line(
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = refused(monkeypatch, capsys, *words)
    assert said in err
    assert err.count("\n") == 1


def test_options_of_a_model_need_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--classes says nothing without --model" in refused(
        monkeypatch, capsys, "dp_sgd", "--classes", "10"
    )
    assert "unknown method 'dp_sdg'" in refused(
        monkeypatch, capsys, "dp_sdg", "--model", "resnet18"
    )


@pytest.mark.slow
def test_a_large_network_takes_seconds() -> None:
    """The whole program, imports and all; its own seconds, for the machine may be busy."""
    limit = max(10, 5 * import_seconds())  # it is about 3 times that
    before = cpu_seconds()
    command = ["-m", "dpsweep", "describe", "dp_sgd", "--model", "vit_large_patch16_224", "--json"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, check=True
    )
    used = cpu_seconds() - before
    assert json.loads(done.stdout)["num_parameters"] == 304_326_632
    assert used < limit
