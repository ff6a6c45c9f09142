"""dpsweep: hyperparameter sweeps for differentially private training that account for every step.

Importing this package loads neither torch nor ray; the names below are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.version import __version__

_NAMES = {
    "EventRun": "dpsweep.privacy.events",
    "NoiseSchedule": "dpsweep.privacy.schedules",
    "Observer": "dpsweep.study.study",
    "Plan": "dpsweep.privacy.events",
    "PrivacyBudget": "dpsweep.privacy.budget",
    "SweepError": "dpsweep.foundation.errors",
    "SweepResult": "dpsweep.results.study",
    "SweepSpec": "dpsweep.spec.study",
    "account_epsilon": "dpsweep.privacy.calculator",
    "account_noise": "dpsweep.privacy.calculator",
    "account_steps": "dpsweep.privacy.calculator",
    "load_sweep": "dpsweep.results.study",
    "plan_sweep": "dpsweep.cli.planned",
    "progress": "dpsweep.cli.notebook",
    "register_model": "dpsweep.running.registering",
    "run_sweep": "dpsweep.sweep",
    "spec_of_trial": "dpsweep.cli.best_spec",
}

__all__ = [
    "EventRun",
    "NoiseSchedule",
    "Observer",
    "Plan",
    "PrivacyBudget",
    "SweepError",
    "SweepResult",
    "SweepSpec",
    "__version__",
    "account_epsilon",
    "account_noise",
    "account_steps",
    "load_sweep",
    "plan_sweep",
    "progress",
    "register_model",
    "run_sweep",
    "spec_of_trial",
]

if TYPE_CHECKING:
    from dpsweep.cli.best_spec import spec_of_trial
    from dpsweep.cli.notebook import progress
    from dpsweep.cli.planned import plan_sweep
    from dpsweep.foundation.errors import SweepError
    from dpsweep.privacy.budget import PrivacyBudget
    from dpsweep.privacy.calculator import account_epsilon, account_noise, account_steps
    from dpsweep.privacy.events import EventRun, Plan
    from dpsweep.privacy.schedules import NoiseSchedule
    from dpsweep.results.study import SweepResult, load_sweep
    from dpsweep.running.registering import register_model
    from dpsweep.spec.study import SweepSpec
    from dpsweep.study.study import Observer
    from dpsweep.sweep import run_sweep


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'dpsweep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
