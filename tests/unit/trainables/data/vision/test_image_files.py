"""Images of people: folders, tables of labels, Hugging Face datasets, CelebA."""

import shutil

import numpy as np
import pytest
from image_sets import ATTRIBUTES, celeba, folders, image, labelled, saved
from PIL import Image, ImageOps

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.trainables.data.images import IMAGE_SUFFIXES
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.data.tasks import task_of

ROWS = [("b.jpg", "dog"), ("day/a.png", "cat"), ("c.BMP", "cat"), ("d.webp", "dog")]


def table_spec(make_spec, root, **more):
    more = {"class_names": ["cat", "dog"], "num_records": 4, "image_size": 8, **more}
    return make_spec(dataset="image_folder", path=str(root), **more)


# Tables of labels


def test_a_table_gives_each_image_its_class(make_spec, tmp_path):
    labelled(tmp_path / "i", ROWS)
    source = open_source(table_spec(make_spec, tmp_path / "i"))
    inputs, labels = source.read()["train"]
    order = ["b.jpg", "c.BMP", "d.webp", "day/a.png"]
    assert labels.tolist() == [("cat", "dog").index(dict(ROWS)[name]) for name in order]
    assert source.class_names == ("cat", "dog")
    numbers = [[name for name, _ in ROWS].index(name) for name in order]
    np.testing.assert_allclose(inputs.mean(axis=(1, 2, 3)) * 255, numbers, atol=1.01)


def test_numbers_need_no_names(make_spec, tmp_path):
    labelled(tmp_path / "i", [("a.png", "1"), ("b.png", "0")])
    spec = table_spec(make_spec, tmp_path / "i", class_names=None, num_classes=2)
    assert open_source(spec).read()["train"][1].tolist() == [1, 0]


def test_parts_have_tables_of_their_own(make_spec, tmp_path):
    for part in ("train", "val", "test"):
        labelled(tmp_path / "i" / part, ROWS)
    info = describe_dataset(table_spec(make_spec, tmp_path / "i"))
    assert (info.num_private, info.num_validation, info.num_test) == (4, 4, 4)
    (tmp_path / "i" / "test" / "labels.csv").unlink()
    with pytest.raises(DataError, match=r"test has no labels\.csv"):
        describe_dataset(table_spec(make_spec, tmp_path / "i"))


@pytest.mark.parametrize(
    ("rows", "header", "names", "words"),
    [
        (
            ROWS[:3],
            "file,label",
            [name for name, _ in ROWS],
            "images that labels.csv does not name",
        ),
        (ROWS, "file,label", [name for name, _ in ROWS[:3]], "names files that are no images"),
        ([*ROWS, ROWS[0]], "file,label", None, "names a file twice"),
        (ROWS, "name,label", None, "no column file"),
        (ROWS, "file,label,label", None, "has the column label twice"),
        (ROWS, "file,label,file", None, "has the column file twice"),
        (ROWS, "name,kind", None, "no column file and no column label"),
        ([*ROWS[:3], ("d.webp", "cow")], "file,label", None, "none of the declared classes"),
        ([*ROWS[:3], ("d.webp", "")], "file,label", None, "none of the declared classes"),
    ],
)
def test_a_wrong_table_is_one_line_that_names_no_image(
    make_spec, tmp_path, rows, header, names, words
):
    labelled(tmp_path / "i", rows, header=header, names=names)
    with pytest.raises(DataError, match=words) as caught:
        describe_dataset(table_spec(make_spec, tmp_path / "i"))
    error = f"{caught.value} {caught.value.because} {caught.value.fix}"
    assert not any(name in error for name in ("b.jpg", "a.png", "c.BMP", "d.webp", "cow"))


def test_a_table_that_is_no_unicode_is_not_quoted_in_a_traceback(make_spec, tmp_path):
    labelled(tmp_path / "i", ROWS)
    with (tmp_path / "i" / "labels.csv").open("ab") as table:
        table.write(b"jos\xe9.png,cat\n")
    with pytest.raises(DataError, match="UnicodeDecodeError") as caught:
        describe_dataset(table_spec(make_spec, tmp_path / "i"))
    assert caught.value.__cause__ is None  # it has the byte and its place
    assert caught.value.__suppress_context__


def test_a_partition_that_is_no_unicode_is_not_quoted_in_a_traceback(make_spec, tmp_path):
    celeba(tmp_path / "c")
    with (tmp_path / "c" / "list_eval_partition.txt").open("ab") as table:
        table.write(b"jos\xe9.jpg 0\n")
    with pytest.raises(DataError, match="UnicodeDecodeError") as caught:
        describe_dataset(make_spec(dataset="celeba", path=str(tmp_path / "c"), task="multi_label"))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_classes_of_a_table_are_declared(make_spec, tmp_path):
    labelled(tmp_path / "i", ROWS)
    with pytest.raises(DataError, match="are not declared") as caught:
        describe_dataset(table_spec(make_spec, tmp_path / "i", class_names=None))
    assert "data.class_names" in caught.value.fix


# Folders


def test_every_suffix_is_one_of_pillow():
    Image.init()
    read = {end for end, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    assert set(IMAGE_SUFFIXES) <= read
    others = {".bufr", ".grib", ".h5", ".hdf", ".fit", ".fits", ".mpg", ".mpeg", ".eps", ".ps"}
    others |= {".emf", ".wmf", ".fli", ".flc", ".gbr", ".iim", ".msp"}
    assert read - set(IMAGE_SUFFIXES) <= others


@pytest.mark.parametrize("end", [".jpg", ".JPEG", ".png", ".bmp", ".gif", ".webp", ".tif", ".ppm"])
def test_formats_of_pillow(make_spec, tmp_path, end):
    folders(tmp_path / "i", end)
    spec = make_spec(dataset="image_folder", path=str(tmp_path / "i"), num_records=8, image_size=8)
    inputs, _ = open_source(spec).read()["train"]
    assert len(inputs) == 8
    np.testing.assert_allclose(np.sort(inputs.mean(axis=(1, 2, 3))) * 255, range(8), atol=1.01)


def test_folders_in_classes_are_refused(make_spec, tmp_path):
    folders(tmp_path / "i", sub="secret_day")
    (tmp_path / "i" / "class_0" / "9.png").write_bytes(b"")
    spec = make_spec(dataset="image_folder", path=str(tmp_path / "i"), num_records=8)
    with pytest.raises(DataError, match="images in folders of its own") as caught:
        describe_dataset(spec)
    assert "secret_day" not in str(caught.value)
    assert "labels.csv" in caught.value.fix


def test_images_beside_the_folders_of_classes_are_noted(make_spec, tmp_path):
    folders(tmp_path / "i")
    spec = make_spec(dataset="image_folder", path=str(tmp_path / "i"), num_records=8)
    (tmp_path / "i" / "._secret.png").write_bytes(b"")  # of an archive
    assert describe_dataset(spec).notes == ()
    image(1).save(tmp_path / "i" / "secret.png")
    (note,) = describe_dataset(spec).notes
    assert note.startswith(f"{tmp_path / 'i'} has images beside the folders of classes")
    assert "secret" not in note
    assert len(open_source(spec).read()["train"][1]) == 8


def test_folders_of_archives_and_empty_ones_are_passed_over(make_spec, tmp_path):
    folders(tmp_path / "i")
    for name in ("__MACOSX", ".thumbs"):
        (tmp_path / "i" / "class_0" / name).mkdir()
        image(1).save(tmp_path / "i" / "class_0" / name / "a.png")
    (tmp_path / "i" / "class_1" / "empty").mkdir()
    spec = make_spec(dataset="image_folder", path=str(tmp_path / "i"), num_records=8)
    assert describe_dataset(spec).input_shape == (3, 224, 224)  # without data.image_size
    assert len(open_source(spec).read()["train"][1]) == 8


def test_crop_keeps_the_proportions(make_spec, tmp_path):
    folders(tmp_path / "i")
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "i" / "class_0" / "0.png")
    (tmp_path / "i" / "class_0" / "0.jpg").unlink()
    spec = {"dataset": "image_folder", "path": str(tmp_path / "i"), "num_records": 8}
    ways = [make_spec(**spec, image_size=10, resize=way) for way in ("squash", "crop")]
    squashed, cropped = (open_source(way).read()["train"][0][0] for way in ways)
    assert cropped.min() == 1  # the centre alone
    assert 0.2 < squashed.mean() < 0.45
    expected = ImageOps.fit(Image.fromarray(wide), (10, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(cropped, np.asarray(expected).transpose(2, 0, 1) / 255)


def test_floats_are_refused(make_spec, tmp_path):
    folders(tmp_path / "i")
    Image.fromarray(np.ones((4, 4), np.float32) * 300).save(tmp_path / "i" / "class_0" / "f.tif")
    spec = make_spec(dataset="image_folder", path=str(tmp_path / "i"), num_records=8)
    with pytest.raises(DataError, match="more than 8 bits"):
        open_source(spec).read()


@pytest.mark.parametrize("key", ["resize", "image_size", "channels", "layout", "attributes"])
def test_keys_of_images_have_no_meaning_elsewhere(make_spec, key):
    value = {"resize": "crop", "image_size": 8, "channels": 3, "layout": "channels_last"}
    with pytest.raises(SpecError, match=f"{key}: has no meaning for digits"):
        make_spec(dataset="digits", **{key: value.get(key, ["Smiling"])})
    make_spec(dataset="digits", resize="squash")  # as a written spec says


# Hugging Face


def test_an_image_dataset(make_spec, tmp_path):
    path = saved(tmp_path / "d")
    spec = make_spec(dataset="image_dataset", path=path, num_records=30, image_size=8)
    info = describe_dataset(spec)
    assert (info.class_names, info.num_test) == (("cat", "dog", "hen"), 30)
    inputs, labels = open_source(spec).read()["train"]
    assert labels.tolist() == [number % 3 for number in range(30)]
    np.testing.assert_allclose(inputs.mean(axis=(1, 2, 3)) * 255, range(30), atol=1e-3)
    assert load_dataset(spec).parts["test"][0].shape == (30, 3, 8, 8)


def test_a_column_is_chosen_by_name(make_spec, tmp_path):
    datasets = pytest.importorskip("datasets")
    coarse = (datasets.ClassLabel(names=["a", "b"]), [number % 2 for number in range(30)])
    path = saved(tmp_path / "d", coarse=coarse)
    spec = {"dataset": "image_dataset", "path": path, "num_records": 30, "image_size": 8}
    with pytest.raises(DataError, match="2 columns of classes") as caught:
        describe_dataset(make_spec(**spec))
    assert "data.label_column" in caught.value.fix
    assert describe_dataset(make_spec(**spec, label_column="coarse")).class_names == ("a", "b")
    with pytest.raises(DataError, match="no column 'course'") as caught:
        describe_dataset(make_spec(**spec, label_column="course"))
    assert "coarse" in caught.value.fix


def test_numbers_are_declared_in_an_image_dataset(make_spec, tmp_path):
    datasets = pytest.importorskip("datasets")
    path = saved(tmp_path / "d", label=(datasets.Value("int64"), [n % 4 for n in range(30)]))
    spec = {"dataset": "image_dataset", "path": path, "num_records": 30, "image_size": 8}
    with pytest.raises(DataError, match=r"data\.num_classes is missing"):
        describe_dataset(make_spec(**spec))
    assert describe_dataset(make_spec(**spec, num_classes=4)).class_names == ("0", "1", "2", "3")
    with pytest.raises(DataError, match=r"outside 0\.\.2"):
        load_dataset(make_spec(**spec, num_classes=3))


def test_what_is_no_image_dataset(make_spec, tmp_path):
    datasets = pytest.importorskip("datasets")
    spec = {"dataset": "image_dataset", "num_records": 30}
    for columns, words in (
        ({"image": (None, None)}, "no columns of images"),
        ({"more": (datasets.Image(), [image(n) for n in range(30)])}, "2 columns of images"),
        ({"label": (None, None)}, "no columns of classes"),
        ({"label": (datasets.Value("string"), ["x"] * 30)}, "is no column of classes"),
    ):
        path = saved(tmp_path / words.replace(" ", "_"), **columns)
        with pytest.raises(DataError, match=words):
            describe_dataset(make_spec(**spec, path=path))
    path = saved(tmp_path / "parts", parts=("test",))
    with pytest.raises(DataError, match="no split train"):
        describe_dataset(make_spec(**spec, path=path))
    with pytest.raises(DataError, match="was not written by save_to_disk"):
        describe_dataset(make_spec(**spec, path=str(tmp_path)))
    with pytest.raises(DataError, match="no directory"):
        describe_dataset(make_spec(**spec, path=str(tmp_path / "none")))
    path = saved(tmp_path / "hole", label=(datasets.ClassLabel(names=["a", "b"]), [None] * 30))
    with pytest.raises(DataError, match="without a label"):
        load_dataset(make_spec(**spec, path=path, image_size=8))


# CelebA


@pytest.mark.parametrize("end", [".txt", ".csv"])
def test_celeba_has_attributes_with_names(make_spec, tmp_path, end):
    celeba(tmp_path / "c", end=end)
    spec = make_spec(
        dataset="celeba", path=str(tmp_path / "c"), task="multi_label", image_size=[14, 12]
    )
    info = describe_dataset(spec)
    assert info.num_private == 162_770  # published, and the validation part is the authors'
    assert (info.num_validation, info.num_test) == (20, 20)
    assert info.class_names == ATTRIBUTES
    assert "accuracy/Smiling" in task_of(info.task).metric_names(info.class_names)
    inputs, labels = open_source(spec).read()["train"]
    assert (inputs.shape, labels.dtype) == ((20, 3, 14, 12), np.float32)
    assert labels.tolist() == [[float(n >> k & 1) for k in range(4)] for n in range(20)]
    np.testing.assert_allclose(inputs.mean(axis=(1, 2, 3)) * 255, range(20), atol=1.01)


def test_attributes_are_chosen(make_spec, tmp_path):
    celeba(tmp_path / "c")
    spec = {"dataset": "celeba", "path": str(tmp_path / "c"), "image_size": 8}
    two = make_spec(**spec, task="multi_label", attributes=["Smiling", "Male"])
    assert describe_dataset(two).class_names == ("Smiling", "Male")
    labels = open_source(two).read()["test"][1]
    assert labels.tolist() == [[float(n >> 2 & 1), float(n >> 1 & 1)] for n in range(40, 60)]
    one = make_spec(**spec, attributes=["Male"])
    assert describe_dataset(one).class_names == ("not Male", "Male")
    labels = open_source(one).read()["validation"][1]
    assert (labels.dtype, labels.tolist()) == (np.int64, [n >> 1 & 1 for n in range(20, 40)])
    with pytest.raises(DataError, match="'Smilling', which is no attribute") as caught:
        describe_dataset(make_spec(**spec, attributes=["Smilling"]))
    assert "Smiling" in caught.value.fix


@pytest.mark.parametrize(
    ("task", "attributes", "words"),
    [
        ("classification", None, "data.attributes names none"),
        ("classification", ["Male", "Young"], "data.attributes names 2"),
        ("multi_label", ["Male"], "names one attribute"),
        ("multi_label", ["Male", "Male"], "twice"),
        ("multi_label", [], "must be a list of names"),
    ],
)
def test_a_task_and_its_attributes(make_spec, task, attributes, words):
    with pytest.raises(SpecError, match=words):
        make_spec(dataset="celeba", path="c", task=task, attributes=attributes)


def _no_image(root):
    (root / "img_align_celeba" / "000002.jpg").unlink()


def _no_images(root):
    shutil.rmtree(root / "img_align_celeba")


def _no_part(root):
    path = root / "list_eval_partition.txt"
    path.write_text(path.read_text().replace("000001.jpg 0\n", ""))


def _odd_part(root):
    path = root / "list_eval_partition.txt"
    path.write_text(path.read_text().replace("000001.jpg 0", "000001.jpg 3"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_image, "does not name each image"),
        (_no_images, "img_align_celeba/ not found"),
        (_no_part, "does not name each image"),
        (_odd_part, "a line that is not FILE 0, 1 or 2"),
        (lambda root: (root / "list_attr_celeba.txt").unlink(), r"list_attr_celeba\.txt not found"),
        (lambda root: (root / "list_attr_celeba.txt").write_text("60\n"), "names no attributes"),
    ],
)
def test_damage_of_celeba_is_told_before_an_image_is_read(make_spec, tmp_path, damage, words):
    celeba(tmp_path / "c")
    damage(tmp_path / "c")
    with pytest.raises(DataError, match=words) as caught:
        describe_dataset(make_spec(dataset="celeba", path=str(tmp_path / "c"), task="multi_label"))
    assert "00000" not in f"{caught.value} {caught.value.fix}"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("Smiling Male Smiling Young", "names an attribute twice"),
        (".. Male Smiling Young", "has an attribute '..', with which MLflow takes no metric"),
        (". Male Smiling Young", "has an attribute '.', with which MLflow"),
        ("a" * 225 + " Male Smiling Young", "an attribute of over 224 characters, with which"),
        ("b/d Male Smiling Young", "'b/d', and the name of an attribute is part of a metric"),
    ],
)
def test_names_of_attributes_are_names_of_metrics(make_spec, tmp_path, header, words):
    celeba(tmp_path / "c")
    path = tmp_path / "c" / "list_attr_celeba.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], header, *lines[2:]]))
    spec = make_spec(dataset="celeba", path=str(tmp_path / "c"), task="multi_label", image_size=8)
    with pytest.raises(DataError) as caught:
        describe_dataset(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "row", ["", "000003.jpg 1 1 1", "000003.jpg 1 1 1 0", "000003.jpg 1 1 1 1\n000003.jpg -1 1 1 1"]
)
def test_a_face_without_attributes_stays_unnamed(make_spec, tmp_path, row):
    celeba(tmp_path / "c")
    path = tmp_path / "c" / "list_attr_celeba.txt"
    lines = [row if line.startswith("000003") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    spec = make_spec(dataset="celeba", path=str(tmp_path / "c"), task="multi_label", image_size=8)
    with pytest.raises(DataError, match=r"list_attr_celeba\.txt") as caught:
        load_dataset(spec)
    assert "000003" not in str(caught.value)
