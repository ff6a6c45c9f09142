"""A sweep wired by hand of stock parts: Ray Tune, Optuna, ASHA, MLflow's callback, Opacus.

What ``bench_sweep.py`` compares with: the same records, model and configurations as ``sweep.yaml``.
It accounts for each trial by Opacus' own accountant, and for the search not at all.

python tests/benchmarks/peer_sweep.py --out FOLDER --trials 8 [--reuse-actors] [--no-mlflow]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from opacus import PrivacyEngine
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsweep.trainables.data.built_in import FASHION_MNIST_PATH, _read_idx

DELTA, EPOCHS, RECORDS, SLOTS = 1e-5, 3, 2000, 2


def read(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first images and labels of a part, in [0, 1]."""
    images = _read_idx(FASHION_MNIST_PATH / f"{part}-images-idx3-ubyte.gz", dimensions=3)
    labels = _read_idx(FASHION_MNIST_PATH / f"{part}-labels-idx1-ubyte.gz", dimensions=1)
    inputs = images[:RECORDS, None].astype(np.float32) / 255
    return inputs, labels[:RECORDS].astype(np.int64)


class PrivateTraining(tune.Trainable):
    """One trial: an Opacus engine around SGD, an epoch a step."""

    def setup(self, config: dict[str, Any], parts: Any = None) -> None:
        """Take the records and build the model."""
        self._parts = [[torch.from_numpy(np.array(a)) for a in part] for part in parts]
        self._build(config)

    def _build(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        self._engine = PrivacyEngine()
        self._model, self._optimizer, self._loader = self._engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9),
            data_loader=DataLoader(TensorDataset(*self._parts[0]), batch_size=config["batch"]),
            noise_multiplier=config["noise"],
            max_grad_norm=config["clip"],
        )
        self._training_s = 0.0

    def step(self) -> dict[str, Any]:
        """Train an epoch; return accuracy and epsilon."""
        begin = time.perf_counter()
        for inputs, labels in self._loader:
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(inputs), labels).backward()
            self._optimizer.step()
        inputs, labels = self._parts[1]
        with torch.no_grad():
            accuracy = float((self._model(inputs).argmax(1) == labels).float().mean())
        self._training_s += time.perf_counter() - begin
        epsilon = float(self._engine.get_epsilon(DELTA))
        return {"accuracy": accuracy, "epsilon": epsilon, "training_s": self._training_s}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save model and optimizer."""
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, Path(checkpoint_dir, "state.pt"))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Load what ``save_checkpoint`` saved."""
        state = torch.load(Path(checkpoint_dir, "state.pt"))
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Go on with another trial in this process."""
        self._build(new_config)
        return True


def main() -> None:
    """Run the sweep and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--reuse-actors", action="store_true")
    parser.add_argument("--no-mlflow", action="store_true")
    options = parser.parse_args()
    out = Path(options.out).resolve()
    ray.init(address="local", num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)
    trainable = tune.with_parameters(PrivateTraining, parts=[read("train"), read("t10k")])
    uri = f"sqlite:///{out}/mlflow.db"
    callback = MLflowLoggerCallback(tracking_uri=uri, experiment_name="sweep")
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={
            "lr": tune.loguniform(1e-2, 2.0),
            "noise": tune.uniform(0.6, 3.0),
            "clip": tune.loguniform(0.1, 2.0),
            "batch": tune.choice([64, 128, 256]),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=options.trials,
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1),
            search_alg=ConcurrencyLimiter(OptunaSearch(seed=0), SLOTS),
            reuse_actors=options.reuse_actors,
        ),
        run_config=tune.RunConfig(
            storage_path=str(out),
            stop={"training_iteration": EPOCHS},
            verbose=0,
            callbacks=[] if options.no_mlflow else [callback],
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
        ),
    ).fit()
    best = results.get_best_result("accuracy", "max").metrics
    training_s = sum(result.metrics["training_s"] for result in results)
    print(json.dumps({"accuracy": best["accuracy"], "training_s": training_s}))
    ray.shutdown()


if __name__ == "__main__":
    main()
