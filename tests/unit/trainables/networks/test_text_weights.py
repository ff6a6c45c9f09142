"""Where networks on text come from: directories, the hub, and configurations alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from tiny_text import PAD, VOCABULARY, save_encoder, save_gpt2, transformers

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.parameter_table import parameter_table
from dpsweep.trainables.networks.pretrained import text_weights
from dpsweep.trainables.networks.text import text_head


def info_of(classes: int = 3) -> DatasetInfo:
    text = TextInfo(VOCABULARY, PAD)
    return DatasetInfo("text", (8,), classes, 40, 20, 0, 0, tuple("abcdefg"[:classes]), text=text)


_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
          "num_attention_heads": 16}  # fmt: skip
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_LONG = {"vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1}
#: Bu et al. 2024, tables 1 and E.1: class of the configuration, its keys, per cent of biases.
PUBLISHED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "GPT2-small": ("GPT2", {}, "GPT2LMHeadModel", "0.082"),
    "GPT2-medium": ("GPT2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}, "GPT2LMHeadModel",
                    "0.076"),
    "GPT2-large": ("GPT2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}, "GPT2LMHeadModel",
                   "0.066"),
    "RoBERTa-base": ("Roberta", _ROBERTA, "RobertaForMaskedLM", "0.083"),
    "RoBERTa-large": ("Roberta", {**_ROBERTA, **_LARGE}, "RobertaForMaskedLM", "0.077"),
    "BERT-base-uncased": ("Bert", {}, "BertForMaskedLM", "0.094"),
    "BERT-large-uncased": ("Bert", _LARGE, "BertForMaskedLM", "0.081"),
    "BART-large": ("Bart", {}, "BartModel", "0.082"),
    "longformer-base-4096": ("Longformer", {**_LONG, "attention_window": [512] * 12},
                             "LongformerForMaskedLM", "0.088"),
    "longformer-large-4096": ("Longformer", {**_LONG, **_LARGE, "attention_window": [512] * 24},
                              "LongformerForMaskedLM", "0.080"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    text_weights._download.cache_clear()
    yield
    text_weights._download.cache_clear()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shares_of_biases_are_those_of_the_paper(name: str, tmp_path: Path) -> None:
    """From a configuration alone, without weights."""
    family, changes, architecture, percent = PUBLISHED[name]
    config = getattr(transformers, f"{family}Config")(**changes)
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    table = parameter_table(f"text/{tmp_path}", is_trainable=BiTFiT.trains)
    assert f"{table.bias_percent:.3f}" == percent
    head = sum(layer.num_parameters for layer in table.layers if layer.layer in table.head)
    assert bool(head) == (family != "GPT2")
    of_head = sum(layer.num_bias for layer in table.layers if layer.layer in table.head)
    assert table.num_trainable == table.num_bias - of_head + head
    assert (table.channels, table.image_size) == (None, None)


def test_the_table_is_of_the_network_that_trains(tmp_path: Path) -> None:
    for place, parts in (
        (save_encoder(tmp_path / "bert"), "network"),
        (save_encoder(tmp_path / "masked", "BertForMaskedLM"), "encoder"),  # a random pooler
    ):
        model = build_model(f"text/{place}", info_of(classes=3), seed=0)
        table = parameter_table(f"text/{place}", 3)
        assert table.num_parameters == sum(p.numel() for p in model.parameters())
        assert table.head == {
            name for name, module in model.named_modules()
            if any(module in head.modules() for head in text_head(model))
        }  # fmt: skip
        assert table.layers[0].layer.startswith(parts)
    place = save_gpt2(tmp_path / "gpt2")
    assert parameter_table(f"text/{place}").num_classes == VOCABULARY
    assert parameter_table(f"text/{place}", 3).num_classes == 3
    pooling = tmp_path / "bert" / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (tmp_path / "bert" / "model.safetensors").unlink()
    assert parameter_table(f"text/{tmp_path / 'bert'}").layers[0].layer.startswith("encoder")


# The hub


class Hub:
    """A hub with one repository, and the cache of a machine."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.repository, self.cache = repository, cache
        self.is_reachable, self.asked = True, 0

    def __call__(self, name: str, *, allow_patterns: list[str], **options: Any) -> str:
        if options.get("local_files_only"):
            if not self.cache.is_dir():
                raise FileNotFoundError(f"no {name}")
            return str(self.cache)
        self.asked += 1
        if not self.is_reachable:
            raise ConnectionError("no network here")
        if name != "somebody/tiny":
            raise ValueError(f"404: no repository {name}")
        self.cache.mkdir(exist_ok=True)
        for pattern in allow_patterns:
            for file in self.repository.glob(pattern):
                shutil.copy(file, self.cache)
        return str(self.cache)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(save_encoder(tmp_path / "repository"), tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    return made


def test_a_network_of_the_hub_loads_by_its_name(hub: Hub) -> None:
    model = build_model("text/somebody/tiny", info_of(), seed=0)
    there = build_model(f"text/{hub.repository}", info_of(), seed=0)
    for a, b in zip(model.parameters(), there.parameters(), strict=True):
        assert torch.equal(a, b)
    assert hub.asked == 1
    hub.is_reachable = False
    text_weights._download.cache_clear()  # as in another process
    build_model("text/somebody/tiny", info_of(), seed=0)
    assert hub.asked == 1


def test_a_cache_with_a_tokenizer_alone_is_not_enough(hub: Hub) -> None:
    hub.cache.mkdir()
    (hub.cache / "tokenizer.json").write_text("{}")
    build_model("text/somebody/tiny", info_of(), seed=0)
    assert hub.asked == 1


def test_looking_at_a_network_fetches_no_weights(hub: Hub) -> None:
    table = parameter_table("text/somebody/tiny")
    assert table.num_parameters == parameter_table(f"text/{hub.repository}").num_parameters
    assert not text_weights.has_weights(hub.cache)


def test_without_a_network_there_is_one_line_at_once(hub: Hub) -> None:
    hub.is_reachable = False
    for _ in range(3):
        with pytest.raises(ModelError, match="cannot load text/somebody/tiny from the hub") as no:
            build_model("text/somebody/tiny", info_of(), seed=0)
    assert hub.asked == 1
    assert "no network here" in str(no.value.because)
    assert "absolute path of a directory" in str(no.value.fix)
    problems = DPSGD.preflight({"model.name": ["text/somebody/tiny"]}, info_of())
    assert [(name, "\n" in what) for name, what, _ in problems] == [("model.name", False)]
    hub.is_reachable = True
    with pytest.raises(ModelError, match="cannot load text/roberta-bse from the hub: ValueError"):
        build_model("text/roberta-bse", info_of(), seed=0)


def test_a_repository_without_weights(hub: Hub) -> None:
    (hub.repository / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights that can be loaded"):
        build_model("text/somebody/tiny", info_of(), seed=0)


def test_what_is_neither_a_directory_nor_a_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "tiny")
    with pytest.raises(BadInputError, match="tiny is a relative path") as caught:
        build_model("text/tiny", info_of(), seed=0)
    assert f"text/{tmp_path / 'tiny'}" in str(caught.value.fix)
    for name in ("./none", "a/b/c"):
        with pytest.raises(BadInputError, match="no name on the hub is like that"):
            build_model(f"text/{name}", info_of(), seed=0)
    with pytest.raises(BadInputError, match=r"no config\.json"):
        build_model(f"text/{tmp_path}", info_of(), seed=0)
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())
