"""Files with weights: read by one rule, and put into a network that they fit.

The rule is timm's: what a training script saved may hold them under ``state_dict_ema``,
``model_ema``, ``state_dict`` or ``model``; names may begin with ``module.`` or ``_orig_mod.``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import counted
from dpsweep.trainables.networks.layers import head_layers
from dpsweep.trainables.networks.pretrained.weights import unwrapped

State = dict[str, torch.Tensor]


def read_weights(path: Path) -> State:
    """Return the state dict in a file of torch or safetensors; no code in it is run.

    Raises:
        BadInputError: It is neither, or holds no state dict; and so cannot be loaded.
    """
    fix = "give a state dict written by torch.save or safetensors"
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(str(path))
        else:
            # timm's training script keeps its arguments beside the weights.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
        weights = unwrapped(content)
    except Exception as error:  # pickle, zip, safetensors and torch each raise their own kinds
        raise BadInputError(
            f"cannot read the weights {path}: {type(error).__name__}", fix=fix
        ) from error
    if weights is None or not all(isinstance(entry, torch.Tensor) for entry in weights.values()):
        raise BadInputError(f"{path} holds no state dict", fix=fix)
    return weights


def load_weights(model: nn.Module, state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Load a state dict; only the classifier may differ in size or be missing, and stays random.

    A network that is a classifier and nothing else needs all of it.

    Args:
        model: The network, changed in place.
        state: Under the network's own names.
        path: The file, as messages name it.
    Raises:
        BadInputError: It does not fit.
    """
    state = {**state, **_own_classifier(model, state)}
    problem = misfit(model, state)
    if problem:
        raise BadInputError(
            f"{path} does not fit the model: {problem}",
            fix="use the model that the weights were made with",
        )
    model.load_state_dict(state)


def fits(model: nn.Module, state: Mapping[str, torch.Tensor]) -> bool:
    """Say whether ``load_weights`` would take a state dict as it is."""
    return not misfit(model, {**state, **_own_classifier(model, state)})


def _own_classifier(model: nn.Module, state: Mapping[str, torch.Tensor]) -> State:
    """Return what of a network's classifier a state dict lacks, or has in another size."""
    own = model.state_dict()
    head = head_layers(model)
    of_head = [key for key in own if key.rpartition(".")[0] in head]
    if len(of_head) == len(own):
        return {}
    is_there = {key for key in of_head if key in state and state[key].shape == own[key].shape}
    if len(is_there) < len(of_head):  # a weight without its bias would be half a classifier
        return {key: own[key] for key in of_head}
    return {}


def misfit(model: nn.Module, state: Mapping[str, torch.Tensor]) -> str:
    """Return why a state dict is not that of a network, with an example each; empty if it is."""
    own = model.state_dict()
    missing = [key for key in own if key not in state]
    foreign = [key for key in state if key not in own]
    others = [key for key in own if key in state and own[key].shape != state[key].shape]
    reasons = []
    if missing:
        reasons.append(f"it lacks {counted(len(missing), 'entry')} ({missing[0]})")
    if foreign:
        reasons.append(f"it has {len(foreign)} that the network has not ({foreign[0]})")
    if others:
        key = others[0]
        theirs, ours = ("x".join(map(str, e.shape)) or "one" for e in (state[key], own[key]))
        reasons.append(f"{len(others)} in another shape ({key}: {theirs}, not {ours})")
    return ", ".join(reasons)
