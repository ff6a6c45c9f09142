"""A method of another package that fails as it plans: one line says whose fault it is."""

import itertools
import sys
import traceback
from types import ModuleType

import numpy as np
import pytest
from outside import install
from raised import PanicException
from whole_studies import make_spec

from dpsweep.foundation.errors import (
    BadInputError,
    DataError,
    InfeasibleBudgetError,
    Mistake,
    SpecError,
    SweepError,
    is_own,
)
from dpsweep.planning import problems
from dpsweep.planning.preflight import preflight
from dpsweep.planning.problems import check_records
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.source import checked_labels
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.outside import asked


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


def fails(*arguments, **named):
    raise ZeroDivisionError("of 4711 records")


def leaves(*arguments, **named):
    raise SystemExit(4711)


def returns(value):
    return classmethod(lambda cls, *arguments, **named: value)


def hook(monkeypatch, name, function):
    monkeypatch.setattr(Careless, name, function, raising=False)


@pytest.mark.parametrize("failing", [fails, leaves])
def test_a_plan_that_ends_the_process_is_told_too(checked, monkeypatch, failing):
    hook(monkeypatch, "plan", failing)
    with pytest.raises(BadInputError, match="another package brings, fails in its `plan`"):
        checked.admit(0, {"method": "careless"})


def a_plan(noise=30.0, **more):
    return Plan((EventRun(Gaussian(noise), 2, **more),))


def test_a_plan_that_is_another_one_each_time_is_refused(checked, monkeypatch):
    noises = itertools.count(30)
    hook(monkeypatch, "plan", classmethod(lambda cls, hparams, context: a_plan(next(noises))))
    with pytest.raises(BadInputError, match="'careless' has returned two plans for one"):
        checked.admit(0, {"method": "careless"})
    hook(monkeypatch, "plan", returns(a_plan()))
    assert checked.admit(0, {"method": "careless"}).plan == a_plan()


def test_a_plan_that_writes_into_its_hyperparameters_changes_no_task(checked, monkeypatch):
    def plan(cls, hparams, context):
        hparams["train.epochs"] = 4711
        return a_plan()

    before = DPSGD.hyperparameters
    hook(monkeypatch, "plan", classmethod(plan))
    task = checked.admit(0, {"method": "careless"})
    assert 4711 not in task.hparams.values()
    assert set(task.hparams) == {each.name for each in before}


@pytest.mark.parametrize("part", ["validation", "rest"])
def test_a_plan_of_the_records_of_others_is_refused(checked, monkeypatch, part):
    hook(monkeypatch, "plan", returns(a_plan(part=part)))
    with pytest.raises(BadInputError, match=f"'careless' has events on {part} records"):
        checked.admit(0, {"method": "careless"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "has returned NoneType, not a dict"),
        ({}, "has returned another set of names: .*optim.lr"),
        ({"optim.lr": float("nan")}, "has returned optim.lr, which must be finite, got nan"),
        ({"no.such": 3}, "has returned another set of names: no.such"),
    ],
)
def test_what_complete_returns_is_checked(checked, monkeypatch, value, said):
    def complete(cls, hparams, context):
        return {**hparams, **value} if value else value

    hook(monkeypatch, "complete", classmethod(complete))
    with pytest.raises(BadInputError, match=f"`complete` of method 'careless' {said}"):
        checked.admit(0, {"method": "careless"})


def test_a_complete_that_fails_is_the_packages(checked, monkeypatch):
    hook(monkeypatch, "complete", fails)
    with pytest.raises(BadInputError, match="another package brings, fails in its `complete`"):
        checked.admit(0, {"method": "careless"})


@pytest.mark.parametrize("name", ["notes", "fitted_defaults"])
@pytest.mark.parametrize("value", [None, "be careful"])
def test_notes_of_another_type_are_told(checked, monkeypatch, name, value):
    hook(monkeypatch, name, returns(value))
    said = f"`{name}` of method 'careless' has returned {type(value).__name__}"
    with pytest.raises(BadInputError, match=said):
        _ = checked.notes
    hook(monkeypatch, name, fails)
    with pytest.raises(BadInputError, match=f"brings, fails in its `{name}`"):
        _ = checked.notes


@pytest.mark.parametrize("value", [None, "bad", [("optim.lr", "is bad", "mend it")]])
def test_mistakes_of_another_type_are_told(checked, monkeypatch, value):
    hook(monkeypatch, "preflight", returns(value))
    said = f"`preflight` of method 'careless' has returned {type(value).__name__}, not a list of"
    with pytest.raises(BadInputError, match=said):
        preflight(checked.spec)
    hook(monkeypatch, "preflight", fails)
    with pytest.raises(BadInputError, match="brings, fails in its `preflight`"):
        preflight(checked.spec)


@pytest.mark.parametrize("error", [ValueError, DataError, SystemExit, PanicException])
def test_a_check_of_records_that_fails_tells_none(checked, monkeypatch, error):
    def check(cls, values, data):
        raise error(f"a record is {data.parts['private'][0][0]}: 4711")

    hook(monkeypatch, "check_records", classmethod(check))
    data = load_dataset(checked.spec.data)
    with pytest.raises(BadInputError, match="brings, fails in its `check_records`") as told:
        check_records(checked.spec, checked.methods, data, checked.space.values())
    assert ": 4711" not in "".join(traceback.format_exception(told.value))
    assert "test_outside_methods.py:" in str(told.value.because)


def test_a_check_of_records_chains_no_error_of_the_packages(checked, monkeypatch):
    """An error of dpsweep's own keeps its words, and not those of what came before it."""

    def check(cls, values, data):
        try:
            float("HIV+")
        except ValueError:
            checked_labels(np.array([7]), 3, "y")

    hook(monkeypatch, "check_records", classmethod(check))
    data = load_dataset(checked.spec.data)
    with pytest.raises(SweepError) as told:
        check_records(checked.spec, checked.methods, data, checked.space.values())
    assert is_own(told.value)
    assert "could not convert" not in "".join(traceback.format_exception(told.value))


def test_records_are_checked_before_a_study_begins_and_not_later(checked, monkeypatch):
    """What a launched study has paid for goes on: neither its data nor its space may change."""
    hook(monkeypatch, "check_records", fails)
    data = load_dataset(checked.spec.data)
    monkeypatch.setattr(problems, "is_new", lambda spec: False)
    check_records(checked.spec, checked.methods, data, checked.space.values())
    monkeypatch.setattr(problems, "is_new", lambda spec: True)
    with pytest.raises(BadInputError, match="fails in its `check_records`"):
        check_records(checked.spec, checked.methods, data, checked.space.values())


def test_a_hook_may_yield(checked, monkeypatch):
    def preflight_of(cls, values, info):
        yield Mistake("optim.lr", "is bad", "mend it")

    hook(monkeypatch, "preflight", classmethod(preflight_of))
    with pytest.raises(SpecError, match=r"optim\.lr: is bad"):
        preflight(checked.spec)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("starts_from", 3, "a run and an epsilon"),
        ("extractor", "pixels", "a FeatureSpec"),
        ("start_problems", None, "a list of Mistake"),
        ("carried_over", [], "a dict"),
        ("input_norm", "one", "a number"),
    ],
)
def test_every_hook_is_held_to_what_it_returns(monkeypatch, name, value, kind):
    hook(monkeypatch, name, returns(value))
    with pytest.raises(BadInputError, match=f"`{name}` of .* has returned .*, not {kind}"):
        asked(Careless, name)
    hook(monkeypatch, name, fails)
    with pytest.raises(BadInputError, match=f"brings, fails in its `{name}`"):
        asked(Careless, name)


def test_a_method_that_another_module_names_is_its_package_s(monkeypatch):
    """An entry point may name a class where it is imported, and not where it is defined."""
    package = ModuleType("a_package")
    package.Mine = Careless
    monkeypatch.setitem(sys.modules, "a_package", package)
    install(monkeypatch, "dpsweep.trainables", TRAINABLES, my_sgd="a_package:Mine")
    hook(monkeypatch, "may_start", fails)
    with pytest.raises(BadInputError, match="method 'my_sgd', which another package brings"):
        asked(Careless, "may_start", {})
