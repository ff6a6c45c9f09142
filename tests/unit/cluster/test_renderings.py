"""Renderings: as they were, what their readers take, sized by what trials ask for."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from import_graph import ROOT
from outside import install

from dpsweep.cluster.rendering import RENDERINGS, kuberay
from dpsweep.cluster.rendering.base import job_name, nodes_of
from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.planning.reading import read_spec
from dpsweep.spec.cluster import LAUNCHED
from dpsweep.spec.launching import LaunchSpec
from dpsweep.spec.study import SweepSpec

GOLDEN = ROOT / "tests" / "golden" / "cluster"
SPECS = [GOLDEN / "digits-eps2.yaml", GOLDEN / "odd_name.v2.yaml"]
SCRIPTS = sorted(GOLDEN.glob("*.sbatch"))


@pytest.fixture(autouse=True)
def _ray_of_the_goldens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuberay, "version", lambda package: "2.60.0")


def read(path: Path, *overrides: str) -> SweepSpec:
    return read_spec(path, overrides=overrides)


@pytest.mark.parametrize("target", LAUNCHED)
@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_a_rendering_is_as_it_was(spec: Path, target: str) -> None:
    """After a change on purpose: dpsweep cluster render TARGET SPEC --to tests/golden/cluster."""
    (item,) = RENDERINGS[target].render(read(spec)).items()
    assert item == (item[0], (GOLDEN / item[0]).read_text())


def test_no_golden_rendering_is_left_over() -> None:
    made = {
        name
        for spec in SPECS
        for target in LAUNCHED
        for name in RENDERINGS[target].files(read(spec))
    }
    assert made | {spec.name for spec in SPECS} == {path.name for path in GOLDEN.iterdir()}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_a_batch_script(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_against_a_batch_script(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        ["shellcheck", "--severity=warning", script], capture_output=True, text=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.vm.yaml")), ids=lambda path: path.name)
def test_the_cluster_launcher_knows_every_key(path: Path) -> None:
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    rendered = yaml.safe_load(path.read_text())
    jsonschema.validate(rendered, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**rendered, "worker_nodez": 1}, schema)


@pytest.mark.parametrize("target", LAUNCHED)
def test_the_driver_gets_the_spec_that_was_written(target: str) -> None:
    for path in SPECS:
        spec = read(path)
        (text,) = RENDERINGS[target].files(spec).values()
        shipped = SweepSpec.from_yaml(_spec_in(target, text))
        assert (shipped.cluster.target, shipped.cluster.address) == ("ray", "auto")
        plain, kept = spec.to_dict(), shipped.to_dict()
        assert {**plain, "cluster": None} == {**kept, "cluster": None}


def _spec_in(target: str, text: str) -> str:
    if target == "kuberay":
        config = next(d for d in yaml.safe_load_all(text) if d["kind"] == "ConfigMap")
        return str(config["data"]["sweep.yaml"])
    if target == "slurm":  # as bash reads it
        start = text.index("cat >")
        until = text.index("\nEND_OF_SPEC\n") + len("\nEND_OF_SPEC\n")
        script = "cat" + text[text.index(" <<", start) : until]
    else:
        command = yaml.safe_load(text)["head_setup_commands"][0]
        script = command[command.index("printf") : command.rindex(" > ")]
    return subprocess.check_output(["bash", "-c", script], text=True)


def test_a_sweep_without_gpus_asks_for_none() -> None:
    files = {t: next(iter(RENDERINGS[t].files(read(SPECS[1])).values())) for t in LAUNCHED}
    job = list(yaml.safe_load_all(files["kuberay"]))[-1]["spec"]["rayClusterSpec"]
    assert job["workerGroupSpecs"][0]["groupName"] == "cpu"
    assert [files[target].lower().count("gpu:") for target in ("kuberay", "vm")] == [0, 0]
    assert "--gpus-per-node" not in files["slurm"]


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ([], 4),  # 24 trials, 2 on a node
        (["search.num_trials=3"], 2),
        (["search.num_trials=1"], 1),
        (["search.max_concurrent=5"], 3),
        (["resources.gpu=0"], 4),
        (["resources.gpu=0", "search.num_trials=8"], 2),
        (["cluster.kuberay.node_gpus=8", "search.num_trials=8"], 2),
        (["cluster.kuberay.max_nodes=20"], 12),
    ],
)
def test_there_are_as_many_nodes_as_trials_need(changes: list[str], number: int) -> None:
    (text,) = RENDERINGS["kuberay"].files(read(SPECS[0], *changes)).values()
    (group,) = list(yaml.safe_load_all(text))[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert {group[key] for key in ("replicas", "minReplicas", "maxReplicas")} == {number}


def test_a_trial_that_fits_on_no_node_is_refused() -> None:
    spec = read(SPECS[0], "resources.cpu=64")
    with pytest.raises(BadInputError, match=r"resources.cpu=64[\s\S]*8 CPUs and 1 GPUs"):
        nodes_of(spec, "vm", LaunchSpec())


def test_every_kuberay_secret_is_a_reference_and_only_the_driver_has_it() -> None:
    (text,) = RENDERINGS["kuberay"].files(read(SPECS[0])).values()
    cluster = list(yaml.safe_load_all(text))[-1]["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    named = [
        [
            e["valueFrom"]
            for e in pod["template"]["spec"]["containers"][0]["env"]
            if "valueFrom" in e
        ]
        for pod in pods
    ]
    assert named == [[{"secretKeyRef": {"name": "dpsweep", "key": "MLFLOW_TRACKING_TOKEN"}}], []]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"


@pytest.mark.parametrize(("retries", "value"), [(3, ["1"]), (0, [])])
def test_only_the_driver_of_a_job_that_is_retried_knows_that_it_may_have_begun_by_itself(
    retries: int, value: list[str]
) -> None:
    (text,) = (
        RENDERINGS["kuberay"].files(read(SPECS[0], f"cluster.kuberay.retries={retries}")).values()
    )
    cluster = list(yaml.safe_load_all(text))[-1]["spec"]["rayClusterSpec"]

    def values(group: dict) -> list[str]:
        (container,) = group["template"]["spec"]["containers"]
        return [e["value"] for e in container["env"] if e["name"] == "DPSWEEP_UNATTENDED"]

    assert values(cluster["headGroupSpec"]) == value
    assert values(cluster["workerGroupSpecs"][0]) == []


def test_a_name_is_one_for_kubernetes_and_of_one_study_alone() -> None:
    studies = ["a", "a.b", "a_b", "a-b", "a" * 64, "a" * 63 + "b", "0-", "x..", "9" * 30]
    names = [job_name(study) for study in studies]
    assert len(set(names)) == len(studies)
    for name in names:
        assert len(name) <= 47
        assert name.replace("-", "").isalnum()
        assert name[0].isalpha()
        assert name[-1] != "-"


@pytest.mark.parametrize(
    "change",
    [
        "cluster.kuberay.image='x; rm -rf /'",
        "cluster.kuberay.mount=/mnt/../etc",
        "cluster.kuberay.claim=Up",
        "cluster.kuberay.secrets=['A B']",
        "cluster.kuberay.gpu_resource=gpu",
        "cluster.slurm.partition='x --wrap=id'",
        'cluster.slurm.account="x\\n#SBATCH --wrap=id"',
        "cluster.slurm.venv=/x;id",
        "cluster.slurm.secrets=['X:-$(id)']",
        "cluster.slurm.minutes=1",
        "cluster.vm.region='$(id)'",
        "cluster.vm.nfs='host:/a b'",
        "cluster.vm.nfs='host:/a/../b'",
        "cluster.vm.ami=ubuntu",
        "cluster.vm.secrets_file=~/x;id",
        "cluster.vm.node_memory_gb=1",
        "name='../up'",
        "name=-n",
    ],
)
def test_what_a_shell_or_yaml_could_read_is_refused_with_the_spec(change: str) -> None:
    key = change.partition("=")[0]
    with pytest.raises(SpecError, match=key.replace(".", r"\.")):
        read(SPECS[0], change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("mount=/etc/dpsweep", "'/etc/dpsweep' is where pods have their spec"),
        ("mount=/etc", "'/etc' is above /etc/dpsweep, where pods have their spec"),
        ("mount=/etc/dpsweep/state", "is below /etc/dpsweep, where pods have their spec"),
        ("mount=/dev/shm", "'/dev/shm' is where KubeRay mounts memory for Ray"),
        ("mount=/proc/x", "is below /proc, where the system tells of processes"),
        ("node_memory_gb=0.0001", "is 0.0001, less than one MiB"),
        ("head_memory_gb=0.0009", "is 0.0009, less than one MiB"),
        ("secrets=[PATH]", "PATH is set in pods already"),
        ("secrets=[RAY_USAGE_STATS_ENABLED]", "RAY_USAGE_STATS_ENABLED is set in pods already"),
        ("secrets=[RAY_AUTH_TOKEN]", "RAY_AUTH_TOKEN is set in pods already"),
        ("secrets=[DPSWEEP_UNATTENDED]", "DPSWEEP_UNATTENDED is set in pods already"),
        ("secrets=[TOKEN, OTHER, TOKEN]", "TOKEN stands there twice"),
    ],
)
def test_pods_that_kubernetes_refuses_are_not_rendered(change: str, problem: str) -> None:
    (mistake,) = refused(change)
    assert problem in mistake.what
    assert f"cluster.kuberay.{change.partition('=')[0]}" in mistake.key
    assert mistake.fix


def test_all_that_kubernetes_refuses_is_told_at_once() -> None:
    changes = ("mount=/dev/shm", "node_memory_gb=1e-4", "secrets=[HOME, A, A, PATH]")
    assert len(refused(*changes)) == 5


def test_names_beside_those_that_pods_have_are_taken() -> None:
    for change in ("node_memory_gb=0.001", "secrets=[PATHS]", "mount=/mnt"):
        assert RENDERINGS["kuberay"].files(read(SPECS[0], f"cluster.kuberay.{change}"))
    for mount in ("/etc/dpsweep2", "/dev/shmem", "/process"):
        assert not refused(f"mount={mount}")  # all but the places outside of it
    unused = ("cluster.kuberay.mount=/dev/shm", f"cluster.kuberay.secrets={_CREDENTIALS}")
    spec = read(SPECS[0], *_BUCKET, *unused)
    assert RENDERINGS["kuberay"].files(spec)  # mounts none


def refused(*changes: str) -> list[Mistake]:
    """Return the mistakes of the section that a rendering is refused for."""
    spec = read(SPECS[0], *(f"cluster.kuberay.{change}" for change in changes))
    with pytest.raises(SpecError) as caught:
        RENDERINGS["kuberay"].files(spec)
    return [each for each in caught.value.mistakes if "cluster.kuberay" in each.key]


@pytest.mark.parametrize("target", ["kuberay", "vm"])
def test_a_missing_section_is_told(target: str) -> None:
    spec = read(SPECS[0], f"cluster.{target}=null")
    with pytest.raises(SpecError, match=rf"cluster\.{target}: is missing"):
        RENDERINGS[target].files(spec)


@pytest.mark.parametrize("target", ["kuberay", "vm"])
def test_state_outside_of_the_mount_is_refused(target: str) -> None:
    spec = read(SPECS[0], "storage.path=/tmp/studies", "privacy.dataset_ledger=/tmp/ledger")
    with pytest.raises(SpecError) as caught:
        RENDERINGS[target].files(spec)
    assert [mistake.key for mistake in caught.value.mistakes] == [
        "--set storage.path",
        "--set privacy.dataset_ledger",
    ]


def test_relative_data_are_refused() -> None:
    with pytest.raises(SpecError, match=r"data\.path: 'x.npz' is relative"):
        RENDERINGS["slurm"].files(read(SPECS[1], "data.path=x.npz"))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("pretrain={checkpoint: w.pt}", "pretrain.checkpoint"),
        ("search.space.model.checkpoint=w.pt", "search.space.model.checkpoint"),
        ("search.space.model.checkpoint={choice: [published, w.pt]}", "model.checkpoint"),
        (
            "search.space.model.checkpoint={by: {method: {dp_sgd: w.pt}}}",
            "search.space.model.checkpoint",
        ),
        (
            "search.space={method: scatternet, features.checkpoint: w.pt}",
            "search.space.features.checkpoint",
        ),
        (
            "start={method: dp_sgd, epsilons: [1], hyperparameters: {model.checkpoint: w.pt}}",
            "start.hyperparameters.model.checkpoint",
        ),
    ],
)
def test_relative_weights_are_refused(override: str, key: str) -> None:
    with pytest.raises(SpecError, match=rf"{key}: 'w.pt' is relative"):
        RENDERINGS["slurm"].files(read(SPECS[0], override))


def test_weights_that_are_no_file_are_none() -> None:
    override = "search.space.model.checkpoint={choice: [published, pretrain, /mnt/w.pt, null]}"
    assert RENDERINGS["slurm"].files(read(SPECS[0], override))


class Barge:
    """A rendering of a package."""

    name = "barge"
    render = files = submit = status = logs = stop = None


def test_a_package_adds_a_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch, "dpsweep.renderings", RENDERINGS, barge=f"{__name__}:Barge", hull="os:path"
    )
    assert RENDERINGS["barge"] is Barge
    with pytest.raises(BadInputError, match="has no render"):
        RENDERINGS["hull"]


# --- Ledgers in a database --------------------------------------------------------------------

_DATABASE = "postgresql://ada@db.example/sweeps"
_IN_DATABASE = (
    f"storage.database={_DATABASE}",
    f"privacy.dataset_ledger={_DATABASE}#census",
    "privacy.dataset_epsilon=20",
    "privacy.dataset_delta=1e-4",
)
_SECRETS = "[MLFLOW_TRACKING_TOKEN, PGPASSWORD]"


def test_pods_of_trials_get_the_password_of_the_ledgers_and_no_other_secret() -> None:
    spec = read(SPECS[0], *_IN_DATABASE, f"cluster.kuberay.secrets={_SECRETS}")
    (text,) = RENDERINGS["kuberay"].render(spec).values()
    (job,) = (part for part in yaml.safe_load_all(text) if part["kind"] == "RayJob")
    cluster = job["spec"]["rayClusterSpec"]

    def secrets(group: dict) -> list[str]:
        (container,) = group["template"]["spec"]["containers"]
        return [entry["name"] for entry in container["env"] if "valueFrom" in entry]

    assert secrets(cluster["headGroupSpec"]) == ["MLFLOW_TRACKING_TOKEN", "PGPASSWORD"]
    assert secrets(cluster["workerGroupSpecs"][0]) == ["PGPASSWORD"]


def test_machines_of_trials_get_it_by_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = read(SPECS[0], *_IN_DATABASE, "cluster.vm.secrets_file=~/secrets.env")
    (text,) = RENDERINGS["vm"].render(spec).values()
    start = yaml.safe_load(text)["worker_start_ray_commands"][-1]
    script = start.replace("~/.dpsweep.env", "secrets.env").replace("ray start", "env; true")
    Path("secrets.env").write_text("PGPASSWORD=geheim\nTOKEN=other\n")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert "PGPASSWORD=geheim" in done.stdout.splitlines()
    assert "other" not in done.stdout
    assert "geheim" not in start


@pytest.mark.parametrize(
    ("line", "code", "values"),
    [
        ("PGPASSWORD=pa$$word&x 'y' \"z\" $(id) #1", 0, ["pa$$word&x 'y' \"z\" $(id) #1"]),
        ("# PGPASSWORD=none\n\nPGPASSWORD=a=b", 0, ["a=b"]),
        ("PGPASSWORD=first\nPGPASSWORD=last", 0, ["last"]),
        ("export PGPASSWORD=geheim", 2, []),
    ],
)
def test_secrets_of_machines_are_read_as_they_stand(
    line: str, code: int, values: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line may lack its end, and a wrong one is not shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    Path("secrets.env").write_text(line)
    submission = RENDERINGS["vm"].submit("digits-eps2", Path())[-1].arguments[-1]
    words = shlex.split(submission[submission.index("-- ") + 3 :])
    script = words[-1].replace("~/.dpsweep.env", "secrets.env").replace("dpsweep run", "env #")
    done = subprocess.run([*words[:-1], script], capture_output=True, text=True)
    given = [entry for entry in done.stdout.splitlines() if entry.startswith("PGPASSWORD=")]
    assert (done.returncode, given) == (code, [f"PGPASSWORD={value}" for value in values])
    assert "geheim" not in done.stderr

    if code == 0:  # trials get the same
        spec = read(SPECS[0], *_IN_DATABASE, "cluster.vm.secrets_file=~/secrets.env")
        (text,) = RENDERINGS["vm"].render(spec).values()
        start = yaml.safe_load(text)["worker_start_ray_commands"][-1]
        start = start.replace("~/.dpsweep.env", "secrets.env").replace("ray start", "env; true")
        done = subprocess.run(["bash", "-c", start], capture_output=True, text=True, check=True)
        assert f"PGPASSWORD={values[0]}" in done.stdout.splitlines()


def test_the_driver_of_machines_waits_for_them() -> None:
    def waits(*overrides: str) -> tuple[float, int]:
        (text,) = RENDERINGS["vm"].files(read(SPECS[0], *overrides)).values()
        cluster = SweepSpec.from_yaml(_spec_in("vm", text)).cluster
        assert yaml.safe_load(text)["max_workers"] == cluster.wait_nodes
        return cluster.wait_minutes, cluster.wait_nodes

    assert waits() == (20, 4)
    assert waits("cluster.wait_minutes=3", "cluster.vm.max_nodes=2") == (3, 2)
    for ignored in ("cluster.wait_nodes=2", "cluster={kuberay: {image: x:1}, wait_minutes: 3}"):
        with pytest.raises(SpecError, match="has no meaning for target local"):
            read(SPECS[0], ignored)
    up = RENDERINGS["vm"].submit("digits-eps2", Path())[0]
    assert "--no-restart" in up.arguments, "a job of this name may be running"


@pytest.mark.slow
def test_a_spec_that_no_command_line_takes_is_refused_for_machines() -> None:
    rows = list(range(30_000))
    spec = read(SPECS[0], f"data.public={{positions: {rows}, labels: known}}")
    with pytest.raises(BadInputError, match="the spec is too long for a command line"):
        RENDERINGS["vm"].files(spec)
    RENDERINGS["kuberay"].files(spec)


_BUCKET = (
    "storage.path=s3://lab/studies",
    "storage.database=postgresql://ada@db/sweeps",
    "tracking.uri=null",
    "privacy.dataset_ledger=null",
)
_CREDENTIALS = "[MLFLOW_TRACKING_TOKEN, PGPASSWORD, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]"


def test_pods_of_a_study_in_a_bucket_mount_no_volume() -> None:
    changes = (*_BUCKET, f"cluster.kuberay.secrets={_CREDENTIALS}", "cluster.kuberay.claim_gb=9")
    spec = read(SPECS[0], *changes, "cluster.kuberay.service_account=sweeps")
    (text,) = RENDERINGS["kuberay"].files(spec).values()
    kinds = [document["kind"] for document in yaml.safe_load_all(text)]
    assert kinds == ["ConfigMap", "RayJob"]
    cluster = list(yaml.safe_load_all(text))[-1]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["serviceAccountName"] == "sweeps"
        assert [volume["name"] for volume in pod["volumes"]] == ["spec"]
        assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["spec"]
    env = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["env"]
    handed = [item["name"] for item in env if "valueFrom" in item]
    assert handed == ["PGPASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]


def test_machines_of_a_study_in_a_bucket_mount_nothing() -> None:
    spec = read(
        SPECS[0], *_BUCKET, "cluster.vm.nfs=null", "cluster.vm.role=sweeps",
        "cluster.vm.secrets_file=/home/ada/secrets.env",
    )  # fmt: skip
    (text,) = RENDERINGS["vm"].files(spec).values()
    cluster = yaml.safe_load(text)
    assert (cluster["initialization_commands"], cluster["docker"]["run_options"]) == ([], [])
    for node in cluster["available_node_types"].values():
        assert node["node_config"]["IamInstanceProfile"] == {"Name": "sweeps"}
    start = cluster["worker_start_ray_commands"][-1]
    assert "AWS_SECRET_ACCESS_KEY=$(sed -n 's/^AWS_SECRET_ACCESS_KEY=//p' ~/.dpsweep.env" in start
    assert "MLFLOW" not in start


def test_disks_that_nobody_mounts_are_refused() -> None:
    spec = read(SPECS[0], "cluster.vm.nfs=null")
    with pytest.raises(BadInputError, match=r"storage.path: .* needs a disk[\s\S]*cluster.vm.nfs"):
        RENDERINGS["vm"].files(spec)


def test_a_batch_job_of_a_study_in_a_bucket_has_a_folder_of_its_own() -> None:
    with pytest.raises(BadInputError, match=r"cluster.slurm.state: is missing"):
        RENDERINGS["slurm"].files(read(SPECS[0], *_BUCKET))
    spec = read(SPECS[0], *_BUCKET, "cluster.slurm.state=/home/ada/jobs")
    (text,) = RENDERINGS["slurm"].files(spec).values()
    assert f"\njobs=/home/ada/jobs/{spec.name}\n" in text
