"""The pretrain section of a spec: public records that a network is trained on before any trial."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_NUMBER,
    AS_WHOLE,
    Count,
    NotNegative,
    NumClasses,
    Part,
    Positive,
    Text,
    given,
    peek,
    peek_word,
)
from dpsweep.spec.data.classes import Classes, class_rules
from dpsweep.spec.data.datasets import BUILT_IN, DATASET_GROUP, WITH_PATH
from dpsweep.spec.data.evaluation import ValidationSpec
from dpsweep.spec.data.places import is_same_data
from dpsweep.spec.data.public import declares_public
from dpsweep.spec.data.section import DataSpec, ImageSize
from dpsweep.spec.installed import known_name, name_schema

#: What makes up another dataset that is public as a whole.
_OF_DATASET = ("path", "num_classes", "image_size", "channels", "num_records")
_RECORDS = ("classes", "dataset", *_OF_DATASET)


#: Datasets of dpsweep's own that a network can be pre-trained on: those of images and numbers.
#: ``RANDOM_PROCESS`` has images that are generated in the shape of the study's.
RANDOM_PROCESS = "random_process"
DATASETS = (*BUILT_IN, "npz", "image_folder", "image_dataset", RANDOM_PROCESS)
PublicDataset = Annotated[
    str,
    BeforeValidator(known_name(DATASETS, DATASET_GROUP)),
    WithJsonSchema(name_schema(DATASETS)),
]


def _as_json(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


class PretrainSpec(Part):
    """Weights that trials start from: trained once on public records, or read from a file.

    The recipe is that of Luo et al. 2021 ("Scalable Differential Privacy with Sparse Network
    Finetuning", section 5.8): SGD with momentum, weight decay and a cosine schedule; they train for
    200 epochs.

    Guarantees:
        Trained without privacy, so whatever it is trained on must be public: ``classes`` declares
        all training records of these classes public, ``dataset`` a whole other dataset, and
        without either the records of ``data.public`` are, which are declared there. That they need
        no protection is taken from the spec, not checked. No private record is used.
    """

    is_hinted: ClassVar[bool] = False  # lr, epochs and the like are rarely meant to stand here

    classes: Classes | None = Field(
        default=None,
        description="Train on these classes of the study's dataset, which this declares public; "
        "none of data.classes.",
    )
    dataset: PublicDataset | None = Field(
        default=None,
        description="Train on another dataset, which this declares public: digits, fashion_mnist, "
        "mnist, cifar10, cifar100, svhn, npz, image_folder, image_dataset, random_process (images "
        "that nobody took), or that of an installed package.",
    )
    path: Text | None = Field(default=None, description="Where it is, as data.path.")
    num_classes: NumClasses | None = Field(
        default=None, description="npz, image_dataset: its number of classes."
    )
    image_size: ImageSize | None = Field(
        default=None,
        description="image_folder, image_dataset: size that its images are resized to.",
    )
    channels: Literal[1, 3] | None = Field(
        default=None,
        description="image_folder, image_dataset: 1 (grey) or 3 (colour, the default).",
    )
    num_records: Count | None = Field(
        default=None,
        description="random_process: number of images [10000]; of an installed package's dataset: "
        "its number of records, where it needs it.",
    )
    model: Text | None = Field(
        default=None, description="name the network, as model.name in the space does"
    )
    norm: Literal["refuse", "group", "frozen"] = Field(
        default="refuse",
        description="BatchNorm, as model.norm of the trials: frozen trains it here, on public "
        "records, and trials then keep its statistics.",
    )
    options: Annotated[str, BeforeValidator(_as_json)] | None = Field(
        default=None, description="Further arguments of timm's network, as model.options."
    )
    stem: Literal["cifar"] | None = Field(default=None, description="As model.stem.")
    objective: Literal["classes", "rotations", "classes_and_rotations", "views"] = Field(
        default="classes",
        description="What is predicted: the class; by how many quarter turns an image was turned "
        "(no label is used); both at once, which transfers better to other classes; or views: "
        "which two crops are of the same image (no label is used).",
    )
    resize: Count | None = Field(
        default=None,
        description="Pixels that images are resized to in the network, as model.image_size; those "
        "of dataset may then have another size, and other colours.",
    )
    epochs: Count = Field(default=20, description="Passes over the public records.")
    lr: Positive = Field(default=0.1, description="Learning rate at first; a cosine down to zero.")
    batch: Annotated[int, Field(ge=2), AS_WHOLE] = Field(
        default=128, description="Records of a batch."
    )
    weight_decay: NotNegative = Field(default=1e-4, description="L2 penalty on the weights.")
    momentum: Annotated[float, Field(ge=0, lt=1), AS_NUMBER] = Field(
        default=0.9, description="Momentum of SGD."
    )
    holdout: Annotated[float, Field(ge=0, lt=1), AS_NUMBER] = Field(
        default=0.1, description="Share of the public records that is kept for a public score."
    )
    augment: bool = Field(
        default=False,
        strict=True,
        description="Shift images by up to 2 pixels and mirror half of them.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**32), AS_WHOLE] | None = Field(
        default=None, description="Of weights, order and holdout; null: the study's."
    )
    checkpoint: Text | None = Field(
        default=None,
        description="File with public weights, instead of training: what model.checkpoint: "
        "pretrain then means.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that there is one source of weights, and one of records."""
        if raw.get("checkpoint") is not None:
            others = [key for key in cls.model_fields if key != "checkpoint" and given(raw, key)]
            for key in others:
                yield Mistake(key, "has no meaning beside checkpoint", "keep one of the two")
            return
        if raw.get("model") is None:
            yield Mistake("model", "is missing", cls.model_fields["model"].description or "")
        dataset = raw.get("dataset")
        if dataset is not None and raw.get("classes") is not None:
            problem = "stands beside classes, which are of the study's own dataset"
            yield Mistake("dataset", problem, "keep one of the two")
        allowed: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(BUILT_IN, ("path",)),
            "digits": (),
            "npz": ("path", "num_classes"),
            "image_folder": ("path", "image_size", "channels"),
            "image_dataset": ("path", "image_size", "channels", "num_classes"),
            RANDOM_PROCESS: ("num_records",),
        }
        keys = allowed.get(dataset, _OF_DATASET) if isinstance(dataset, str) else ()
        for key in _OF_DATASET:
            if given(raw, key) and key not in keys:
                of = f"for {dataset}" if dataset is not None else "without dataset"
                yield Mistake(key, f"has no meaning {of}", "remove it")
        objective = raw.get("objective", "classes")
        if dataset == RANDOM_PROCESS and objective in ("classes", "classes_and_rotations"):
            problem = f"{objective} reads labels, and images of {RANDOM_PROCESS} have none"
            yield Mistake("objective", problem, "write objective: views")
        needed: dict[str, tuple[str, ...]] = {
            **dict.fromkeys(WITH_PATH, ("path",)),
            "npz": ("path", "num_classes"),
            **dict.fromkeys(("image_folder", "image_dataset"), ("path", "image_size")),
        }
        for key in needed.get(str(dataset), ()):
            if raw.get(key) is None:
                description = cls.model_fields[key].description or ""
                yield Mistake(key, f"is missing: {dataset} needs it", description)

    def as_data(self) -> DataSpec:
        """Return the other dataset as a data section, to be opened; its records are counted.

        Its training source is used whole; what the section says of parts has no effect.
        """
        assert self.dataset is not None
        named: dict[str, Any] = {key: getattr(self, key) for key in _OF_DATASET}
        if self.dataset in ("npz", "image_folder", "image_dataset"):
            named["num_records"] = 1  # the real number is public, and counted when they are read
        return DataSpec(
            dataset=self.dataset, validation=ValidationSpec(visibility="public"), **named
        )


def pretrain_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what the sections ``pretrain`` and ``data`` of a raw spec demand of each other."""
    block = peek(raw, "pretrain")
    if block is None or given(raw, "pretrain", "checkpoint"):
        return
    task = peek_word(raw, "data", "task", default="classification")
    if task != "classification" or peek_word(raw, "data", "dataset") == "text":
        problem = "trains classifiers of images and features, and of nothing else"
        yield Mistake("pretrain", problem, "name a file: pretrain.checkpoint")
        return
    classes, own = peek(block, "classes"), peek(raw, "data", "classes")
    if classes is not None:
        data = peek(raw, "data")
        for flaw in class_rules({"classes": classes}, data):
            yield flaw.below("pretrain")
        if own is None:
            yield Mistake(
                "pretrain.classes",
                "needs data.classes: records of all classes are private without it",
                "give data.classes, the classes of the private task",
            )
        elif isinstance(own, (list, tuple)) and isinstance(classes, (list, tuple)):
            both = [label for label in classes if label in own]
            if both:
                yield Mistake(
                    "pretrain.classes",
                    f"has class {both[0]}, which data.classes makes private",
                    "no class can be both",
                )
        return
    if given(block, "dataset") and is_same_data(block, peek(raw, "data")):
        yield Mistake(
            "pretrain.dataset",
            "is the study's own data, of which records are private",
            "name classes of it (pretrain.classes), or use data.public and leave dataset out",
        )
    is_own = not any(given(block, key) for key in _RECORDS)
    if is_own and not declares_public(peek(raw, "data")):
        yield Mistake(
            "pretrain",
            "has no public records to train on",
            "give classes or dataset here, or data.public.fraction",
        )
    labels = peek_word(raw, "data", "public", "labels", default="known")
    if is_own and labels != "known" and peek_word(block, "objective") != "rotations":
        problem = f"reads the labels of public records, which are {labels}"
        yield Mistake("pretrain.objective", problem, "use rotations, which reads none")
