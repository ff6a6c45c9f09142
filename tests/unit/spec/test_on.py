"""``search.on``: which specs may search on a part of the records, and what they claim by."""

import pytest
from raw_specs import changed, mistakes

from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import differences, enforced_terms

SPLIT = {
    "name": "x",
    "data": {"dataset": "digits", "validation": {"visibility": "public"}},
    "privacy": {"accounting": "composed", "trial_epsilon": 1.0, "study_epsilon": 3.0},
    "search": {"on": {"split": 0.1}, "space": {"method": "dp_sgd", "optim.lr": 0.1}},
    "scheduler": {"type": "fifo"},
}
NO_PRICE = {"privacy/study_epsilon": None}
SUBSET = {
    **SPLIT,
    "privacy": {"accounting": "select", "trial_epsilon": 2.0, "study_epsilon": 3.0},
    "search": {"on": {"subset": 0.1}, "space": {"method": "dp_sgd", "optim.lr": 0.1}},
}


def test_it_survives_yaml_and_is_left_out_where_it_says_nothing():
    spec = SweepSpec(**SPLIT)
    again = SweepSpec.from_yaml(spec.to_yaml())
    assert again == spec
    assert (again.searched_share, again.has_final_run, again.final_trial) == (0.1, True, None)
    plain = SweepSpec(**changed(SPLIT, {"search/on": None}))
    assert "on" not in plain.to_dict()["search"]
    assert (plain.searched_share, plain.has_final_run) == (None, False)
    assert SweepSpec.from_yaml("\n" + plain.to_yaml()) == plain
    text = spec.to_yaml().replace("'on'", "on").replace('"on"', "on")  # no boolean here
    assert SweepSpec.from_yaml(text) == spec


def test_so_are_the_records_that_pretraining_takes_for_public():
    pretrain = {"classes": [8, 9], "model": "tanh_cnn", "objective": "classes", "epochs": 1}
    spec = SweepSpec(
        **changed(SPLIT, {"search/on": None, "pretrain": pretrain, "data/classes": [0, 1]})
    )
    terms = enforced_terms(spec)
    assert (terms["pretrain.classes"], terms["pretrain.path"]) == ([8, 9], None)


def test_the_share_is_what_a_claim_rests_on():
    spec, other = SweepSpec(**SPLIT), SweepSpec(**changed(SPLIT, {"search/on": {"split": 0.2}}))
    plain = SweepSpec(**changed(SPLIT, {"search/on": None}))
    assert enforced_terms(spec)["search.on.split"] == 0.1
    assert "search.on.split" not in enforced_terms(plain)
    (difference,) = differences(spec, other)
    assert str(difference) == "search.on.split (0.1 -> 0.2)"
    assert [d.key for d in differences(plain, spec)] == ["search.on"]


REFUSED = [
    ({"search/on": {"split": 0}}, "search.on.split: must be > 0, got 0"),
    ({"search/on": {"split": 1}}, "search.on.split: must be < 1, got 1"),
    ({"search/on": {"split": "half"}}, "search.on.split: must be a number, got 'half'"),
    ({"search/on": {"share": 0.1}}, "search.on.share: unknown key"),
    ({"search/on": {}}, "search.on.subset: is missing, and so is split"),
    ({"search/on": {"split": 0.1, "subset": 0.1}}, "search.on.subset: is given beside split"),
    ({"search/on": {"subset": 0.1}}, "search.on.subset: is for accounting select"),
    ({"privacy/accounting": "unaccounted"} | NO_PRICE, "search.on: is for accounting composed"),
    ({"privacy/accounting": "public", "data/public": {"fraction": 0.2}} | NO_PRICE, "search.on: is for accounting composed"),
    ({"privacy/accounting": "select"} | NO_PRICE, "search.on.split: is for accounting composed; under select the part"),
    ({"search/strategy": "probe", "search/space": {"method": "dp_sgd", "optim.noise_lr": {"loguniform": [0.1, 8]}}}, "search.on: is not possible with strategy: probe"),
    ({"search/space": {"method": "dp_sgd", "train.num_private": 50}}, "search.space.train.num_private: has no meaning with search.on"),
    ({"search/objectives": ["validation/accuracy", "dp/epsilon"], "search/sampler": "nsga2"}, "search.objectives: one final run is delivered"),
    ({"episodes": {"number": 2, "ways": 2, "shots": 2}}, "episodes: is not possible with search.on"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_what_does_not_go_with_it_is_refused_in_words(changes, line):
    said = mistakes(SweepSpec, **changed(SPLIT, changes))
    assert any(each.startswith(line) for each in said), said


def test_a_secret_part_survives_yaml_and_is_what_a_claim_rests_on():
    spec = SweepSpec(**SUBSET)
    again = SweepSpec.from_yaml(spec.to_yaml())
    assert again == spec
    assert spec.to_dict()["search"]["on"] == {"subset": 0.1}
    assert (again.searched_share, again.subset_rate, again.has_final_run) == (None, 0.1, True)
    assert enforced_terms(spec)["search.on.subset"] == 0.1
    assert "search.on.split" not in enforced_terms(spec)
    (difference,) = differences(spec, SweepSpec(**changed(SUBSET, {"search/on": {"subset": 0.2}})))
    assert str(difference) == "search.on.subset (0.1 -> 0.2)"


def test_a_split_part_is_no_secret_one():
    spec = SweepSpec(**SPLIT)
    assert spec.subset_rate is None
    assert spec.to_dict()["search"]["on"] == {"split": 0.1}


REFUSED_IN_SECRET = [
    ({"search/on": {"subset": 0}}, "search.on.subset: must be > 0, got 0"),
    ({"search/on": {"subset": 1}}, "search.on.subset: must be < 1, got 1"),
    ({"privacy/study_epsilon": None}, "privacy.study_epsilon: is missing: the search and its final run"),
    ({"privacy/accounting": "composed"}, "search.on.subset: is for accounting select"),
    ({"privacy/accounting": "unaccounted"} | NO_PRICE, "search.on.subset: is for accounting select"),
    ({"privacy/accounting": "public", "data/public": {"fraction": 0.2}} | NO_PRICE, "search.on.subset: is for accounting select"),
    ({"privacy/accounting": "composed", "search/strategy": "probe", "search/space": {"method": "dp_sgd", "optim.noise_lr": {"loguniform": [0.1, 8]}}}, "search.on: is not possible with strategy: probe"),
    ({"scheduler": {"type": "noisy_prefix"}}, "scheduler.type: is not possible with search.on"),
    ({"search/space": {"method": "dp_sgd", "train.num_private": 50}}, "search.space.train.num_private: has no meaning with search.on"),
    ({"search/objectives": ["validation/accuracy", "dp/epsilon"]}, "search.objectives: one final run is delivered"),
    ({"data/validation": {"visibility": "exact"}}, "data.validation.visibility: exact scores of private records"),
    ({"start": {"method": "dp_sgd", "epsilons": [1.0]}}, "start: "),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), REFUSED_IN_SECRET)
def test_what_does_not_go_with_a_secret_part_is_refused_in_words(changes, line):
    said = mistakes(SweepSpec, **changed(SUBSET, changes))
    assert any(each.startswith(line) for each in said), said
