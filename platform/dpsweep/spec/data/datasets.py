"""The datasets that a spec can name, and what is published about those built in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from dpsweep.spec.installed import known_name, name_schema

#: The datasets that dpsweep has itself; an installed package may add others (``DATASET_GROUP``).
DATASETS = (
    "digits",
    "fashion_mnist",
    "mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "celeba",
    "npz",
    "image_folder",
    "image_dataset",
    "text",
)


DATASET_GROUP = "dpsweep.datasets"


Dataset = Annotated[
    str,
    BeforeValidator(known_name(DATASETS, DATASET_GROUP)),
    WithJsonSchema(name_schema(DATASETS)),
]


Task = Literal["classification", "multi_label", "causal_lm"]


#: Published facts of the built-in datasets: (records of the training source, classes).
BUILT_IN: Mapping[str, tuple[int, int]] = {
    "digits": (1797, 10),
    "fashion_mnist": (60_000, 10),
    "mnist": (60_000, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "svhn": (73_257, 10),
}

#: Records of the training source where its authors fix them, for a spec that declares none.
PUBLISHED_RECORDS: Mapping[str, int] = {
    **{name: num_records for name, (num_records, _) in BUILT_IN.items()},
    "celeba": 162_770,
}

#: Those of them whose files have a test part, and those whose files must be named.
WITH_TEST_PART = frozenset(BUILT_IN) - {"digits"}
WITH_PATH = WITH_TEST_PART - {"fashion_mnist"}

#: Datasets of images in files, which are brought to one size.
OF_IMAGE_FILES = ("image_folder", "image_dataset", "celeba")
