"""What studies on one ledger of a dataset must agree on: all that decides what is private."""

from typing import Any

import pytest

from dpsweep.planning.public_records import private_parts
from dpsweep.spec.study import SweepSpec


def parts(**data: Any) -> dict[str, Any]:
    return private_parts(
        SweepSpec(
            name="parts",
            data={"path": "there", "validation": {"visibility": "public"}, **data},
            privacy={"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "unaccounted"},
            search={"space": {"method": "dp_sgd"}},
        )
    )


TEXT = {
    "dataset": "text", "tokenizer": "t", "max_length": 8, "num_records": 90, "num_classes": 2,
}  # fmt: skip


def test_splits_that_are_exchanged_are_other_private_records() -> None:
    """What one study shows as its public validation part would be what another trains on."""
    plain = parts(**TEXT)
    one = parts(**TEXT, splits={"train": "train", "validation": "val"})
    other = parts(**TEXT, splits={"train": "val", "validation": "train"})
    assert one != other
    assert plain not in (one, other)
    assert plain["data.splits"] is None  # as a ledger of before has it, which has no such key
    assert parts(**TEXT, splits={}) == plain


@pytest.mark.parametrize(
    ("data", "key", "values"),
    [
        ({"dataset": "celeba"}, "attributes", (["Male"], ["Smiling"])),
        ({"dataset": "image_dataset", "num_records": 90}, "label_column", ("fine", "coarse")),
    ],
)
def test_where_classes_decide_so_does_what_is_a_class(
    data: dict[str, Any], key: str, values: tuple[Any, Any]
) -> None:
    by_class = {"public": {"per_class": 3}}
    one, other = (parts(**data, **by_class, **{key: value}) for value in values)
    assert one != other
    one, other = (parts(**data, **{key: value}) for value in values)
    assert one == other  # every record is private in both


LABELLED = {"dataset": "image_folder", "num_records": 90}


@pytest.mark.parametrize(
    ("data", "key", "values"),
    [
        (LABELLED, "class_names", (["a", "b", "c"], ["b", "c", "a"])),
        (TEXT | {"num_classes": None}, "class_names", (["a", "b", "c"], ["b", "c", "a"])),
        (TEXT | {"num_classes": 3}, "label_column", ("topic", "tone")),
        ({"dataset": "celeba"}, "attributes", (["Male"], ["Smiling"])),
    ],
)
def test_names_and_columns_of_labels_decide_which_classes_are_chosen(
    data: dict[str, Any], key: str, values: tuple[Any, Any]
) -> None:
    """What one study trains on in private would be another's public part."""
    one, other = (parts(**data, classes=[0, 1], **{key: value}) for value in values)
    assert one != other


def test_the_usual_column_of_labels_may_be_named_or_not() -> None:
    plain, named = (parts(**TEXT, classes=[0, 1], label_column=c) for c in (None, "label"))
    assert plain == named
