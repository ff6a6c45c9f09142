"""A method of another package that fails as it plans: one line says whose fault it is."""

import pytest
from outside import install
from whole_studies import make_spec

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.methods.dp_sgd import DPSGD


class Careless(DPSGD):
    """A method whose plan fails."""

    name = "careless"
    error: Exception = ZeroDivisionError("of 4711 records")

    @classmethod
    def plan(cls, hparams, context):
        raise cls.error


@pytest.fixture
def checked(tmp_path, monkeypatch):
    install(monkeypatch, "dpsweep.trainables", TRAINABLES, careless=f"{__name__}:Careless")
    raw = make_spec(tmp_path, tracking={"uri": None})
    raw["search"]["space"] = {"method": "careless"}
    return preflight(SweepSpec(**raw))


def test_a_plan_that_fails_is_the_packages(checked):
    with pytest.raises(BadInputError, match="'careless', which another package brings") as told:
        checked.admit(0, {"method": "careless"})
    assert str(told.value.because).startswith("ZeroDivisionError at test_outside_methods.py:")
    assert "4711" not in str(told.value)


def test_a_plan_that_is_none_is_told(checked, monkeypatch):
    monkeypatch.setattr(Careless, "plan", classmethod(lambda cls, hparams, context: 3))
    with pytest.raises(BadInputError, match="'careless' has returned int, not a Plan"):
        checked.admit(0, {"method": "careless"})


def test_a_plan_that_does_not_exist_is_told_as_such(checked, monkeypatch):
    monkeypatch.setattr(Careless, "error", InfeasibleBudgetError("no noise is enough"))
    with pytest.raises(InfeasibleBudgetError, match="no noise is enough"):
        checked.admit(0, {"method": "careless"})
