"""The episodes block: what it demands, what it adds to the space, the sizes and unit that follow."""

import pytest
from raw_specs import changed, mistakes

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import declared_hyperparameters
from dpsweep.running import entries
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.facts import terms
from dpsweep.spec.study import EpisodesSpec, SearchSpec, SweepSpec
from dpsweep.trainables import TRAINABLES

SPEC = {
    "name": "few",
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.3, "visibility": "public"},
        "test": {"fraction": 0.3, "visibility": "public"},
    },
    "privacy": {"accounting": "unaccounted", "trial_epsilon": 2.0, "delta": 0.01},
    "search": {
        "space": {
            "method": "dp_sgd",
            "batch.sample_rate": 1.0,
            "train.max_steps": 4,
            "optim.lr": {"choice": [0.1, 0.5]},
        }
    },
    "episodes": {"number": 3},
}


@pytest.fixture
def checked(tmp_path):
    return preflight(SweepSpec(**changed(SPEC, {"storage": {"path": str(tmp_path)}})))


def test_the_paper_is_the_default():
    assert EpisodesSpec() == EpisodesSpec(ways=5, shots=5, number=60, queries=15, seed=None)


def test_a_spec_of_episodes_is_a_grid_and_survives_yaml():
    spec = SweepSpec(**SPEC)
    assert spec.search.sampler == "grid"
    assert "num_trials" not in spec.to_dict()["search"]
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    assert EPISODE not in spec.search.space
    assert list(spec.space) == [EPISODE, *spec.search.space]
    again = SweepSpec(**changed(SPEC, {"search/num_trials": None}))
    assert again == spec
    objects = SweepSpec(**changed(SPEC, {"search": SearchSpec(**SPEC["search"])}))
    assert objects == spec


def test_without_the_block_nothing_is_added():
    raw = {key: value for key, value in SPEC.items() if key != "episodes"}
    spec = SweepSpec(**raw)
    assert spec.search.sampler == "tpe"
    assert spec.space == spec.search.space
    assert spec.privacy_unit == "example"
    assert "episodes" not in spec.to_dict()
    assert SweepSpec(**raw, episodes=None) == spec != SweepSpec(**SPEC)


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        (
            {"privacy/accounting": "composed", "privacy/study_epsilon": 6.0},
            "privacy.accounting",
            "composed cannot cover episodes: drawing them reads labels",
        ),
        ({"privacy/accounting": "select"}, "privacy.accounting", "select cannot cover"),
        (
            {"privacy/accounting": "public", "data/public": {"fraction": 0.1}},
            "privacy.accounting",
            "public cannot cover",
        ),
        ({"search/sampler": "tpe"}, "search.sampler", "'tpe' cannot run every configuration"),
        ({"search/num_trials": 7}, "search.num_trials", "has no meaning with episodes"),
        (
            {"search/objectives": ["validation/accuracy", "dp/epsilon"]},
            "search.objectives",
            "compare single trials",
        ),
        ({"scheduler": {"type": "median"}}, "scheduler.type", "would stop the hard episodes"),
        (
            {"search/space/train.episode": 3},
            "search.space.train.episode",
            "is what `episodes:` adds to the space",
        ),
        ({"episodes/ways": 1}, "episodes.ways", "must be >= 2, got 1"),
        ({"episodes/shot": 1}, "episodes.shot", "unknown key"),
        ({"search/space/optim.lr": {"uniform": [0.1, 1]}}, "search.space.optim.lr", "how many"),
    ],
)
def test_what_episodes_cannot_be_combined_with_is_one_mistake(changes, where, what):
    found = mistakes(SweepSpec, **changed(SPEC, changes))
    assert len(found) == 1, found
    assert found[0].startswith(f"{where}: ")
    assert what in found[0]


def test_records_without_a_class_have_no_episodes():
    found = mistakes(SweepSpec, **changed(SPEC, {"data/task": "multi_label"}))
    assert any(m.startswith("data.task: episodes draw records class by class") for m in found)


def test_every_configuration_runs_on_every_episode_one_after_the_other(checked):
    assert checked.num_trials == 6
    points = checked.space.grid()
    assert [(p[EPISODE], p["optim.lr"]) for p in points] == [
        (0, 0.1), (0, 0.5), (1, 0.1), (1, 0.5), (2, 0.1), (2, 0.5),
    ]  # fmt: skip


def test_plans_follow_from_the_size_of_an_episode(checked, tmp_path):
    info = checked.info
    assert (info.num_private, info.num_classes) == (25, 5)
    assert (info.num_validation, info.num_test) == (75, 75)
    assert len(info.class_names) == 5
    task = checked.admit(4, checked.space.grid()[4])
    assert task.hparams[EPISODE] == 2
    assert task.planned_epsilon <= 2.0
    by_batch = changed(SPEC, {"storage": {"path": str(tmp_path)}, "search/space/batch.expected": 5})
    del by_batch["search"]["space"]["batch.sample_rate"]
    smaller = preflight(SweepSpec(**by_batch))
    assert smaller.admit(0, smaller.space.grid()[0]).plan.runs[0].event.sample_rate == 5 / 25


def test_without_public_test_records_none_are_drawn(tmp_path):
    raw = changed(SPEC, {"data/test": {"fraction": 0.0}, "storage": {"path": str(tmp_path)}})
    assert preflight(SweepSpec(**raw)).info.num_test == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"episodes/ways": 12, "episodes/shots": 1, "episodes/queries": 1},
         "episodes.ways: 12 is more than the 10 classes of digits (at most 10)"),
        ({"episodes/shots": 200},
         "episodes.shots: 5 ways of 200 are more than the 719 private records (at most 143 for 5 "
         "ways)"),
        ({"episodes/queries": 108},
         "episodes.queries: 5 ways of 108 are more than the 539 validation records (at most 107 "
         "for 5 ways, or a larger data.validation.fraction)"),
        ({"data/test": {"visibility": "public", "fraction": 0.0}},
         "episodes.queries: 5 ways of 15 are more than the 0 test records (at most 0 for 5 ways, "
         "or a larger data.test.fraction)"),
        ({"search/space/batch.expected": 256, "search/space/batch.sample_rate": None},
         "search.space.batch.expected: 256 is larger than the 25 declared private records, for "
         "dp_sgd (at most 25)"),
    ],
)  # fmt: skip
def test_too_few_records_are_found_in_declared_numbers(changes, expected, tmp_path):
    raw = changed(SPEC, {**changes, "storage": {"path": str(tmp_path)}})
    assert expected in mistakes(preflight, SweepSpec(**raw))


@pytest.mark.parametrize("name", sorted(TRAINABLES))
def test_no_method_has_to_know_of_episodes(name):
    assert EPISODE not in {p.name for p in TRAINABLES[name].hyperparameters}
    space = SweepSpec(**changed(SPEC, {"search/space": {"method": name}})).space
    checked = declared_hyperparameters(SweepSpec(**SPEC))
    assert SearchSpace.from_spec(space).check(checked) == []


def test_the_unit_stands_beside_what_is_said_of_a_study():
    spec = SweepSpec(**SPEC)
    assert spec.privacy_unit == "example of one episode"
    assert entries.privacy_tags(spec)["dp.unit"] == "example of one episode"
    assert "example of one episode" in terms(spec)
