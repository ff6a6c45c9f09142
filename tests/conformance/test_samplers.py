"""Every sampler of ours that is asked passes the suite of samplers."""

import pytest

from dpsweep.search import built_in
from dpsweep.search.samplers import SAMPLERS
from dpsweep.spec.search.section import SAMPLERS as NAMES
from dpsweep.testing.samplers import SamplerConformance


class TestRandom(SamplerConformance):
    build = staticmethod(built_in.random_sampler)


class TestTpe(SamplerConformance):
    build = staticmethod(built_in.tpe_sampler)


class TestNsga2(SamplerConformance):
    build = staticmethod(built_in.nsga2_sampler)


class TestCmaes(SamplerConformance):
    build = staticmethod(built_in.cmaes_sampler)


class TestGp(SamplerConformance):
    build = staticmethod(built_in.gp_sampler)


class _Stuck(SamplerConformance):
    """Draws every trial alike: what the suite must notice."""

    build = staticmethod(lambda seed: built_in.random_sampler(0))


def test_the_suite_notices_a_sampler_that_is_stuck():
    with pytest.raises(AssertionError):
        _Stuck().test_it_does_not_repeat_one_configuration()


def test_every_sampler_is_covered():
    covered = {suite.build for suite in SamplerConformance.__subclasses__()}
    assert {SAMPLERS[name] for name in SAMPLERS} <= covered
    assert set(SAMPLERS) == set(NAMES)
