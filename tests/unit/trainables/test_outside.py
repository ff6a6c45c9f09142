"""Methods of other packages: what they declare is checked when they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
from outside import install
from whole_studies import make_spec

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import declared_hyperparameters
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.outside import check_declared

RATE = DPSGD.hyperparameters[0]


class Changed(DPSGD):
    """A method whose declarations a test changes."""

    name = "changed"


class NoMethod:
    """Something that has what a method declares."""

    hyperparameters = ()
    tasks = frozenset({"classification"})
    plan = None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"changed": f"{__name__}:Changed", "none": f"{__name__}:NoMethod"}
    install(monkeypatch, "dpsweep.trainables", TRAINABLES, **places)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("hyperparameters", None, "hyperparameters is NoneType, not a tuple"),
        ("hyperparameters", ("optim.lr",), "hyperparameters holds str, not Hyperparameter"),
        ("hyperparameters", (RATE, RATE), f"hyperparameters has {RATE.name} twice"),
        (
            "hyperparameters",
            (*DPSGD.hyperparameters, Hyperparameter("method", "str", "x", "Which.")),
            "a hyperparameter has the name 'method', which is taken",
        ),
        (
            "hyperparameters",
            (Hyperparameter("", "str", "x", "Which."),),
            "a hyperparameter has the name '', which is no word",
        ),
        ("tasks", "classification", "tasks is str, not a set of words"),
        ("tasks", None, "tasks is NoneType, not a set of words"),
    ],
)
def test_a_careless_declaration_breaks_its_own_method_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, attribute: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(Changed, attribute, value)
    assert said in str(TRAINABLES.broken()["changed"].because)
    assert "changed" not in declared_hyperparameters()
    assert "dp_sgd" in declared_hyperparameters()
    with pytest.raises(BadInputError, match="'changed' of an unknown package cannot be loaded"):
        TRAINABLES["changed"]
    raw = make_spec(tmp_path, tracking={"uri": None})
    assert preflight(SweepSpec(**raw)).methods == {"dp_sgd": DPSGD}
    raw["search"]["space"] = {"method": "changed"}
    with pytest.raises(SpecError, match="'changed' of an unknown package cannot be loaded"):
        preflight(SweepSpec(**raw))


@pytest.mark.usefixtures("installed")
def test_what_is_no_method_is_told() -> None:
    with pytest.raises(BadInputError) as refused:
        TRAINABLES["none"]
    assert str(refused.value.because) == "TypeError: it is no subclass of dpsweep's Method"


@pytest.mark.usefixtures("installed")
def test_lists_are_taken_for_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changed, "hyperparameters", list(DPSGD.hyperparameters))
    monkeypatch.setattr(Changed, "tasks", ["classification"])
    method = TRAINABLES["changed"]
    assert method.hyperparameters == DPSGD.hyperparameters
    assert method.tasks == {"classification"}
    assert "changed" in declared_hyperparameters()


@pytest.mark.parametrize("name", sorted(TRAINABLES))
def test_our_own_methods_declare_as_others_must(name: str) -> None:
    check_declared(TRAINABLES[name])
