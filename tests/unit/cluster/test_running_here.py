"""Which Ray of this machine ``auto`` means: never one that another run has for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsweep.cluster import running_here
from dpsweep.cluster.running_here import address_here
from dpsweep.foundation.errors import ResourceError

PUBLIC, OTHER = ("10.0.0.7:6379", "/tmp/ray"), ("10.0.0.7:7000", "/scratch/my ray")
PRIVATE = ("10.0.0.7:34475", "/tmp/dpsweep-1a2b3c4d/ray")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give this machine other processes, in a folder like /proc, and no note of Ray's."""
    monkeypatch.setattr(running_here, "_PROCESSES", tmp_path)
    monkeypatch.setattr(running_here, "find_bootstrap_address", lambda _: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cmdline").write_text("init\0--gcs-address=10.0.0.9:1\0--temp_dir=/tmp/ray\0")
    (tmp_path / "2").mkdir()  # it has ended
    return tmp_path


def run_raylets(processes: Path, *raylets: tuple[str, str]) -> None:
    for number, (gcs, folder) in enumerate(raylets, start=10):
        agent = f"agent.py --gcs-address=10.0.0.8:2 --temp_dir=/tmp/agent --gcs-address={gcs}"
        words = ["/site/ray/raylet", f"--gcs-address={gcs}", f"--temp_dir={folder}", agent, ""]
        (processes / str(number)).mkdir()
        (processes / str(number) / "cmdline").write_text("\0".join(words))


def test_a_named_address_is_what_it_is(processes: Path) -> None:
    run_raylets(processes, PRIVATE)
    assert address_here("10.0.0.1:6379") == "10.0.0.1:6379"


def test_a_private_ray_is_never_joined(processes: Path) -> None:
    run_raylets(processes, PRIVATE)
    with pytest.raises(ResourceError, match="no Ray cluster runs here") as caught:
        address_here("auto")
    assert "private ones, of other runs of dpsweep" in str(caught.value)


@pytest.mark.parametrize("beside", [(), (PRIVATE,)])
@pytest.mark.parametrize("one", [PUBLIC, OTHER])
def test_the_only_cluster_is_joined_whatever_private_ones_run(
    processes: Path, one: tuple[str, str], beside: tuple[tuple[str, str], ...]
) -> None:
    run_raylets(processes, *beside, one, one)
    assert address_here("auto") == one[0]


def test_of_several_clusters_one_is_to_be_named(processes: Path) -> None:
    run_raylets(processes, PUBLIC, OTHER, PRIVATE)
    with pytest.raises(ResourceError, match=r"several Ray clusters run here") as caught:
        address_here("auto")
    assert "10.0.0.7:6379, 10.0.0.7:7000" in str(caught.value)
    assert PRIVATE[0] not in str(caught.value)


@pytest.mark.parametrize("kind", ["note", "variable", "nothing runs"])
def test_ray_is_left_to_find_what_it_has_a_note_of(
    processes: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind != "nothing runs":
        run_raylets(processes, PRIVATE)
    if kind == "note":
        monkeypatch.setattr(running_here, "find_bootstrap_address", lambda _: PUBLIC[0])
    if kind == "variable":
        monkeypatch.setenv("RAY_ADDRESS", PUBLIC[0])
    assert address_here("auto") == "auto"
