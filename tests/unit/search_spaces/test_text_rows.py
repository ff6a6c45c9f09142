"""Presets of texts and of public files: they read such data, and cost what the paper's study does."""

import pytest
from glue import save_e2e, save_glue
from tiny_text import save_encoder, save_gpt2, save_tokenizer

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.search_spaces import OwnData, SearchSpace, preset_spec

SMALL = ["search.space.train.epochs=2", "search.space.batch.expected=20", "data.max_length=16"]


def first_task(spec):
    checked = preflight(spec)
    points = SearchSpace.from_spec(spec.search.space).grid()
    return [checked.admit(number, dict(point)) for number, point in enumerate(points)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    place = tmp_path_factory.mktemp("encoder")
    save_encoder(place)
    return save_tokenizer(place)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("task", ["sst2", "qnli"])
@pytest.mark.parametrize("variant", ["bitfit", "full", "lora"])
def test_a_row_of_glue_reads_a_directory_of_datasets(task, variant, encoder, tmp_path):
    path = save_glue(tmp_path / task, task)
    own = OwnData(str(path), num_records=100, encoder=str(encoder))
    spec = read_spec(preset_spec(f"bu2024/{variant}_{task}", own), overrides=SMALL)
    low, high = first_task(spec)
    assert spec.name == f"bu2024-{variant}-{task}-{task}"
    assert (low.planned_epsilon, high.planned_epsilon) == (
        pytest.approx(3, rel=0.01),
        pytest.approx(8, rel=0.01),
    )
    assert len(low.plan) == 10  # of 100 records 95 are private: 2 passes at .95 * 20 a step


@pytest.mark.parametrize("variant", ["bitfit", "full"])
def test_a_row_of_e2e_trains_on_targets_and_writes(variant, tmp_path):
    path, network = save_e2e(tmp_path / "e2e"), tmp_path / "gpt2"
    save_gpt2(network, n_positions=128)
    save_tokenizer(network)
    own = OwnData(str(path), dataset="text", num_records=200, encoder=str(network))
    spec = read_spec(preset_spec(f"bu2024/{variant}_e2e", own), overrides=SMALL)
    assert (spec.search.metric, spec.search.mode) == ("validation/loss", "min")
    assert spec.data.test.generation.num_beams == 5
    assert [task.planned_epsilon for task in first_task(spec)] == pytest.approx([3, 8], rel=0.01)


@pytest.mark.parametrize(
    ("name", "epsilons"),
    [("mnist_qmnist", (2.2, 3.2)), ("svhn", (5.0, 6.0)), ("svhn_pollution", (5.0, 6.0))],
)
def test_pools_of_the_paper_are_other_files(name, epsilons):
    spec = read_spec(preset_spec(f"zhao2020/{name}"))
    assert spec.start.epsilons == epsilons
    assert spec.data.public.labels == "bought"
    assert (spec.data.public.path is None) == (name == "svhn_pollution")
    assert (spec.pretrain is not None) == (name == "svhn")
