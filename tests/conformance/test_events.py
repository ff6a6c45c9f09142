"""Every privacy event passes its suite."""

from __future__ import annotations

from dpsweep.privacy.events import (
    EVENTS,
    EventRun,
    Gaussian,
    Laplace,
    NonPrivate,
    Plan,
    PoissonGaussian,
    PoissonSubset,
    RepeatAndSelect,
)
from dpsweep.testing.events import EventConformance


class TestGaussian(EventConformance):
    event = Gaussian(4.0)
    quiet = Gaussian(1e9)


class TestPoissonGaussian(EventConformance):
    event = PoissonGaussian(0.9, 0.05)
    quiet = PoissonGaussian(0.9, 0.0)


class TestLaplace(EventConformance):
    event = Laplace(5.0)
    quiet = Laplace(1e9)


class TestNonPrivate(EventConformance):
    event = NonPrivate()


class TestRepeatAndSelect(EventConformance):
    event = RepeatAndSelect(10, 1, Plan((EventRun(PoissonGaussian(2.0, 0.01), 100),)))
    quiet = RepeatAndSelect(1, 1, Plan((EventRun(Gaussian(1e9)),)))


class TestPoissonSubset(EventConformance):
    event = PoissonSubset(0.2, Plan((EventRun(Gaussian(2.0)), EventRun(Laplace(3.0)))))
    quiet = PoissonSubset(0.2, Plan((EventRun(Gaussian(1e9)), EventRun(Laplace(1e9)))))


class TestPoissonSubsetOfASelection(EventConformance):
    event = PoissonSubset(0.1, Plan((EventRun(TestRepeatAndSelect.event),)))
    quiet = PoissonSubset(0.1, Plan((EventRun(TestRepeatAndSelect.quiet),)))


class TestPoissonSubsetOfNonPrivateEvents(EventConformance):
    event = PoissonSubset(0.1, Plan((EventRun(NonPrivate()),)))


def test_none_is_forgotten() -> None:
    kinds = {type(suite.event) for suite in EventConformance.__subclasses__()}
    assert {EVENTS[name] for name in EVENTS} <= kinds
