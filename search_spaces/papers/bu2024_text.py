"""Presets of Bu et al. 2024 on text: tables 3 and 12 (GLUE with RoBERTa), 4 and 13 (E2E, GPT-2).

https://arxiv.org/abs/2210.00036, with the recipe of appendix D.1. They read a directory that
``datasets.save_to_disk`` wrote, or E2E's own files, load a network by its name on the hub, and want
a GPU. `dpsweep init --data-path .. --encoder ..` names other places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpsweep.search_spaces.bitfit import WHY as WHY_BITFIT
from dpsweep.search_spaces.papers.bu2024 import SOURCE
from dpsweep.search_spaces.presets import Preset

#: Learning rates of appendix D.1: of biases and of the whole network.
_BIASES, _WHOLE = 5e-3, 5e-4
_BUDGETS = {"choice": [3, 8]}
_VARIANTS = ("bitfit", "full", "lora", "adapter")
_WHY: Mapping[str, str] = {
    **WHY_BITFIT,
    "model.name": "text/ and a name on the hub, or text/ and the absolute path of a directory",
    "adapter.width": "trains 1.4 per cent of the weights, as the paper's source of that row does",
    "noise.target_epsilon": "the noise is the least that stays within it",
    "batch.physical": "examples at a time, for memory; no effect on results",
    "train.epochs": "expected passes over the private records",
}


@dataclass(frozen=True)
class _Task:
    """A task of GLUE.

    Attributes:
        title: What it is called.
        columns: Keys of the data section for its texts.
        records: Training records.
        classes: Classes.
        delta: About one half of one over the records, as Li et al. 2021 have it.
        batch: Expected batch size.
        epochs: Passes.
        accuracy: Of RoBERTa-base in table 3 at epsilon 8, by variant, in per cent.
        validation: Its split that scores are reported on.
    """

    title: str
    columns: str
    records: int
    classes: int
    delta: str
    batch: int
    epochs: int
    accuracy: Mapping[str, str]
    validation: str = "validation"


_PAIR = "  text_column: {}\n  text_pair_column: {}\n"
_TASKS: Mapping[str, _Task] = {
    "sst2": _Task(
        "SST-2", "  text_column: sentence\n", 67_349, 2, "7e-6", 1000, 3,
        {"bitfit": "92.4", "full": "92.1", "lora": "92.2", "adapter": "92.5"},
    ),
    "qnli": _Task(
        "QNLI", _PAIR.format("question", "sentence"), 104_743, 2, "4e-6", 2000, 6,
        {"bitfit": "86.9", "full": "87.9", "lora": "87.3", "adapter": "87.5"},
    ),
    "qqp": _Task(
        "QQP", _PAIR.format("question1", "question2"), 363_846, 2, "1e-6", 6000, 18,
        {"bitfit": "85.6", "full": "86.1", "lora": "85.7", "adapter": "85.6"},
    ),
    "mnli": _Task(
        "MNLI", _PAIR.format("premise", "hypothesis"), 392_702, 3, "1e-6", 6000, 18,
        {"bitfit": "82.9", "full": "83.2", "lora": "83.5", "adapter": "83.4"}, "validation_matched",
    ),
}  # fmt: skip
_DATA = """\
  dataset: text                # needs pip install 'dpsweep[text]'
  path: {path:<23}# EDIT: the directory of datasets.save_to_disk
{columns}\
  splits: {{test: {validation}}}  # the split of that name has no labels
  tokenizer: roberta-base      # a directory, or a name on the hub; it must be public
  max_length: 256
  num_records: {records:<16}# of the training split
  num_classes: {classes}
  validation:                  # what configurations are compared on
    fraction: 0.05
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {{visibility: public}}   # scored once, at the end of a trial
"""


def _glue(name: str, variant: str) -> Preset:
    """Return one variant on one task at two budgets."""
    task = _TASKS[name]
    rate = _WHOLE if variant == "full" else _BIASES
    width = {"adapter.width": 48} if variant == "adapter" else {}
    about = (
        f"RoBERTa-base, Adam at {rate:g}, a clipping norm of .1, {task.epochs} epochs of "
        f"{task.batch:,}, 256 tokens, as in the paper (appendix D.1); it reports "
        f"{task.accuracy[variant]} % on the validation split at epsilon 8, and epsilon 3 in table "
        "12. It asks by an infilling prompt (Li et al. 2021), here a classifier reads the mean "
        "over tokens or its own first token. A twentieth of the training records is kept apart "
        "here, for comparing configurations."
    )
    return Preset(
        title=f"DP-BiTFiT on {task.title} with RoBERTa-base, variant {variant}: table 3 in kind.",
        source=SOURCE,
        about=(about,),
        data=_DATA.format(
            path=name,
            columns=task.columns,
            validation=task.validation,
            records=task.records,
            classes=task.classes,
        ),
        space={
            "method": "bitfit",
            "model.name": "text/roberta-base",
            "bitfit.variant": variant,
            **width,
            "optim.name": "adam",
            "optim.lr": rate,
            "clip.max_grad_norm": 0.1,
            "noise.target_epsilon": _BUDGETS,
            "batch.expected": task.batch,
            "batch.physical": 32,
            "train.epochs": task.epochs,
        },
        why=_WHY,
        epsilon=8.0,
        delta=task.delta,
        then=("dpsweep report {name} --by noise.target_epsilon",),
    )


_E2E = """\
  dataset: text                # needs pip install 'dpsweep[text,generation]'
  task: causal_lm
  path: e2e                    # EDIT: directory of trainset.csv, devset.csv and testset.csv
  splits: {train: trainset, validation: devset, test: testset}
  prompt_column: mr
  target_column: ref
  tokenizer: gpt2              # a directory, or a name on the hub; it must be public
  max_length: 100
  num_records: 42061           # of trainset.csv
  validation: {visibility: exact}  # private, and exact: no guarantee covers them
  test:                        # texts that are written, scored once, at the end of a trial
    visibility: public
    generation: {num_beams: 5, length_penalty: 0.9, no_repeat_ngram_size: 4, max_new_tokens: 100}
"""


def _e2e(variant: str, rate: float, reported: str) -> Preset:
    """Return one variant of GPT-2 on E2E."""
    return Preset(
        title=f"DP-BiTFiT on E2E with GPT-2 small, variant {variant}: table 4 in kind.",
        source=SOURCE,
        about=(
            f"AdamW at {rate:g}, automatic clipping, 10 epochs of 1,024, 100 tokens, as in the "
            f"paper (appendix D.1). At epsilon 8 it reports {reported}.",
        ),
        data=_E2E,
        space={
            "method": "bitfit",
            "model.name": "text/gpt2",
            "bitfit.variant": variant,
            "optim.name": "adamw",
            "optim.lr": rate,
            "clip.rule": "automatic",
            "clip.max_grad_norm": 0.1,
            "noise.target_epsilon": _BUDGETS,
            "batch.expected": 1024,
            "batch.physical": 16,
            "train.epochs": 10,
        },
        why=_WHY,
        epsilon=8.0,
        delta="8e-6",
        metric="validation/loss",
        then=("dpsweep report {name} --by noise.target_epsilon",),
    )


PRESETS: Mapping[str, Preset] = {
    **{f"{v}_{name}": _glue(name, v) for name in _TASKS for v in _VARIANTS},
    "bitfit_e2e": _e2e(
        "bitfit", 1e-2, "perplexity 2.89, BLEU 60.56, ROUGE-L 64.96, NIST 6.14, METEOR .37 and "
        "CIDEr 1.62",
    ),
    "full_e2e": _e2e(
        "full", 2e-3, "perplexity 2.33, BLEU 63.60, ROUGE-L 67.07, NIST 7.71, METEOR .40 and "
        "CIDEr 1.94",
    ),
}  # fmt: skip
