"""The recall of a study's trials: each keeps its model after the charge under way, and ends.

Ray Tune gives actors ten seconds to end once Ctrl-C has come, and has no way to tell them why. A
file does, on whatever node they are; without it they would train on until they are killed, and what
they were charged since their last checkpoint would be lost.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.file_paths import FilePath, read_file

_NAME = "recalled"


class Recall:
    """Whether the trials of a study are called back that were started with a word.

    A file that stays, as its launch was killed or the storage did not answer, has another word than
    that of any later trial.

    Guarantees:
        Nothing about privacy: who misses a recall is killed, and what was charged stays charged.

    Args:
        study: Directory of the study, sealed or not.
        word: Of those who are called; "" of those whom nobody calls. None: a new one.

    >>> import tempfile, pathlib
    >>> recall = Recall(pathlib.Path(tempfile.mkdtemp()))
    >>> recall.begin(), recall.is_on(), recall.end(), recall.is_on()
    (None, True, None, False)
    """

    def __init__(self, study: FilePath, word: str | None = None) -> None:
        self._file = study / _NAME
        self.word = secrets.token_hex(8) if word is None else word
        self.has_begun = False  # in this process

    def begin(self) -> None:
        """Call them back, if that can be written down."""
        self.has_begun = True
        with suppress(OSError, SweepError):
            self._file.write_bytes(self.word.encode())

    def end(self) -> None:
        """Remove the file, if that can be done."""
        with suppress(OSError, SweepError):
            self._file.unlink(missing_ok=True)

    def is_on(self) -> bool:
        """Say whether they are called back; of a storage that does not answer, no."""
        with suppress(OSError, SweepError):
            return bool(self.word) and read_file(self._file) == self.word.encode()
        return False
