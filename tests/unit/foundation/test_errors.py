"""What is told of an error that is raised while private records are at hand."""

import asyncio
import types

import pytest
from raised import PanicException, raising

from dpsweep.foundation.errors import SweepError, described, is_failure, is_signal
from dpsweep.foundation.validate import of_kind
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.execution.pace import Left


def caught(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:
        return described(error)
    raise AssertionError("nothing was raised")


def of_another_package(source):
    module = types.ModuleType("others.method")
    exec(compile(source, "/somewhere/method.py", "exec"), module.__dict__)
    return module.step


def test_words_of_another_package_may_quote_a_record():
    header = "from dpsweep.foundation.errors import SweepError\ndef step():\n    "
    secret = of_another_package(header + "raise SweepError('record [0.25, 0.5]')")
    assert caught(secret) == "SweepError at method.py:3"
    assert caught(of_another_package("def step():\n    raise ValueError(0.25)")) == (
        "ValueError at method.py:2"
    )
    assert caught(of_another_package("def step():\n    import sys; sys.exit('0.25')")) == (
        "SystemExit at method.py:2"
    )


def test_words_of_dpsweep_are_kept_and_its_places_are_told_apart():
    assert caught(of_kind, "a number is wanted", "x", int, "give one").startswith("a number is")
    assert described(SweepError("built, not raised")) == "built, not raised"
    method = TRAINABLES["dp_sgd"]()
    method._plan, method._position = Plan((EventRun(Gaussian(1.0), 3),)), 0
    assert caught(method.run, 2, 3).startswith("ValueError at dpsweep/trainables/method.py:")


class Odd(BaseException):
    """Of a kind that nobody knows."""


@pytest.mark.parametrize(
    ("error", "module", "is_failed", "is_ended"),
    [
        (PanicException("index"), "others.nets", True, False),
        (PanicException("index"), "dpsweep.trainables.data.sources", True, False),
        (SystemExit(3), "others.nets", True, False),
        (MemoryError(), "dpsweep.study.study", True, False),
        (SystemExit(143), "dpsweep.cli.verbs.machine", False, True),
        (Left(), "others.nets", False, True),
        (KeyboardInterrupt(), "others.nets", False, True),
        (GeneratorExit(), "others.nets", False, True),
        (asyncio.CancelledError(), "others.nets", False, False),
        (Odd(), "others.nets", False, False),
    ],
)
def test_what_ends_a_program_is_no_failure_of_what_it_called(error, module, is_failed, is_ended):
    with pytest.raises(type(error)) as met:
        raising(error, module=module)()
    assert (is_failure(met.value), is_signal(met.value)) == (is_failed, is_ended)
