"""The suites on the parts of tests/plugins/junipers, from the source of their package."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outside import install

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EVENTS, EventRun, Gaussian, Plan, plan
from dpsweep.spec.space.hyperparameters import public_data
from dpsweep.testing.conformance import MethodConformance
from dpsweep.testing.events import EventConformance
from dpsweep.trainables import TRAINABLES

sys.path.append(str(Path(__file__).parent / "junipers" / "src"))
from dpsweep_junipers.sums import JuniperSums
from dpsweep_junipers.tree import TreeSums, depth_of
from dpsweep_junipers.votes import JuniperVotes


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "dpsweep.events", EVENTS, juniper_tree="dpsweep_junipers.tree:TreeSums")
    monkeypatch.setattr(plan, "_IN_TABLE", set())


class TestTree(EventConformance):
    event = TreeSums(10.0, 8)
    quiet = TreeSums(1e9, 8)


class TestVotes(MethodConformance):
    method = JuniperVotes
    noise_is_seen = False  # drawn from numpy
    given = {"votes.queries": 20, "votes.teachers": 100}  # noqa: RUF012


def test_what_a_method_uses_of_public_records_is_in_its_own_file() -> None:
    config = {"votes.queries": 7, "votes.teachers": 100}
    assert public_data(JuniperVotes.hyperparameters, config) == "7 records that are voted on"
    assert public_data(JuniperSums.hyperparameters, {"tree.leaves": 16}) == "none"


class TestSums(MethodConformance):
    method = JuniperSums
    noise_is_seen = False  # drawn from numpy
    given = {"tree.leaves": 16}  # noqa: RUF012


@pytest.mark.parametrize(("leaves", "depth"), [(1, 1), (2, 2), (3, 3), (8, 4), (9, 5), (1024, 11)])
def test_a_tree_costs_as_many_gaussians_as_it_is_deep(leaves: int, depth: int) -> None:
    assert depth_of(leaves) == depth
    for accountant in ("rdp", "pld"):
        tree: Any = Plan((EventRun(TreeSums(7.0, leaves), 3),))
        same: Any = Plan((EventRun(Gaussian(7.0), 3 * depth),))
        ours, theirs = (epsilon_of(p, delta=1e-5, accountant=accountant) for p in (tree, same))
        assert ours == pytest.approx(theirs, rel=1e-7)


def test_prefix_sums_of_the_tree_are_right_and_as_noisy_as_their_nodes() -> None:
    import torch

    from dpsweep.testing.conformance import tiny_data
    from dpsweep.trainables.method import RunContext

    data, leaves = tiny_data(), 8
    errors = []
    for _ in range(30):
        method = JuniperSums()
        steps = Plan((EventRun(TreeSums(1.0, leaves)), EventRun(Gaussian(1.0), 7, part="public")))
        hparams = {"tree.leaves": leaves, "clip.max_norm": 1e9}
        method.prepare(data, hparams, steps, RunContext(0, 0))
        method._noise.like = lambda tensor, scale: torch.randn(tensor.shape)  # type: ignore
        method.run(0, 7)
        x, y = (torch.from_numpy(array) for array in data.parts["private"])
        early = torch.arange(len(y)) % leaves < 7
        exact = torch.zeros(2, x.shape[1]).index_add_(0, y[early], x[early])
        share = data.info.num_private * 7 / leaves / 2
        errors.append((method._means() * share - exact).numpy().ravel())
    # Seven leaves are three nodes: 4 + 2 + 1.
    assert np.std(errors) == pytest.approx(math.sqrt(3), rel=0.15)


def test_the_methods_are_of_another_package() -> None:
    assert not {JuniperVotes.name, JuniperSums.name} & set(TRAINABLES)
