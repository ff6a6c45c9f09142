"""Networks of the user's own: ``model.name: PACKAGE.MODULE:FUNCTION``, imported and called.

The function is called as ``FUNCTION(input_shape=(channels, height, width), num_classes=10)``, for
records of another shape with that shape, and returns a ``torch.nn.Module`` with random or public
weights: (batch, *input_shape) float32 -> (batch, num_classes) logits. The module is looked for in
the directory where dpsweep was started, then wherever Python looks. Loads no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from dpsweep.foundation.errors import ChangedCodeError, ModelError, described, is_failure
from dpsweep.foundation.process.replacing import replaced
from dpsweep.foundation.registry import did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from dpsweep.trainables.data.dataset import DatasetInfo

#: What to do about a network whose classifier a method has to know.
HEAD_FIX = (
    "give it a method get_classifier() that returns its last layer, or train all of it (dp_sgd)"
)

#: What is wrong with code that has changed, and what to do about it.
CHANGED = "has changed since trials of this study were admitted"
_ANOTHER = "their weights, their scores and what they were charged are those of another network"
OLD_CODE = "give the file its old content back; a changed network is a study of another name"
#: Where dpsweep was started; a worker is told (``look_in``).
_places: list[Path] = []
_NO_END = 'it may not end the program: put what it runs under `if __name__ == "__main__":`'
#: Name -> module of the user's, and SHA-256 of its file when it was imported.
_imported: dict[str, tuple[ModuleType, str]] = {}
#: The parameters and buffers that own functions have returned and that are still there, by id.
_given: WeakValueDictionary[int, Any] = WeakValueDictionary()


def is_own(name: object) -> bool:
    """Say whether a ``model.name`` stands for a function of the user's.

    >>> is_own("nets:build"), is_own("timm/resnet18"), is_own("text//data/a:b")
    (True, False, False)
    """
    return isinstance(name, str) and ":" in name and "/" not in name


def look_in(place: Path) -> None:
    """Look for own modules in a directory from here on: where dpsweep was started."""
    _places[:] = [place]


def started_in() -> Path:
    """Return the directory in which own modules are looked for first."""
    return _places[0] if _places else Path.cwd()


def fingerprint(name: str) -> str:
    """Return the SHA-256 of the file that holds an own function; files it imports do not count.

    It is that of the code that is imported here: a file that has changed since is imported anew.

    Raises:
        ModelError: It cannot be imported.
    """
    return _imported[_module(name).__name__][1]


def refuse_changed(hparams: Mapping[str, Any], code: str) -> None:
    """Refuse a network of the user's whose file is not the one that a trial was admitted with.

    Args:
        hparams: The trial's.
        code: Its ``TrialTask.code``; empty where nothing is to be compared.
    Raises:
        ChangedCodeError: It has changed, or cannot be imported any more.
    """
    name = str(hparams.get("model.name"))
    try:
        is_same = not code or fingerprint(name) == code
    except ModelError as error:
        raise ChangedCodeError(
            f"{error.message}; it {CHANGED}", because=_ANOTHER, fix=OLD_CODE
        ) from error
    if not is_same:
        raise ChangedCodeError(f"the file of {name} {CHANGED}", because=_ANOTHER, fix=OLD_CODE)


def own_network(name: str, info: DatasetInfo) -> nn.Module:
    """Call an own function and return its network, unchecked but for its being one.

    Args:
        name: ``PACKAGE.MODULE:FUNCTION``.
        info: Shape of the records, number of classes.
    Raises:
        ModelError: It cannot be imported or called, or returns no network, or the same one again.
    """
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):  # what its module draws is not the network's
        function = _function(name)
    shape = tuple(info.input_shape)
    call = f"{name}(input_shape={shape}, num_classes={info.num_classes})"
    try:
        with _apart():
            network = function(input_shape=shape, num_classes=info.num_classes)
    except BaseException as error:  # it is the user's code
        if not is_failure(error):
            raise
        is_end = isinstance(error, SystemExit)
        fix = _NO_END if is_end else "make it take these two by name, and build a network for them"
        raise ModelError(f"{call} raised {_line(error)}", fix=fix) from error
    if not isinstance(network, nn.Module):
        raise ModelError(
            f"{call} returned a {type(network).__name__}", fix="return a torch.nn.Module"
        )
    tensors = [*network.parameters(), *network.buffers()]
    if any(_given.get(id(tensor)) is tensor for tensor in tensors):
        raise ModelError(
            f"{call} returned weights that it had returned before",
            because="trials would train the same network, one after another",
            fix="build a new network in the function at each call",
        )
    _given.update({id(tensor): tensor for tensor in tensors})
    return network


@contextlib.contextmanager
def unended(name: str) -> Iterator[None]:
    """Run a network in checks; one that ends the program, or panics, is told by kind and place.

    Args:
        name: Value of ``model.name``.
    Raises:
        ModelError: It does. An ``Exception`` of its own passes.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_failure(error):
            raise
        if isinstance(error, SystemExit):
            done, fix = "ends the program", "let it raise an error where it cannot go on"
        else:
            done, fix = "fails", "correct its forward" if is_own(name) else "use another model"
        wrong = f"{name} {done} when it is run ({described(error)})"
        raise ModelError(wrong, fix=fix) from error


def _function(name: str) -> Any:
    module, attribute = _module(name), name.partition(":")[2]
    if not hasattr(module, attribute):
        names = [word for word, value in vars(module).items() if callable(value)]
        raise ModelError(
            f"{name}: {module.__name__} has no {attribute!r}",
            fix=did_you_mean(attribute, names) or f"define it in {module.__file__}",
        )
    function = getattr(module, attribute)
    if not callable(function):
        raise ModelError(
            f"{name} is no function, but a {type(function).__name__}",
            fix="name a function that returns a torch.nn.Module",
        )
    return function


def _module(name: str) -> ModuleType:
    """Import the module of an own function, with its directory first, as ``python -m`` has it."""
    module, place = name.partition(":")[0], str(started_in())
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        with _apart():
            return _as_the_file_is(importlib.import_module(module))
    except BaseException as error:  # it is the user's code
        if not is_failure(error):
            raise
        top = module.partition(".")[0]
        fix = f"start dpsweep where {top} lies, not in {place}; or install it as a package"
        if isinstance(error, SystemExit):
            fix = _NO_END
        elif not isinstance(error, ModuleNotFoundError):
            fix = f"correct {module}"
        elif Path(place, module).is_file() and module.endswith(".py"):
            fix = f"write {name.replace('.py:', ':')}, the module's name"
        elif str(error.name).partition(".")[0] != top:
            fix = f"install {error.name}, or correct the import of it in {module}"
        raise ModelError(f"{name}: cannot import {module} ({_line(error)})", fix=fix) from error
    finally:
        sys.path.remove(place)
        if place not in sys.path:
            sys.path.append(place)  # for what it imports later


def _as_the_file_is(module: ModuleType) -> ModuleType:
    """Return the module, imported anew where its file has changed, as between cells of a notebook.

    What others have imported before is taken for what the file says now.
    """
    source = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    before = _imported.get(module.__name__)
    if before is not None and before[0] is module and before[1] != digest:
        if module.__cached__:  # it is valid by the second and the size of a file
            Path(module.__cached__).unlink(missing_ok=True)
        module = importlib.reload(module)
    _imported[module.__name__] = module, digest
    return module


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Keep what the user's code prints out of a command's data, and options of the command from it.

    A training script that reads its own options as it is imported would read dpsweep's.
    """
    with contextlib.redirect_stdout(sys.stderr), replaced(sys, {"argv": sys.argv[:1]}):
        yield


def _line(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
