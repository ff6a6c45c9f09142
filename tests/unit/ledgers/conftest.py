"""The suite that every place of ledgers must pass: files, and a database."""

import uuid

import pytest

from dpsweep.foundation.database_path import DatabasePath


@pytest.fixture(params=["files", "database"])
def ledgers(request, tmp_path):
    """Folder of ledgers, wherever they lie."""
    if request.param == "files":
        return tmp_path
    return DatabasePath(request.getfixturevalue("database"), uuid.uuid4().hex)
