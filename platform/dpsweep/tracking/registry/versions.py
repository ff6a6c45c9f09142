"""Versions of models in MLflow's registry: looked for, made once, named by an alias."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.servers import cause_of
from dpsweep.foundation.validate import of_kind
from dpsweep.spec.tracking import masked
from dpsweep.tracking.mlflow_models import DESCRIPTION, REGISTERED, LoggedModels, versions_of
from dpsweep.tracking.mlflow_reader import open_client
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.registry.package import Package

#: Alias of the version that is registered last, unless another one is named.
CHAMPION = "champion"
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,255}")
_NUMBERED = re.compile(r"(?i)v\d+|latest")


@dataclass(frozen=True)
class Placed:
    """A version of a registered model, and how it came by its alias.

    Attributes:
        version: Its number.
        is_new: Whether it was made now.
        moved_from: The version that had the alias before; None where none or this one had it.
    """

    version: int
    is_new: bool
    moved_from: int | None


def check_names(model: str, alias: str) -> None:
    """Refuse names that no registry takes.

    Raises:
        BadInputError: See there.
    """
    of_kind("a registered model is named by a text", model, str, fix='name="digits"')
    of_kind("an alias is a text", alias, str, fix='alias="champion"')
    if not model.strip() or any(sign in model for sign in "/:@") or model != model.strip():
        raise BadInputError(
            f"{model!r} cannot be the name of a registered model",
            fix="use letters, digits, - and _, without / : and @",
        )
    if not _ALIAS.fullmatch(alias) or _NUMBERED.fullmatch(alias):
        raise BadInputError(
            f"{alias!r} cannot be an alias",
            fix="use letters, digits, - and _; v1, v2 ... and latest mean versions to MLflow",
        )


class ModelRegistry:
    """The registry of a tracking store.

    Args:
        uri: Of the store.
        run_id: Of the trial whose model is meant.
    Raises:
        BadInputError: There is no such store, or no such run in it, or it is deleted.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        self._client, self._uri, self._run_id = open_client(uri), uri, run_id
        from mlflow.exceptions import MlflowException

        with self._explained("cannot be read"):
            try:
                run = self._client.get_run(run_id).info
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                raise BadInputError(
                    f"the trial's run {run_id} is not in the tracking store {masked(uri)}",
                    fix="run the study's command again, which delivers what a store lacks, or name "
                    "the store by tracking_uri (`--tracking-uri`)",
                ) from error
        if run.lifecycle_stage == "deleted":
            raise BadInputError(
                f"the trial's run {run_id} was deleted in MLflow",
                fix=f"restore the run in MLflow (mlflow runs restore --run-id {run_id}), and run "
                "the study's command again, which delivers what it lacks",
            )
        self._models = LoggedModels(self._client, uri, run.experiment_id)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Say which store failed at what, whatever MLflow, SQLAlchemy or requests raise."""
        try:
            yield
        except BadInputError:
            raise
        except Exception as error:
            raise BadInputError(
                f"the model registry of {masked(self._uri)} {what}",
                because=masked(cause_of(error)),
                fix="see that its server is up, has a model registry and lets you write there",
            ) from error

    def version_of(self, model: str) -> int | None:
        """Return the version of a registered model that is of the trial, made by dpsweep; or None.

        One whose files are not at their place any more is none.

        Raises:
            BadInputError: The registry cannot be read.
        """
        with self._explained("cannot be read"):
            whole = self._models.whole(self._run_id, REGISTERED)
            sources = {entry.artifact_location for entry in whole}
            versions = [
                int(version.version)
                for version in versions_of(self._client, self._run_id)
                if version.name == model and version.source in sources
            ]
        return max(versions, default=None)

    def place(self, model: str, alias: str, package: Package | None, name: str) -> Placed:
        """Make a version of the trial's model, unless there is one, and give it an alias.

        Guarantees:
            No second version of one trial under one name, also where a process was killed between
            two steps, unless two do this at once: so ``register_model`` lets one in at a time of
            those that this user runs; of others, the last question before a version is made is
            whether there is one. A version has its label from the moment it can be seen.

        Args:
            model: Name of the registered model; made if it is missing.
            alias: Taken from the version that has it.
            package: The model; None where ``version_of`` says that there is a version.
            name: Of the logged model that the version is.
        Raises:
            BadInputError: The registry refuses it.
        """
        with self._explained("does not take the model"):
            version, is_new = self.version_of(model), False
            if version is None:
                assert package is not None
                version, is_new = self._make(model, package, name)
            before = self._aliased(model, alias)
            if before != version:
                self._client.set_registered_model_alias(model, alias, str(version))
        return Placed(version, is_new, before if before != version else None)

    def _make(self, model: str, package: Package, name: str) -> tuple[int, bool]:
        from mlflow.exceptions import MlflowException

        model_id = self._models.store(name, self._run_id, package.save, {}, REGISTERED)
        for problem in self._models.label(self._run_id, package.label):
            raise BadInputError(problem, fix="run the command again")
        try:
            self._client.create_registered_model(
                model,
                description="Models that dpsweep has registered. What may be claimed of each is "
                "said at its version.",
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        version = self.version_of(model)
        if version is not None:  # another machine has made it while this one stored the model
            return version, False
        entry = self._client.get_logged_model(model_id)
        own = ("dp.", "dpsweep.")
        tags = {name: text for name, text in entry.tags.items() if name.startswith(own)}
        made = self._client.create_model_version(
            model,
            source=entry.artifact_location,  # MLflow looks for models:/ID in the process' store
            run_id=self._run_id,
            tags=tags,
            description=entry.tags[DESCRIPTION],
            model_id=model_id,
        )
        return int(made.version), True

    def _aliased(self, model: str, alias: str) -> int | None:
        from mlflow.exceptions import MlflowException

        try:
            return int(self._client.get_model_version_by_alias(model, alias).version)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            return None

    def label(self, label: ModelLabel) -> list[str]:
        """Give the trial's models and versions the label that holds now; return what failed."""
        with self._explained("does not take the label"):
            return self._models.label(self._run_id, label)
