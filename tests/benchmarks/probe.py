"""What the public network of a study knows of its private task, without privacy.

A linear classifier learns the private training records twice: from what the network's classifier
sees, before any private step, and from their pixels. It is logistic regression with the best of
three regularisations, by the study's validation records; the test records are scored. No guarantee
covers these figures: they are for data whose owner does not mind, as that of a benchmark.

    python tests/benchmarks/probe.py luo2021-cls-five-classes [--root studies]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.methods.active_learning.embeddings import embed
from dpsweep.trainables.methods.active_learning.start_network import build_start

STRENGTHS = (0.0001, 0.001, 0.01)  # inverse, as scikit-learn counts
PARTS = ("private", "validation", "test")
Rows = dict[str, NDArray[np.float32]]


def accuracy(rows: Rows, labels: dict[str, NDArray[np.int64]]) -> float:
    """Return the test accuracy of the classifier that is best on validation records."""
    found = {}
    for strength in STRENGTHS:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
        model.fit(rows["private"], labels["private"])
        found[model.score(rows["validation"], labels["validation"])] = model
    return float(found[max(found)].score(rows["test"], labels["test"]))


def main() -> None:
    """Print both accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("study", help="one that starts from public weights, and has run")
    parser.add_argument("--root", default="studies")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = load_sweep(options.study, root=options.root)
    spec = result.spec
    checked, data = preflight(spec), load_dataset(spec.data)
    pretrained = None
    if result.view.pretrained is not None:
        address = result.view.pretrained["address"]
        pretrained = spec.storage.pretrained_path / f"{address}.safetensors"
    hparams = result.files.task(0).hparams
    model = build_start(hparams, checked.info, seed=0, pretrained=pretrained)
    labels = {part: np.asarray(data.parts[part][1]) for part in PARTS}
    pixels, features = {}, {}
    for part in PARTS:
        inputs = torch.as_tensor(np.asarray(data.parts[part][0]))
        pixels[part] = inputs.flatten(1).float().numpy()
        features[part] = embed(model, inputs, block=256, device="cpu")[0].numpy()
    counts = ", ".join(f"{len(labels[part])} {part}" for part in PARTS)
    print(
        f"{options.study}: {hparams['model.name']}, {features['test'].shape[1]} features; {counts}"
    )
    print(f"linear classifier on features: test accuracy {accuracy(features, labels):.4f}")
    print(f"linear classifier on pixels:   test accuracy {accuracy(pixels, labels):.4f}")


if __name__ == "__main__":
    main()
