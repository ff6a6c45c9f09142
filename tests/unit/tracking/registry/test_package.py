"""The directory of a registered model: it loads as any of MLflow's, and answers in classes."""

import ast
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from dpsweep.foundation.errors import BadInputError
from dpsweep.tracking.model_label import CARD_FILE, METADATA, ModelLabel
from dpsweep.tracking.registry import package as package_module
from dpsweep.tracking.registry.loading import load_directory
from dpsweep.tracking.registry.package import Package
from dpsweep.trainables.data.raw import preparation
from dpsweep.trainables.data.raw.preparation import ArrayRecords, ImageRecords, TextRecords

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow and torch.export warn of themselves

LABEL = ModelLabel(
    tags={"dp.claim": "epsilon=3"},
    description="",
    metadata={"claim": {"epsilon": 3.0}, "claim_in_words": "epsilon=3"},
    card="## Privacy card\n",
)


def network(size, outputs=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, outputs)).eval()


def saved(folder, way, model, *, task="classification", packages=(), classes=("a", "b/c", "d")):
    (folder / "preparation").mkdir()
    preparation.save(way, folder / "preparation", classes=list(classes), task=task)
    (folder / "preparation" / "preparation.py").write_bytes(Path(preparation.__file__).read_bytes())
    inputs = np.zeros((1, *way.shape), np.int64 if way.kind == "text" else np.float32)
    made = Package(
        model, inputs, folder / "preparation", way.zero, classes, task, packages, LABEL
    )  # fmt: skip
    made.save(folder / "model", {})
    return folder / "model"


def loaded(path):
    import mlflow.pyfunc  # which warns of its own types

    return mlflow.pyfunc.load_model(str(path))


@pytest.fixture(scope="module")
def of_arrays(tmp_path_factory):
    way, model = ArrayRecords((4, 4), "uint8", (1, 4, 4), 1 / 255), network(16)
    return saved(tmp_path_factory.mktemp("arrays"), way, model), way, model


@pytest.mark.parametrize("count", [1, 2, 300])
def test_probabilities_of_raw_arrays(of_arrays, count):
    path, way, model = of_arrays
    raw = np.random.default_rng(0).integers(0, 256, (count, 4, 4), dtype=np.uint8)
    frame = loaded(path).predict(raw)
    shares = torch.softmax(model(torch.from_numpy(way.prepare(raw))).double(), 1).detach().numpy()
    assert list(frame) == [
        "class", "probability", "probability/a", "probability/b/c", "probability/d",
    ]  # fmt: skip
    assert np.abs(frame.iloc[:, 2:].to_numpy(float) - shares).max() < 1e-6
    assert list(frame["class"]) == [("a", "b/c", "d")[n] for n in shares.argmax(1)]
    assert np.allclose(frame["probability"], shares.max(1), atol=1e-6)


def test_it_carries_its_label_and_an_example_of_zeros(of_arrays):
    from mlflow.models import Model

    path, _, _ = of_arrays
    stored = Model.load(str(path))
    assert stored.metadata[METADATA] == LABEL.metadata
    assert (path / CARD_FILE).read_text() == LABEL.card
    assert not np.asarray(stored.load_input_example(str(path))).any()
    assert [spec.name for spec in stored.signature.outputs.inputs][:2] == ["class", "probability"]
    needed = (path / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in needed] == ["mlflow", "torch", "numpy"]
    assert load_directory(path, "a model").facts["classes"] == ["a", "b/c", "d"]


def test_several_attributes(tmp_path):
    path = saved(tmp_path, ArrayRecords.as_read((5,)), network(5), task="multi_label")
    raw = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    frame = loaded(path).predict(raw)
    shares = torch.sigmoid(network(5)(torch.from_numpy(raw)).double()).detach().numpy()
    assert list(frame)[:3] == ["attribute/a", "attribute/b/c", "attribute/d"]
    assert (frame.iloc[:, :3].to_numpy(bool) == (shares > 0.5)).all()
    assert np.abs(frame.iloc[:, 3:].to_numpy(float) - shares).max() < 1e-6
    assert 0 < (shares > 0.5).sum() < shares.size


def test_images_as_bytes_paths_and_pixels(tmp_path, monkeypatch):
    from PIL import Image

    way = ImageRecords(3, 4, 4)
    path = saved(tmp_path, way, network(48), packages=("pillow",))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    model = loaded(path)
    file = (tmp_path / "a.png").read_bytes()
    frames = [
        model.predict([str(tmp_path / "a.png"), file]),
        model.predict(pd.DataFrame({"image": [file, str(tmp_path / "a.png")]})),
        model.predict(pd.Series([pixels, file])),
    ]
    wanted = torch.softmax(network(48)(torch.from_numpy(way.prepare([pixels]))).double(), 1)
    for frame in frames:
        assert np.abs(frame.iloc[:, 2:].to_numpy(float) - wanted.detach().numpy()).max() < 1e-6
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")
    with pytest.raises(ValueError, match="opens no path"):
        model.predict([str(tmp_path / "a.png")])
    assert len(model.predict([file])) == 1


def test_a_server_gets_images_as_base64(tmp_path):
    import base64

    from mlflow.pyfunc.scoring_server import infer_and_parse_data
    from PIL import Image

    path = saved(tmp_path, ImageRecords(1, 4, 4), network(16), packages=("pillow",))
    Image.fromarray(np.zeros((9, 5), np.uint8)).save(tmp_path / "a.png")
    file = (tmp_path / "a.png").read_bytes()
    model = loaded(path)
    encoded = base64.b64encode(file).decode()
    body = {"dataframe_split": {"columns": ["image"], "data": [[encoded]]}}
    frame = infer_and_parse_data(body, model.metadata.get_input_schema())
    assert model.predict(frame).equals(model.predict([file]))


def test_texts(tmp_path):
    from tiny_text import VOCABULARY, save_tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path / "t"))
    way = TextRecords(6, 0, tokenizer=tokenizer)
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(VOCABULARY, 3).eval()
    path = saved(tmp_path, way, bag, packages=("transformers", "tokenizers"))
    texts = ["good film", "bad book and song", "unheard of"]
    frame = loaded(path).predict(texts)
    wanted = torch.softmax(bag(torch.from_numpy(way.prepare(texts))).double(), 1)
    assert np.abs(frame.iloc[:, 2:].to_numpy(float) - wanted.detach().numpy()).max() < 1e-6
    assert "transformers" in (path / "requirements.txt").read_text()


def test_pairs_of_texts(tmp_path):
    """A frame of two columns, as ``predict`` makes it of a file and as a server gets it."""
    import pandas as pd
    from mlflow.pyfunc.scoring_server import infer_and_parse_data
    from tiny_text import VOCABULARY, save_tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(tmp_path / "t"))
    way = TextRecords(8, 0, "question", tokenizer, pair_column="sentence")
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(VOCABULARY, 3).eval()
    path = saved(tmp_path, way, bag, packages=("transformers", "tokenizers"))
    pairs = [("good film", "fine"), ("bad book", "poor song")]
    wanted = torch.softmax(bag(torch.from_numpy(way.prepare(pairs))).double(), 1)
    model = loaded(path)
    body = {"dataframe_split": {"columns": ["text", "text_pair"], "data": pairs}}
    for frame in (
        pd.DataFrame(pairs, columns=["text", "text_pair"]),
        infer_and_parse_data(body, model.metadata.get_input_schema()),
    ):
        shares = model.predict(frame).iloc[:, 2:].to_numpy(float)
        assert np.abs(shares - wanted.detach().numpy()).max() < 1e-6


def test_what_is_no_registered_model_is_said_so(tmp_path):
    import mlflow.pytorch

    mlflow.pytorch.save_model(
        network(4), tmp_path / "m", input_example=np.zeros((2, 4), np.float32),
        serialization_format="pt2", pip_requirements=["torch"],
    )  # fmt: skip
    with pytest.raises(BadInputError, match="a thing is no model that"):
        load_directory(tmp_path / "m", "a thing")


def test_records_that_do_not_fit_are_one_line(of_arrays):
    served = load_directory(of_arrays[0], "a model")
    with pytest.raises(BadInputError, match="does not take these records") as error:
        served.predict(np.zeros((2, 5, 5), np.uint8))
    assert "(2, 5, 5)" in error.value.because


def test_the_code_that_goes_with_a_model_imports_nothing_of_dpsweep():
    tree = ast.parse(package_module._SERVED.read_text())
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
    outside = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert outside == {"mlflow", "numpy", "pandas", "torch"}
