"""One line on the device that figures are of: ``python tests/benchmarks/machine.py --device cuda``."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess

import torch

from dpsweep.trainables.devices.sharing import machine_bytes

_GIB = 2**30


def machine_line(device: str) -> str:
    """Return name, memory, driver and torch of a device, as they stand beside a table."""
    if device == "cpu":
        memory = (machine_bytes() or 0) / _GIB
        cores = len(os.sched_getaffinity(0))
        return f"{platform.machine()}, {cores} cores, {memory:.0f} GiB, torch {torch.__version__}"
    card = torch.cuda.get_device_properties(0)
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[0]
    return (
        f"{card.name}, {card.total_memory / _GIB:.0f} GiB, driver {driver}, torch "
        f"{torch.__version__}, CUDA {torch.version.cuda}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    print(machine_line(parser.parse_args().device))
