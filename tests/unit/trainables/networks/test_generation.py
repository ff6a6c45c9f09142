"""Texts that a language model writes for the prompts of the test part, and their scores."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_text import save_gpt2

from dpsweep.foundation.errors import DataError, ModelError, SpecError
from dpsweep.spec.data.generation import GenerationSpec
from dpsweep.spec.study import DataSpec
from dpsweep.study.trial import TrialTask
from dpsweep.tracking.schema import check_loggable
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.text import written
from dpsweep.trainables.data.text.prompts import parted
from dpsweep.trainables.data.text.written import check_packages, left_out, written_scores
from dpsweep.trainables.execution.scores import TrialScores
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.pretrained.generation import generation_scores, write

MakeSpec = Callable[..., DataSpec]
SEP = 3
PROMPTS = ["good film", "a b", "bad", "c d e"]
TARGETS = ["a good film", "fine", "a bad book and a poor song", "d"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture
def e2e(make_spec: MakeSpec, gpt2: Path, tmp_path: Path) -> MakeSpec:
    for name, count in (("train", 40), ("validation", 4), ("test", 8)):
        rows = [f"{PROMPTS[i % 4]},{TARGETS[(i // 4 + i) % 4]}" for i in range(count)]
        (tmp_path / f"{name}.csv").write_text("mr,ref\n" + "\n".join(rows) + "\n")

    def make(**generation: Any) -> DataSpec:
        return make_spec(
            dataset="text", task="causal_lm", path=str(tmp_path), num_records=40,
            tokenizer=str(gpt2), max_length=10, prompt_column="mr", target_column="ref",
            test={"visibility": "public", "generation": {"max_new_tokens": 5, **generation}},
        )  # fmt: skip

    return make


def test_greedy_texts_are_the_most_likely_tokens(e2e: MakeSpec, gpt2: Path) -> None:
    data = load_dataset(e2e(scores=["bleu"]))
    model = build_model(f"text/{gpt2}", data.info, seed=0)
    text = data.info.text
    assert text is not None
    assert text.generation is not None
    pairs = zip(*data.parts["test"])
    prompts = list(dict.fromkeys(tuple(parted(*pair)[0].tolist()) for pair in pairs))
    assert len(prompts) == 4
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # a network at its start repeats the last token
        if parameter.dim() > 1:
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.5
    made = write(model, prompts, text, text.generation, block=2, device="cpu")
    model.eval()
    for prompt in prompts:
        ids = list(prompt)
        with torch.no_grad():
            while len(ids) - len(prompt) < 5 and ids[len(prompt) :][-1:] != [SEP]:
                ids.append(int(model(torch.tensor([ids] * 2))[0, -1].argmax()))
        new = ids[len(prompt) :]
        assert made[prompt] == (new[:-1] if new[-1:] == [SEP] else new)
    assert len({tuple(ids) for ids in made.values()}) > 1
    assert 0 < max(map(len, made.values())) <= 5
    beams = text.generation.model_copy(update={"num_beams": 3})
    beamed = write(model, prompts, text, beams, block=2, device="cpu")
    assert beamed.keys() == made.keys()
    again = write(model, prompts[::-1], text, beams, block=6, device="cpu")
    assert again == beamed


def test_records_with_one_prompt_are_its_references(
    e2e: MakeSpec, gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that repeats one of two targets has every score at its best."""
    data = load_dataset(e2e(scores=["bleu", "rouge_l", "cider"]))
    model = build_model(f"text/{gpt2}", data.info, seed=0)
    seen: dict[str, list[Any]] = {}

    def noted(names: Any, texts: Any, references: Any) -> dict[str, float]:
        seen.update(names=list(names), texts=list(texts), references=references)
        return {}

    module = "dpsweep.trainables.networks.pretrained.generation"
    monkeypatch.setattr(f"{module}.written_scores", noted)
    monkeypatch.setattr(
        f"{module}.write", lambda model, prompts, *a, **k: {p: [4] for p in prompts}
    )
    assert generation_scores(model, data, block=4, device="cpu") == {}
    assert seen["names"] == ["bleu", "rouge_l", "cider"]
    assert seen["texts"] == ["a"] * 4
    expected = [{TARGETS[i], TARGETS[(i + 1) % 4]} for i in range(4)]
    cut = "a bad book and a poor song"  # by max_length, behind a prompt of two tokens
    assert [{r if not cut.startswith(r) or r == "a" else cut for r in refs}
            for refs in seen["references"]] == expected  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("bitfit", {}),
        ("bitfit", {"bitfit.variant": "lora"}),
        ("dp_sgd", {}),
        ("non_private", {}),
    ],
)
def test_a_trained_model_is_scored(
    e2e: MakeSpec, gpt2: Path, make_plan: Callable[..., Any], method: str, changes: dict[str, Any]
) -> None:
    from dpsweep.trainables import TRAINABLES
    from dpsweep.trainables.method import RunContext

    data = load_dataset(e2e(scores=["bleu", "rouge_l", "cider"]))
    given = {"model.name": f"text/{gpt2}", "batch.expected": 20, "train.max_steps": 2, **changes}
    cls = TRAINABLES[method]
    full, plan = make_plan(
        cls, num_private=40, **{key.replace(".", "__"): value for key, value in given.items()}
    )
    instance = cls()
    instance.prepare(data, full, plan, RunContext(study_seed=0, trial=0))
    instance.run(0, 2)
    before = {key: value.clone() for key, value in instance.state_dict()["model"].items()}
    task = TrialTask(0, method, full, plan, 3.0, method != "non_private")
    settings: Any = SimpleNamespace(device="cpu", validation="exact", released=None)
    ledger: Any = None  # exact scores are charged to none
    held = TrialScores(instance, data, task, settings, ledger)
    scores = held.on_test(None)
    assert held.missing == {}
    expected = {"accuracy", "loss", "perplexity", "bleu", "rouge_l", "cider"}
    assert set(scores) == {f"test/{name}" for name in expected}
    assert 0 <= scores["test/rouge_l"] <= 1
    after = instance.state_dict()["model"]
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    direct = generation_scores(instance.export(), data, block=3, device="cpu")
    assert direct["rouge_l"] == scores["test/rouge_l"]
    assert set(instance.evaluate("validation")) == {"accuracy", "loss", "perplexity"}
    assert math.isfinite(scores["test/bleu"])


# Scores


def test_scores_of_texts_of_known_value() -> None:
    best = written_scores(["bleu", "rouge_l", "nist", "cider"], TEXTS, [[text] for text in TEXTS])
    assert best["bleu"] == pytest.approx(100)
    assert best["rouge_l"] == pytest.approx(1)
    assert best["cider"] == pytest.approx(10)
    upper = [text.upper() for text in TEXTS]
    assert written_scores(list(best), upper, [[text] for text in TEXTS]) == best
    worse = written_scores(list(best), [TEXTS[0]] * 2, [[text] for text in TEXTS])
    assert all(worse[name] < best[name] for name in best)
    two = written_scores(list(best), TEXTS, [[TEXTS[1], TEXTS[0]], [TEXTS[1]]])
    assert two["bleu"] == pytest.approx(100)
    assert two["rouge_l"] == pytest.approx(1)
    # By hand: the longest common subsequence of 3 words of 4 and of 6: F1 = 2 * 3 / (4 + 6).
    line = written_scores(["rouge_l"], ["the cat sat down"], [["the black cat sat over there"]])
    assert line["rouge_l"] == pytest.approx(0.6)
    short = written_scores(["nist"], ["a"], [["a"]])
    assert math.isnan(short["nist"])
    empty = written_scores(list(best), TEXTS, [["", " "], [""]])  # the others have theirs
    assert {name for name, value in empty.items() if math.isnan(value)} == {"nist", "cider"}
    assert empty["rouge_l"] == 0


TEXTS = ["The Punter is a cheap coffee shop near Cafe Sicilia.", "It has a low rating, they say."]


def test_meteor_needs_wordnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_has_wordnet", lambda: False)
    assert "nltk.downloader wordnet" in left_out(["bleu", "meteor"])
    assert left_out(["bleu"]) == ""
    assert list(written_scores(["bleu", "meteor"], TEXTS, [[t] for t in TEXTS])) == ["bleu"]
    monkeypatch.setattr(written, "_has_wordnet", lambda: True)
    assert left_out(["meteor"]) == ""
    # Exact words alone, which look nothing up. One chunk of n words: 1 - .5 / n^3.
    scores = written_scores(["meteor"], ["a b c d"], [["a b c d"]])
    assert scores["meteor"] == pytest.approx(1 - 0.5 / 4**3)


def test_a_missing_package_is_one_line(e2e: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:

    def find_spec(name: str) -> Any:
        return None if name == "pycocoevalcap" else importlib.util.find_spec(name)

    monkeypatch.setattr(written, "find_spec", find_spec)
    check_packages(["bleu", "nist"])
    with pytest.raises(DataError, match="cider needs the package pycocoevalcap") as caught:
        describe_dataset(e2e(scores=["bleu", "cider"]))
    assert "dpsweep[generation]" in str(caught.value.fix)


# Where it is asked for


def test_a_network_without_places_is_refused(e2e: MakeSpec, gpt2: Path) -> None:
    info = describe_dataset(e2e(max_new_tokens=7))
    with pytest.raises(ModelError, match="has 16 places"):
        build_model(f"text/{gpt2}", info, seed=0)
    build_model(f"text/{gpt2}", describe_dataset(e2e(max_new_tokens=6)), seed=0)


def test_scores_have_names_in_the_schema() -> None:
    for name in GenerationSpec().scores:
        assert check_loggable(f"test/{name}").visibility == "public"
        assert check_loggable(f"best/test/{name}")


def test_only_public_test_records_are_written_for(make_spec: MakeSpec) -> None:
    base: dict[str, Any] = {
        "dataset": "text", "task": "causal_lm", "path": "d", "num_records": 9, "tokenizer": "t",
        "max_length": 8,
    }  # fmt: skip
    prompts = {"prompt_column": "a", "target_column": "b"}
    public: dict[str, Any] = {"visibility": "public"}
    for given, words in (
        ({**prompts, "test": {"generation": {}}}, "scores test records, which are private"),
        ({"test": {**public, "generation": {}}}, "has no prompts to write on"),
        ({**prompts, "test": {**public, "generation": {"scores": []}}}, "scores: is empty"),
        ({**prompts, "test": {**public, "generation": {"scores": ["bleu"] * 2}}}, "'bleu' twice"),
        ({**prompts, "test": {**public, "generation": {"scores": ["blue"]}}}, "'blue'"),
        ({**prompts, "test": {**public, "generation": {"num_beams": 0}}}, "num_beams: must be"),
    ):
        with pytest.raises(SpecError, match=words):
            make_spec(**base, **given)
    made = make_spec(**base, **prompts, test={**public, "generation": {}})
    assert made.test.generation == GenerationSpec()
