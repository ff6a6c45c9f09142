"""Entries of a feature store in a bucket: what one node has computed, the others copy once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.durable import write_atomically
from dpsweep.trainables.data.kept.files import Entry


def is_published(entry: Entry, bucket: BucketPath) -> bool:
    """Say whether the bucket has an entry, whole."""
    return (bucket / entry.sidecar.name).is_file()


def publish(entry: Entry, bucket: BucketPath) -> None:
    """Copy an entry into the bucket, and last the sidecar that makes it count.

    Raises:
        StorageError: The bucket cannot be written.
    """
    facts = json.loads(entry.sidecar.read_text())
    (bucket / entry.data.name).upload(entry.data)
    content = json.dumps({**facts, "sha256": _sha256(entry.data)}, indent=1) + "\n"
    write_atomically(bucket / entry.sidecar.name, content.encode())


def fetch(entry: Entry, bucket: BucketPath) -> None:
    """Copy an entry from the bucket to this node, if it is there and as it was written.

    The entry's lock must be held, and there must be room for it.

    Raises:
        StorageError: The bucket cannot be read.
    """
    facts = facts_in(entry, bucket)
    if facts is None:
        return
    partial = entry.new_partial()
    try:
        partial.touch(mode=0o600, exist_ok=False)
        (bucket / entry.data.name).download(partial)
        if _sha256(partial) == facts.pop("sha256", None):
            entry.finish(partial, facts)
    except FileNotFoundError:  # somebody cleans the bucket
        return
    finally:
        partial.unlink(missing_ok=True)


def facts_in(entry: Entry, bucket: BucketPath) -> dict[str, Any] | None:
    """Return what the sidecar of an entry in the bucket says; None if there is none to trust."""
    try:
        facts = json.loads((bucket / entry.sidecar.name).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
