"""Old studies on disk, and the same in a tracking store that another machine would read."""

import json
import re
import shutil
from pathlib import Path

from dpsweep.foundation.logs import read_log
from dpsweep.tracking.mlflow import MLflowTracker

OLD = Path(__file__).parents[1] / "golden" / "old_studies"
NAMES = sorted(path.name for path in OLD.iterdir())
#: Where they were made; their journals name files there.
_MADE_IN = re.compile(r"/tmp/tmp\w+/")


def copy_studies(folder, names=NAMES):
    """Copy old studies below ``folder``/studies; return that."""
    for name in names:
        shutil.copytree(OLD / name, folder / "studies" / name)
    return folder / "studies"


def track(
    folder, name, *, uri=None, experiment=None, change=lambda line: line, state="tracking.json",
    until=None,
):  # fmt: skip
    """Deliver the journal of a study below ``folder`` to a store, by default there; return its uri.

    With ``until`` only what stands before the first event of that kind.
    """
    uri = uri or f"sqlite:///{folder}/mlflow.db"
    text = json.dumps(list(read_log(folder / "studies" / name / "journal.jsonl")))
    lines = json.loads(_MADE_IN.sub(f"{folder}/", text))
    kinds = [line["event"] for line in lines]
    lines = lines[: kinds.index(until)] if until else lines
    tracker = MLflowTracker(uri, experiment or name, folder / f"{name}-{state}")
    tracker.handle([change(line) for line in lines])
    tracker.close()
    return uri
