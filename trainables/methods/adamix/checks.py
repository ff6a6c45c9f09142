"""Mistakes in spaces of AdaMix: values that no configuration could run with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import Mistake
from dpsweep.trainables.methods.adamix.parts import Parts

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo


def space_problems(possible: Callable[[str], Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
    """Return contradicting parts, steps and noise that are both absent, text without its pair.

    Args:
        possible: From the name of a hyperparameter to what it can be.
        info: Shapes and declared sizes of the data.
    """
    problems = []
    switches = [f"adamix.{name}" for name in Parts._fields]
    if possible("adamix.variant") == ["fully_private"]:
        problems += [
            Mistake(name, "fully_private uses no public record as such", "leave it out")
            for name in switches
            if True in possible(name)
        ]
    if possible("adamix.variant") == ["only_public"]:
        problems += [
            Mistake(name, "only_public takes no step that this could change", "leave it out")
            for name in switches
            if name != "adamix.public_init" and True in possible(name)
        ]
    noises = possible("noise.noise_multiplier")
    if noises == [None] and possible("train.max_steps") == [None]:
        problems.append(
            Mistake("train.max_steps", "needed without noise.noise_multiplier", "give one of them")
        )
    shots = possible("public.shots")
    if possible("public.lr") == [None] and max(shots) < 2:
        wrong = "null leaves shots out to choose a rate by, and there is one of each class"
        problems.append(Mistake("public.lr", wrong, "public.shots: 2, or give a rate"))
    has_others = info.num_test or info.num_validation
    if True in possible("adamix.private_report") and not has_others:
        problems.append(
            Mistake(
                "adamix.private_report",
                "there is no test or validation part to compare private records with",
                "give data.test.fraction, or leave it out",
            )
        )
    if "text" in possible("init.kind"):
        problems += [
            Mistake(
                "init.kind",
                f"text needs features of an image-text pair, not {name}",
                "clip/NAME",
            )
            for name in possible("features.name")
            if not name.startswith("clip/")
        ]
        if all(name.isdecimal() for name in info.class_names):
            wrong = f"text encodes the names of classes, and those of {info.name} are numbers"
            fix = "name them, data.class_names: [cat, dog, ...], or use init.kind: public"
            problems.append(Mistake("init.kind", wrong, fix))
    return problems
