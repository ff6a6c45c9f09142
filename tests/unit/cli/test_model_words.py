"""Words of what a model takes: the columns of its files, and the names from Python."""

import pytest

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
