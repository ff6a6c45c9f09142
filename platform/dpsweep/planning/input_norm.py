"""The number that ``optim.input_norm: public`` stands for, computed as a spec is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import counted
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.loading import describe_dataset, public_inputs
from dpsweep.trainables.hooks import KnowsInputNorm
from dpsweep.trainables.outside import asked

INPUT_NORM, PUBLIC = "optim.input_norm", "public"
_ENOUGH = 2_000  # records: their mean is within two percent of that of all


@dataclass(frozen=True)
class InputNorm:
    """A norm, and where it comes from.

    Attributes:
        value: Of what enters the linear layer, four digits.
        source: Whose it is, in words.
    """

    value: float
    source: str

    def __str__(self) -> str:
        return f"{INPUT_NORM}: {PUBLIC} is {self.value:g}, {self.source}"


def public_input_norm(spec: SweepSpec) -> InputNorm:
    """Return the norm of what enters the linear layer of a spec's methods.

    Guarantees:
        A function of the spec and of records that it declares public: those of ``data.public``, or
        validation records that are public where there are none (2,000 of them). No private record
        enters it. Features that are normalised have a bound by construction, without any record.

    Args:
        spec: A valid spec, with any number in the place of the word.
    Raises:
        BadInputError: There are no public records, what enters depends on what is searched or
            learned, or a method does not know.
    """
    space, info = SearchSpace.from_spec(spec.space), describe_dataset(spec.data)
    read: list[np.ndarray] = []

    def public() -> np.ndarray:
        if not read:
            read.append(public_inputs(spec.data, most=_ENOUGH, keep=Keep.of(spec.storage)))
        return read[0]

    norms = {}
    for name in space.values()["method"]:
        method = TRAINABLES[name]
        if INPUT_NORM not in space.values(name):
            continue
        if not issubclass(method, KnowsInputNorm):
            raise BadInputError(
                f"{name} does not say what enters its linear layer", fix="declare a public number"
            )
        norm = asked(method, "input_norm", space.values(name), info, public)
        norms[name] = float(f"{norm:.4g}")
    if len(set(norms.values())) > 1:
        several = ", ".join(f"{norm:g} of {name}" for name, norm in norms.items())
        raise BadInputError(f"public is not one number: {several}", fix="one study for each method")
    value = next(iter(norms.values()))
    source = "by construction of the features"
    if read:
        source = f"the mean norm of {counted(len(read[0]), 'public record')}"
    return InputNorm(value, source)
