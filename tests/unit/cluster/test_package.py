"""The digest of this package's code, by which nodes with other code are refused."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpsweep.cluster import package

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Let a copy of a part of each folder be the package."""
    modules = {}
    for root in package._ROOTS:
        source = Path(next(iter(package.import_module(root).__path__)))
        target = tmp_path / root
        target.mkdir()
        for path in sorted(source.glob("*.py")):
            shutil.copy(path, target)
        (target / "inner").mkdir()
        (target / "inner" / "values.yaml").write_text("of: " + root)
        modules[root] = SimpleNamespace(__path__=[str(target)])
    monkeypatch.setattr(package, "import_module", modules.__getitem__)
    return tmp_path


def test_equal_code_has_equal_digests(copy):
    before = package.code_digest()
    (copy / "dpsweep" / "notes.txt").write_text("no code")
    assert package.code_digest() == before


@pytest.mark.parametrize("root", package._ROOTS)
@pytest.mark.parametrize("change", ["edited", "added", "removed", "moved", "values"])
def test_every_file_counts(copy, root, change):
    before, folder = package.code_digest(), copy / root
    path = sorted(folder.glob("*.py"))[-1]
    if change == "edited":
        path.write_text(path.read_text() + "\n")
    elif change == "added":
        (folder / "inner" / "new.py").touch()
    elif change == "removed":
        path.unlink()
    elif change == "moved":
        path.rename(folder / "inner" / path.name)
    else:
        (folder / "inner" / "values.yaml").write_text("of: another")
    assert package.code_digest() != before
