from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_studies import make_spec
from written_studies import write_study

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.modes import CLAIMS
from dpsweep.results import study_card
from dpsweep.results.card import privacy_card
from dpsweep.results.card_facts import REQUIRED

STATEMENT = {
    "epsilon": 7.346,
    "delta": 1e-05,
    "accountant": "rdp",
    "neighboring_relation": "add_or_remove_one",
    "sampling": "poisson",
    "privacy_unit": "example",
    "accounting": "unaccounted",
    "released": "every model and score of the sweep",
}
BEST = {**STATEMENT, "trial_id": 3, "metric": "validation/accuracy", "value": 0.95, "epsilon": 1.99}
LEDGER = {
    "path": "digits.jsonl",
    "epsilon": 4.5,
    "delta": 2e-05,
    "cap_epsilon": 8.0,
    "cap_delta": 1e-04,
    "studies": 2,
}
TERMS = (
    r"at delta = \S+ \(unit: one [^;()]+; neighboring data sets: [^;()]+; batch sampling: "
    r"[^;()]+(?:\([^()]+\))?; accountant: [^;()]+; accounting mode: (?:`MODE`|each study's own)\)"
)


def facts(mode: str = "unaccounted", **changes: Any) -> dict[str, Any]:
    """Everything that a study in a mode may have to say."""
    claim = {**STATEMENT, "accounting": mode, "epsilon": 3.0}
    own: dict[str, Any] = {
        "composed": {
            "study": claim,
            "composition": {
                "title": "Filter",
                "about": "Renyi DP at order 8, budget 2.0213",
                "accountant": "rdp at order 8",
                "spent_epsilon": 2.71828,
            },
        },
        "select": {"study": claim, "selection": {"mean": 10.0, "shape": 1.0}},
        "public": {"study": {**claim, "epsilon": 2.0}},
        "unaccounted": {"composed": STATEMENT},
    }[mode]
    return {
        "name": "digits-eps2",
        "methods": ["dp_sgd"],
        "unbounded_methods": [],
        "dataset": "digits",
        "num_records": 1797,
        "privacy_unit": "example",
        "neighboring_relation": "add_or_remove_one",
        "accountant": "rdp",
        "delta": 1e-05,
        "trial_epsilon": 2.0,
        "accounting": mode,
        "validation_visibility": "public",
        "test_visibility": "private",
        "trials": {"finished": 10, "failed": 1, "infeasible": 1, "pruned": 0},
        "best": {**BEST, "accounting": mode},
        "dataset_ledger": LEDGER,
        "version": "0.1.0",
        **own,
        **changes,
    }


def epsilons(card: str, mode: str) -> list[float]:
    """Return every epsilon of a card; fails where one lacks a term, or is written otherwise."""
    stated = re.compile(r"epsilon (?:<=|=) ([0-9.]+(?:e-[0-9]+)?) " + TERMS.replace("MODE", mode))
    found = [float(text) for text in stated.findall(card)]
    rest = stated.sub("", card)
    assert not re.search(r"eps\w*'?[^a-z\n]{0,4}\d", rest.replace("digits-eps2", "")), rest
    return found


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("composed", [3.0, 2.0, 2.7183, 4.5, 8.0, 1.99]),
        ("select", [3.0, 2.0, 4.5, 8.0]),
        ("public", [2.0, 4.5, 8.0, 1.99]),
        ("unaccounted", [2.0, 7.346, 4.5, 8.0, 1.99]),
    ],
)
def test_every_epsilon_of_every_mode_stands_with_its_six_terms(
    mode: str, values: list[float]
) -> None:
    assert epsilons(privacy_card(facts(mode)), mode) == values


def test_the_check_above_sees_an_epsilon_without_terms() -> None:
    card = privacy_card(facts())
    for text in ("epsilon = 3 at delta = 1e-05", "epsilon 3", "eps=3", "(eps = 2.1)"):
        with pytest.raises(AssertionError):
            epsilons(f"{card}{text}\n", "unaccounted")
    with pytest.raises(AssertionError):
        epsilons(card, "composed")


OPTIONAL = (
    "num_records",
    "trials",
    "best",
    "composition",
    "selection",
    "dataset_ledger",
    "version",
)


@given(
    mode=st.sampled_from(list(CLAIMS)),
    absent=st.sets(st.sampled_from(OPTIONAL)),
    sampling=st.sampled_from(["poisson", "full_batch", "mixed", "none"]),
    validation=st.sampled_from(["public", "noisy"]),
    test=st.sampled_from(["public", "private"]),
    epsilon=st.floats(0, 1e4),
    downgrade=st.sampled_from([None, "a pruner was attached"]),
)
def test_no_card_of_any_facts_shows_an_epsilon_without_its_terms(
    mode: str,
    absent: set[str],
    sampling: str,
    validation: str,
    test: str,
    epsilon: float,
    downgrade: str | None,
) -> None:
    given_facts = facts(mode, validation_visibility=validation, test_visibility=test)
    for name in ("study", "composed", "best"):
        if name in given_facts:
            given_facts[name] = {**given_facts[name], "sampling": sampling, "epsilon": epsilon}
    if downgrade:
        given_facts = {
            **facts("unaccounted"),
            "downgrade": downgrade,
            "accounting_asked": mode,
            "best": given_facts["best"],
        }
        mode = "unaccounted"
    card = privacy_card({k: v for k, v in given_facts.items() if k not in absent})
    shown = epsilons(card, mode)
    assert shown
    assert [claim for claim in CLAIMS.values() if f"**{claim}.**" in card] == [CLAIMS[mode]]
    if mode != "unaccounted":
        assert shown[0] >= epsilon - 1e-9  # rounded up, if at all
        assert shown[0] <= epsilon + 1.01e-4


def test_deltas_of_a_card_are_rounded_up() -> None:
    """A smaller delta belongs to a larger epsilon."""
    delta = 1.42857149e-5
    values = facts("composed")
    values = {**values, "delta": delta, "study": {**values["study"], "delta": delta}}
    card = privacy_card(values)
    assert "1.42858e-05" in card
    assert "1.42857e-05" not in card


def test_exact_private_scores_stand_beside_the_epsilons_of_trials() -> None:
    card = privacy_card(facts(validation_visibility="exact", best=BEST))
    for line in card.splitlines():
        if "alone" in line and "epsilon" in line:
            assert "exact private validation scores, and choices by them, have no epsilon" in line
    assert card.count("have no epsilon") == 2


def test_an_unaccounted_card_says_what_it_does_not_cover() -> None:
    card = privacy_card(facts())
    assert "eps = one run only. Search cost NOT included" in card
    assert "Each private trial alone: **epsilon <= 2 at delta = 1e-05 (unit: one example;" in card
    assert "accounting mode: `unaccounted`): an indication, **not a guarantee**" in card
    assert "Configurations: 12 (10 finished, 1 failed, 1 infeasible)" in card
    assert "**The search.**" in card
    assert "**The composed sum**" in card
    assert "declared private, and no score on them is released" in card


def test_a_composed_card_states_the_declared_epsilon_and_not_the_spent_one() -> None:
    card = privacy_card(facts("composed"))
    assert "The study: **epsilon <= 3 at delta = 1e-05" in card
    assert "It covers the release of: every model and score of the sweep." in card
    assert "Filter: Renyi DP at order 8, budget 2.0213, fixed before it began" in card
    assert "accountant: rdp at order 8; accounting mode: `composed`): informational" in card
    assert "Configurations: 12" in card
    assert "All trials composed" not in privacy_card(facts("composed", composed=STATEMENT))
    for words in ("What was used so far is no bound", "is charged again", "run time"):
        assert words in card.partition("**Not covered**")[2]


def test_a_select_card_does_not_tell_how_many_trials_there_were() -> None:
    card = privacy_card(facts("select", composed=STATEMENT))
    assert "Number of trials: secret; drawn once from the truncated negative binomial" in card
    assert "of mean 10 and shape 1, before private data was opened" in card
    assert "Released winner: validation/accuracy = 0.95, at the epsilon of the study" in card
    for words in ("7.346", "12 (", "10 finished", "trial 3", "Configurations"):
        assert words not in card
    for words in ("number of trials", "sealed directory while it runs", "configuration, score and"):
        assert words in card.partition("**Not covered**")[2]
    poisson = {"mean": 10.0, "shape": "poisson"}
    assert "secret; drawn once from the Poisson distribution of mean 10" in privacy_card(
        facts("select", selection=poisson)
    )


def test_a_public_card_is_about_one_final_run() -> None:
    card = privacy_card(facts("public"))
    assert "Cost of the search: none: it ran on records declared public" in card
    for words in ("that they need none is what the spec declares", "one final run"):
        assert words in card.partition("**Not covered**")[2]
    assert "alone: " not in card.partition("**What is protected**")[0]
    before = privacy_card(facts("public", study=None, best=None, dataset_ledger=None))
    assert "The final run has not been started; no private record was used so far." in before
    assert epsilons(before, "public") == []


def test_records_that_are_declared_public_are_named() -> None:
    public = {"about": "npz pool.npz", "labels": "bought", "is_file": True, "is_by_class": False}
    card = privacy_card(facts("composed", public=public))
    assert "- Declared public: npz pool.npz, whose labels are bought one by one; not prot" in card
    assert "**Public records**: npz pool.npz. They are declared public" in card
    assert "A private record that is there as well has no protection there." in card
    assert "first of their class" not in card
    public |= {"about": "5 of each class of the data", "labels": "known", "is_file": False}
    public["is_by_class"] = True
    card = privacy_card(facts("composed", public=public))
    assert "Declared public: 5 of each class of the data, with their labels" in card
    assert "decided by labels, and by no private record" in card
    assert "is there as well" not in card
    assert "Public records" not in privacy_card(facts("composed"))


@pytest.mark.parametrize("mode", CLAIMS)
def test_each_mode_has_its_own_claim(mode: str) -> None:
    card = privacy_card(facts(mode))
    assert [claim for claim in CLAIMS.values() if f"**{claim}.**" in card] == [CLAIMS[mode]]
    assert ("**The search.**" in card) == (mode == "unaccounted")


@pytest.mark.parametrize("mode", CLAIMS)
def test_noisy_scores_say_what_their_noise_does(mode: str) -> None:
    noisy = privacy_card(facts(mode, validation_visibility="noisy"))
    assert "epsilon is the larger of two ledgers" in noisy
    assert "The best of many noisy scores is optimistic" in noisy
    assert "two ledgers" not in privacy_card(facts(mode))
    assert "nothing protects them" in privacy_card(facts(mode, test_visibility="public"))


def test_a_study_without_test_records_declares_none(tmp_path: Path) -> None:
    """Its card said that they are declared private; there are some without the fact, as before."""
    declared = "none; the test records are declared private"
    assert f"Test scores: {declared}" in privacy_card(facts())
    without = "- Test scores: none: no records are kept for testing\n"
    assert without in privacy_card(facts(has_test=False))
    data = make_spec(tmp_path)["data"]
    private = {**data, "test": {"fraction": 0.2, "visibility": "private"}}
    none = {"dataset": "digits", "validation": data["validation"]}
    for name, given_data, is_there in (("a", private, True), ("b", none, False)):
        (tmp_path / name).mkdir()
        text = study_card.card(write_study(tmp_path / name, [1], data=given_data))
        assert (declared in text, without in text) == (is_there, not is_there)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_records_that_are_scored_and_public_are_named_as_not_covered(part: str) -> None:
    visible = {"validation_visibility": "noisy", "test_visibility": "private"}
    words = f"- **The {part} records"
    assert words not in privacy_card(facts("composed", **visible))
    (line,) = [
        line
        for line in privacy_card(
            facts("composed", **{**visible, f"{part}_visibility": "public"})
        ).splitlines()
        if line.startswith(words)
    ]
    assert line.endswith("They are declared public and nothing protects them.")


@pytest.mark.parametrize("name", REQUIRED)
def test_no_epsilon_without_what_it_depends_on(name: str) -> None:
    with pytest.raises(BadInputError, match=name):
        privacy_card(facts(**{name: None}))


@pytest.mark.parametrize("name", ["delta", "accountant", "sampling"])
def test_no_composed_or_best_epsilon_without_its_own(name: str) -> None:
    with pytest.raises(BadInputError, match=rf"composed\.{name}"):
        privacy_card(facts(composed={**STATEMENT, name: None}))
    with pytest.raises(BadInputError, match=rf"best\.{name}"):
        privacy_card(facts("composed", best={**BEST, name: None}))


@pytest.mark.parametrize("name", [name for name in STATEMENT if name != "epsilon"])
def test_no_claim_without_its_whole_statement(name: str) -> None:
    study = facts("composed")["study"]
    with pytest.raises(BadInputError, match=rf"study\.{name}"):
        privacy_card(facts("composed", study={**study, name: None}))


def test_crashes_that_the_data_cause_are_named_where_the_claim_does_not_cover_them() -> None:
    assert "Processes that die because of what is in the data" in privacy_card(facts("select"))
    for mode in ("public", "unaccounted"):
        assert "Crashes that depend on the data" in privacy_card(facts(mode, accountant="pld"))
        assert "**Crashes that depend on the data.** The best Renyi order" in privacy_card(
            facts(mode)
        )
    assert "Crashes that depend on the data" not in privacy_card(facts("composed"))


@pytest.mark.parametrize("mode", ["composed", "select", "public"])
def test_a_mode_with_a_claim_needs_a_finite_one_of_its_own(mode: str) -> None:
    study = facts(mode)["study"]
    if mode != "public":
        with pytest.raises(BadInputError, match=r"study\.released"):
            privacy_card(facts(mode, study=None))
    for epsilon in (None, math.inf, "inf"):
        with pytest.raises(BadInputError, match="without a finite epsilon"):
            privacy_card(facts(mode, study={**study, "epsilon": epsilon}))
    with pytest.raises(BadInputError, match="is not one of accounting mode"):
        privacy_card(facts(mode, study={**study, "accounting": "unaccounted"}))


def test_an_unaccounted_study_claims_nothing() -> None:
    with pytest.raises(BadInputError, match="no claim for the study"):
        privacy_card(facts(study=facts("composed")["study"]))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(BadInputError, match="unknown accounting mode"):
        privacy_card({**facts(), "accounting": "trust_me"})


def test_exact_private_scores_have_no_epsilon() -> None:
    assert "no finite epsilon at all" in privacy_card(facts(validation_visibility="exact"))
    assert "on private records, without noise" in privacy_card(facts(validation_visibility="exact"))
    assert "no finite epsilon at all" not in privacy_card(facts())


@pytest.mark.parametrize("epsilon", [math.inf, None, "inf"])
def test_a_study_with_trials_that_are_not_private(epsilon: object) -> None:
    composed, best = {**STATEMENT, "epsilon": epsilon}, {**BEST, "epsilon": epsilon}
    methods = {"methods": ["dp_sgd", "adamix_paragon"], "unbounded_methods": ["adamix_paragon"]}
    card = privacy_card(facts(**methods, composed=composed, best=best))
    assert "epsilon infinite: some trials are not private" in card
    assert "Trials of `adamix_paragon`: epsilon infinite: no privacy claim at all" in card
    assert "Trials of `dp_sgd`" not in card
    assert "Each private trial alone" in card
    assert "Best trial: trial 3: validation/accuracy = 0.95, not private" in card


def test_a_study_without_a_private_trial_shows_no_cap() -> None:
    unbounded, infinite = ["non_private", "adamix_paragon"], {**STATEMENT, "epsilon": "inf"}
    given = facts(methods=unbounded, unbounded_methods=unbounded, composed=infinite)
    card = privacy_card({**given, "best": {**BEST, "epsilon": "inf"}})
    assert "No trial is private: **epsilon is infinite**." in card
    assert "Each private trial" not in card


def test_a_downgrade_says_why_and_from_what() -> None:
    changes = {"downgrade": "a pruner was attached", "accounting_asked": "composed"}
    card = privacy_card(facts(**changes))
    assert "> Downgraded from `composed` to `unaccounted`: a pruner was attached" in card
    assert "whose sum bounds nothing since this study lost its claim" in card
    assert epsilons(card, "unaccounted") == [2.0, 7.346, 1.99]
    with pytest.raises(BadInputError, match="a downgraded study is 'unaccounted', not 'composed'"):
        privacy_card(facts("composed", **changes))


def test_a_dataset_ledger_that_another_study_broke_bounds_nothing() -> None:
    card = privacy_card(facts("composed", dataset_ledger={**LEDGER, "broken": "study b: a pruner"}))
    assert "whose sum bounds nothing since a study of these data lost its claim" in card
    assert "4.5" not in card
    assert "2 studies of these data so far" in privacy_card(
        facts("composed", dataset_ledger={**LEDGER, "studies": ["a", "b"]})
    )


def test_a_study_downgraded_from_select_still_hides_its_trials() -> None:
    changes = {"downgrade": "a pruner was attached", "accounting_asked": "select"}
    whole = facts(**changes)
    for given_facts in (whole, {**whole, "composed": None}):
        card = privacy_card(given_facts)
        assert epsilons(card, "unaccounted") == [2.0, 1.99]
        for words in ("12 (", "Configurations", "trial 3", "composed sum"):
            assert words not in card
    card = privacy_card({**whole, "composed": None, "best": None})
    assert epsilons(card, "unaccounted") == []  # its sampling is unknown, so no epsilon is shown
    assert "a pruner was attached" in card


def test_the_best_trial_stands_beside_its_statement() -> None:
    card = privacy_card(facts(best={**BEST, "sampling": "full_batch", "accountant": "pld"}))
    assert "validation/accuracy = 0.95, epsilon = 1.99 at delta = 1e-05 (unit: one example" in card
    assert (
        "batch sampling: full batch; accountant: pld; accounting mode: `unaccounted`) for it"
        in (card)
    )


def test_a_card_before_the_first_step_claims_no_sum() -> None:
    composed = {**STATEMENT, "epsilon": 0.0, "sampling": "none"}
    card = privacy_card(facts(composed=composed, best=None))
    assert "All trials composed: no private step has been run yet" in card
    assert "batch sampling: none (no private step was run)" in card


def test_it_begins_with_the_study_s_epsilon():
    """The MLflow UI folds all of a description but a few lines."""
    _, first, *_ = [line for line in privacy_card(facts("composed")).splitlines() if line]
    assert first.startswith("The study: **epsilon <= ")
