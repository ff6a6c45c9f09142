"""How well a public subspace holds private gradients, step by step: figure 6 of AdaMix's paper.

A trial of a finished study of `adamix` is run once more in this process. At each step the sum of
the clipped private gradients, without noise, is projected on the subspace of the public gradient
and on a random one of the same dimension, and what is lost is measured: |g - P g| / |g| (Golatkar
et al. 2022, https://arxiv.org/abs/2203.11481, appendix A.1). The figures are exact and private, and
no guarantee covers them: they are for data whose owner does not mind, as that of a benchmark.

    python tests/benchmarks/draw_reconstruction.py NAME figure6.png [--trial 0] [--root studies]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from dpsweep.privacy.randomness import public_seed
from dpsweep.results.study import load_sweep
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.adamix.noisy_gd import PublicSubspace


def random_projection(num_features: int, rank: int, seed: int) -> torch.Tensor:
    """Return the directions that a random subspace of this rank lacks, orthonormal columns."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn((num_features, num_features - rank), generator=generator)
    return torch.linalg.qr(drawn).Q


def lost(gradient: torch.Tensor, kept: torch.Tensor) -> float:
    """Return the share of a gradient's norm that a projection loses."""
    return float((gradient - kept).norm() / gradient.norm())


def errors(method: AdaMix, num_steps: int, fraction: float, seed: int) -> np.ndarray:
    """Return what both subspaces lose before each step, float64 (steps, 2)."""
    num_features = method._weight.shape[1]
    public = PublicSubspace(num_features, fraction, seed=seed, device="cpu")
    lacks = random_projection(num_features, public.rank, seed + 1)
    rows = []
    for step in range(num_steps):
        bound, total = method._clip_and_public()
        if total is None:
            total = method._public.gradient_sum(method._weight)[0].float()
        gradient = method._private.gradient_sum(method._weight, bound)[0].float()
        at_random = gradient - gradient @ lacks @ lacks.T
        rows.append((lost(gradient, public.project(gradient, total)), lost(gradient, at_random)))
        method.run(step, step + 1)
    return np.array(rows)


def main() -> None:
    """Draw both curves, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("study", help="one of adamix, that has run")
    parser.add_argument("figure", type=Path)
    parser.add_argument("--trial", type=int, default=0)
    parser.add_argument("--root", default="studies")
    parser.add_argument("--fraction", type=float, help="directions kept; else the trial's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = load_sweep(options.study, root=options.root)
    spec, task = result.spec, result.files.task(options.trial)
    if task.method != "adamix" or not len(task.plan):
        parser.error(f"trial {options.trial} takes no step of adamix")
    fraction = options.fraction or task.hparams["projection.fraction"]
    supplies = Supplies(feature_root=spec.storage.features_path)
    context = RunContext(spec.seed, options.trial, supplies=supplies)
    method = AdaMix()
    method.prepare(load_dataset(spec.data), task.hparams, task.plan, context)
    seed = public_seed(spec.seed, options.trial, "reconstruction")
    curves = errors(method, len(task.plan), fraction, seed)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for column, label in enumerate(("public gradient's subspace", "random subspace")):
        axes.plot(curves[:, column], label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("relative reconstruction error")
    axes.set_title(f"{options.study}, trial {options.trial}: {fraction:g} of the directions")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(options.figure, dpi=150)
    for step in np.unique(np.linspace(0, len(curves) - 1, 6).astype(int)):
        print(f"step {step:>4}: public {curves[step, 0]:.4f}, random {curves[step, 1]:.4f}")
    ratio = float((curves[:, 0] / curves[:, 1]).mean())
    print(f"public over random, mean over steps: {ratio:.3f}; the paper: at most .5")


if __name__ == "__main__":
    main()
