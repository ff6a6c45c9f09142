"""How fast this machine is, for tests of what a command may cost."""

import functools
import resource
import subprocess
import sys


def cpu_seconds():
    """Return the processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@functools.cache
def import_seconds():
    """Return the processor time of starting Python and importing torch."""
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=60)
    return cpu_seconds() - before
