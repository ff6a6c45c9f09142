"""Section ``data`` of a spec: its keys, and what each dataset needs of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_WHOLE,
    Count,
    NumClasses,
    Part,
    Text,
    peek_number,
    peek_word,
    seen,
    whole,
)
from dpsweep.spec.data.class_names import Attributes, ClassNames, attribute_rules, name_rules
from dpsweep.spec.data.classes import Classes, class_rules
from dpsweep.spec.data.datasets import (
    BUILT_IN,
    DATASETS,
    OF_IMAGE_FILES,
    WITH_PATH,
    WITH_TEST_PART,
    Dataset,
    Task,
)
from dpsweep.spec.data.evaluation import TestSpec, ValidationSpec
from dpsweep.spec.data.public import PublicSpec, has_public_validation
from dpsweep.spec.data.public_rules import public_data_rules
from dpsweep.spec.data.texts import TEXT_KEYS, SplitsSpec, Truncation, text_rules


def _image_size(value: Any) -> Any:
    """Return (height, width); one number stands for a square."""
    sides = list(value) if isinstance(value, (list, tuple)) else [value, value]
    if len(sides) != 2:
        raise ValueError(f"must be one number or [height, width], got {seen(value)}")
    sizes = tuple(whole(side) for side in sides)
    if min(sizes) < 1:
        raise ValueError(f"must be >= 1, got {seen(value)}")
    return sizes


ImageSize = Annotated[
    tuple[int, int],
    BeforeValidator(_image_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1},
                    "minItems": 2,
                    "maxItems": 2,
                },
            ]
        }
    ),
]


class DataSpec(Part):
    """The dataset, its declared sizes, and which records are private.

    Guarantees:
        Sizes enter sampling rates, normalisers and reports, so all of them are declared or
        published; none is counted from private records. With ``classes``, which class a record has
        decides whether it is in the private data at all, and the guarantee is for the records of
        these classes; records of other classes are not trained on unless ``pretrain.classes``
        declares them public.
    """

    dataset: Dataset = Field(
        description="say which data to use: digits, fashion_mnist, mnist, cifar10, cifar100, svhn, "
        "celeba, npz, image_folder, image_dataset or text, or a dataset of an installed package"
    )
    task: Task = Field(
        default="classification",
        description="classification: one class a record; multi_label: several attributes of 0 or 1 "
        "(npz, celeba); causal_lm: the next token (text).",
    )
    path: Text | None = Field(
        default=None,
        description="npz: the file; image_folder, archives: the directory; text: a .csv, .jsonl "
        "or .npz file; text, image_dataset: a directory of datasets.save_to_disk; fashion_mnist: "
        "optional.",
    )
    num_records: Count | None = Field(
        default=None,
        description="Public number of records in the training source, where it is not published.",
    )
    num_classes: NumClasses | None = Field(
        default=None,
        description="Number of classes or attributes (npz, text, labels.csv); image_folder knows "
        "it from its folders.",
    )
    class_names: ClassNames | None = Field(
        default=None,
        description="One name for each class or attribute of the dataset, in the order of their "
        "numbers; null: its own, which are numbers for npz and digits. Of labels.csv and of "
        "text: its labels, as they are written there.",
    )
    image_size: ImageSize | None = Field(
        default=None,
        description="Size that images are resized to: one number, or [height, width]; null: 224.",
    )
    channels: Literal[1, 3] | None = Field(
        default=None, description="Of image files: 1 (grey) or 3 (colour, the default)."
    )
    resize: Literal["squash", "crop"] = Field(
        default="squash",
        description="How images get their size: squash stretches them; crop keeps their "
        "proportions and cuts the centre out.",
    )
    layout: Literal["channels_first", "channels_last"] | None = Field(
        default=None,
        description="npz: which axis of images has the channels; null: seen from the shape, or "
        "asked for.",
    )
    attributes: Attributes | None = Field(
        default=None,
        description="celeba: names of the attributes that are learned; null: all. One of them is "
        "a task of two classes.",
    )
    tokenizer: Text | None = Field(
        default=None,
        description="text: directory of a transformers tokenizer; the name of one on the hub "
        "where there is no such directory.",
    )
    max_length: Annotated[int, Field(ge=2), AS_WHOLE] | None = Field(
        default=None,
        description="text: tokens of a record; longer ones are cut, shorter ones are padded.",
    )
    text_column: Text | None = Field(
        default=None, description="text: column of the texts; null: text."
    )
    text_pair_column: Text | None = Field(
        default=None,
        description="text: column of the second text of a pair, such as a question's answer; null: "
        "a record is one text.",
    )
    prompt_column: Text | None = Field(
        default=None,
        description="text, causal_lm: column of what stands before the target and is not learned.",
    )
    target_column: Text | None = Field(
        default=None,
        description="text, causal_lm: column of what follows the prompt; its tokens alone count.",
    )
    truncation: Truncation | None = Field(
        default=None,
        description="text of two columns: which of them is cut to max_length, at its end: "
        "longest_first (null), token by token from the longer one; only_first; only_second.",
    )
    label_column: Text | None = Field(
        default=None,
        description="text: column of the class numbers, from 0; null: label. image_dataset: column "
        "of the classes; null: the only one.",
    )
    splits: SplitsSpec | None = Field(
        default=None,
        description="text: which splits of a directory are the parts; null: by their names.",
    )
    classes: Classes | None = Field(
        default=None,
        description="The task is these classes alone, numbered 0, 1, ... in this order; "
        "num_records then counts their records. null: all classes.",
    )
    max_private: Count | None = Field(
        default=None,
        description="Use only this many private records, chosen without looking at them.",
    )
    validation: ValidationSpec = Field(
        description="say which records configurations are compared on, for instance "
        "{fraction: 0.2, visibility: public}"
    )
    test: TestSpec = TestSpec()
    public: PublicSpec = PublicSpec()
    privacy_unit: Literal["example", "user"] = Field(
        default="example",
        description="Whose data one private record is; only example is available.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check what each dataset needs and that something private is left."""
        if raw.get("privacy_unit") == "user":
            yield Mistake(
                "privacy_unit",
                "'user' is not available yet: every guarantee here is for one example",
                "use example; of somebody with k examples epsilon is k times as large, and delta "
                "more than that",
            )
        yield from cls._dataset_rules(raw)
        yield from text_rules(raw)
        yield from class_rules(raw, raw)
        num_classes = BUILT_IN.get(peek_word(raw, "dataset"), (0, 0))[1]
        yield from name_rules(raw, num_classes or int(peek_number(raw, "num_classes", default=0)))
        yield from public_data_rules(raw)
        shares = [
            peek_number(raw, part, "fraction", default=default)
            for part, default in (("validation", 0.2), ("test", 0.0), ("public", 0.0))
            if part != "validation" or not has_public_validation(raw)
        ]
        total = sum(share for share in shares if 0 <= share < 1)
        if total >= 1:
            yield Mistake(
                "",
                "no private record is left: the fractions of validation, test and public add up "
                f"to {total:g}",
                "make their sum smaller than 1",
            )

    @property
    def declared_classes(self) -> int:
        """Number of classes or attributes, declared or counted from their names; 0 if neither."""
        return self.num_classes or len(self.class_names or ())

    @property
    def has_named_labels(self) -> bool:
        """Whether labels of text that are words are names of classes: these alone are declared."""
        return self.dataset == "text" and self.class_names is not None and self.num_classes is None

    @classmethod
    def _dataset_rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        dataset = raw.get("dataset")
        if not isinstance(dataset, str):
            return
        needed = {
            **dict.fromkeys(WITH_PATH, ("path",)),
            "npz": ("path", "num_records", "num_classes"),
            "image_folder": ("path", "num_records"),
            "image_dataset": ("path", "num_records"),
            "celeba": ("path",),
            "text": ("path", "num_records", "num_classes", "tokenizer", "max_length"),
        }
        if raw.get("task") == "causal_lm":
            needed["text"] = ("path", "num_records", "tokenizer", "max_length")
        names_say_it = dataset == "text" and raw.get("class_names") is not None
        yield from cls._task_rules(raw, dataset)
        for key in needed.get(dataset, ()):
            if raw.get(key) is None and not (key == "num_classes" and names_say_it):
                yield Mistake(key, f"is missing: {dataset} needs it", _WHY[key])
        only_for = {
            "path": (*WITH_TEST_PART, *OF_IMAGE_FILES, "npz", "text"),
            **dict.fromkeys(("image_size", "channels", "resize"), OF_IMAGE_FILES),
            "layout": ("npz",),
            "attributes": ("celeba",),
            **dict.fromkeys(("tokenizer", "max_length", *TEXT_KEYS), ("text",)),
            "label_column": ("text", "image_dataset"),
        }
        for key, datasets in only_for.items():
            is_listed = dataset in BUILT_IN or dataset in needed  # another name has its own flaw
            is_said = raw.get(key) not in (None, _COLUMNS.get(key))
            if is_listed and is_said and dataset not in datasets:
                yield Mistake(key, f"has no meaning for {dataset}", "remove it")
        if dataset not in BUILT_IN:
            return
        for key, value in zip(("num_records", "num_classes"), BUILT_IN[dataset]):
            if peek_number(raw, key, default=value) != value and raw.get(key) is not None:
                yield Mistake(key, f"is {value} for {dataset}, got {seen(raw[key])}", "remove it")
        if dataset in WITH_TEST_PART and peek_number(raw, "test", "fraction", default=0) > 0:
            yield Mistake(
                "test.fraction",
                f"{dataset} has a test part of its own",
                "remove it; data.test.visibility: public has it scored",
            )
        has_none = peek_number(raw, "validation", "fraction", default=0.2) == 0
        if has_none and not has_public_validation(raw):
            yield Mistake(
                "validation.fraction",
                "is 0, so there is nothing to compare configurations on",
                "0.2 is usual",
            )

    @classmethod
    def _task_rules(cls, raw: Mapping[str, Any], dataset: str) -> Iterator[Mistake]:
        """Check that the dataset has such a task, and that its scores can have the noise."""
        task = raw.get("task", "classification")
        is_npz = dataset == "npz" or str(raw.get("path")).endswith(".npz")
        is_ours = dataset in DATASETS  # of others, their source says which tasks it has
        if dataset == "celeba":
            yield from attribute_rules(raw)
        elif is_ours and task == "multi_label" and not (is_npz and dataset in ("npz", "text")):
            yield Mistake(
                "task",
                f"multi_label needs the attributes of every record, which {dataset} does not have",
                "store them in an .npz file, y_train of shape (records, attributes)",
            )
        if task == "causal_lm":
            if is_ours and dataset != "text":
                problem = f"causal_lm needs texts, and {dataset} has none"
                yield Mistake("task", problem, "use dataset: text")
            for key in ("num_classes", "label_column"):
                if raw.get(key) not in (None, _COLUMNS.get(key)):
                    problem = "has no meaning for causal_lm: the next token is the label"
                    yield Mistake(key, problem, "remove it")
        if task in ("multi_label", "causal_lm") and (
            peek_word(raw, "validation", "visibility") == "noisy"
        ):
            yield Mistake(
                "validation.visibility",
                f"noisy scores are for classification, and the task is {task}: one record changes "
                "more than one count",
                "declare the validation records public, or use exact with accounting unaccounted",
            )


#: What some keys are by default; to say it is no mistake anywhere, as a written spec does.
_COLUMNS = {"text_column": "text", "label_column": "label", "resize": "squash"}

_WHY = {
    "path": "name the file or the directory",
    "num_records": "declare how many records the training source has; the number becomes public, "
    "and a rounded one is fine",
    "num_classes": "declare the number of classes; counting labels would read private records",
    "tokenizer": "name the directory of a tokenizer of transformers, usually that of the model",
    "max_length": "declare to how many tokens a record is cut or padded, for instance 64",
}
