"""The machine that figures are of, as it stands beside a table."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from dpsweep.trainables.devices.sharing import machine_bytes

_GIB = 2**30


def machine(device: str) -> str:
    """Return date, processor, cores, memory, system and versions; of a GPU also what it is."""
    memory = (machine_bytes() or 0) / _GIB
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "opacus"))
    card = f"{_card()}, " if device == "cuda" else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}: {card}{_processor()}, {os.cpu_count()} cores, "
        f"{memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def _card() -> str:
    card = torch.cuda.get_device_properties(0)
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):  # there is no such program
        said = []
    driver = said[0] if said else "unknown"
    memory = card.total_memory / _GIB
    return f"{card.name}, {memory:.0f} GiB, driver {driver}, CUDA {torch.version.cuda}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
