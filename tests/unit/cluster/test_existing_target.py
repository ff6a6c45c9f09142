"""A running Ray cluster that cannot be joined: the reason is told apart."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from dpsweep.cluster import existing
from dpsweep.cluster.existing import ExistingTarget, bucket_problem, refuse_unread
from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import ResourceError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec
from tests.helpers import buckets


@pytest.mark.parametrize(
    ("reason", "says", "remedy"),
    [
        ("InvalidAuthToken: Authentication failed\nand more", "asks for a token", "RAY_AUTH_MODE"),
        (
            "Version mismatch: The cluster was started with:\n    Ray: 2.61.0\n",
            "runs another Ray or Python",
            "image",
        ),
        ("Could not find any running Ray instance.", "no Ray cluster answers", "ray start"),
    ],
)
def test_a_cluster_that_asks_for_a_token_is_not_called_silent(
    tmp_path, monkeypatch, reason, says, remedy
):
    def refuse(**_):
        raise ConnectionError(reason)

    monkeypatch.setattr(existing, "ray", SimpleNamespace(init=refuse))
    monkeypatch.setattr(existing, "write_package", lambda folder: folder / "dpsweep")
    monkeypatch.setattr(existing, "address_here", str)  # whatever else runs on this machine
    spec = ClusterSpec(target="ray", address="auto")
    with pytest.raises(ResourceError) as caught:
        ExistingTarget(spec, ResourcesSpec(), tmp_path).connect()
    assert says in caught.value.message
    assert remedy in str(caught.value)
    assert "and more" not in str(caught.value)


def test_a_port_that_answers_and_lets_nobody_in_is_not_called_silent(tmp_path, monkeypatch):
    """Ray 2.60 writes why into its log alone."""

    def refuse(**_):
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.7:6379")

    monkeypatch.setattr(existing, "ray", SimpleNamespace(init=refuse))
    monkeypatch.setattr(existing, "write_package", lambda folder: folder / "dpsweep")
    monkeypatch.setattr(existing, "_refuse_silence", lambda address: None)  # it answers
    spec = ClusterSpec(target="ray", address="10.0.0.7:6379")
    with pytest.raises(ResourceError, match="lets nobody in") as caught:
        ExistingTarget(spec, ResourcesSpec(), tmp_path).connect()
    assert "may ask for a token" in caught.value.because
    assert "RAY_AUTH_MODE=token" in caught.value.fix


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


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_a_server_that_is_no_ray_is_refused_in_seconds(
    says: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes, says something else, or says nothing; Ray would wait for it for minutes."""
    monkeypatch.setattr(existing, "CONNECT_S", 1.0)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                if says is None:
                    is_over.wait(10)
                connection.sendall(says or b"")

        is_over = threading.Event()
        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        with pytest.raises(ResourceError, match="no Ray cluster answers"):
            existing._refuse_silence(f"127.0.0.1:{server.getsockname()[1]}")
        assert time.monotonic() - began < 5
        is_over.set()
        thread.join()


def waiting_target(tmp_path, monkeypatch, nodes, **settings):
    """A target that finds other nodes each time it looks, and what it said and asked for."""
    said, asked = [], []
    monkeypatch.setattr(existing, "_ASK_S", 0.01)
    monkeypatch.setattr(existing, "living_nodes", lambda: nodes.pop(0) if nodes[1:] else nodes[0])
    monkeypatch.setattr(existing, "request_resources", lambda bundles: asked.append(bundles))
    spec = ClusterSpec(target="ray", address="auto", **settings)
    target = ExistingTarget(spec, ResourcesSpec(cpu=4, gpu=1), tmp_path)
    target.say = said.append
    return target, said, asked


def test_an_autoscaler_is_asked_for_a_node_and_given_time(tmp_path, monkeypatch):
    nodes = [[{"CPU": 2}], [{"CPU": 2}], [{"CPU": 2}, {"CPU": 4, "GPU": 1}]]
    target, said, asked = waiting_target(tmp_path, monkeypatch, nodes, wait_minutes=1)
    target._await_room()
    assert said == [
        "waiting up to 1 minute for an autoscaler: no node can run a trial that asks for "
        "resources.cpu=4 and resources.gpu=1 (the largest node has 2 CPUs and 0 GPUs)"
    ]
    assert asked == [[{"CPU": 4, "GPU": 1}], []]


def test_more_nodes_are_waited_for_and_those_that_came_have_to_do(tmp_path, monkeypatch):
    """A node without room for any trial, as a head's, is none of them."""
    head, able = {"CPU": 2}, {"CPU": 4, "GPU": 1}
    nodes = [[head, able], [head, able, able], [head, able, able, able]]
    target, said, _ = waiting_target(tmp_path, monkeypatch, nodes, wait_minutes=1, wait_nodes=3)
    target._await_room()
    assert said == ["waiting up to 1 minute for an autoscaler: 1 of 3 nodes are there"]
    assert nodes == [[head, able, able, able]]

    target, said, _ = waiting_target(
        tmp_path, monkeypatch, [[head, able]], wait_minutes=0.001, wait_nodes=3
    )
    target._await_room()
    assert len(said) == 1


def test_the_wait_for_an_autoscaler_ends(tmp_path, monkeypatch):
    target, said, asked = waiting_target(tmp_path, monkeypatch, [[{"CPU": 2}]], wait_minutes=0.001)
    target._await_room()  # what is missing is refused by the check that follows
    assert len(said) == 1
    assert asked[-1] == []


@pytest.mark.parametrize("minutes", [0, 5])
def test_nobody_waits_without_need_or_wish(tmp_path, monkeypatch, minutes):
    nodes = [[{"CPU": 4, "GPU": 1}]] if minutes else [[{"CPU": 2}]]
    target, said, asked = waiting_target(tmp_path, monkeypatch, nodes, wait_minutes=minutes)
    target._await_room()
    assert said == asked == []


def test_a_node_that_cannot_write_to_the_bucket_is_named():
    folder = BucketPath("s3", "lab/studies/digits")
    refuse_unread(folder, {"a": "", "b": ""})
    with pytest.raises(ResourceError, match=r"trials on b cannot write to s3://lab/") as caught:
        refuse_unread(folder, {"a": "", "b": "access is denied"})
    assert caught.value.because == "on b, access is denied"


def test_a_node_says_what_the_bucket_has_said():
    with buckets.running():
        assert bucket_problem(BucketPath("s3", "lab/studies")) == ""
        assert bucket_problem(BucketPath("s3", "nobody/x")) == "there is no such bucket"
