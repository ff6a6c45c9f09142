"""SweepSpec as a value: identity with its YAML, construction in Python, schema."""

import copy
import json
import pickle
import re
import string
from fractions import Fraction

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import SpecError
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.spec.document.overrides import apply_overrides
from dpsweep.spec.storage import StorageSpec
from dpsweep.spec.study import (
    DataSpec,
    PrivacySpec,
    SearchSpec,
    SweepSpec,
    TestSpec,
    ValidationSpec,
)

MINIMAL = {
    "name": "x",
    "data": {"dataset": "digits", "validation": {"visibility": "public"}},
    "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
    "search": {"space": {"method": "dp_sgd"}},
}


def changed(path, value):
    raw = copy.deepcopy(MINIMAL)
    here = raw
    *above, last = path.split(".", 2)
    for key in above:
        here = here.setdefault(key, {})
    here[last] = value
    return raw


positive = st.floats(min_value=1e-12, max_value=1e12)
word = st.text(
    string.ascii_letters + string.digits + " :#'\"{}[]&*!|>%@`~,-_=?\\\n\t\u00e9\u4e2d", min_size=1
)
word = word.filter(lambda text: text.strip())
awkward = st.sampled_from(
    [
        "1e5",
        "1e-5",
        "null",
        "true",
        "yes",
        "on",
        "010",
        "0x1f",
        "1_000",
        "12:30",
        "~",
        "",
        "2026-01-01",
        ".5",
        "- a",
        "a: b",
        "=",
        "<<",
    ]
)
scalar = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), word, awkward
)  # fmt: skip
bounds = st.tuples(positive, positive).filter(lambda b: b[0] != b[1]).map(sorted)
whole_bounds = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).filter(
    lambda b: b[0] != b[1]
)


@st.composite
def domains(draw):
    kind = draw(st.sampled_from(["fixed", "choice", "uniform", "loguniform", "int", "logint"]))
    if kind == "fixed":
        return draw(scalar)
    if kind == "choice":
        return {
            "choice": draw(
                st.lists(scalar, min_size=1, max_size=4, unique_by=repr).filter(distinct)
            )
        }
    drawn = draw(bounds) if "uniform" in kind else sorted(draw(whole_bounds))
    num = draw(st.none() | st.integers(1, 9))
    domain = {kind: drawn} | ({} if num is None else {"num": num})
    if draw(st.booleans()):
        domain["when"] = {"flag": draw(st.sampled_from(["a", ["a", "b"], "b"]))}
    return domain


def distinct(values):
    converted = [float(v) if isinstance(v, str) and v in ("1e5", "1e-5") else v for v in values]
    return all(v not in converted[:i] for i, v in enumerate(converted))


@st.composite
def specs(draw):
    names = st.text(string.ascii_lowercase, min_size=1, max_size=8).map(lambda n: f"p.{n}")
    space = {"method": "dp_sgd", "flag": {"choice": ["a", "b"]}}
    space |= draw(st.dictionaries(names, domains(), max_size=6))
    return {
        "name": draw(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "data": {
            "dataset": "npz",
            "path": draw(word),
            "num_records": draw(st.integers(1, 10**9)),
            "num_classes": draw(st.integers(2, 1000)),
            "validation": {"fraction": draw(st.floats(0, 0.4)), "visibility": draw(st.sampled_from(["public", "exact"]))},
            "test": {"fraction": draw(st.floats(0, 0.4))},
        },
        "privacy": {
            "delta": draw(st.floats(1e-300, 0.99)),
            "trial_epsilon": draw(st.floats(min_value=1e-12, max_value=1e6)),
            "accounting": "unaccounted",
        },
        "search": {"num_trials": draw(st.integers(1, 10**6)), "max_time": draw(st.none() | positive), "space": space},
        "scheduler": draw(
            st.fixed_dictionaries({"type": st.just("epsilon_halving"), "reduction_factor": st.floats(2, 100), "variant": st.sampled_from(["stop", "promote"])})
            | st.fixed_dictionaries({"type": st.just("median"), "min_trials": st.integers(1, 100)})
            | st.just({})
        ),
        "resources": {"cpu": max(1e-4, draw(positive))},
        "tracking": {"experiment": draw(st.none() | word)},
    }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(specs())
def test_spec_to_yaml_to_spec_is_the_identity(raw):
    spec = SweepSpec(**raw)
    again = SweepSpec.from_yaml(spec.to_yaml())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.to_yaml() == spec.to_yaml()
    assert json.dumps(again.to_dict()) == json.dumps(spec.to_dict())  # types and order as well


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", "x\u2029\n y", "a\tb", "\ufeff"])
def test_a_text_with_odd_ends_of_lines_stays_as_it_is(text):
    spec = SweepSpec(**changed("tracking.experiment", text))
    assert SweepSpec.from_yaml(spec.to_yaml()).tracking.experiment == text


def test_equality_sees_every_difference():
    spec = SweepSpec(**MINIMAL)
    assert spec == SweepSpec(**MINIMAL)
    assert spec != SweepSpec(**changed("seed", 1))
    assert spec != SweepSpec(**changed("search.space", {"method": "dp_sgd", "optim.lr": 1}))
    assert spec != "x"


def test_where_it_was_read_is_no_part_of_it(tmp_path):
    spec = SweepSpec(**MINIMAL)
    (tmp_path / "a.yaml").write_text(spec.to_yaml())
    lines = spec.to_yaml().splitlines()
    number = next(n for n, line in enumerate(lines, start=1) if line.startswith("  space:"))
    read = SweepSpec.from_yaml(tmp_path / "a.yaml")
    assert read == spec
    assert spec.where("search.space.optim.lr") == "search.space.optim.lr"
    assert read.where("search.space.method").endswith(f"a.yaml:{number} search.space.method")
    assert read.where("search.space.optim.lr").endswith(f"a.yaml:{number} search.space.optim.lr")


def test_python_raises_the_same_error_with_dotted_paths():
    raw = changed("privacy.trial_epsilon", -1)
    raw["sed"] = 1
    with pytest.raises(SpecError) as error:
        SweepSpec(**raw)
    assert [m.key for m in error.value.mistakes] == ["privacy.trial_epsilon", "sed"]
    assert "did you mean 'seed'?" in str(error.value)


def test_sections_raise_it_too_and_can_be_put_together():
    with pytest.raises(SpecError, match=r"^num_classes: is missing"):
        DataSpec(
            dataset="npz",
            path="a.npz",
            num_records=5,
            validation=ValidationSpec(visibility="public"),
        )
    with pytest.raises(SpecError, match=r"^gpu: "):
        ResourcesSpec(gpu=2.5)
    data = DataSpec(dataset="digits", validation=ValidationSpec(visibility="public"))
    spec = SweepSpec(
        name="x",
        data=data,
        privacy=PrivacySpec(trial_epsilon=2, accounting="unaccounted"),
        search=SearchSpec(space={"method": "dp_sgd"}),
    )
    assert spec == SweepSpec(**MINIMAL)


def test_a_nested_section_reports_with_its_full_path():
    # The mistakes of a section inside another are collected with the rest, not raised alone.
    with pytest.raises(SpecError) as error:
        SweepSpec(
            **{**MINIMAL, "data": {"dataset": "npz", "validation": {"fraction": 3}}, "seed": "x"}
        )
    assert {m.key for m in error.value.mistakes} == {
        "seed", "data.path", "data.num_records", "data.num_classes",
        "data.validation.fraction", "data.validation.visibility",
    }  # fmt: skip


def test_values_of_numpy_and_paths_make_the_spec_that_plain_values_do(tmp_path):
    plain = changed("search.num_trials", 2)
    plain["seed"], plain["storage"] = 3, {"path": str(tmp_path), "features_gb": 0.5}
    plain["search"]["space"] |= {
        "optim.lr": {"choice": [0.125, 1.0, 8.0]},
        "train.repeat": {"choice": [0, 1, 2]},
        "train.max_steps": {"int": [10, 20], "num": 3},
        "batch.expected": 256,
        "clip.max_grad_norm": 0.5,
    }
    ours = copy.deepcopy(plain)
    ours["seed"], ours["search"]["num_trials"] = np.int64(3), np.int32(2)
    ours["privacy"]["trial_epsilon"] = np.float64(plain["privacy"]["trial_epsilon"])
    ours["storage"] = {"path": tmp_path, "features_gb": Fraction(1, 2)}
    ours["search"]["space"] |= {
        "optim.lr": {"choice": np.logspace(-3, 3, 3, base=2)},
        "train.repeat": {"choice": range(3)},
        "train.max_steps": {"int": np.array([10, 20]), "num": np.int8(3)},
        "batch.expected": np.uint16(256),
        "clip.max_grad_norm": np.float32(0.5),
    }
    spec = SweepSpec(**ours)
    assert spec == SweepSpec(**plain)
    assert spec.to_yaml() == SweepSpec(**plain).to_yaml()
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    assert StorageSpec(path=tmp_path).path == str(tmp_path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.bool_(True), "must be a number, got true"),
        (np.array([1, 2]), "must be a number, got [1, 2]"),
        (np.float64("nan"), "must be a finite number, got nan"),
    ],
)
def test_those_that_are_no_number_are_told_as_plain_ones_are(value, said):
    with pytest.raises(SpecError) as error:
        SweepSpec(**changed("privacy.trial_epsilon", value))
    assert [mistake.what for mistake in error.value.mistakes] == [said]


def test_it_is_frozen():
    spec = SweepSpec(**MINIMAL)
    with pytest.raises(ValueError):
        spec.seed = 3  # type: ignore[misc]
    with pytest.raises(ValueError):
        spec.privacy.delta = 0.1  # type: ignore[misc]


def test_the_space_is_a_copy_of_what_was_given():
    raw = changed("search.space", {"method": "dp_sgd", "optim.lr": {"uniform": [1, 2]}})
    spec = SweepSpec(**raw)
    raw["search"]["space"]["optim.lr"]["uniform"][0] = 5
    assert spec.search.space["optim.lr"] == {"uniform": [1.0, 2.0]}


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "0.00001", "1.0e-05", "'1e-5'"])
def test_numbers_however_they_are_written(text):
    raw = f"""
name: x
seed: 1e3
data: {{dataset: digits, validation: {{visibility: public}}}}
privacy: {{delta: {text}, trial_epsilon: 2, accounting: unaccounted}}
search: {{space: {{method: dp_sgd, optim.lr: {text}, a: {{loguniform: [{text}, 1]}}, b: {{choice: [1, {text}]}}}}}}
"""
    for spec in (SweepSpec.from_yaml(raw), SweepSpec(**yaml.safe_load(raw))):
        assert spec.seed == 1000
        assert spec.privacy.delta == 1e-5
        assert spec.search.space["a"] == {"loguniform": [1e-5, 1.0]}
        assert spec.search.space["b"] == {"choice": [1, 1e-5]}
        assert spec.search.space["optim.lr"] == 1e-5


def test_words_of_yaml_1_1_stay_words():
    spec = SweepSpec.from_yaml(
        "name: x\n"
        "data: {dataset: digits, validation: {visibility: public}}\n"
        "privacy: {trial_epsilon: 2, accounting: unaccounted}\n"
        "search: {space: {method: dp_sgd, a: {choice: [no, on, 12:30, 010]}}}\n"
    )
    assert spec.search.space["a"]["choice"] == ["no", "on", "12:30", 10]


def test_other_yaml_readers_understand_what_is_written():
    raw = changed(
        "search.space", {"method": "dp_sgd", "a": {"choice": ["no", "on", "null", "1:30"]}}
    )
    spec = SweepSpec(**raw)
    assert yaml.safe_load(spec.to_yaml()) == spec.to_dict()


@pytest.mark.parametrize(
    ("size", "expected"), [(32, (32, 32)), ([32, 48], (32, 48)), ("32", (32, 32))]
)
def test_image_size(size, expected):
    raw = {"dataset": "image_folder", "path": "d", "num_records": 10, "image_size": size}
    data = DataSpec(**raw, validation={"visibility": "public"})
    assert data.image_size == expected
    assert DataSpec(**data.model_dump(mode="json")) == data


@pytest.mark.parametrize("size", [0, [1, 2, 3], "big", [32, -1], 3.5, []])
def test_bad_image_size(size):
    raw = {"dataset": "image_folder", "path": "d", "num_records": 10, "image_size": size}
    with pytest.raises(SpecError, match=r"^image_size: must be"):
        DataSpec(**raw, validation={"visibility": "public"})


def test_pytest_does_not_collect_test_spec():
    assert TestSpec.__test__ is False


def test_exact_validation_is_possible_under_unaccounted():
    spec = SweepSpec(**changed("data.validation.visibility", "exact"))
    assert spec.data.validation.visibility == "exact"


def test_null_leaves_a_name_out_of_the_space():
    raw = {"search": {"space": {"a.b": 1, "c": {"choice": [1]}}, "mode": "max"}}
    after = apply_overrides(raw, ["search.space.c=null", "search.space.none=null"])
    assert after == {"search": {"space": {"a.b": 1}, "mode": "max"}}
    assert apply_overrides(raw, ["search.mode=null"])["search"]["mode"] is None


def test_apply_overrides_leaves_its_input_alone():
    raw = {"privacy": {"delta": 1e-5}}
    assert apply_overrides(raw, ["privacy.delta=1e-6", "search.space.a.b={choice: [1]}"]) == {
        "privacy": {"delta": 1e-6},
        "search": {"space": {"a.b": {"choice": [1]}}},
    }
    assert raw == {"privacy": {"delta": 1e-5}}


def test_all_bad_overrides_at_once():
    with pytest.raises(SpecError) as error:
        apply_overrides({"name": "x"}, ["a", "name.b=1", "seed=2"])
    assert len(error.value.mistakes) == 2


class TestSchema:
    def test_it_has_the_bounds_and_refuses_unknown_keys(self):
        schema = SweepSpec.json_schema()
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) == {"name", "data", "privacy", "search"}
        privacy = schema["$defs"]["PrivacySpec"]
        assert privacy["properties"]["delta"]["exclusiveMaximum"] == 1
        assert set(privacy["required"]) == {"trial_epsilon", "accounting"}
        assert (
            schema["$defs"]["SearchSpec"]["properties"]["max_concurrent"]["anyOf"][0]["minimum"]
            == 1
        )
        json.dumps(schema)

    def test_it_has_the_bounds_of_what_may_be_a_number_or_a_word(self):
        schema = SweepSpec.json_schema()["$defs"]
        shape = schema["SelectionSpec"]["properties"]["shape"]
        assert shape["anyOf"] == [{"type": "number", "minimum": 0}, {"const": "poisson"}]
        assert schema["SelectionSpec"]["properties"]["mean"]["minimum"] == 1
        number, text, _ = schema["SearchSpec"]["properties"]["max_time"]["anyOf"]
        assert number["exclusiveMinimum"] == 0
        assert re.search(text["pattern"], "45m")
        assert not re.search(text["pattern"], "soon")
        rungs = schema["SchedulerSpec"]["properties"]["rungs"]
        assert rungs["items"]["exclusiveMinimum"] == 0

    def test_every_key_is_explained(self):
        schema = SweepSpec.json_schema()
        for name, part in {"SweepSpec": schema, **schema["$defs"]}.items():
            for key, entry in part["properties"].items():
                assert "description" in entry or "$ref" in entry, f"{name}.{key}"

    def test_it_accepts_a_spec_and_refuses_a_bad_one(self):
        jsonschema = pytest.importorskip("jsonschema")
        validator = jsonschema.Draft202012Validator(SweepSpec.json_schema())
        raw = changed(
            "search.space", {"method": "dp_sgd", "lr": {"uniform": [1, 2], "when": {"a": [1]}}}
        )
        assert list(validator.iter_errors(raw)) == []
        select = changed(
            "privacy",
            {"trial_epsilon": 2, "accounting": "select", "selection": {"shape": "poisson"}},
        )
        assert list(validator.iter_errors(select)) == []
        assert list(validator.iter_errors(changed("search.max_time", "90m"))) == []
        assert list(validator.iter_errors(changed("search.max_time", "soon")))
        assert list(validator.iter_errors(changed("privacy.delta", 2)))
        assert list(
            validator.iter_errors(changed("search.space", {"method": "a", "b": {"unifrm": [1, 2]}}))
        )


def test_it_travels_to_another_process_with_its_lines(tmp_path):
    (tmp_path / "a.yaml").write_text(SweepSpec(**MINIMAL).to_yaml())
    spec = SweepSpec.from_yaml(tmp_path / "a.yaml")
    copied = pickle.loads(pickle.dumps(spec))
    assert copied == spec
    assert copied.where("seed") == spec.where("seed")


@pytest.mark.parametrize("section", ["data", "pretrain"])
def test_more_classes_than_any_data_has_are_a_slip(section):
    """Each class gets a name, and a billion of them take all memory."""
    raw = {
        **MINIMAL,
        "data": {
            "dataset": "npz", "path": "a.npz", "num_records": 10, "num_classes": 2,
            "validation": {"visibility": "public"},
        },
        "pretrain": {"dataset": "npz", "path": "b.npz", "num_classes": 2},
    }  # fmt: skip
    raw[section]["num_classes"] = 1_000_000_000
    with pytest.raises(SpecError) as caught:
        SweepSpec(**raw)
    said = [str(mistake) for mistake in caught.value.mistakes]
    assert f"{section}.num_classes: must be <= 1000000, got 1000000000" in said
