from __future__ import annotations

import math
from typing import Any

import pytest

from dpsweep.errors import BadInputError
from dpsweep.tracking.card import CLAIMS, REQUIRED, privacy_card


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "name": "digits-eps2",
        "methods": ["dp_sgd"],
        "dataset": "digits",
        "num_records": 1797,
        "privacy_unit": "example",
        "neighboring_relation": "add_or_remove_one",
        "accountant": "rdp",
        "delta": 1e-05,
        "trial_epsilon": 2.0,
        "accounting": "unaccounted",
        "validation_visibility": "public",
        "test_visibility": "private",
        "trials": {"finished": 10, "failed": 1, "infeasible": 1, "pruned": 0},
        "composed": {"epsilon": 7.346, "delta": 1e-05, "accountant": "rdp", "sampling": "poisson"},
        "version": "0.1.0",
        **changes,
    }


def test_an_unaccounted_card_says_what_it_does_not_cover() -> None:
    card = privacy_card(facts())
    assert "eps = one run only. Search cost NOT included" in card
    assert "epsilon <= 2 at delta = 1e-05" in card
    assert "epsilon = 7.346 at delta = 1e-05 (rdp): an indication, **not a guarantee**" in card
    assert "Configurations: 12 (10 finished, 1 failed, 1 infeasible)" in card
    assert "**The search.**" in card
    assert "declared private and were never evaluated" in card


@pytest.mark.parametrize("mode", CLAIMS)
def test_each_mode_has_its_own_claim(mode: str) -> None:
    card = privacy_card(facts(accounting=mode))
    assert [claim for claim in CLAIMS.values() if f"**{claim}.**" in card] == [CLAIMS[mode]]
    assert ("**The search.**" in card) == (mode == "unaccounted")


@pytest.mark.parametrize("name", REQUIRED)
def test_no_epsilon_without_what_it_depends_on(name: str) -> None:
    with pytest.raises(BadInputError, match=name):
        privacy_card(facts(**{name: None}))


@pytest.mark.parametrize("name", ["delta", "accountant", "sampling"])
def test_no_composed_epsilon_without_its_own(name: str) -> None:
    with pytest.raises(BadInputError, match=rf"composed\.{name}"):
        privacy_card(facts(composed={**facts()["composed"], name: None}))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(BadInputError, match="unknown accounting mode"):
        privacy_card(facts(accounting="trust_me"))


def test_exact_private_scores_have_no_epsilon() -> None:
    assert "no finite epsilon at all" in privacy_card(facts(validation_visibility="exact"))
    assert "on private records, without noise" in privacy_card(facts(validation_visibility="exact"))
    assert "no finite epsilon at all" not in privacy_card(facts())


@pytest.mark.parametrize("epsilon", [math.inf, None])
def test_a_study_with_trials_that_are_not_private(epsilon: float | None) -> None:
    composed = {**facts()["composed"], "epsilon": epsilon}
    card = privacy_card(facts(methods=["dp_sgd", "non_private"], composed=composed))
    assert "epsilon infinite: some trials are not private" in card
    assert "no privacy claim at all" in card


def test_a_downgrade_says_why() -> None:
    assert "a pruner was attached" in privacy_card(facts(downgrade="a pruner was attached"))


def test_the_best_trial_stands_beside_its_delta() -> None:
    best = {"trial_id": 3, "metric": "validation/accuracy", "value": 0.95, "epsilon": 1.99}
    card = privacy_card(facts(best={**best, "delta": 1e-05}))
    assert "validation/accuracy = 0.95, epsilon = 1.99 at delta = 1e-05 for it alone" in card


def test_a_card_before_the_first_step_claims_no_sum() -> None:
    composed = {**facts()["composed"], "epsilon": 0.0, "sampling": "none"}
    assert "All trials composed: no private step has been run yet" in privacy_card(
        facts(composed=composed)
    )
