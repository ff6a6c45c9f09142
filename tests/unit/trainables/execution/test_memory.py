"""What a process keeps of the memory that it frees."""

import json
import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc")

# Page faults while 64 MB are allocated, filled and freed: at first, and ten times afterwards.
FAULTS = """
import ctypes, json, resource, sys
from dpsweep.trainables.execution.memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        block = ctypes.c_void_p(libc.malloc(1 << 26))
        ctypes.memset(block, 1, 1 << 26)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

is_kept = keep_freed_memory() if sys.argv[1] == "keep" else None
print(json.dumps([is_kept, faults(1), faults(10)]))
"""


def faults(word, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, word],
        capture_output=True, text=True, check=True, env={**clean, **environment},
    )  # fmt: skip
    return json.loads(done.stdout)


def test_freed_memory_comes_back_without_page_faults():
    is_kept, first, later = faults("keep")
    assert is_kept is True
    assert later < first


def test_without_it_every_page_is_faulted_in_again():
    _, first, later = faults("leave")
    assert later > 5 * first


@pytest.mark.parametrize(
    "own", [{"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}]
)
def test_what_the_environment_says_of_malloc_stands(own):
    is_kept, first, later = faults("keep", **own)
    assert is_kept is False
    assert later > 5 * first
