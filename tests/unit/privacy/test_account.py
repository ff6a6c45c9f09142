"""The calculator: one run alone, with everything its number means nothing without."""

from __future__ import annotations

import json

import pytest

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy.calculator import account_epsilon, account_noise, account_steps
from dpsweep.privacy.events import EventRun, Gaussian, Plan

STEP = {"event": "poisson_gaussian", "noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 1000}
LABELS = {"delta", "accountant", "neighboring_relation", "sampling", "privacy_unit", "accounting"}


def test_epsilon_of_a_file() -> None:
    answer = account_epsilon([STEP], delta=1e-5, accountant="rdp")
    assert round(answer["epsilon"], 4) == 2.1014
    assert set(answer) >= LABELS | {"epsilon"}
    assert answer["accounting"] == "single_run"
    assert answer["neighboring_relation"] == "add_or_remove_one"
    assert json.loads(json.dumps(answer)) == answer
    infinite = account_epsilon([{"event": "non_private"}], delta=1e-5)
    assert infinite["epsilon"] == "inf"
    assert account_epsilon([], delta=1e-5)["epsilon"] == 0.0


@pytest.mark.parametrize(("accountant", "steps"), [("rdp", 881), ("pld", 1202)])
def test_last_allowed_step(accountant: str, steps: int) -> None:
    arguments = {"sample_rate": 0.01, "noise_multiplier": 1.0, "epsilon": 2.0, "delta": 1e-5}
    answer = account_steps(**arguments, accountant=accountant)
    assert answer["steps"] == steps
    assert answer["epsilon"] <= 2.0 == answer["target_epsilon"]
    assert set(answer) >= LABELS
    none = account_steps(sample_rate=1, noise_multiplier=0.1, epsilon=1, delta=1e-5)
    assert none["steps"] == 0
    assert none["sampling"] == "full_batch"


def test_noise_of_a_schedule() -> None:
    answer = account_noise(
        sample_rate=0.01, steps=480, epsilon=2.0, delta=1e-5, shape="cosine", end_ratio=0.35
    )
    assert answer["noise_multiplier"] == pytest.approx(2.34, rel=1e-2)
    assert 1.99 < answer["epsilon"] <= 2.0
    assert set(answer) >= LABELS | {"shape", "end_ratio", "steps"}


def test_bad_requests() -> None:
    with pytest.raises(BadInputError, match="segment 0: event must be one of"):
        account_epsilon([{"event": "poison_gaussian"}], delta=1e-5)
    with pytest.raises(BadInputError, match="target_epsilon must be > 0"):
        account_noise(sample_rate=0.1, steps=5, epsilon=0, delta=1e-5)
    with pytest.raises(InfeasibleBudgetError):
        account_noise(sample_rate=1.0, steps=10**9, epsilon=1e-4, delta=1e-12)


def test_parts_that_are_not_added_are_named():
    """Events on other records count for nothing, or the dearest does: the answer says so."""
    gaussian = {"event": "gaussian", "noise_multiplier": 5, "count": 1}
    free = {"event": "gaussian", "noise_multiplier": 0.5, "count": 3, "part": "public"}
    rest = {**gaussian, "part": "rest"}
    plain = account_epsilon([gaussian], delta=1e-5)
    assert plain["released"] == "the outputs of these events"
    assert account_epsilon(Plan((EventRun(Gaussian(5.0), 1),)), delta=1e-5) == plain
    both = account_epsilon([gaussian, rest, free], delta=1e-5)
    assert both["epsilon"] == plain["epsilon"]
    assert both["released"].endswith(
        "; the parts private and rest are taken to be disjoint, so that the dearest counts; "
        "3 events on public records cost nothing"
    )
