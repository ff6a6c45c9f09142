"""SST-2, QNLI and E2E in small, as Hugging Face and the E2E challenge lay them out."""

from pathlib import Path

import datasets
import numpy as np
from tiny_text import WORDS

_WORDS_OF = {0: ("bad", "poor"), 1: ("good", "fine")}


def _sentence(rng: np.random.Generator, label: int) -> str:
    """Return a sentence with a word that says its class."""
    others = [WORDS[rng.integers(0, 8)] for _ in range(rng.integers(1, 4))]
    return " ".join([_WORDS_OF[label][rng.integers(0, 2)], *others])


def _sst2(rng: np.random.Generator, label: int) -> dict[str, str]:
    return {"sentence": _sentence(rng, label)}


def _qnli(rng: np.random.Generator, label: int) -> dict[str, str]:
    """Return a pair of two good or two bad sentences (0), or of one each."""
    first = int(rng.integers(0, 2))
    return {
        "question": _sentence(rng, first),
        "sentence": _sentence(rng, first if label == 0 else 1 - first),
    }


def save_glue(path: Path, task: str, *, num_train: int = 100) -> Path:
    """Write ``sst2`` or ``qnli``: its test split has the label -1 everywhere."""
    rng = np.random.default_rng(0)
    make = {"sst2": _sst2, "qnli": _qnli}[task]
    parts = {}
    for name, size in (("train", num_train), ("validation", 40), ("test", 10)):
        labels = rng.integers(0, 2, size).tolist()
        rows = [{**make(rng, label), "label": label, "idx": i} for i, label in enumerate(labels)]
        if name == "test":
            rows = [{**row, "label": -1} for row in rows]
        parts[name] = datasets.Dataset.from_list(rows)
    datasets.disable_progress_bars()
    datasets.DatasetDict(parts).save_to_disk(path)
    return path


def save_e2e(path: Path, *, num_train: int = 200) -> Path:
    """Write trainset.csv, devset.csv and testset.csv: meanings and references."""
    rng = np.random.default_rng(0)
    path.mkdir()
    for name, size in (("trainset", num_train), ("devset", 20), ("testset", 20)):
        lines = ["mr,ref"]
        for _ in range(size):
            word, thing = WORDS[8 + rng.integers(0, 4)], WORDS[12 + rng.integers(0, 3)]
            lines.append(f'"{thing}, {word}",a {word} {thing}')
        (path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return path
