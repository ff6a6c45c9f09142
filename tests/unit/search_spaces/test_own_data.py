"""Presets and starters on data of one's own: file, sizes, names; what must be said is asked for."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.reading import read_spec
from dpsweep.search_spaces import SPACES, OwnData, preset_spec, preset_titles, starter_spec
from dpsweep.search_spaces.all_methods import all_methods_spec
from dpsweep.search_spaces.own_data import dataset_of, on_own_data, own_name

IMAGES = ["tramer2021/fashion_mnist", "golatkar2022/adamix_fashion_mnist", "zhao2020/selectors"]


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "Oxford pets.npz"
    images, labels = np.zeros((40, 3, 8, 8), np.float32), np.arange(40) % 4
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return str(path)


def init(*words):
    return CliRunner().invoke(app, ["init", *words])


@pytest.mark.parametrize("name", IMAGES)
def test_a_preset_reads_a_file_of_mine_and_is_called_by_it(name, npz):
    spec = read_spec(preset_spec(name, OwnData(npz, num_records=40, num_classes=4)))
    data = spec.data
    assert (data.dataset, data.path, data.num_records, data.num_classes) == ("npz", npz, 40, 4)
    assert spec.name.endswith("oxford-pets")
    assert "fashion" not in spec.name
    old = read_spec(preset_spec(name))
    assert spec.search.space == old.search.space
    assert (data.validation, data.test, data.public) == (
        old.data.validation, old.data.test, old.data.public,
    )  # fmt: skip


def test_studies_that_are_compared_are_called_alike(npz):
    own = OwnData(npz, num_records=40, num_classes=4)
    rows = [name for name in preset_titles() if name.endswith("_fashion_mnist")]
    names = {read_spec(preset_spec(name, own)).name for name in rows}
    assert len(names) == len(rows)
    text = preset_spec("golatkar2022/adamix_fashion_mnist", own)
    named = {word for word in text.split() if word.startswith("golatkar2022-")}
    assert len(named) > 3
    assert named <= names


def test_sizes_of_a_template_stay_where_it_is_of_the_same_kind(npz):
    spec = read_spec(preset_spec("tramer2021/cifar10_grid", OwnData(npz)))
    assert (spec.data.path, spec.data.num_records, spec.data.num_classes) == (npz, 50_000, 10)


def test_comments_that_count_other_records_go(npz):
    own = OwnData(npz, num_records=40, num_classes=4)
    section = preset_spec("golatkar2022/adamix_fashion_mnist", own).partition("\ndata:\n")[2]
    section = section.partition("\nprivacy:")[0]
    assert "000" not in section
    assert "# private, and their scores are exact" in section


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        (OwnData("a.npz"), "--records N and --classes K"),
        (OwnData("a.npz", num_records=3), "npz, which needs --classes K"),
        (OwnData("a", dataset="image_folder"), "image_folder, which needs --records N"),
        (OwnData("a", dataset="image_dataset"), "image_dataset, which needs --records N"),
    ],
)
def test_what_must_be_declared_is_asked_for_at_once(own, wanted):
    with pytest.raises(BadInputError, match=wanted):
        preset_spec("tramer2021/fashion_mnist", own)


def test_sizes_of_a_starter_are_placeholders_until_they_are_said(npz):
    with pytest.raises(BadInputError, match="--records N and --classes K"):
        starter_spec("npz", "scatternet", own=OwnData(npz))
    text = starter_spec("npz", "scatternet", own=OwnData(npz, num_records=9000, num_classes=4))
    spec = read_spec(text)
    assert (spec.name, spec.data.num_records) == ("oxford-pets-scatternet-eps2", 9000)
    assert "EDIT" not in text.partition("privacy:")[0]


def test_a_package_s_dataset_takes_a_path_alone():
    section = "  dataset: mine\n  path: null    # EDIT: where it is\n  public: {fraction: 0.1}\n"
    changed = on_own_data(section, OwnData("there", dataset="mine"))
    assert changed == "  dataset: mine\n  path: there\n  public: {fraction: 0.1}\n"


def test_an_encoder_is_the_tokenizer_and_the_network(tmp_path):
    own = OwnData("a.csv", num_records=5000, num_classes=2, encoder=str(tmp_path))
    spec = read_spec(starter_spec("text", "bitfit", own=own))
    assert spec.data.tokenizer == str(tmp_path)
    assert spec.search.space["model.name"] == f"text/{tmp_path}"


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"max_position_embeddings": 64}, 64),
        ({"max_position_embeddings": 66, "model_type": "xlm-roberta", "pad_token_id": 1}, 64),
        ({"n_positions": 100}, 100),
        ({"max_position_embeddings": 512}, 128),
        ({}, 128),
    ],
)
def test_records_are_no_longer_than_an_encoder_takes(tmp_path, config, wanted):
    (tmp_path / "config.json").write_text(json.dumps(config))
    own = OwnData("a.csv", num_records=5000, num_classes=2, encoder=str(tmp_path))
    assert read_spec(starter_spec("text", "bitfit", own=own)).data.max_length == wanted
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 32}')
    assert read_spec(starter_spec("text", "bitfit", own=own)).data.max_length == 32
    (tmp_path / "tokenizer_config.json").write_text("not JSON")
    assert read_spec(starter_spec("text", "bitfit", own=own)).data.max_length == wanted


def test_a_path_tells_what_it_is(tmp_path):
    assert dataset_of(str(tmp_path)) == "image_folder"
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert dataset_of(str(tmp_path)) == "text"
    (tmp_path / "dataset_info.json").write_text('{"features": {"x": {"_type": "Image"}}}')
    assert dataset_of(str(tmp_path)) == "image_dataset"
    (tmp_path / "cifar-100-python").mkdir()
    assert dataset_of(str(tmp_path)) == "cifar100"
    (tmp_path / "what.bin").write_bytes(b"")
    with pytest.raises(BadInputError, match="does not tell what it is"):
        dataset_of(str(tmp_path / "what.bin"))
    with pytest.raises(BadInputError, match="there is no such file"):
        dataset_of(str(tmp_path / "none"))


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "cifar100", "svhn", "celeba"])
def test_published_datasets_need_a_path_alone(dataset):
    own = OwnData("there", dataset=dataset)
    spec = read_spec(starter_spec(dataset, "dp_sgd", own=own))
    assert (spec.data.dataset, spec.data.path, spec.data.num_records) == (dataset, "there", None)
    if dataset == "celeba":  # a preset's task is one class a record
        return
    preset = read_spec(preset_spec("tramer2021/fashion_mnist", own))
    assert (preset.data.dataset, preset.name) == (dataset, "tramer2021-there")


@pytest.mark.parametrize("method", list(SPACES))
def test_every_method_for_images_has_a_starter_for_files_that_people_have(method):
    for dataset in ("cifar10", "image_dataset", "mnist"):
        text = starter_spec(dataset, method)
        assert read_spec(text).data.dataset == dataset
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("name", "path", "wanted"),
    [
        ("tramer2021-fashion-mnist-cnn", "a/B c.npz", "tramer2021-cnn-b-c"),
        ("tramer2021-mnist-grid", "x", "tramer2021-grid-x"),
        ("bu2024-full-lite0", "faces", "bu2024-full-lite0-faces"),
        ("", "...", "data"),
        ("p" * 60, "abcdefgh", "p" * 60 + "-abc"),
    ],
)
def test_names_of_studies(name, path, wanted):
    assert own_name(name, path) == wanted


@pytest.mark.parametrize("value", ["no", "1.0", "it's here.npz", "- x.npz", "a: b.npz", "#1.npz"])
def test_any_path_is_read_back_as_it_is(value):
    text = starter_spec(
        "npz", "dp_sgd", own=OwnData(value, dataset="npz", num_records=9000, num_classes=2)
    )
    assert read_spec(text).data.path == value


@pytest.mark.slow
def test_the_command_writes_a_spec_that_validates(tmp_path):
    path, spec = tmp_path / "mine.npz", tmp_path / "spec.yaml"
    labels = np.arange(2000) % 4
    np.savez(path, x_train=np.zeros((2000, 3, 8, 8), np.float32), y_train=labels)
    for method in ("adamix", "dp_sgd", "scatternet"):
        written = init(str(spec), "--data-path", str(path), "--records", "2000", "--classes", "4",
                       "--method", method, "--force")  # fmt: skip
        assert written.exit_code == 0, written.output
        checked = CliRunner().invoke(app, ["validate", str(spec)])
        assert checked.exit_code == 0, checked.exception
        assert read_spec(spec).name.startswith("mine")


def test_a_folder_of_images_needs_one_number_more(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (9, 7)).save(tmp_path / name / "1.png")
    written = init("--data-path", str(tmp_path), "--records", "9000")
    assert (written.exit_code, "dataset: image_folder" in written.stdout) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--classes", "3"], "--classes describes data of yours, and none are named"),
        (["--data-path", "a.npz", "--presets"], "--data-path has no meaning for --presets"),
        (["--data-path", "a.npz", "--schema"], "--data-path has no meaning for --schema"),
        (["--data-path", "a.bin"], "no such file or directory"),
        (["--preset", "tramer2021/fashion_mnist", "--data-path", "a.csv"], "holds texts"),
        (
            ["--preset", "luo2021/cls_five_classes", "--data-path", "a.npz", "--records", "50",
             "--classes", "4"],
            "data.classes",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(words, said):
    result = init(*words)
    assert isinstance(result.exception, (BadInputError, SystemExit))
    assert said in f"{result.exception} {result.output}"


@pytest.mark.parametrize("is_searched", [True, False])
def test_no_more_public_records_are_counted_than_mine_have(npz, is_searched):
    own = OwnData(npz, num_records=40, num_classes=4)
    for text, public in (
        (starter_spec("npz", "active_learning", own=own), 12),
        (all_methods_spec("npz", is_searched=is_searched, own=own), 4),
    ):
        spec = yaml.safe_load(text)
        assert int(40 * spec["data"]["public"]["fraction"]) == public
        labels = spec["search"]["space"]["labels.max"]
        labels = labels["by"]["method"]["active_learning"] if "by" in labels else labels
        assert labels in ({"choice": [public]}, public)


def test_what_counts_public_records_stays_where_there_are_enough(npz):
    own = OwnData(npz, num_records=100_000, num_classes=4)
    mine = yaml.safe_load(starter_spec("npz", "active_learning", own=own))
    theirs = yaml.safe_load(starter_spec("npz", "active_learning"))
    assert mine["search"]["space"] == theirs["search"]["space"]


@pytest.mark.parametrize(
    ("records", "delta"),
    [
        (40, 1e-5),
        (10_000, 1e-5),
        (20_000, 5e-6),
        (99_999, 1e-6),
        (100_000, 1e-6),
        (162_770, 6e-7),
        (2_000_000, 5e-8),
    ],
)
def test_delta_of_a_starter_is_less_than_one_over_the_records(npz, records, delta):
    own = OwnData(npz, num_records=records, num_classes=4)
    for text in (starter_spec("npz", own=own), all_methods_spec("npz", is_searched=True, own=own)):
        assert float(yaml.safe_load(text)["privacy"]["delta"]) == delta
    assert delta * records < 1


def test_delta_of_faces_is_less_than_one_over_theirs():
    assert float(yaml.safe_load(starter_spec("celeba"))["privacy"]["delta"]) == 6e-7
