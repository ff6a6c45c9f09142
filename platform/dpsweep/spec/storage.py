"""The storage section of a spec: where studies, their ledgers and frozen features are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from dpsweep.foundation.bucket_path import is_address
from dpsweep.foundation.database_path import check_server
from dpsweep.foundation.errors import BadInputError, Mistake
from dpsweep.foundation.file_paths import FilePath, file_path
from dpsweep.spec.base import Part, Positive, Text

#: Folders of the feature store and of pre-trained weights among the studies; no study can have
#: their names.
FEATURES = ".features"


PRETRAINED = ".pretrained"


class StorageSpec(Part):
    """Where studies and frozen features are kept."""

    path: Text = Field(
        default="studies",
        description="Directory of studies, each with its own folder; s3://BUCKET/FOLDER "
        "or gs://BUCKET/FOLDER with storage.database, which then keeps what needs locks.",
    )
    database: Text | None = Field(
        default=None,
        description="PostgreSQL database of ledgers, journal and Optuna's study, "
        "postgresql://USER@HOST/DATABASE; null: files in path, which then needs locks that hold on "
        "all nodes. The password is PGPASSWORD's or that of ~/.pgpass.",
    )
    features: Text | None = Field(
        default=None,
        description="Directory of frozen features, shared by studies; null: .features in path, of "
        "a bucket with a copy on each node.",
    )
    features_gb: Positive = Field(
        default=50, description="Most GiB of frozen features that are kept; old ones make room."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse an address that is none, or holds a secret, and a bucket without a database."""
        database = raw.get("database")
        if isinstance(database, str) and database.strip():
            try:
                check_server(database)
            except BadInputError as error:
                yield Mistake("database", error.message, error.fix or "")
        path, features = raw.get("path"), raw.get("features")
        if isinstance(path, str) and is_address(path):
            try:
                file_path(path)
            except BadInputError as error:
                yield Mistake("path", error.message, error.fix or "")
            if database is None:
                yield Mistake(
                    "database",
                    "is missing: a bucket has no locks and no appends, and ledgers need both",
                    "postgresql://USER@HOST/DATABASE",
                )
        if isinstance(features, str) and is_address(features):
            yield Mistake(
                "features",
                "is the folder on each node, and no address",
                "leave it out: with storage.path in a bucket, features are kept there too",
            )

    @property
    def root(self) -> FilePath:
        """Directory of studies, as it is given, or a folder in a bucket."""
        return file_path(self.path)

    @property
    def features_path(self) -> FilePath:
        """Absolute directory of the feature store, or its folder in a bucket."""
        folder = self.root / FEATURES if self.features is None else file_path(self.features)
        return folder.resolve()

    @property
    def pretrained_path(self) -> FilePath:
        """Absolute directory of pre-trained weights, which are public, or a folder in a bucket."""
        return (self.root / PRETRAINED).resolve()
