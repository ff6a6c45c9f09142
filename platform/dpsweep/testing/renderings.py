"""The suite of renderings: subclass it once per rendering of a package.

class TestMyRendering(RenderingConformance):
    rendering = MyRendering
    settings = {}  # what stands below ``cluster`` in a spec for it
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from dpsweep.cluster.rendering.base import Rendering
from dpsweep.foundation.errors import BadInputError
from dpsweep.spec.study import SweepSpec

_SHELLS = {"sh", "bash", "dash", "zsh", "env", "eval", "sudo"}
_SECRET = "planted-k3y-9f2c"


class RenderingConformance:
    """The suite of renderings: no secrets in files, no shell in commands, state that lasts."""

    rendering: ClassVar[type[Rendering]]
    settings: ClassVar[Mapping[str, Any]] = {}
    storage_path: ClassVar[str] = "/mnt/dpsweep/studies"

    def _spec(self, **changes: Any) -> SweepSpec:
        raw: dict[str, Any] = {
            "name": "digits_suite",
            "data": {
                "dataset": "digits",
                "validation": {"fraction": 0.2, "visibility": "public"},
            },
            "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
            "search": {"space": {"method": "dp_sgd", "optim.lr": 0.1}, "num_trials": 3},
            "tracking": {"uri": "http://mlflow.example:5000"},
            "storage": {"path": self.storage_path},
            "cluster": dict(self.settings),
        }
        return SweepSpec.model_validate({**raw, **changes})

    def test_files_have_plain_names_and_are_the_same_every_time(self) -> None:
        """They are written below one folder, and what is rendered twice can be compared."""
        files = self.rendering.files(self._spec())
        assert files == self.rendering.files(self._spec())
        for name, text in files.items():
            assert not PurePosixPath(name).is_absolute()
            assert ".." not in PurePosixPath(name).parts
            assert text.endswith("\n")

    def test_commands_are_lists_and_start_no_shell(self) -> None:
        """A shell that is needed elsewhere gets one quoted argument."""
        for verb in ("submit", "status", "logs", "stop"):
            commands = getattr(self.rendering, verb)("digits_suite", Path("folder"))
            assert commands, verb
            for command in commands:
                assert all(isinstance(argument, str) for argument in command.arguments)
                assert command.arguments[0] not in _SHELLS

    def test_no_value_of_the_environment_is_in_a_file(self) -> None:
        """Secrets are named, never read."""
        names = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY")
        with patch.dict(os.environ, dict.fromkeys((*names, "RAY_AUTH_TOKEN"), _SECRET)):
            files = self.rendering.files(self._spec())
        assert not [name for name, text in files.items() if _SECRET in text]

    def test_a_secret_in_the_spec_is_refused(self) -> None:
        """An address with a password would stand in the file."""
        with pytest.raises(BadInputError) as caught:
            self.rendering.files(
                self._spec(tracking={"uri": f"http://me:{_SECRET}@mlflow.example:5000"})
            )
        assert _SECRET not in str(caught.value)

    @pytest.mark.parametrize("path", ["studies", "/mnt/../studies", "/mnt/$(id)"])
    def test_state_that_would_be_lost_is_refused(self, path: str) -> None:
        """Ledgers must outlive a node, so they lie where all nodes see them."""
        with pytest.raises(BadInputError, match=r"storage\.path"):
            self.rendering.files(self._spec(storage={"path": path}))
        with pytest.raises(BadInputError, match=r"tracking\.uri"):
            self.rendering.files(self._spec(tracking={"uri": f"sqlite:///{path}"}))

    def test_select_is_refused(self) -> None:
        """Ray keeps traces of losing trials, where others can read them."""
        privacy = {
            "trial_epsilon": 2.0,
            "accounting": "select",
            "selection": {"mean": 3},
        }
        search = {"space": {"method": "dp_sgd", "optim.lr": 0.1}}
        with pytest.raises(BadInputError, match="select"):
            self.rendering.files(self._spec(privacy=privacy, search=search))
