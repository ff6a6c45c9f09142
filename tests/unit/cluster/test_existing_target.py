"""A running Ray cluster that cannot be joined: the reason is told apart."""

from types import SimpleNamespace

import pytest

from dpsweep.cluster import existing
from dpsweep.cluster.existing import ExistingTarget
from dpsweep.foundation.errors import ResourceError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec


@pytest.mark.parametrize(
    ("reason", "says", "remedy"),
    [
        ("InvalidAuthToken: Authentication failed\nand more", "asks for a token", "RAY_AUTH_MODE"),
        ("Could not find any running Ray instance.", "no Ray cluster answers", "ray start"),
    ],
)
def test_a_cluster_that_asks_for_a_token_is_not_called_silent(
    tmp_path, monkeypatch, reason, says, remedy
):
    def refuse(**_):
        raise ConnectionError(reason)

    monkeypatch.setattr(existing, "ray", SimpleNamespace(init=refuse))
    monkeypatch.setattr(existing, "build_wheel", lambda folder: folder / "dpsweep.whl")
    spec = ClusterSpec(target="ray", address="auto")
    with pytest.raises(ResourceError) as caught:
        ExistingTarget(spec, ResourcesSpec(), tmp_path).connect()
    assert says in caught.value.message
    assert remedy in str(caught.value)
    assert "and more" not in str(caught.value)


def test_it_says_which_cluster_was_joined(tmp_path, monkeypatch):
    stand_in = SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.7:6379"),
        nodes=lambda: [{"Alive": True}, {"Alive": False}, {"Alive": True}],
    )
    monkeypatch.setattr(existing, "ray", stand_in)
    target = ExistingTarget(ClusterSpec(target="ray", address="auto"), ResourcesSpec(), tmp_path)
    monkeypatch.setattr(target, "total", lambda: {"CPU": 8.0, "GPU": 1.0})
    expected = "joined the Ray cluster at 10.0.0.7:6379: 2 nodes, 8 CPUs and 1 GPU in all"
    assert target.joined == expected
    monkeypatch.setattr(target, "total", lambda: {"CPU": 1.0})
    assert target.joined.endswith("1 CPU and 0 GPUs in all")
