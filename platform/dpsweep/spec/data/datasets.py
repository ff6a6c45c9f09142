"""The datasets that a spec can name, and what is published about those built in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from dpsweep.spec.installed import known_name, name_schema

#: The datasets that dpsweep has itself; an installed package may add others (``DATASET_GROUP``).
DATASETS = ("digits", "fashion_mnist", "npz", "image_folder", "text")


DATASET_GROUP = "dpsweep.datasets"


Dataset = Annotated[
    str,
    BeforeValidator(known_name(DATASETS, DATASET_GROUP)),
    WithJsonSchema(name_schema(DATASETS)),
]


Task = Literal["classification", "multi_label", "causal_lm"]


#: Published facts of the built-in datasets: (records of the training source, classes).
BUILT_IN: Mapping[str, tuple[int, int]] = {"digits": (1797, 10), "fashion_mnist": (60_000, 10)}
