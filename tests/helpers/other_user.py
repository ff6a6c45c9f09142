"""What another Unix user of this machine can read."""

import codecs
import os
import stat
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
#: Where programs leave files, besides where they are told to.
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/home", str(Path.home()))


@contextmanager
def without_rights():
    """Be another user of this machine meanwhile, if this one is root, who may read everything.

    That user cannot import what this interpreter has not loaded yet.
    """
    codecs.lookup("utf-8-sig")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def files_of_others(places=PLACES, *, newer):
    """Return files below some places, changed after a file was, that another user can read.

    Asked as that user if this one is root; told by the modes of the files and of the folders above
    them if not.
    """
    places = [str(place) for place in places if Path(place).exists()]
    command = ["find", *places, "-xdev", "-type", "f", "-newer", str(newer)]
    if os.geteuid() == 0:
        found = _paths([*command, "-readable"], user=NOBODY, group=NOBODY, extra_groups=[])
        return sorted(found)
    return sorted(path for path in _paths(command) if _is_open(path))


def _paths(command, **who):
    done = subprocess.run([*command, "-print0"], capture_output=True, **who)
    return {Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name}


def _is_open(path):
    try:
        above = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
        return above and bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:  # removed meanwhile
        return False


def tellers(files, numbers, words=()):
    """Return ``(file, secret)`` of each file in which a number or a word is written down."""
    marks = {number: _written(number) for number in numbers}
    marks |= {word: (word.encode(),) for word in words}
    found = []
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:  # removed meanwhile
            continue
        name = os.fsencode(file)
        found += [
            (file, secret)
            for secret, written in marks.items()
            if any(mark in content or mark in name for mark in written)
        ]
    return found


def _written(number):
    """Return how a number may stand in a file: as text, or as eight bytes in either order."""
    return repr(number)[:12].encode(), struct.pack(">d", number), struct.pack("<d", number)
