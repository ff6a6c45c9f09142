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
