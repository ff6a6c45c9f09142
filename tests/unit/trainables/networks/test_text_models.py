from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_text import PAD, VOCABULARY, save_encoder, save_gpt2, transformers

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.data.tasks import task_of
from dpsweep.trainables.data.text.ids import next_tokens
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import head_layers

LENGTH = 8


def info_of(task: str = "classification", *, pad: int = PAD, classes: int = 3) -> DatasetInfo:
    is_lm = task == "causal_lm"
    names = () if is_lm else tuple("abcdefg"[:classes])
    size = VOCABULARY if is_lm else classes
    text = TextInfo(VOCABULARY, pad)
    return DatasetInfo("text", (LENGTH,), size, 40, 20, 0, 0, names, task=task, text=text)


def records(count: int, task: str = "classification", *, pad: int = PAD, seed: int = 0):
    """Random ids of random lengths, one record of nothing but padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (count, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (count,), generator=generator)
    lengths[0] = 0
    ids[torch.arange(LENGTH) >= lengths[:, None]] = pad
    if task == "causal_lm":
        return ids, torch.from_numpy(next_tokens(ids.numpy(), pad))
    if task == "multi_label":
        return ids, torch.randint(0, 2, (count, 3), generator=generator).float()
    return ids, torch.randint(0, 3, (count,), generator=generator)


def roberta(path: Path) -> Path:
    return save_encoder(path, "RobertaForMaskedLM", pad_token_id=1, max_position_embeddings=20)


#: Name -> (writer, padding, task, what the graph holds, whether positions are given).
NETWORKS: dict[str, tuple[Callable[[Path], Path], int, str, list[str], bool]] = {
    "bert": (save_encoder, 0, "classification", ["network"], True),
    "bert without pooler": (
        lambda path: save_encoder(path, "BertForMaskedLM"),
        0,
        "multi_label",
        ["encoder", "classifier"],
        True,
    ),
    "roberta": (roberta, 1, "classification", ["network"], False),
    "gpt2 classifier": (save_gpt2, 3, "classification", ["network"], True),
    "gpt2": (save_gpt2, 3, "causal_lm", ["language_model"], True),
}


@pytest.fixture(scope="module", params=NETWORKS)
def built(request, tmp_path_factory):
    write, pad, task, parts, gives = NETWORKS[request.param]
    place = write(tmp_path_factory.mktemp("network"))
    info = info_of(task, pad=pad)
    state = torch.get_rng_state()
    model = build_model(f"text/{place}", info, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert [name for name, _ in model.named_children()] == parts
    assert ("position_ids" in model.code) == gives
    return place, info, model


def test_the_seed_fixes_the_random_part_and_the_directory_the_rest(built) -> None:
    place, info, model = built
    again = build_model(f"text/{place}", info, seed=0)
    other = build_model(f"text/{place}", info, seed=1)
    head = head_layers(model)
    assert bool(head) == (info.task != "causal_lm")
    for (name, a), b, c in zip(model.named_parameters(), again.parameters(), other.parameters()):
        assert torch.equal(a, b), name
        if name.rpartition(".")[0] not in head:
            assert torch.equal(a, c), name
        elif a.dim() > 1:
            assert not torch.equal(a, c), name


def test_a_model_that_sees_the_next_token_is_no_language_model(tmp_path: Path) -> None:
    place = save_encoder(tmp_path, "BertForMaskedLM")
    with pytest.raises(ModelError, match="sees the tokens that it is to predict"):
        build_model(f"text/{place}", info_of("causal_lm"), seed=0)


def test_padding_changes_nothing(built) -> None:
    """A record's logits do not depend on how far it is padded, nor on the other records."""
    _place, info, model = built
    model.eval()
    assert info.text is not None
    ids, _ = records(6, pad=info.text.pad_id)
    ids[1:, 0] = 5
    ids[1:, 4:] = info.text.pad_id
    with torch.no_grad():
        padded, short, alone = model(ids)[1:], model(ids[:, :4])[1:], model(ids[1:2])
        if info.task == "causal_lm":
            real = ids[1:, :4] != info.text.pad_id
            padded, short, alone = padded[:, :4][real], short[real], alone[0, :4][real[0]]
        assert torch.allclose(padded, short, atol=1e-5)
        assert torch.allclose(padded[: len(alone)], alone, atol=1e-5)
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", [BiasEngine, OpacusEngine])
def test_clipped_sums_are_those_of_single_records(built, engine: Any) -> None:
    place, info, _ = built
    assert info.text is not None
    model = build_model(f"text/{place}", info, seed=0)
    head = head_layers(model)
    if engine is BiasEngine:
        for name, parameter in model.named_parameters():
            path, _, own = name.rpartition(".")
            parameter.requires_grad_(own == "bias" or path in head)
    loss, parameters = (
        task_of(info.task).loss_sum,
        [p for p in model.parameters() if p.requires_grad],
    )
    x, y = records(9, info.task, pad=info.text.pad_id)
    bound = 0.1
    expected = [torch.zeros_like(parameter) for parameter in parameters]
    for row in range(9):
        own = torch.autograd.grad(loss(model(x[row : row + 1]), y[row : row + 1]), parameters)
        norm = float(torch.cat([g.flatten() for g in own]).norm())
        for total, g in zip(expected, own):
            total += g * min(1.0, bound / max(norm, 1e-12))
    found = engine(model, 4, loss=loss).clipped_gradient_sum(x, y, np.arange(9), bound)
    distance = torch.cat([(a - b).flatten() for a, b in zip(found, expected)]).norm()
    assert float(distance) < 1e-4 * bound


def test_a_pickled_network_holds_no_class_of_dpsweep(built) -> None:
    _place, info, model = built
    assert info.text is not None
    ids, _ = records(4, pad=info.text.pad_id)
    pickled = pickle.dumps(model.eval())
    assert b"dpsweep" not in pickled
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickled)(ids), model(ids))


@pytest.mark.slow
def test_a_saved_network_loads_without_dpsweep(tmp_path: Path) -> None:
    save_encoder(tmp_path, "BertForMaskedLM")
    model = build_model(f"text/{tmp_path}", info_of(), seed=0).eval()
    ids, _ = records(4)
    with torch.no_grad():
        torch.save((model, ids, model(ids)), tmp_path / "model.pt")
    program = (
        "import sys; sys.modules['dpsweep'] = None\n"
        "import torch\n"
        f"model, ids, wanted = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "assert torch.equal(model(ids), wanted)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_directory_of_sentence_transformers_asks_for_the_mean(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    info = info_of()
    assert head_layers(build_model(f"text/{tmp_path}", info, seed=0)) == {
        "network.dropout",
        "network.classifier",
    }
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    model = build_model(f"text/{tmp_path}", info, seed=0).eval()
    assert head_layers(model) == {"classifier"}
    assert not [name for name, _ in model.named_parameters() if "pooler" in name]
    ids, _ = records(3)
    ids[1], ids[2] = ids[2], 0
    ids[2, :3] = torch.tensor([5, 6, 7])
    encoder = transformers.BertModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        hidden = encoder(ids[2:, :3]).last_hidden_state.mean(dim=1)
        assert torch.allclose(model(ids)[2:], model.classifier(hidden), atol=1e-5)


def test_a_trained_classifier_of_another_size_is_replaced(tmp_path: Path) -> None:
    save_encoder(tmp_path, "BertForSequenceClassification", num_labels=5)
    same = build_model(f"text/{tmp_path}", info_of(classes=5), seed=0)
    other = build_model(f"text/{tmp_path}", info_of(classes=5), seed=1)
    assert torch.equal(same.network.classifier.weight, other.network.classifier.weight)
    new = build_model(f"text/{tmp_path}", info_of(classes=2), seed=1)
    assert new.network.classifier.weight.shape == (2, 16)


def test_what_cannot_be_used_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = info_of()
    with pytest.raises(BadInputError, match="no network of transformers"):
        build_model(f"text/{tmp_path / 'none'}", info, seed=0)
    save_encoder(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match="is a relative path") as caught:
        build_model("text/bert", info, seed=0)
    assert str(caught.value.fix) == f"give text/{tmp_path / 'bert'}"
    name = f"text/{tmp_path / 'bert'}"
    for options in (
        {"checkpoint": "published"},
        {"image_size": 32},
        {"normalize": "imagenet"},
    ):
        with pytest.raises(BadInputError, match="has no meaning for text"):
            build_model(name, info, seed=0, **options)
    with pytest.raises(ModelError, match=r"weights are missing|cannot load"):
        build_model(name, info_of("causal_lm"), seed=0)
    large = dataclasses.replace(info, text=TextInfo(VOCABULARY + 1, PAD))
    with pytest.raises(ModelError, match=f"knows {VOCABULARY} tokens"):
        build_model(name, large, seed=0)
    with pytest.raises(ModelError, match="fails on records of 17 tokens") as caught:
        build_model(name, dataclasses.replace(info, input_shape=(17,)), seed=0)
    assert caught.value.because == "it has places for 16"
    assert "lower data.max_length to 16 at most" in str(caught.value.fix)
    with pytest.raises(BadInputError, match="does not fit the data, which is text"):
        build_model("linear", info, seed=0)
    images = DatasetInfo("x", (1, 8, 8), 3, 40, 20, 0, 0, ("a", "b", "c"))
    with pytest.raises(BadInputError, match="does not fit the data, which is no text"):
        build_model(name, images, seed=0)


def test_the_places_that_a_network_has_are_counted(tmp_path: Path) -> None:
    """RoBERTa's table has two rows more than places: up to its pad id, and for padding."""
    name = f"text/{roberta(tmp_path)}"
    with pytest.raises(ModelError, match="fails on records of 19 tokens") as caught:
        build_model(name, dataclasses.replace(info_of(pad=1), input_shape=(19,)), seed=0)
    assert caught.value.because == "it has places for 18"
    build_model(name, dataclasses.replace(info_of(pad=1), input_shape=(18,)), seed=0)


def test_preflight_says_why_a_network_fails(tmp_path: Path) -> None:
    """No number of tokens helps T5, whose classifier reads an end that every record must have."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
        pad_token_id=PAD, eos_token_id=3, decoder_start_token_id=PAD,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    values = {"batch.expected": [10], "model.name": [f"text/{tmp_path / 't5'}"]}
    for method in ("dp_sgd", "bitfit"):
        ((key, why, fix),) = TRAINABLES[method].preflight(values, info_of())
        assert key == "model.name"
        assert why.endswith("must have the same number of <eos> tokens")
        assert fix == "use another network"
    values["model.name"] = [f"text/{save_encoder(tmp_path / 'bert')}"]
    long = dataclasses.replace(info_of(), input_shape=(17,))
    ((_, why, fix),) = TRAINABLES["bitfit"].preflight(values, long)
    assert why.endswith("fails on records of 17 tokens: it has places for 16")
    assert fix.startswith("lower data.max_length to 16 at most")


def test_preflight_names_the_key(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    method, name = TRAINABLES["dp_sgd"], f"text/{tmp_path}"
    values = {"batch.expected": [10], "model.name": [name]}
    assert method.preflight(values, info_of()) == []
    file = tmp_path / "config.json"
    ((key, what, _),) = method.preflight({**values, "model.checkpoint": [str(file)]}, info_of())
    assert (key, "directory holds the weights" in what) == ("model.checkpoint", True)
    ((key, what, _),) = method.preflight({**values, "model.image_size": [8]}, info_of())
    assert key == "model.image_size"
    ((key, what, _),) = method.preflight({**values, "model.name": ["linear"]}, info_of())
    assert (key, "text/DIRECTORY" in _) == ("model.name", True)


@pytest.mark.parametrize(
    ("method", "whole"),
    [
        ("dp_sgd", {}),
        ("bitfit", {"bitfit.variant": "full"}),
        ("sparse", {"sparse.train": "full"}),
        ("sparse_non_private", {"sparse.train": "full"}),
    ],
)
def test_what_has_no_gradient_per_record_is_refused_before_it_can_be_charged(
    tmp_path: Path, make_plan: Any, method: str, whole: dict[str, str]
) -> None:
    """MPNet looks distances up once for all records; its biases can be trained."""
    save_encoder(tmp_path, "MPNetForSequenceClassification", pad_token_id=1)
    info = info_of(pad=1, classes=2)
    space = {"batch.expected": [10], "model.name": [f"text/{tmp_path}"]}
    space |= {name: [value] for name, value in whole.items()}
    (problem,) = TRAINABLES[method].preflight(space, info)
    assert "a layer of this model has no gradient per example" in problem.what
    given = {name.replace(".", "__"): value for name, value in whole.items()}
    with pytest.raises(ModelError, match="has no gradient per example"):
        prepared(method, tmp_path, info, make_plan, **given)
    assert TRAINABLES["bitfit"].preflight({**space, "bitfit.variant": ["bitfit"]}, info) == []


@pytest.mark.parametrize(
    "error",
    [RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 bytes"), MemoryError()],
)
def test_a_driver_without_memory_says_nothing_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its trials check themselves, where there may be more."""

    def no_room(engine: OpacusEngine, x: torch.Tensor) -> None:
        raise error

    monkeypatch.setattr(OpacusEngine, "try_forward", no_room)
    save_encoder(tmp_path)
    space = {"batch.expected": [10], "model.name": [f"text/{tmp_path}"]}
    assert TRAINABLES["dp_sgd"].preflight(space, info_of()) == []


def test_modern_bert_trains_whole(tmp_path: Path, make_plan: Any) -> None:
    """Its norms have no bias."""
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2}
    save_encoder(tmp_path, "ModernBertForSequenceClassification", **special, sep_token_id=3)
    space = {"batch.expected": [10], "model.name": [f"text/{tmp_path}"]}
    assert TRAINABLES["dp_sgd"].preflight(space, info_of(classes=2)) == []
    _, _, scores = train(
        "dp_sgd", tmp_path, info_of(classes=2), make_plan, optim__lr=0.5, train__max_steps=10
    )
    assert scores[1]["loss"] < scores[0]["loss"]


def data_of(info: DatasetInfo) -> SweepData:
    """Texts whose class is their first token; labels of a language model follow from the ids."""
    assert info.text is not None
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("private", 40), ("validation", 20), ("test", 0), ("public", 0)):
        labels = rng.integers(0, 2, count)
        ids = np.full((count, LENGTH), info.text.pad_id)
        ids[:, 1:4] = rng.integers(6, 12, (count, 3))
        ids[:, 0] = 12 + labels
        if info.task == "causal_lm":
            labels = next_tokens(ids, info.text.pad_id)
        parts[part] = (ids, labels)
    return SweepData(info, parts, "0")


def prepared(method: str, place: Path, info: DatasetInfo, make_plan: Any, **given: Any) -> Any:
    trainable, data = TRAINABLES[method], data_of(info)
    hparams, plan = make_plan(
        trainable,
        num_private=40,
        epsilon=3000.0,
        batch__expected=20,
        batch__physical=16,
        model__name=f"text/{place}",
        **{"train__max_steps": 20, **given},
    )
    run = trainable()
    run.prepare(data, hparams, plan, RunContext(0, 0))
    return run, plan


def train(method: str, place: Path, info: DatasetInfo, make_plan: Any, **given: Any) -> Any:
    run, plan = prepared(method, place, info, make_plan, **given)
    before = {name: value.clone() for name, value in run._model.state_dict().items()}
    scores = [run.evaluate("validation")]
    run.run(0, len(plan))
    scores.append(run.evaluate("validation"))
    return run, before, scores


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM"])
def test_biases_of_an_encoder_are_trained_and_nothing_else(
    tmp_path: Path, make_plan: Any, kind: str
) -> None:
    save_encoder(tmp_path, kind)
    run, before, scores = train(
        "bitfit", tmp_path, info_of(classes=2), make_plan, optim__lr=0.2, train__max_steps=60
    )
    assert isinstance(run._engine, BiasEngine)
    assert scores[1]["loss"] < scores[0]["loss"]
    head = head_layers(run._model)
    exported = run.export()
    for name, value in exported.state_dict().items():
        path, _, own = name.rpartition(".")
        moves = own == "bias" or path in head
        assert torch.equal(value, before[name]) != moves, name
    ids = torch.from_numpy(data_of(info_of()).parts["validation"][0])
    run._model.eval()
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(exported))(ids), run._model(ids))


@pytest.mark.parametrize("task", ["classification", "causal_lm"])
def test_whole_networks_train_privately(tmp_path: Path, make_plan: Any, task: str) -> None:
    place = save_gpt2(tmp_path) if task == "causal_lm" else save_encoder(tmp_path)
    info = info_of(task, classes=2)
    run, before, scores = train("dp_sgd", place, info, make_plan, optim__lr=0.3)
    assert isinstance(run._engine, OpacusEngine)
    assert scores[1]["loss"] < scores[0]["loss"]
    assert set(scores[0]) == set(task_of(task).score_names)
    after = run._model.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("embeddings" in name or "wte" in name for name in moved)
