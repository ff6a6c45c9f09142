"""Accounting modes: each precondition is refused by name, with its remedy, together with the rest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_specs import changed, mistakes

from dpsweep.foundation.errors import SpecError
from dpsweep.spec.search.scheduler import FOREIGN_SCHEDULERS
from dpsweep.spec.study import PrivacySpec, SchedulerSpec, SearchSpec, SelectionSpec, SweepSpec

LR = {"loguniform": [0.1, 8]}
COMPOSED = {
    "name": "x",
    "data": {"dataset": "digits", "validation": {"visibility": "public"}},
    "privacy": {"accounting": "composed", "trial_epsilon": 2.0, "study_epsilon": 6.0},
    "search": {"space": {"method": "dp_sgd", "optim.lr": LR}},
}
SELECT = COMPOSED | {"privacy": {"accounting": "select", "trial_epsilon": 2.0}}
PUBLIC = COMPOSED | {
    "data": COMPOSED["data"] | {"public": {"fraction": 0.2}},
    "privacy": {"accounting": "public", "trial_epsilon": 2.0},
}
UNACCOUNTED = COMPOSED | {"privacy": {"accounting": "unaccounted", "trial_epsilon": 2.0}}
MODES = {"composed": COMPOSED, "select": SELECT, "public": PUBLIC, "unaccounted": UNACCOUNTED}
NOISY = {"data/validation": {"visibility": "noisy", "noise_std": 0.01}}


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_has_a_valid_spec_that_survives_yaml(mode):
    spec = SweepSpec(**MODES[mode])
    assert spec.privacy.accounting == mode
    again = SweepSpec.from_yaml(spec.to_yaml())
    assert again == spec
    assert again.to_yaml() == spec.to_yaml()


# (mode, what is changed in its valid spec, the one line that is shown)
REFUSED = [
    ("composed", {"privacy/study_epsilon": None}, "privacy.study_epsilon: is missing: composed keeps all trials together under it (two to four times trial_epsilon is usual; see `dpsweep plan`)"),
    ("composed", {"privacy/study_epsilon": 1}, "privacy.study_epsilon: is smaller than trial_epsilon, so no trial would fit: 1 < 2 (raise it, or lower trial_epsilon)"),
    ("composed", {"privacy/accountant": "pld"}, "privacy.accountant: pld does not bound composed: a filter that stops an adaptive search at a PLD epsilon is invalid (https://arxiv.org/abs/2602.06756) (use rdp, or composition: declared)"),
    ("composed", {"privacy/accountant": "pld", "scheduler/type": "epsilon_halving"}, "privacy.accountant: pld does not bound composed: a filter that stops an adaptive search at a PLD epsilon is invalid (https://arxiv.org/abs/2602.06756) (use rdp, or composition: declared)"),
    ("composed", {"data/validation/visibility": "exact"}, "data.validation.visibility: exact scores of private records have no finite epsilon, so composed cannot cover them (use noisy or public; or accounting: unaccounted)"),
    ("composed", {"privacy/selection": {"mean": 5}}, "privacy.selection: has no meaning for composed: it says how select draws the number of trials (remove it, or use accounting: select)"),
    *(
        ("select", {"search/sampler": name}, f"search.sampler: {name!r} learns from other trials, and select needs them independent (use random; or accounting: composed)")
        for name in ("tpe", "gp", "cmaes", "nsga2")
    ),
    ("select", {"search/sampler": "grid", "search/space": {"method": "dp_sgd"}}, "search.sampler: 'grid' runs every point once: that is a fixed number of trials, and select needs a random one (use random; or accounting: composed)"),
    *(
        ("select", {"scheduler/type": name}, f"scheduler.type: {name!r} compares trials, and select needs them independent, each run to its end (use fifo; or accounting: composed with epsilon_halving)")
        for name in ("epsilon_halving", "median", "asha", "hyperband", "bohb")
    ),
    ("select", {"scheduler/type": "pbt"}, "scheduler.type: 'pbt' copies weights between trials, and select needs them independent, each run to its end (use fifo; or accounting: composed with epsilon_halving)"),
    ("select", {"search/max_time": "2h"}, "search.max_time: a wall-clock stop would cut the number of trials that select draws, and void its claim (remove it; a smaller privacy.selection.mean takes less time)"),
    ("select", {"search/num_trials": 24}, "search.num_trials: has no meaning for select: the number of trials is random and secret (remove it, or set it to null; privacy.selection.mean is the expected number)"),
    ("select", {"search/num_trials": 0}, "search.num_trials: has no meaning for select: the number of trials is random and secret (remove it, or set it to null; privacy.selection.mean is the expected number)"),
    ("select", {"search/points_to_evaluate": [{"optim.lr": 1}]}, "search.points_to_evaluate: these points are not drawn from the prior that all trials of select share (remove them, or narrow the space; or accounting: composed)"),
    ("select", {"search/objectives": ["validation/accuracy", "dp/epsilon"]}, "search.objectives: select releases one best trial, and a trade-off has several (remove them; or accounting: composed)"),
    ("select", {"data/validation/visibility": "exact"}, "data.validation.visibility: exact scores of private records have no finite epsilon, so select cannot cover them (use noisy or public; or accounting: unaccounted)"),
    ("public", {"data/public/fraction": 0}, "data.public.fraction: is 0, so there are no public records that the search could train on (declare the share of all records that needs no protection, for instance 0.2)"),
    ("public", {"data/public": {}}, "data.public.fraction: is 0, so there are no public records that the search could train on (declare the share of all records that needs no protection, for instance 0.2)"),
    *(
        ("public", {"data/validation": {"visibility": name} | extra}, f"data.validation.visibility: {name} says that these records are private, and a public search reads no private record (use public; or accounting: composed with noisy scores)")
        for name, extra in (("noisy", {"noise_std": 0.01}), ("exact", {}))
    ),
    ("public", {"privacy/study_epsilon": 6}, "privacy.study_epsilon: has no meaning for public: the study's epsilon is that of its final run (remove it; trial_epsilon is the final run's)"),
    ("public", {"privacy/selection": {}}, "privacy.selection: has no meaning for public: it says how select draws the number of trials (remove it, or use accounting: select)"),
    ("unaccounted", {"privacy/study_epsilon": 6}, "privacy.study_epsilon: an unaccounted study has no budget of its own, so this would not be kept (remove it)"),
    ("unaccounted", {"privacy/dataset_ledger": "a.jsonl"}, "privacy.dataset_ledger: an unaccounted study has no bound on its cost that could be added up (remove it, or use another accounting)"),
    ("composed", {"privacy/accountant": "pld", "privacy/composition": "declared", "scheduler/type": "epsilon_halving"}, "privacy.accountant: pld bounds plans that are fixed beforehand, and epsilon_halving stops trials on the way (use rdp, or scheduler: {type: fifo})"),
    ("unaccounted", {"privacy/composition": "declared"}, "privacy.composition: has no meaning for unaccounted: it says how composed adds its trials up (remove it, or use accounting: composed)"),
    ("unaccounted", {"privacy/accountant": "pld", "scheduler/type": "median"}, "privacy.accountant: pld bounds plans that are fixed beforehand, and median stops trials on the way (use rdp, or scheduler: {type: fifo})"),
    ("public", {"privacy/accountant": "pld", "scheduler/type": "epsilon_halving"}, "privacy.accountant: pld bounds plans that are fixed beforehand, and epsilon_halving stops trials on the way (use rdp, or scheduler: {type: fifo})"),
    ("composed", {"privacy/dataset_epsilon": 9, "privacy/dataset_ledger": "a.jsonl"}, "privacy.dataset_delta: is missing: a cap is a pair, and dataset_epsilon is given (give both, or neither if the file has its cap)"),
    ("composed", {"privacy/dataset_epsilon": 9}, "privacy.dataset_epsilon: is the cap of a dataset ledger, and there is none (name its file with dataset_ledger, or remove this)"),
    ("composed", {"privacy/dataset_delta": 1e-4}, "privacy.dataset_delta: is the cap of a dataset ledger, and there is none (name its file with dataset_ledger, or remove this)"),
    ("composed", NOISY | {"search/metric": "validation/loss", "search/mode": "min"}, "search.metric: 'validation/loss' has no bound on what one record changes, so no noise covers it (use validation/accuracy with mode: max)"),
    ("composed", {"search/sampler": "cmaes", "search/space": {"method": "dp_sgd", "a": {"choice": [1, 2]}, "b": {"uniform": [0, 1], "when": {"a": 1}}}}, "search.sampler: cmaes works on ranges, and no range is part of every configuration (use tpe, or search over a range without `when`)"),
    ("composed", {"search/sampler": "gp", "search/space": {"method": "dp_sgd", "a": 1}}, "search.sampler: gp works on parameters of every configuration, and each one here is fixed or has a `when` (use tpe, or search over one without `when`)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "changes", "line"), REFUSED, ids=[f"{m}-{c}"[:60] for m, c, _ in REFUSED]
)
def test_a_precondition_is_refused_by_name(mode, changes, line):
    assert mistakes(SweepSpec, **changed(MODES[mode], changes)) == [line]


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("composed", NOISY),
        ("composed", {"privacy/study_epsilon": 2}),
        ("composed", {"data/test": {"visibility": "public"}}),
        ("composed", {"scheduler/type": "median", "search/max_time": 60}),
        ("composed", {"search/sampler": "nsga2", "search/objectives": ["validation/accuracy", "dp/epsilon"]}),
        ("composed", {"search/sampler": "cmaes"}),
        # A condition on a fixed value always holds.
        ("composed", {"search/sampler": "cmaes", "search/space": {"method": "dp_sgd", "b": {"uniform": [0, 1], "when": {"method": "dp_sgd"}}}}),
        ("composed", {"search/sampler": "gp", "search/space": {"method": {"choice": ["dp_sgd", "b"]}}}),
        ("composed", {"privacy/dataset_ledger": "a.jsonl"}),
        ("composed", {"privacy/dataset_ledger": "a.jsonl", "privacy/dataset_epsilon": 9, "privacy/dataset_delta": 1e-4}),
        ("select", NOISY),
        ("select", {"privacy/study_epsilon": 5, "privacy/selection": {"mean": 3, "shape": "poisson"}}),
        ("select", {"search/num_trials": None, "search/max_time": None, "search/objectives": [], "search/points_to_evaluate": []}),
        ("select", {"search/sampler": "random", "scheduler/type": "fifo"}),
        ("public", {"privacy/accountant": "pld"}),
        ("public", {"privacy/dataset_ledger": "a.jsonl", "scheduler/type": "epsilon_halving"}),
        ("public", {"data/test": {"fraction": 0.1, "visibility": "private"}}),
        ("unaccounted", NOISY | {"scheduler/type": "epsilon_halving"}),
        ("unaccounted", {"data/validation/visibility": "exact", "search/space": {"method": "non_private"}}),
        ("unaccounted", {"privacy/accountant": "pld"}),
        ("composed", {"privacy/accountant": "pld", "privacy/composition": "declared"}),
    ],
)  # fmt: skip
def test_what_a_mode_allows(mode, changes):
    spec = SweepSpec(**changed(MODES[mode], changes))
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


def test_preconditions_come_together_with_other_mistakes():
    raw = changed(
        SELECT,
        {
            "sed": 1,
            "search/sampler": "tpe",
            "search/max_time": "2h",
            "scheduler/type": "asha",
            "data/validation/visibility": "exact",
            "privacy/trial_epsilon": -1,
            "privacy/accountant": "prv",
        },
    )
    assert {line.split(":")[0] for line in mistakes(SweepSpec, **raw)} == {
        "sed", "search.sampler", "search.max_time", "scheduler.type", "data.validation.visibility",
        "privacy.trial_epsilon", "privacy.accountant",
    }  # fmt: skip


def test_foreign_schedulers_are_not_ours():
    assert not set(FOREIGN_SCHEDULERS) & set(SchedulerSpec.KEYS)


class TestSelect:
    def test_its_sampler_is_random_by_default(self):
        assert SweepSpec(**SELECT).search.sampler == "random"
        assert SweepSpec(**COMPOSED).search.sampler == "tpe"

    def test_also_where_sections_are_put_together_in_python(self):
        search = SearchSpec(space={"method": "dp_sgd"})
        sections = SELECT | {
            "search": search,
            "privacy": PrivacySpec(accounting="select", trial_epsilon=2),
        }
        assert SweepSpec(**sections).search.sampler == "random"
        assert search.sampler == "tpe"
        named = SearchSpec(space={"method": "dp_sgd"}, sampler="tpe")
        assert len(mistakes(SweepSpec, **sections | {"search": named})) == 1
        counted = SearchSpec(space={"method": "dp_sgd"}, num_trials=24)
        assert len(mistakes(SweepSpec, **sections | {"search": counted})) == 1

    def test_it_does_not_write_a_number_of_trials(self):
        assert "num_trials" not in SweepSpec(**SELECT).to_dict()["search"]
        assert "num_trials" in SweepSpec(**COMPOSED).to_dict()["search"]

    def test_selection_is_written_for_it_alone(self):
        spec = SweepSpec(**SELECT)
        assert spec.privacy.selection == SelectionSpec(mean=10, shape=1)
        assert spec.to_dict()["privacy"]["selection"] == {"mean": 10.0, "shape": 1.0}
        assert "selection" not in SweepSpec(**PUBLIC).to_dict()["privacy"]

    @pytest.mark.parametrize(
        ("selection", "line"),
        [
            ({"mean": 0.5}, "privacy.selection.mean: must be >= 1, got 0.5"),
            ({"mean": "ten"}, "privacy.selection.mean: must be a number, got 'ten'"),
            ({"shape": -1}, "privacy.selection.shape: must be >= 0, got -1"),
            ({"shape": "posson"}, "privacy.selection.shape: must be a number >= 0 or poisson, got 'posson'"),
            ({"shape": True}, "privacy.selection.shape: must be a number >= 0 or poisson, got true"),
            ({"shap": 1}, "privacy.selection.shap: unknown key (did you mean 'shape'? known: mean, shape)"),
            (5, "privacy.selection: must be a mapping of keys to values, got 5"),
        ],
    )  # fmt: skip
    def test_bad_selections(self, selection, line):
        with pytest.raises(SpecError) as error:
            SweepSpec(**changed(SELECT, {"privacy/selection": selection}))
        assert str(error.value) == line

    @pytest.mark.parametrize(("shape", "kept"), [(0, 0.0), ("0.5", 0.5), ("poisson", "poisson")])
    def test_shapes(self, shape, kept):
        assert SelectionSpec(shape=shape).shape == kept


class TestRungs:
    def test_their_default_is_a_quarter_and_a_half_of_a_trial(self):
        for kind in ("median", "epsilon_halving"):
            assert SweepSpec(**changed(COMPOSED, {"scheduler/type": kind})).rungs == (0.8, 1.3)

    def test_fifo_has_none(self):
        assert SweepSpec(**COMPOSED).rungs == ()

    def test_given_ones_win(self):
        raw = changed(COMPOSED, {"scheduler": {"type": "median", "rungs": [0.25, 1]}})
        assert SweepSpec(**raw).rungs == (0.25, 1.0)

    def test_a_scheduler_is_written_with_its_own_keys(self):
        def written(kind):
            return SweepSpec(**changed(COMPOSED, {"scheduler/type": kind})).to_dict()["scheduler"]

        assert written("fifo") == {"type": "fifo"}
        rungs = {"rungs": [], "rung_unit": "epsilon"}
        assert written("median") == {"type": "median", **rungs, "min_trials": 5}
        assert written("epsilon_halving") == {
            "type": "epsilon_halving", **rungs, "reduction_factor": 3.0, "variant": "stop",
        }  # fmt: skip

    def test_shares_are_below_one_whatever_the_cap(self):
        share = {"type": "median", "rung_unit": "share"}
        assert SweepSpec(**changed(COMPOSED, {"scheduler": share})).rungs == (0.4, 0.65)
        raw = changed(COMPOSED, {"scheduler": {**share, "rungs": [0.5, 1.0]}})
        assert mistakes(SweepSpec, **raw) == [
            "scheduler.rungs[1]: must be smaller than 1, a share of the whole plan, got 1 (a trial "
            "ends there anyway; remove it)"
        ]
        assert "rung_unit: has no meaning for fifo" in "".join(
            mistakes(SweepSpec, **changed(COMPOSED, {"scheduler": {**share, "type": "fifo"}}))
        )


@pytest.mark.parametrize(
    ("given_time", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("45m", 2700), ("1.5 h", 5400), ("2h", 7200), (None, None)],
)
def test_max_time_is_kept_in_seconds(given_time, seconds):
    spec = SweepSpec(**changed(COMPOSED, {"search/max_time": given_time}))
    assert spec.search.max_time == seconds
    assert SweepSpec.from_yaml(spec.to_yaml()).search.max_time == seconds


junk = st.sampled_from(
    [None, True, -1, 0, 0.5, 3, 1e300, 10**400, float("nan"), "", "x", "poisson", "tpe", "noisy",
     "exact", "asha", "median", "pld", "select", "composed", "public", "non_private", [], {}, [[]],
     ["x"], [1, None], {"a": 1}, [{}], {"choice": 3}, {"choice": ["non_private", []]}, {"mean": []}]
)  # fmt: skip
keys = st.sampled_from(
    [
        "name", "data", "privacy", "search", "scheduler", "data.validation", "data.public",
        "data.validation.visibility", "data.validation.noise_std", "data.public.fraction",
        *(f"privacy.{key}" for key in PrivacySpec.model_fields), "privacy.selection.shape",
        *(f"search.{key}" for key in SearchSpec.model_fields), "search.space.method",
        *(f"scheduler.{key}" for key in SchedulerSpec.model_fields),
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(MODES)), st.dictionaries(keys, junk, min_size=1, max_size=4))
def test_whatever_stands_there_is_a_mistake_or_survives_yaml(mode, changes):
    try:
        raw = changed(MODES[mode], changes)
    except (TypeError, AttributeError):
        return  # the changes contradict each other: one puts a value where another needs a mapping
    try:
        spec = SweepSpec(**raw)
    except SpecError as error:
        places = [(mistake.key, mistake.what) for mistake in error.mistakes]
        assert len(set(places)) == len(places)
    else:
        assert SweepSpec.from_yaml(spec.to_yaml()) == spec
