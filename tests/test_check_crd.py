"""The check of rendered RayJobs refuses what Kubernetes would drop; on a CRD made up for it."""

import importlib.util
import subprocess

import pytest
import yaml
from import_graph import ROOT

spec = importlib.util.spec_from_file_location("check_crd", ROOT / "tests" / "check_crd.py")
check_crd = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_crd)

GOOD = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "metadata": {"name": "digits", "labels": {"a": "b"}},
    "spec": {
        "entrypoint": "dpsweep run x",
        "cpu": {"limit": 2, "request": "500m"},
        "free": {"any": {"thing": 1}},
        "mixed": {"known": 1, "other": 2},
        "params": {"num-cpus": "0"},
        "groups": [{"name": "cpu"}],
        "maybe": None,
    },
}
AMOUNT = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
CRD = {
    "spec": {
        "group": "ray.io",
        "names": {"kind": "RayJob"},
        "versions": [
            {
                "name": "v1",
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "apiVersion": {"type": "string"},
                            "kind": {"type": "string"},
                            "metadata": {"type": "object"},
                            "spec": {
                                "type": "object",
                                "required": ["entrypoint"],
                                "properties": {
                                    "entrypoint": {"type": "string"},
                                    "cpu": {"type": "object", "properties": {"limit": AMOUNT, "request": AMOUNT}},
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "mixed": {
                                        "type": "object",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                        "properties": {"known": {"type": "integer"}},
                                    },
                                    "params": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "groups": {
                                        "type": "array",
                                        "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                                    },
                                    "maybe": {"type": "string", "nullable": True},
                                    "empty": {"type": "object"},
                                },
                            },
                        },
                    }
                },
            }
        ],
    }
}  # fmt: skip


def test_a_valid_job_is_valid():
    assert check_crd.mistakes(CRD, [{"kind": "ConfigMap"}, GOOD]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entrypoimt": "x"}, "'entrypoimt' was unexpected"),
        ({"cpu": {"limit": 1.5}}, "spec.cpu.limit"),
        ({"cpu": {"limits": 1}}, "'limits' was unexpected"),
        ({"mixed": {"known": "1"}}, "spec.mixed.known"),
        ({"params": {"num-cpus": 0}}, "spec.params.num-cpus"),
        ({"groups": [{"nmae": "cpu"}]}, "spec.groups.0"),
        ({"maybe": 1}, "spec.maybe"),
        ({"empty": {"a": 1}}, "spec.empty"),
        ({"entrypoint": None}, "spec.entrypoint"),
    ],
)
def test_a_broken_field_is_told_with_its_place(change, said):
    broken = {**GOOD, "spec": {**GOOD["spec"], **change}}
    (line,) = check_crd.mistakes(CRD, [broken])
    assert said in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {"name": "a" * 48}}, "metadata.name"),
        ({"metadata": {"nmae": "a", "name": "b"}}, "'nmae' was unexpected"),
        ({"apiVersion": "ray/v1"}, "apiVersion: ray is not ray.io"),
        ({"status": {}}, "'status' was unexpected"),
        ({"kind": "RayJobs"}, "there is no RayJob in it"),
    ],
)
def test_a_broken_head_is_told(change, said):
    assert said in check_crd.mistakes(CRD, [{**GOOD, **change}])[0]


def test_another_version_is_told():
    with pytest.raises(SystemExit, match="no version v2"):
        check_crd.mistakes(CRD, [{**GOOD, "apiVersion": "ray.io/v2"}])


def test_a_file_that_is_not_valid_fails_the_command(tmp_path, capsys):
    for name, document in (("crd", CRD), ("good", GOOD), ("bad", {**GOOD, "spec": {}})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    files = [tmp_path / "good.yaml", tmp_path / "bad.yaml"]
    assert check_crd.main(tmp_path / "crd.yaml", files[:1]) == 0
    assert check_crd.main(tmp_path / "crd.yaml", files) == 1
    assert "bad.yaml: NOT VALID\n  spec: 'entrypoint' is a required" in capsys.readouterr().out


def test_make_checks_every_golden_job():
    said = subprocess.check_output(["make", "-n", "check-crd", "CRD=x.yaml"], text=True, cwd=ROOT)
    golden = {
        f"tests/golden/cluster/{p.name}"
        for p in (ROOT / "tests/golden/cluster").glob("*.kuberay.yaml")
    }
    assert len(golden) == 2
    assert golden <= set(said.split())
    assert "check_crd.py x.yaml" in said
