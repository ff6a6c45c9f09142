"""A GPU of any size, for tests that have none; and programs for a real one."""

import dataclasses

from dpsweep.trainables.devices.sharing import MIB

GIB = 1024 * MIB


@dataclasses.dataclass
class FakeGpu:
    """Notes to which fractions a process was held."""

    total_bytes: int = 80 * GIB
    free_bytes: int = 80 * GIB
    fractions: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.total_bytes

    def free(self):
        return self.free_bytes

    def fraction(self):
        return self.fractions[-1] if self.fractions else 1.0

    def set_fraction(self, fraction):
        self.fractions.append(fraction)
