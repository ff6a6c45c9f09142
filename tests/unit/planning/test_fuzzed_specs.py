"""Specs in which something is other than a person would write it: one of our errors, or a plan."""

import copy
import functools
import random
import signal

import mutations
import pytest
import yaml
from import_graph import ROOT

from dpsweep.foundation.errors import SpecError, SweepError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec

IN_CI, IN_ALL = 15, 2000
LIMIT_S = 60  # of one spec, which takes tenths of a second; a network of timm took 15 once
FILES = [
    *sorted(ROOT.glob("tests/examples/*.yaml")),
    *sorted(ROOT.glob("tests/golden/old_studies/*/spec.yaml")),
]


@functools.cache
def specs():
    """Return whole specs, none with a network that takes seconds to build."""
    read = [yaml.safe_load(path.read_text()) for path in FILES]
    for spec in read:
        space = spec["search"]["space"]
        if str(space.get("model.name", "")).startswith("timm/"):
            space["model.name"] = "linear"
    return read


def mutated(rng):
    """Return the text of a spec with up to three places changed, or with its bytes hurt."""
    spec = copy.deepcopy(rng.choice(specs()))
    if rng.random() < 0.4:
        text = yaml.safe_dump(spec, sort_keys=False).encode()
        return mutations.hurt_bytes(rng, text).decode("utf-8", "replace") + "\n"
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed = mutations.odd_tree(rng, spec)
        spec = changed if isinstance(changed, dict) else spec
    return yaml.safe_dump(spec, sort_keys=False) + "\n"


def refusal(text):
    """Return our error of a spec, or None; any other fails here, with its traceback."""
    try:
        preflight(read_spec(text))
    except SweepError as error:
        return error
    return None


def check(seeds, folder, monkeypatch):
    """Check specs one by one; return how many were refused. What a spec names lies in a folder."""
    monkeypatch.chdir(folder)
    refused = 0
    for seed in seeds:
        text = mutated(random.Random(seed))
        signal.alarm(LIMIT_S)
        error = refusal(text)
        signal.alarm(0)
        if error is not None:
            refused += 1
            assert error.exit_code == 2, f"seed {seed}: {error}"
            assert error.message.strip(), seed
    assert list(folder.iterdir()) == []  # nothing was started
    return refused


def test_mutated_specs_are_refused_in_words(tmp_path, monkeypatch):
    refused = check(range(IN_CI), tmp_path, monkeypatch)
    assert refused > IN_CI / 2


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_mutated_specs_are_refused_in_words(tmp_path, monkeypatch):
    refused = check(range(IN_CI, IN_ALL), tmp_path, monkeypatch)
    assert IN_ALL / 2 < refused < IN_ALL - IN_CI


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [touch here]",
        "!!python/name:os.system",
        "!!python/object/new:subprocess.Popen [[touch, here]]",
        "__import__('os').system('touch here')",
        "${oc.env:HOME}",
        "{{ 7 * 7 }}",
        "$(touch here)",
        "`touch here`",
    ],
)
@pytest.mark.parametrize("key", ["seed", "search.num_trials", "privacy.trial_epsilon", "name"])
def test_values_of_a_spec_are_never_evaluated(key, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "tests/examples/digits.yaml").read_text()
    quoted = value if value.startswith("!!") else yaml.safe_dump(value).splitlines()[0]
    with pytest.raises(SweepError) as caught:
        preflight(read_spec(text, overrides=[f"{key}={quoted}"]))
    assert caught.value.exit_code == 2
    assert "49" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a\\0b", "has a character of number 0"),
        ("studies/" + 256 * "a", "has a part of over 255 bytes between two slashes"),
        (4001 * "a/", "has 8002 characters, and at most 4000 are allowed"),
    ],
)
def test_a_path_that_no_file_system_has_is_told_once(path, problem):
    text = (ROOT / "tests/examples/digits.yaml").read_text()
    with pytest.raises(SpecError) as caught:
        read_spec(text + f'\nstorage: {{path: "{path}"}}\n')
    assert [m.what for m in caught.value.mistakes] == [problem]
