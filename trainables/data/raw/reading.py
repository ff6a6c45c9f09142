"""Reading of private records: nothing of a single one is said, by libraries or in an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsweep.foundation.errors import (
    OF_STORAGE,
    DataError,
    SweepError,
    described,
    is_failure,
    is_own,
)
from dpsweep.foundation.process.silence import unheard


@contextmanager
def reading(dataset: str) -> Iterator[None]:
    """Read records of a dataset, private ones among them.

    Warnings and logs are not heard. Of other packages' errors, which may quote a record or say how
    many there are, the kind and the place are told; what dpsweep raises keeps its words. Neither
    is chained to what it was raised for, which a traceback would show.

    Whatever ends the program (Ctrl-C, a handler of SIGTERM that exits, a cancellation) passes.

    Raises:
        DataError: They cannot be read.
        SweepError: What dpsweep's own readers raise within.
        OSError: The disk is full or broken.
        SystemExit: A handler of a signal exits; with its status, and without its words.
    """
    with unquoted(lambda error: _unread(dataset, error)):
        yield


@contextmanager
def unquoted(told: Callable[[BaseException], SweepError]) -> Iterator[None]:
    """Do what may say something of a record; see ``reading``.

    Args:
        told: Makes of a failure that is not dpsweep's own what is raised instead.
    """
    with unheard():
        try:
            yield
        except SystemExit as error:
            is_status = error.code is None or isinstance(error.code, int)
            raise SystemExit(error.code if is_status else 1) from None
        except BaseException as error:
            if is_own(error) or not is_failure(error):
                raise error from None
            if isinstance(error, OSError) and error.errno in OF_STORAGE:
                raise OSError(error.errno, os.strerror(error.errno)) from None
            raise told(error) from None


def _unread(dataset: str, error: BaseException) -> DataError:
    return DataError(
        f"records of {dataset} cannot be read",
        because=described(error),
        fix=_NO_MEMORY if isinstance(error, MemoryError) else _DAMAGED,
    )


_DAMAGED = (
    "mend or remove what cannot be read there; the error's words stay unsaid, as they may hold a "
    "record"
)
_NO_MEMORY = (
    "read them on a machine (or in a job) with more memory, or give fewer or smaller records"
)
