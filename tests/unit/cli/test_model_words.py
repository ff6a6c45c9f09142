"""Words of what a model takes: the columns of its files, and the names from Python."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from whole_studies import cli_here

from dpsweep.cli.verbs.results import models
from dpsweep.cli.verbs.results.models import _takes
from dpsweep.tracking.registry.loading import ServedModel

TEXTS = {"length": 16, "pad_id": 0, "column": "q"}


@pytest.mark.parametrize(
    ("preparation", "words"),
    [
        (
            TEXTS,
            "texts, of which the network reads 16 tokens at most; column 'q' of a .csv or .jsonl "
            "file, or the lines of a .txt file",
        ),
        (
            {**TEXTS, "pair_column": "{ans}", "truncation": "only_first"},
            "pairs of texts, of which the network reads 16 tokens at most; columns 'q' and "
            "'{ans}' of a .csv or .jsonl file, 'text' and 'text_pair' from Python",
        ),
    ],
)
def test_the_columns_of_files_are_those_of_the_study(preparation, words):
    facts = {"kind": "text", "preparation": preparation, "classes": ["no", "yes"]}
    assert _takes(ServedModel(facts, {}, None)) == {"takes": words, "classes": ["no", "yes"]}


def test_a_file_whose_name_is_no_text_is_predicted(monkeypatch, tmp_path):
    """Its byte is escaped, as is each other one that is no UTF-8."""
    path = tmp_path / "\udce9t\u00e9.npy"
    path.touch()
    served = SimpleNamespace(
        label={"claim_in_words": "none"}, facts={},
        predict=lambda records: pd.DataFrame({"class": [3]}),
    )  # fmt: skip
    monkeypatch.setattr(models, "_served", lambda *_: served)
    monkeypatch.setattr(models, "read_files", lambda files, facts: ([str(files[0])], None))
    done = cli_here("predict", "models:/digits/1", path, "-f", "json")
    assert done.returncode == 0, done.stderr
    row = {"record": f"{tmp_path}/\\xe9t\u00e9.npy", "class": 3}
    assert json.loads(done.stdout) == [row]
    assert cli_here("predict", "models:/digits/1", path, "--to", tmp_path / "a.csv").returncode == 0
    assert (tmp_path / "a.csv").read_text() == f"record,class\n{row['record']},3\n"


def test_predictions_go_to_a_directory_that_is_there(tmp_path):
    """Said before a model is looked for."""
    done = cli_here("predict", "models:/none/1", tmp_path / "x.npy", "--to", tmp_path / "new/a.csv")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path}/new/a.csv cannot be written: no such directory\n"
        "  fix: name a file in a directory that is there\n"
    )
    assert not (tmp_path / "new").exists()
