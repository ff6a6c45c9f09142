"""The fewest tokens of a record: each of its texts has one, beside what a tokenizer adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_text import PAD, save_encoder, save_gpt2, tokenizers, transformers

from dpsweep.foundation.errors import DataError
from dpsweep.planning.checks import read_draft
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.tasks import IGNORED

CUTS = ["longest_first", "only_first", "only_second"]


def with_roberta_pairs(place: Path) -> Path:
    """Have a tokenizer add four tokens to a pair, two to a text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    ends = [("[SEP]", 3), ("[CLS]", 2)]
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.RobertaProcessing(*ends)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {
        "bert": save_encoder(root / "bert"),
        "roberta": with_roberta_pairs(save_encoder(root / "roberta")),
        "gpt2": save_gpt2(root / "gpt2"),
    }


@pytest.fixture
def text_spec(make_spec, tmp_path: Path, places):
    def make(texts: dict[str, str], tokenizer: str, **given: Any):
        rows = [json.dumps({**texts, "label": number % 2}) for number in range(20)]
        path = tmp_path / "texts.jsonl"
        path.write_text("\n".join(rows) + "\n")
        tokenizer = str(places[tokenizer])
        return make_spec(
            dataset="text", path=str(path), num_records=20, tokenizer=tokenizer, **given
        )

    return make


def ids_of(spec: Any) -> np.ndarray:
    data = load_dataset(spec)
    return np.concatenate([data.parts["private"][0], data.parts["validation"][0]])


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("tokenizer", "own"), [("bert", 3), ("roberta", 4)])
def test_a_pair_has_a_token_of_each_text(text_spec, tokenizer: str, own: int, cut: str) -> None:
    texts = {"q": "good film", "a": "bad book"}
    texts["q" if cut == "only_second" else "a"] = "fine"  # the one that stays whole
    given = {"text_column": "q", "text_pair_column": "a", "truncation": cut, "num_classes": 2}
    for length in range(2, own + 2):
        with pytest.raises(DataError, match=f"data.max_length: {length} tokens") as caught:
            describe_dataset(text_spec(texts, tokenizer, max_length=length, **given))
        assert f"beside {own} that the tokenizer adds" in caught.value.message
        assert caught.value.fix == f"give {own + 2} at least"
    spec = text_spec(texts, tokenizer, max_length=own + 2, **given)
    assert describe_dataset(spec).input_shape == (own + 2,)
    ids = ids_of(spec)
    assert ids.shape == (20, own + 2)
    assert (ids > 3).sum(axis=1).tolist() == [2] * 20  # words have ids above those


@pytest.mark.parametrize(("tokenizer", "own"), [("bert", 2), ("gpt2", 0)])
def test_a_record_has_a_token_of_its_text(text_spec, tokenizer: str, own: int) -> None:
    texts, given = {"text": "good film and a song"}, {"num_classes": 2}
    for length in range(2, own + 1):
        with pytest.raises(DataError, match="no room for a token of the text"):
            describe_dataset(text_spec(texts, tokenizer, max_length=length, **given))
    fewest = max(2, own + 1)
    ids = ids_of(text_spec(texts, tokenizer, max_length=fewest, **given))
    assert (ids > 3).sum(axis=1).tolist() == [fewest - own] * 20


@pytest.mark.parametrize("cut", ["longest_first", "only_second"])
@pytest.mark.parametrize(("tokenizer", "own"), [("bert", 1), ("gpt2", 0)])
def test_a_prompt_and_its_target_have_a_token_each(text_spec, tokenizer, own, cut) -> None:
    """BERT's end of a prompt is the end between the two, and is there once."""
    texts = {"p": "good", "t": "bad book"}
    given = {
        "task": "causal_lm",
        "prompt_column": "p",
        "target_column": "t",
        "truncation": cut,
    }
    for length in range(2, own + 3):
        with pytest.raises(DataError, match="no room for a token of the prompt") as caught:
            describe_dataset(text_spec(texts, tokenizer, max_length=length, **given))
        assert ("the tokenizer adds" in caught.value.message) == bool(own)
    data = load_dataset(text_spec(texts, tokenizer, max_length=own + 3, **given))
    ids, labels = data.parts["private"]
    assert (ids != PAD).all()
    assert ((labels != IGNORED).sum(axis=1) == 1).all()


def test_token_ids_have_any_length(make_spec, places, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x_train=np.full((20, 2), 5), y_train=np.arange(20) % 2)
    spec = make_spec(
        dataset="text", path=str(tmp_path / "d.npz"), num_records=20, num_classes=2,
        tokenizer=str(places["bert"]), max_length=2,
    )  # fmt: skip
    assert describe_dataset(spec).input_shape == (2,)


def test_the_mistake_is_of_its_key(text_spec) -> None:
    data = text_spec({"text": "good"}, "bert", max_length=2, num_classes=2)
    spec = SweepSpec.model_validate(
        {
            "name": "short",
            "data": data.model_dump(exclude_unset=True),
            "privacy": {"delta": 1e-4, "trial_epsilon": 3.0, "accounting": "unaccounted"},
            "search": {"num_trials": 1, "space": {"method": "bitfit", "train.max_steps": 2}},
        }
    )
    draft, mistakes = read_draft(spec)
    assert draft.info is None
    (mistake,) = mistakes
    assert mistake.key == "data.max_length"
    assert mistake.what.startswith("2 tokens have no room")
    assert mistake.fix == "give 3 at least"
