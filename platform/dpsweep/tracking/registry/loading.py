"""Loading of registered models: what they say of themselves, and their answers."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.kept import keep_compiled
from dpsweep.foundation.servers import cause_of
from dpsweep.spec.tracking import masked
from dpsweep.tracking.mlflow_reach import quiet
from dpsweep.tracking.mlflow_reader import open_client
from dpsweep.tracking.model_label import METADATA, metadata_given_up

if TYPE_CHECKING:
    from pandas import DataFrame

#: What the address of a registered model begins with.
SCHEME = "models:/"
_FACTS = Path("artifacts", "preparation", "preparation.json")


@dataclass(frozen=True)
class ServedModel:
    """A model that was made by ``dpsweep register``.

    Attributes:
        facts: What its records are: ``kind`` and ``preparation``; ``task`` and ``classes``.
        label: What may be claimed of it (``ModelLabel.metadata``).
        model: MLflow's.
    """

    facts: Mapping[str, Any]
    label: Mapping[str, Any]
    model: Any

    def predict(self, records: Any) -> DataFrame:
        """Return a row for each record.

        Raises:
            BadInputError: They are no records that the model takes.
        """
        try:
            frame: DataFrame = self.model.predict(records)
        except Exception as error:  # MLflow's, and the model's own
            raise BadInputError(
                "the model does not take these records",
                because=" ".join(blotted(str(error)).split())[:300],
            ) from error
        return frame


def load_directory(path: Path, name: str) -> ServedModel:
    """Return the model of a directory.

    Args:
        path: The directory, whose code is run.
        name: Of the model, for messages.
    Raises:
        BadInputError: It was not made by ``dpsweep register``, or cannot be loaded.
    """
    if not (path / _FACTS).is_file():
        raise BadInputError(
            f"{name} is no model that `dpsweep register` has made", fix="register it, or ask MLflow"
        )
    quiet()
    keep_compiled()
    try:
        with warnings.catch_warnings():
            # What MLflow says of its own types, and of versions that differ in a digit.
            warnings.simplefilter("ignore")
            import mlflow.pyfunc

            model = mlflow.pyfunc.load_model(str(path))
    except Exception as error:  # a missing package, another version of torch
        words = " ".join(blotted(str(error)).split())[:300]
        raise BadInputError(f"{name} cannot be loaded", because=words) from error
    facts = json.loads((path / _FACTS).read_text())
    return ServedModel(facts, model.metadata.metadata[METADATA], model)


def load_registered(address: str, uri: str) -> ServedModel:
    """Return a registered model, of which nothing stays on disk.

    The claim is what the model's own file says, unless its version's tags say that it was given up.

    Args:
        address: ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION``.
        uri: Of the tracking store.
    Raises:
        BadInputError: There is no such model, its files cannot be had, or ``dpsweep register`` has
            not made it.
    """
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    client = open_client(uri)
    name, at, alias = address.removeprefix(SCHEME).partition("@")
    number = ""
    if not at:
        name, _, number = name.rpartition("/")
    if not name or not (alias or number):
        raise BadInputError(
            f"{address!r} names no version of a model",
            fix="models:/NAME@ALIAS or models:/NAME/VERSION",
        )
    try:
        if alias:
            version = client.get_model_version_by_alias(name, alias)
        else:
            version = client.get_model_version(name, number)
        # Not the address, which MLflow looks for in the process' store.
        place = client.get_model_version_download_uri(name, version.version)
    except MlflowException as error:
        because = masked(cause_of(error))
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise BadInputError(
                f"there is no model {address} in {masked(uri)}",
                because=because,
                fix="`dpsweep register NAME` makes one; --tracking-uri names another store",
            ) from error
        raise BadInputError(
            f"the model registry of {masked(uri)} cannot be read",
            because=because,
            fix="see that its server is up and lets you in",
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = download_artifacts(artifact_uri=place, dst_path=folder, tracking_uri=uri)
        except (MlflowException, OSError) as error:  # OSError: of requests, too
            raise BadInputError(
                f"the files of {address} cannot be had from {masked(place)}",
                because=masked(cause_of(error)),
                fix="put them back there if they were moved, or have `dpsweep register` make a new "
                "version where the study is",
            ) from error
        served = load_directory(Path(path), address)
    reason = version.tags.get("dp.downgraded")
    label = metadata_given_up(served.label, reason) if reason else served.label
    return ServedModel(served.facts, label, served.model)
