"""What torch takes of a process: no compiler, and the same numbers without it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpsweep.trainables.networks.torch_process import uncompiled

HELPERS = Path(__file__).parents[3] / "helpers"
ALONE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from dpsweep import sweep
from studies_here import run_here
from whole_studies import make_spec
space = {"method": "dp_sgd", "model.name": "tanh_cnn", "train.max_steps": 2,
         "optim.name": {"choice": ["sgd", "adam"]}}
spec = make_spec(Path(sys.argv[2]), search__space=space, search__num_trials=2,
                 search__sampler="grid")
def say(*_, **more):  # in the place of the export of the best model, which loads it
    loaded = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
    print("loaded:", loaded, "torch:", "torch.optim.adam" in sys.modules)
sweep.log_best_model = say
run_here(setattr, spec)
"""


@pytest.mark.slow
def test_a_trial_loads_no_compiler(tmp_path):
    """In a process of its own: others of this one may have loaded it."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(HELPERS), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded: [] torch: True"


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.01}),
    ],
)
def test_its_numbers_are_torchs(optimizer, settings):
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.arange(5.0)) for _ in range(2))
    own, other = uncompiled(optimizer)([ours], **settings), optimizer([theirs], **settings)
    for step in range(6):
        gradient = torch.randn(5)
        for parameter, each in ((ours, own), (theirs, other)):
            each.zero_grad()
            parameter.grad = gradient.clone()
            each.step()
        assert torch.equal(ours, theirs), step
        if step == 2:  # as a checkpoint does it
            state = own.state_dict()
            own = uncompiled(optimizer)([ours], **settings)
            own.load_state_dict(state)
    assert isinstance(own, optimizer)
