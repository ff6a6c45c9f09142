"""Every policy in the table passes the suite of policies."""

from dpsweep.schedulers import POLICIES
from dpsweep.schedulers.epsilon_halving import EpsilonHalving
from dpsweep.schedulers.fifo import FifoPolicy
from dpsweep.schedulers.median import MedianPolicy
from dpsweep.schedulers.noisy_prefix import NoisyPrefix
from dpsweep.testing.policies import PolicyConformance


class TestFifo(PolicyConformance):
    def make(self):
        return FifoPolicy()


class TestEpsilonHalvingStop(PolicyConformance):
    def make(self):
        return EpsilonHalving(metric=self.metric, maximize=True, num_rungs=3)


class TestEpsilonHalvingPromote(PolicyConformance):
    def make(self):
        return EpsilonHalving(metric=self.metric, maximize=True, num_rungs=3, variant="promote")


class TestMedian(PolicyConformance):
    def make(self):
        return MedianPolicy(metric=self.metric, maximize=True, num_rungs=3)


class TestNoisyPrefix(PolicyConformance):
    def make(self):
        return NoisyPrefix(metric=self.metric, maximize=True, keep=2)


def test_every_policy_is_covered():
    covered = {type(suite().make()) for suite in PolicyConformance.__subclasses__()}
    assert covered == {POLICIES[name] for name in POLICIES}
