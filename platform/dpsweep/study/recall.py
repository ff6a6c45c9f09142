"""The recall of a study's trials: each keeps its model after the charge under way, and ends.

Ray Tune gives actors ten seconds to end once Ctrl-C has come, and has no way to tell them why. A
file does, on whatever node they are; without it they would train on until they are killed, and what
they were charged since their last checkpoint would be lost.
"""

from __future__ import annotations

from contextlib import suppress

from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.file_paths import FilePath

_NAME = "recalled"


class Recall:
    """Whether the trials of a study are called back.

    Guarantees:
        Nothing about privacy: who misses a recall is killed, and what was charged stays charged.

    Args:
        study: Directory of the study, sealed or not.

    >>> import tempfile, pathlib
    >>> recall = Recall(pathlib.Path(tempfile.mkdtemp()))
    >>> recall.begin(), recall.is_on(), recall.end(), recall.is_on()
    (None, True, None, False)
    """

    def __init__(self, study: FilePath) -> None:
        self._file = study / _NAME

    @classmethod
    def of_trial(cls, directory: FilePath) -> Recall:
        """Return the recall of the study that a trial's directory lies in."""
        return cls(directory.parent.parent)

    def begin(self) -> None:
        """Call all trials back, if that can be written down."""
        with suppress(OSError, SweepError):
            self._file.write_bytes(b"")

    def end(self) -> None:
        """Let trials train, those too that a launch has called back which was killed then."""
        with suppress(OSError, SweepError):
            self._file.unlink(missing_ok=True)

    def is_on(self) -> bool:
        """Say whether trials are called back; of a storage that does not answer, no."""
        with suppress(OSError, SweepError):
            return self._file.exists()
        return False
