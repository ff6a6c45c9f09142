"""Every rendering of ours that submits a sweep passes the suite of renderings."""

import pytest

from dpsweep.cluster.rendering import RENDERINGS
from dpsweep.cluster.rendering.base import commands
from dpsweep.cluster.rendering.joined import RayRendering
from dpsweep.cluster.rendering.kuberay import KubeRayRendering
from dpsweep.cluster.rendering.slurm import SlurmRendering
from dpsweep.cluster.rendering.vm import VmRendering
from dpsweep.testing.renderings import RenderingConformance


class TestRay(RenderingConformance):
    rendering = RayRendering


class TestKubeRay(RenderingConformance):
    rendering = KubeRayRendering
    settings = {"kuberay": {"image": "dpsweep", "secrets": ["MLFLOW_TRACKING_TOKEN"]}}  # noqa: RUF012


class TestSlurm(RenderingConformance):
    rendering = SlurmRendering
    settings = {"slurm": {"secrets": ["MLFLOW_TRACKING_TOKEN"]}}  # noqa: RUF012


class TestVm(RenderingConformance):
    rendering = VmRendering
    settings = {  # noqa: RUF012
        "vm": {"image": "dpsweep", "region": "eu", "instance": "m5", "nfs": "host:/x"}
    }


def test_all_that_submit_have_the_suite():
    tested = {suite.rendering.name for suite in (TestRay, TestKubeRay, TestSlurm, TestVm)}
    assert set(RENDERINGS) - {"local"} == tested


class _Careless(RayRendering):
    """Shows the environment, reads a shell, keeps state anywhere."""

    @classmethod
    def files(cls, spec):
        import os

        return {"../x.sh": f"{os.environ.get('RAY_AUTH_TOKEN')}\n"}

    @classmethod
    def submit(cls, study, folder):
        return commands(["bash", "-c", f"sbatch {study}"])


class _CarelessSuite(RenderingConformance):
    rendering = _Careless


@pytest.mark.parametrize("name", [n for n in dir(RenderingConformance) if n.startswith("test_")])
def test_the_suite_notices_a_careless_rendering(name):
    arguments = ["studies"] if "lost" in name else []
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(_CarelessSuite(), name)(*arguments)
