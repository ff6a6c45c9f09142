"""A Ray of a selection's own: what it is given, and when it is refused; no cluster is started."""

import os

import pytest
from ray._raylet import AuthenticationMode, get_authentication_mode

from dpsweep.cluster import local
from dpsweep.cluster.local import LocalTarget
from dpsweep.cluster.token import own_token
from dpsweep.foundation.errors import ResourceError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def settings():
    return {name: os.environ.get(name) for name in NAMES}


@pytest.fixture
def switched_off(monkeypatch):
    """Settings of somebody who has turned the token off."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    return settings()


def test_a_token_of_its_own_holds_for_its_time_only(switched_off):
    tokens = set()
    for _ in range(2):
        with own_token():
            assert get_authentication_mode() == AuthenticationMode.TOKEN
            assert "RAY_AUTH_TOKEN_PATH" not in os.environ
            tokens.add(os.environ["RAY_AUTH_TOKEN"])
        assert settings() == switched_off
        assert get_authentication_mode() != AuthenticationMode.TOKEN
    assert len(tokens) == 2
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens)


class Ray:
    """Stands for Ray, which opens the folder that it is given, or worse."""

    def __init__(self, opens):
        self.opens, self.given, self.is_up, self.environment = opens, {}, False, {}

    def init(self, **given):
        self.given, self.is_up, self.environment = given, True, settings()
        os.makedirs(given["_temp_dir"])
        os.chmod(self.opens or given["_temp_dir"], 0o777)

    def is_initialized(self):
        return self.is_up

    def shutdown(self):
        self.is_up = False

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 8.0}}]


def target_with(monkeypatch, path, ray):
    for name in ("init", "is_initialized", "shutdown", "nodes"):
        monkeypatch.setattr(local.ray, name, getattr(ray, name))
    return LocalTarget(ClusterSpec(), ResourcesSpec(), path, private_path=path)


def test_ray_gets_a_folder_in_the_private_directory_and_a_token(
    tmp_path, monkeypatch, switched_off
):
    tmp_path.chmod(0o700)
    ray = Ray(opens=None)
    with target_with(monkeypatch, tmp_path, ray):
        assert ray.given["_temp_dir"] == str(tmp_path / "ray")
        assert ray.environment["RAY_AUTH_MODE"] == "token"
        assert ray.environment["RAY_AUTH_TOKEN"] == os.environ["RAY_AUTH_TOKEN"]
    assert not ray.is_up
    assert settings() == switched_off


def test_a_directory_that_ray_has_opened_is_refused_before_a_trial_runs(
    tmp_path, monkeypatch, switched_off
):
    tmp_path.chmod(0o700)
    ray = Ray(opens=tmp_path)
    with (
        pytest.raises(ResourceError, match="not closed to other users"),
        target_with(monkeypatch, tmp_path, ray),
    ):
        pytest.fail("trials would run")
    assert not ray.is_up
    assert settings() == switched_off
