"""Each of the five papers' methods on each shape of data that people own, from ``dpsweep init`` on.

A study is made with ``--data-path`` and what must be said of such data; one trial of it is run.
"""

import pytest
import yaml
from image_sets import celeba as save_celeba
from image_sets import cifar10, folders, image, saved
from whole_studies import cli_here

from dpsweep.planning.reading import read_spec
from dpsweep.results.study import load_sweep
from dpsweep.sweep import run_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

FIVE = ("scatternet", "sparse", "active_learning", "adamix", "bitfit")
RECORDS = 3000
ONE_ATTRIBUTE = ("data.task=classification", "data.attributes=[Smiling]")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """All sets of data, written once."""
    root = tmp_path_factory.mktemp("shapes")
    (root / "cifar").mkdir()
    cifar10(root / "cifar", count=10_000)
    saved(root / "hub", count=RECORDS)
    save_celeba(root / "celeba", count=3 * RECORDS)
    _photos(root / "photos")
    from glue import save_glue
    from tiny_text import save_encoder

    save_encoder(root / "encoder", max_position_embeddings=256)
    for task in ("sst2", "qnli"):
        save_glue(root / task, task, num_train=RECORDS)
    return root


def _photos(root):
    """Write images of unequal sizes, each class in a directory of its own."""
    folders(root)
    for number in range(8, RECORDS):
        image(number).save(root / f"class_{number % 2}" / f"{number}.jpg")


def run(root, place, *options, changes=()):
    """Write a spec by ``dpsweep init``, run a trial of it, and check it and any start before it."""
    path = root / "own.yaml"
    made = cli_here("init", path, "--force", "--data-path", place, *options)
    assert made.returncode == 0, made.stderr
    name = yaml.safe_load(path.read_text())["name"]
    short = ("search.num_trials=1", "tracking.uri=null", f"storage.path={root}")
    run_sweep(read_spec(path, overrides=[*short, *changes]))
    *starts, trial = load_sweep(name, root=root).results
    assert {one.state.value for one in (*starts, trial)} == {"finished"}
    scores = [value for key, value in trial.metrics.items() if key.endswith("/accuracy")]
    assert scores
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("method", FIVE)
def test_images_of_unequal_sizes_in_directories(shapes, tmp_path, method):
    run(tmp_path, shapes / "photos", "--method", method, "--records", RECORDS)


@pytest.mark.parametrize("method", FIVE)
def test_cifar_in_its_own_files(shapes, tmp_path, method):
    few = ["data.max_private=2000"]
    run(tmp_path, shapes / "cifar", "--method", method, changes=few)


@pytest.mark.parametrize("method", FIVE)
def test_images_that_datasets_has_saved(shapes, tmp_path, method):
    run(tmp_path, shapes / "hub", "--method", method, "--records", RECORDS)


@pytest.mark.parametrize("method", FIVE)
def test_faces_with_attributes(shapes, tmp_path, method):
    changes = () if method in ("bitfit", "sparse") else ONE_ATTRIBUTE
    options = ("--method", method, "--records", RECORDS, "--image-size", 32)
    run(tmp_path, shapes / "celeba", *options, changes=changes)


@pytest.mark.parametrize("task", ["sst2", "qnli"])
def test_texts_that_datasets_has_saved(shapes, tmp_path, task):
    options = ("--preset", f"bu2024/bitfit_{task}", "--encoder", shapes / "encoder")
    run(tmp_path, shapes / task, *options, "--records", RECORDS)
