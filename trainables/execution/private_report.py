"""A method's figures about single private records, for the owner of the study alone."""

from __future__ import annotations

import json

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import described, is_signal
from dpsweep.foundation.file_paths import FilePath
from dpsweep.trainables.hooks import PrivateReport
from dpsweep.trainables.method import Method

#: Folder of a trial's directory for what must not be shown to anybody.
PRIVATE_FOLDER = "private"


def write_private_report(directory: FilePath, method: Method) -> str:
    """Write a method's figures about single private records, if it has any, for its owner alone.

    The trial is trained and paid for: a report that fails, or is no JSON, is left out.

    Returns:
        Why it is left out, without its words; empty where it is not.

    Guarantees:
        The file is readable by the owner of the study only and is not among the artifacts that
        are sent to the tracking store. It is not covered by any epsilon: whoever shows it gives
        up the guarantee. Nothing is written to a bucket: who may read it is not known here.
    """
    if not isinstance(method, PrivateReport):
        return ""
    try:
        figures = method.private_report()
        text = json.dumps(figures, indent=2)
    except BaseException as error:
        if is_signal(error):
            raise
        return f"its `private_report` is no JSON, or fails: {described(error)}; it is left out"
    if figures is None or isinstance(directory, BucketPath):
        return ""
    folder = directory / PRIVATE_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomically(folder / "report.json", text.encode())
    return ""
