from __future__ import annotations

import math

import pytest

from dpsweep.tracking.schema import (
    METRICS,
    PARAMS,
    SCHEMA,
    STATEMENT_TAGS,
    TAGS,
    UnloggableError,
    check_loggable,
    finite,
    missing_statement,
)


def test_every_entry_is_documented_and_named_once() -> None:
    items = [*METRICS, *TAGS, *PARAMS]
    assert len(SCHEMA) == len(items)
    assert all(item.doc.endswith(".") and item.visibility for item in items)
    assert all(item.unit for item in METRICS)


@pytest.mark.parametrize("name", ["train/loss", "train/grad_norm", "train/batch_size"])
def test_private_metrics_are_refused_unless_released(name: str) -> None:
    with pytest.raises(UnloggableError, match="private and is not logged") as caught:
        check_loggable(name)
    assert caught.value.fix
    assert check_loggable(name, released_as="dp").name == name


def test_a_public_name_is_refused_for_a_private_value() -> None:
    with pytest.raises(UnloggableError):
        check_loggable("validation/accuracy", released_as="private")


def test_secret_seeds_are_refused_as_params() -> None:
    with pytest.raises(UnloggableError):
        check_loggable("noise.seed", "param")
    assert check_loggable("seed", "param").visibility == "public"


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(UnloggableError) as caught:
        check_loggable("validation/acuracy")
    assert "validation/accuracy" in str(caught.value.fix)
    with pytest.raises(UnloggableError):
        check_loggable("mlflow.note", "tag")
    with pytest.raises(UnloggableError):
        check_loggable("Not A Param!", "param")


def test_a_metric_name_is_not_a_tag() -> None:
    with pytest.raises(UnloggableError):
        check_loggable("validation/accuracy", "tag")


def test_statement_tags() -> None:
    whole = dict.fromkeys(STATEMENT_TAGS, "x")
    assert missing_statement(whole) == []
    for name in STATEMENT_TAGS:
        assert missing_statement({**whole, name: ""}) == [name]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None, "1.0", True])
def test_values_that_are_no_numbers(value: object) -> None:
    assert finite(value) is None
    assert finite(3) == 3.0
