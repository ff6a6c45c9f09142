"""Every method in the table passes the suite of methods; its charged events are what it runs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from dpsweep.testing.conformance import MethodConformance, tiny_data
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.methods.dope_sgd import DOPESGD
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.non_private import NonPrivate
from dpsweep.trainables.methods.scatternet.non_private import ScatterNetNonPrivate
from dpsweep.trainables.methods.scatternet.scatternet import ScatterNet

GIVEN = {"train.max_steps": 24, "batch.expected": 100, "optim.lr": 0.3}


class TestDPSGD(MethodConformance):
    method = DPSGD
    given: ClassVar[Mapping[str, Any]] = {**GIVEN, "noise.shape": "cosine", "noise.end_ratio": 0.5}

    def test_executed_noise_is_the_charged_noise(self, monkeypatch):
        """Each position adds noise of exactly the charged multiplier times its clip norm."""
        drawn = []
        monkeypatch.setattr(
            DPSGD, "noise_observer", staticmethod(lambda n: drawn.append(n.clone()))
        )
        instance, plan = self._prepared(tiny_data(features=500))
        instance.run(0, len(plan))
        per_position = len(drawn) // len(plan)
        assert len(drawn) == per_position * len(plan)
        for position in range(len(plan)):
            mine = drawn[position * per_position : (position + 1) * per_position]
            noise = np.concatenate([part.numpy().ravel() for part in mine])
            sigma = plan.at(position).noise_multiplier  # the clip norm is 1
            assert stats.kstest(noise, "norm", args=(0, sigma)).pvalue > 1e-6
            assert stats.kstest(noise, "norm", args=(0, 2 * sigma)).pvalue < 1e-6


class TestDOPESGD(MethodConformance):
    method = DOPESGD
    given: ClassVar[Mapping[str, Any]] = GIVEN


class TestNonPrivate(MethodConformance):
    method = NonPrivate
    given: ClassVar[Mapping[str, Any]] = GIVEN


SUITE = re.compile(r"\(MethodConformance\):\n    method = (\w+)$", re.MULTILINE)
#: The tiny data are no images: they are their own features.
ON_FEATURES = {**GIVEN, "features.name": "none", "optim.lr_scaling": "none"}


class TestScatterNet(MethodConformance):
    method = ScatterNet
    given: ClassVar[Mapping[str, Any]] = {**ON_FEATURES, "clip.max_grad_norm": 1.0}


class TestScatterNetPrivateStatistics(MethodConformance):
    method = ScatterNet
    given: ClassVar[Mapping[str, Any]] = {
        **ON_FEATURES,
        "normalize.kind": "private_data",
        "normalize.mean_norm": 5.0,
        "normalize.square_norm": 25.0,
    }


class TestScatterNetManyHeads(MethodConformance):
    method = ScatterNet
    given: ClassVar[Mapping[str, Any]] = {**ON_FEATURES, "heads.count": 3, "heads.lr_span": 4.0}


class TestScatterNetNonPrivate(MethodConformance):
    method = ScatterNetNonPrivate
    given: ClassVar[Mapping[str, Any]] = {**ON_FEATURES, "normalize.kind": "private_data"}


def test_every_method_is_covered():
    files = Path(__file__).parent.glob("test_methods*.py")
    covered = {name for file in files for name in SUITE.findall(file.read_text())}
    assert covered == {TRAINABLES[name].__name__ for name in TRAINABLES}


@pytest.mark.parametrize("name", [name for name in TRAINABLES if TRAINABLES[name].is_private])
def test_no_bound_is_smaller_than_what_norms_in_float32_tell(name):
    """Squares of entries below 1e-20 vanish, and with them a record's norm, but not its gradient"""
    bounds = [
        each for each in TRAINABLES[name].hyperparameters if each.doc.startswith("L2 bound on one")
    ]
    names = {each.name for each in TRAINABLES[name].hyperparameters}
    assert bounds or "clip.max_grad_norm" not in names
    assert {each.name for each in bounds if each.low < 1e-6} == set()


@pytest.mark.parametrize("name", list(TRAINABLES))
def test_the_table_names_a_method_by_its_own_name(name):
    assert TRAINABLES[name].name == name
