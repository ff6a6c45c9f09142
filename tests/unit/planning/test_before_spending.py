"""What can be known to fail, or to be in vain, is said before any privacy is spent."""

import warnings
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image
from raw_specs import changed, mistakes

from dpsweep.foundation.errors import DataError, InfeasibleBudgetError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning import problems
from dpsweep.planning.places import make_places
from dpsweep.planning.preflight import preflight
from dpsweep.planning.problems import check_records, record_notes
from dpsweep.planning.summary import summarize_plan
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import enforced_terms, refuse_launch
from dpsweep.study.study import Study
from dpsweep.tracking.mlflow_reach import quiet
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.hooks import ChecksRecords


def store(path, **sizes):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in sizes.items():
        arrays[f"x_{part}"] = rng.normal(size=(count, 6)).astype(np.float32)
        arrays[f"y_{part}"] = rng.integers(0, 2, count)
    np.savez(path, **arrays)


@pytest.fixture
def raw(tmp_path):
    store(tmp_path / "records.npz", train=2000, val=100)
    return {
        "name": "nothing",
        "data": {
            "dataset": "npz", "path": str(tmp_path / "records.npz"), "num_records": 2000,
            "num_classes": 2, "validation": {"visibility": "public"},
        },
        "privacy": {"delta": 1e-4, "trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {
            "sampler": "random", "num_trials": 2,
            "space": {"method": "dp_sgd", "train.max_steps": 100, "batch.expected": 200},
        },
        "storage": {"path": str(tmp_path / "studies")},
        "tracking": {"uri": None},
    }  # fmt: skip


def launched(root):
    """Have the study ``nothing`` look like one that was launched."""
    (root / "studies" / "nothing").mkdir(parents=True)
    (root / "studies" / "nothing" / "spec.yaml").touch()


def images(root, **counts):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (8, 8), number).save(root / name / f"{number}.png")


def of_folder(raw, root, records):
    data = {
        "dataset": "image_folder", "path": str(root), "num_records": records, "image_size": 8,
        "channels": 1, "validation": {"fraction": 0.2, "visibility": "public"},
    }  # fmt: skip
    return changed(raw, {"data": data, "search/space": {"method": "dp_sgd"}})


class TestParts:
    def test_public_test_scores_need_a_test_part(self, raw, tmp_path):
        spec = changed(raw, {"data/test": {"visibility": "public"}})
        assert mistakes(preflight, SweepSpec(**spec)) == [
            "data.test.visibility: public, but npz has no test records to score (give "
            "data.test.fraction, or a dataset with a test part; or leave test out)"
        ]
        assert preflight(SweepSpec(**changed(spec, {"data/test/fraction": 0.1})))
        store(tmp_path / "records.npz", train=2000, val=100, test=5)
        assert preflight(SweepSpec(**spec))
        store(tmp_path / "records.npz", train=2000, val=100, test=0)
        assert len(mistakes(preflight, SweepSpec(**spec))) == 1

    def test_an_empty_part_of_ones_own_is_filled_or_taken_away(self, raw, tmp_path):
        fix = "(fill that part, or take it away from data.path)"
        store(tmp_path / "records.npz", train=2000, val=100, test=0)
        public_test = changed(raw, {"data/test": {"visibility": "public"}})
        assert mistakes(preflight, SweepSpec(**public_test)) == [
            f"data.test.visibility: public, but the test part of npz is empty {fix}"
        ]
        store(tmp_path / "records.npz", train=2000, val=0)
        shared = changed(raw, {"data/validation/fraction": 0.5})
        assert mistakes(preflight, SweepSpec(**shared)) == [
            "search.metric: validation/accuracy needs validation records, and there are none: "
            f"the validation part of npz is empty {fix}"
        ]

    @pytest.mark.parametrize("count", [0, 1, 999])
    def test_less_than_half_of_the_declared_records_is_another_file(self, raw, tmp_path, count):
        store(tmp_path / "records.npz", train=count, val=100)
        (said,) = mistakes(preflight, SweepSpec(**raw))
        assert said.startswith(
            "data.num_records: 2000 are declared, and the data have less than half as many records"
        )
        assert str(count) not in said.replace("2000", "")  # how many there are is private

    def test_records_are_checked_in_silence(self, raw, tmp_path, monkeypatch, recwarn):
        """Methods of other packages look at them, and may warn of a single one."""

        def warns(*arguments):
            warnings.warn("overflow in record 139", RuntimeWarning, stacklevel=1)

        store(tmp_path / "records.npz", train=2000, val=100)
        monkeypatch.setattr(problems, "check_overlap", warns)
        spec = SweepSpec(**raw)
        check_records(spec, {}, load_dataset(spec.data), {})
        assert recwarn.list == []

    def test_more_than_twice_the_declared_records_is_another_file(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=4100, val=100)
        spec = SweepSpec(**raw)
        with pytest.raises(DataError, match=r"2000 are declared, and .* more than twice") as caught:
            check_records(spec, {}, load_dataset(spec.data), {})
        assert "41" not in str(caught.value)  # how many there are is private
        limited = SweepSpec(**changed(raw, {"data/max_private": 1500}))
        check_records(limited, {}, load_dataset(limited.data), {})  # the others are not used
        launched(tmp_path)
        check_records(spec, {}, load_dataset(spec.data), {})  # one that was launched goes on

    def test_twice_of_them_is_a_rough_declaration(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=4000, val=100)
        spec = SweepSpec(**raw)
        check_records(spec, {}, load_dataset(spec.data), {})

    def test_a_share_of_less_than_one_record_is_none(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=2000)
        spec = changed(raw, {"data/validation/fraction": 1e-4})
        assert mistakes(preflight, SweepSpec(**spec)) == [
            "search.metric: validation/accuracy needs validation records, and there are none: "
            "0.0001 of the declared records is less than one (raise data.validation.fraction)"
        ]

    def test_half_of_them_is_a_rough_declaration(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=1000, val=100)
        assert preflight(SweepSpec(**raw))

    def test_a_study_that_was_launched_goes_on(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=10, val=100)
        launched(tmp_path)
        assert preflight(SweepSpec(**raw))

    def test_what_only_reading_tells_is_told_after_it(self, raw, tmp_path):
        """Of classes of a file, headers know an upper bound alone."""
        rng = np.random.default_rng(0)
        labels = np.where(np.arange(2000) < 40, rng.integers(0, 2, 2000), 2)
        inputs = rng.normal(size=(2000, 6)).astype(np.float32)
        arrays = {"x_train": inputs, "y_train": labels}
        np.savez(tmp_path / "records.npz", **arrays, x_val=inputs[:50], y_val=labels[:50])
        spec = SweepSpec(**changed(raw, {"data/classes": [0, 1], "data/num_classes": 3}))
        checked = preflight(spec)
        with pytest.raises(DataError, match="less than half as many") as caught:
            check_records(spec, checked.methods, load_dataset(spec.data), {})
        assert "40" not in str(caught.value)

    def test_a_public_part_without_a_record_is_refused(self, raw, tmp_path):
        given = {"data/test": {"visibility": "public", "fraction": 0.001}}
        store(tmp_path / "records.npz", train=1200, val=100)
        spec = SweepSpec(**changed(raw, given))
        data = load_dataset(spec.data)
        data.parts["test"] = tuple(array[:0] for array in data.parts["test"])
        with pytest.raises(DataError, match="in the test part"):
            check_records(spec, {}, data, {})


class TestFiles:
    def test_a_damaged_array_is_found_when_it_is_read(self, raw, tmp_path):
        path = tmp_path / "records.npz"
        with zipfile.ZipFile(path) as archive:
            place = archive.getinfo("x_train.npy").header_offset + 5000
        content = bytearray(path.read_bytes())
        content[place] ^= 0xFF
        path.write_bytes(bytes(content))
        spec = preflight(SweepSpec(**raw)).spec
        with pytest.raises(DataError, match=r"records.npz: x_train is damaged \(BadZipFile\)"):
            load_dataset(spec.data)

    def test_a_folder_is_a_class_whether_or_not_a_record_has_it(self, raw, tmp_path):
        """Without its one image a class would be gone, and its name and a row of weights with it"""
        images(tmp_path / "img", cat=12, dog=13, elk=1)
        spec = SweepSpec(**of_folder(raw, tmp_path / "img", 25))
        before = preflight(spec).info
        (image,) = (tmp_path / "img" / "elk").iterdir()
        image.unlink()
        assert preflight(spec).info.class_names == before.class_names == ("cat", "dog", "elk")
        data = load_dataset(spec.data)
        assert record_notes(spec, data) == ["note: no record has class elk"]  # unaccounted
        composed = {"accounting": "composed", "trial_epsilon": 2.0, "study_epsilon": 9.0}
        raw = {**of_folder(raw, tmp_path / "img", 25), "privacy": composed}
        assert record_notes(SweepSpec(**raw), data) == []

    def test_images_that_nobody_reads_are_not_passed_over(self, raw, tmp_path):
        images(tmp_path / "img", cat=12, dog=13)
        (tmp_path / "img" / "dog" / "1.HEIC").write_bytes(b"a photo")
        (said,) = mistakes(preflight, SweepSpec(**of_folder(raw, tmp_path / "img", 25)))
        assert "img/dog has .heic files, which Pillow does not read by itself" in said

    @pytest.mark.parametrize("below", ["", "train", "studies"])
    def test_studies_lie_outside_a_folder_of_classes(self, raw, tmp_path, below):
        images(tmp_path / "img", cat=12, dog=13)
        spec = of_folder(raw, tmp_path / "img", 25)
        spec["storage"]["path"] = str(tmp_path / "img" / below)
        assert any(
            "is written inside data.path" in m for m in mistakes(preflight, SweepSpec(**spec))
        )


class TestNoise:
    def test_a_hopeless_epsilon_is_refused(self, raw):
        """At 1e-4 all 2,000 records together move what is released by half of its noise."""
        checked = preflight(SweepSpec(**changed(raw, {"privacy/trial_epsilon": 1e-4})))
        with pytest.raises(InfeasibleBudgetError, match="none of 200 configurations") as caught:
            checked.check_some_plan()
        assert "would carry 0.5 standard deviations of the noise" in caught.value.because
        assert "a larger privacy.trial_epsilon" in caught.value.fix

    def test_a_faint_one_is_planned_with_a_warning(self, raw):
        checked = preflight(SweepSpec(**changed(raw, {"privacy/trial_epsilon": 1e-3})))
        checked.check_some_plan()
        summary = summarize_plan(checked)
        assert 1 < summary.signal[0] < 10
        assert any("nearly as large as the data" in note for note in summary.notes)

    def test_a_usual_one_is_not(self, raw):
        summary = summarize_plan(preflight(SweepSpec(**raw)))
        assert summary.signal[0] > 100
        assert not summary.notes

    def test_of_a_few_private_records_less_is_left(self, raw):
        few = {"search/space/train.num_private": 20, "search/space/batch.expected": 10}
        checked = preflight(SweepSpec(**changed(raw, {**few, "privacy/trial_epsilon": 0.05})))
        with pytest.raises(InfeasibleBudgetError):
            checked.check_some_plan()


class TestBatches:
    SPACE: ClassVar = {"method": "scatternet", "features.name": "none"}

    def test_a_default_fits_the_declared_records(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=448, val=100)
        spec = changed(raw, {"data/num_records": 448, "search/space": self.SPACE})
        checked = preflight(SweepSpec(**spec))
        assert checked.admit(0, self.SPACE).hparams["batch.expected"] == 56
        assert "batch.expected of scatternet is 56: its default is too large for these data" in (
            checked.notes
        )

    def test_a_default_that_fits_stays(self, raw):
        checked = preflight(SweepSpec(**changed(raw, {"search/space": {"method": "dp_sgd"}})))
        assert checked.admit(0, {"method": "dp_sgd"}).hparams["batch.expected"] == 256
        assert not checked.notes

    def test_one_that_is_named_is_refused_with_its_method(self, raw):
        space = {**self.SPACE, "batch.expected": 8192}
        assert mistakes(preflight, SweepSpec(**changed(raw, {"search/space": space}))) == [
            "search.space.batch.expected: 8192 is larger than the 2000 declared private records, "
            "for scatternet (at most 2000)"
        ]


class TestWeights:
    def test_a_file_that_does_not_fit_is_found_before_a_trial(self, raw, tmp_path):
        torch = pytest.importorskip("torch")
        from dpsweep.trainables.data.loading import describe_dataset
        from dpsweep.trainables.networks.build import build_model

        images(tmp_path / "img", cat=20, dog=20)
        spec = of_folder(raw, tmp_path / "img", 40)
        info = describe_dataset(SweepSpec(**spec).data)
        torch.save(
            build_model("tanh_cnn", info, seed=0, image_size=28).state_dict(), tmp_path / "w.pt"
        )
        network = {
            "model.name": "tanh_cnn", "model.image_size": 28,
            "model.checkpoint": str(tmp_path / "w.pt"),
        }  # fmt: skip
        spec["search"]["space"] = {"method": "dp_sgd", **network}
        state = torch.load(tmp_path / "w.pt", weights_only=True)
        state = {key.removeprefix("1."): value for key, value in state.items()}
        torch.save(state, tmp_path / "w.pt")
        assert preflight(SweepSpec(**spec))
        del state[next(iter(state))]
        torch.save(state, tmp_path / "w.pt")
        (said,) = mistakes(preflight, SweepSpec(**spec))
        assert said.startswith("search.space.model.checkpoint: ")
        assert "does not fit the model" in said
        for content, what in (
            ([1, 2], "holds no state dict"),
            ({"epoch": 3}, "holds no state dict"),
        ):
            torch.save(content, tmp_path / "w.pt")
            (said,) = mistakes(preflight, SweepSpec(**spec))
            assert what in said
        (tmp_path / "w.pt").write_bytes(b"junk")
        (said,) = mistakes(preflight, SweepSpec(**spec))
        assert "cannot read" in said

    def test_of_several_networks_only_those_that_start_from_it_count(self, raw, tmp_path):
        torch = pytest.importorskip("torch")
        from dpsweep.trainables.data.loading import describe_dataset
        from dpsweep.trainables.networks.build import build_model

        info = describe_dataset(SweepSpec(**raw).data)
        path = tmp_path / "linear.pt"
        torch.save(build_model("linear", info, seed=0).state_dict(), path)
        assert preflight(SweepSpec(**changed(raw, {"search/space/model.checkpoint": str(path)})))


class TestShots:
    def test_a_class_with_too_few_public_records_is_found_before_features(self, raw, tmp_path):
        rng = np.random.default_rng(0)
        labels = (np.arange(2000) >= 1995).astype(np.int64)  # five of the second class
        inputs = rng.normal(size=(2000, 6)).astype(np.float32)
        np.savez(tmp_path / "records.npz", x_train=inputs, y_train=labels)
        space = {"method": "adamix", "features.name": "none", "public.shots": 5}
        given = {
            "data/public": {"fraction": 0.2}, "data/validation/fraction": 0.2,
            "search/space": space,
        }  # fmt: skip
        spec = SweepSpec(**changed(raw, given))
        checked = preflight(spec)
        with pytest.raises(DataError, match=r"class .1. has \d public records, fewer than"):
            check_records(spec, checked.methods, load_dataset(spec.data), checked.space.values())


class TestRungs:
    @staticmethod
    def plan(raw, **scheduler):
        space = {"noise.target_epsilon": {"choice": [0.5, 1, 2]}, "batch.expected": 1000}
        given = {f"search/space/{key}": value for key, value in space.items()}
        given["scheduler"] = {"type": "epsilon_halving", **scheduler}
        return summarize_plan(preflight(SweepSpec(**changed(raw, given))))

    def test_the_plan_says_where_rungs_fall_and_warns(self, raw):
        summary = self.plan(raw, rungs=[0.15, 0.45, 1.9])
        early, later, last = summary.rungs
        assert early.steps[0] == (1, 100)
        assert early.reached == 1
        assert early.at_once > 0.2
        assert later.at_once == 0
        assert later.steps[0][0] < later.steps[1][0]
        assert last.reached < 0.6
        assert str(early).startswith("epsilon 0.15: step 1 of 100 to step ")
        assert any(
            note.startswith("rung 0.15 is passed by the first step of") for note in summary.notes
        )
        assert summary.to_dict()["rungs"][0]["passed_by_first_step_share"] == early.at_once

    def test_shares_are_met_by_all(self, raw):
        summary = self.plan(raw, rungs=[0.4, 0.7], rung_unit="share")
        assert [figures.reached for figures in summary.rungs] == [1, 1]
        assert not summary.notes
        assert "0.4 of a trial's own epsilon: step" in str(summary.rungs[0])

    def test_a_rung_above_all_targets_is_said_to_judge_nobody(self, raw):
        space = {"noise.target_epsilon": 0.5}
        raw = changed(raw, {f"search/space/{key}": value for key, value in space.items()})
        raw["scheduler"] = {"type": "median", "rungs": [1.0]}
        summary = summarize_plan(preflight(SweepSpec(**raw)))
        assert summary.notes == [
            "rung 1 is reached by no configuration, so nothing is judged there"
        ]

    def test_the_corners_of_ranges_are_looked_at(self, raw):
        """Only the largest batches pass the rung at once; a draw hardly meets them."""
        ranges = {"batch.expected": {"logint": [2, 2000]}}
        raw = changed(raw, {f"search/space/{key}": value for key, value in ranges.items()})
        raw["scheduler"] = {"type": "median", "rungs": [0.2]}
        (figures,) = summarize_plan(preflight(SweepSpec(**raw))).rungs
        assert figures.steps[0][0] == 1


def test_methods_look_at_no_private_record():
    """What `check_records` of a method is handed, it asks for public records alone."""

    class Parts(dict):
        def __getitem__(self, part):
            assert part == "public", part
            return np.zeros((10, 2)), np.array([0, 1] * 5)

    class Data:
        parts = Parts()
        polluted = None

        class info:
            class_names = ("a", "b")
            num_public, num_polluted = 10, 0

    looking = [m for m in map(TRAINABLES.get, TRAINABLES) if issubclass(m, ChecksRecords)]
    assert {method.name for method in looking} >= {"adamix"}
    for method in looking:
        method.check_records({"public.shots": [2]}, Data)


class TestSlips:
    """What hardly anybody means, and what would train in vain."""

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("optim.lr", 1e30, "must be <= 1e+06, got 1e+30 (Peak learning rate.)"),
            (
                "optim.lr",
                {"loguniform": [0.1, 1e30]},
                "its upper bound must be <= 1e+06, got 1e+30",
            ),
            ("optim.momentum", 1, "must be <= 0.9999, got 1 (Momentum of sgd.)"),
            ("optim.weight_decay", 1e30, "must be <= 1e+06, got 1e+30"),
            ("clip.max_grad_norm", 1e30, "must be <= 1e+06, got 1e+30"),
            ("train.max_steps", 10**10, "must be <= 1e+09, got 10000000000"),
        ],
    )
    def test_numbers_with_which_nothing_learns_are_refused(self, raw, name, value, said):
        spec = SweepSpec(**changed(raw, {f"search/space/{name}": value}))
        (told,) = mistakes(preflight, spec)
        assert told.startswith(f"search.space.{name}: {said}")

    @pytest.mark.parametrize(
        ("loser", "winner", "value"),
        [
            ("batch.expected", "batch.sample_rate", 0.1),
            ("batch.expected", "batch.sample_rate", {"uniform": [0.1, 0.2]}),
            ("train.epochs", "train.max_steps", 100),
            ("noise.target_epsilon", "noise.noise_multiplier", {"choice": [1, 2]}),
        ],
    )
    def test_two_names_for_one_thing_are_refused(self, raw, tmp_path, loser, winner, value):
        space = {"method": "dp_sgd", loser: 2, winner: value}
        spec = SweepSpec(**changed(raw, {"search/space": space}))
        assert mistakes(preflight, spec) == [
            f"search.space.{loser}: has no effect: {winner}, which is given too, wins over it "
            f"(leave one of the two out; --set search.space.{loser}=null does)"
        ]
        launched(tmp_path)
        assert preflight(spec)  # a study that was launched goes on

    @pytest.mark.parametrize(
        "space",
        [
            {"batch.sample_rate": {"choice": [0.1, None]}, "batch.expected": 64},
            {
                "noise.shape": {"choice": ["constant", "cosine"]},
                "batch.sample_rate": {"choice": [0.1], "when": {"noise.shape": "cosine"}},
                "batch.expected": 64,
            },
        ],
    )
    def test_a_name_that_wins_in_some_configurations_alone_is_meant(self, raw, space):
        assert preflight(SweepSpec(**changed(raw, {"search/space": {"method": "dp_sgd", **space}})))

    def test_an_epsilon_that_promises_nothing_is_refused_or_said(self, raw):
        far = {"privacy/trial_epsilon": 1e9}
        assert mistakes(lambda: SweepSpec(**changed(raw, far))) == [
            "privacy.trial_epsilon: must be <= 1e+06, got 1e+09: it would promise nothing "
            "(1 is strict, 8 is loose; method non_private trains without privacy)"
        ]
        loose = preflight(SweepSpec(**changed(raw, {"privacy/trial_epsilon": 21})))
        assert any("privacy.trial_epsilon=21 hardly protects anybody" in n for n in loose.notes)
        usual = preflight(SweepSpec(**changed(raw, {"privacy/trial_epsilon": 20})))
        assert not any("hardly protects" in note for note in usual.notes)

    @pytest.mark.parametrize(
        ("uri", "said"),
        [
            ("foo://bar", "'foo://bar': MLflow knows no store foo://"),
            ("htp://server", "'htp://server': MLflow knows no store htp://"),
            ("sqlite:///:memory:", "'sqlite:///:memory:' names no file"),
            ("sqlite:///", "'sqlite:///' names no file"),
        ],
    )
    def test_an_address_that_is_none_of_a_store_is_refused(self, raw, uri, said):
        (told,) = mistakes(lambda: SweepSpec(**changed(raw, {"tracking/uri": uri})))
        assert told.startswith(f"tracking.uri: {said} (use sqlite:///mlflow.db, ")

    @pytest.mark.parametrize(
        "uri", ["postgresql+psycopg2://u@host/db", "http://h:5000", "https://h", "databricks"]
    )
    def test_addresses_of_stores_are_taken(self, raw, uri):
        assert preflight(SweepSpec(**changed(raw, {"tracking/uri": uri})))

    def test_a_database_needs_a_place(self, raw, tmp_path):
        (tmp_path / "a_file").touch()
        for place, said in [
            (tmp_path, "is a directory (name a file in it)"),
            (tmp_path / "a_file" / "m.db", "cannot be written (name a file in a directory of "),
        ]:
            spec = SweepSpec(**changed(raw, {"tracking/uri": f"sqlite:///{place}"}))
            (told,) = mistakes(preflight, spec)
            assert told.startswith("tracking.uri: ")
            assert said in told
        good = f"sqlite:///{tmp_path}/new/mlflow.db"
        spec = preflight(SweepSpec(**changed(raw, {"tracking/uri": good}))).spec
        make_places(spec)
        assert (tmp_path / "new").is_dir()

    def test_a_new_study_is_not_begun_in_a_deleted_experiment(self, raw, tmp_path):
        quiet()
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        client = MlflowClient(uri)
        experiment = client.create_experiment("nothing")
        spec = SweepSpec(**changed(raw, {"tracking/uri": uri}))
        make_places(spec)
        client.delete_experiment(experiment)
        assert mistakes(make_places, spec) == [
            f"tracking.uri: experiment 'nothing' is deleted in {uri} (mlflow experiments restore "
            f"--experiment-id {experiment}, or choose another tracking.experiment)"
        ]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                {"data/validation": {"visibility": "noisy", "noise_std": 5}},
                "data.validation.noise_std: must be <= 0.5, got 5: an accuracy lies between 0 and 1 "
                "(0.01 is one point of accuracy in a hundred)",
            ),
            ({"search/num_trials": 10**9}, "search.num_trials: must be <= 1000000, got 1000000000"),
        ],
    )
    def test_sizes_that_nobody_means_are_refused(self, raw, changes, said):
        assert mistakes(lambda: SweepSpec(**changed(raw, changes))) == [said]

    def test_no_more_private_records_than_there_are(self, raw):
        spec = SweepSpec(**changed(raw, {"data/max_private": 2001}))
        assert mistakes(preflight, spec) == [
            "data.max_private: 2001 is more than the 2000 declared private records "
            "(lower it, or leave it out for all)"
        ]
        assert preflight(SweepSpec(**changed(raw, {"data/max_private": 2000})))

    def test_a_shape_that_is_constant_has_no_end(self, raw):
        """Searched, it would be a dimension without effect; fixed, it is what `best` writes."""
        ratio = {"uniform": [0.5, 1.5]}
        spec = changed(raw, {"search/space/noise.end_ratio": ratio})
        assert mistakes(preflight, SweepSpec(**spec)) == [
            "search.space.noise.end_ratio: is searched in vain: noise.shape is constant "
            "(leave it out, or let noise.shape have other values)"
        ]
        shape = {"choice": ["constant", "cosine"]}
        assert preflight(SweepSpec(**changed(spec, {"search/space/noise.shape": shape})))
        assert preflight(SweepSpec(**changed(raw, {"search/space/noise.end_ratio": 1.0})))

    def test_few_validation_records_are_said(self, raw, tmp_path):
        store(tmp_path / "records.npz", train=2000, val=20)
        notes = preflight(SweepSpec(**raw)).notes
        said = "20 validation records: one of them is 5 points of accuracy, which hardly tells"
        assert any(note.startswith(said) for note in notes)
        store(tmp_path / "records.npz", train=2000, val=50)
        assert not any("points of accuracy" in note for note in preflight(SweepSpec(**raw)).notes)

    def test_a_file_that_is_no_database_is_kept(self, raw, tmp_path):
        notes = tmp_path / "notes.txt"
        notes.write_text("buy milk, and more than sixteen bytes of it")
        spec = SweepSpec(**changed(raw, {"tracking/uri": f"sqlite:///{notes}"}))
        assert mistakes(make_places, spec) == [
            f"tracking.uri: {notes} is a file, and no SQLite database (name another file, or null)"
        ]
        notes.write_bytes(b"")
        make_places(spec)

    def test_a_dataset_ledger_is_a_file(self, raw, tmp_path):
        privacy = {
            "delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 4.0,
            "dataset_ledger": str(tmp_path), "dataset_epsilon": 9.0, "dataset_delta": 1e-4,
        }  # fmt: skip
        assert mistakes(preflight, SweepSpec(**changed(raw, {"privacy": privacy}))) == [
            f"privacy.dataset_ledger: {tmp_path} is a directory (name a file in it)"
        ]

    def test_the_place_of_a_database_is_made_before_anything_is_spent(self, raw):
        """For one who may write everywhere, only trying tells."""
        nowhere = SweepSpec(**changed(raw, {"tracking/uri": "sqlite:////proc/nowhere/m.db"}))
        assert mistakes(make_places, nowhere) == [
            "tracking.uri: /proc/nowhere cannot be made: No such file or directory "
            "(name a file in a directory of yours, or null)"
        ]
        launched(Path(nowhere.storage.path).parent)
        make_places(nowhere)  # a study that was launched goes on, and events wait

    @pytest.mark.parametrize(
        ("classes", "refused"), [(2, False), (3, False), (4, True), (50, True)]
    )
    def test_far_more_classes_than_validation_records_have(self, raw, classes, refused):
        spec = SweepSpec(**changed(raw, {"data/num_classes": classes}))
        data = load_dataset(spec.data)
        if refused:
            with pytest.raises(DataError, match=f"{classes} classes are declared, and no public"):
                check_records(spec, {}, data, {})
        else:
            check_records(spec, {}, data, {})


def test_no_trial_of_a_selection_ends_by_how_long_it_takes(raw):
    raw["privacy"]["accounting"] = "select"
    del raw["search"]["num_trials"]
    raw["privacy"]["selection"] = {"mean": 3, "shape": 1}
    preflight(SweepSpec(**raw))
    raw["resources"] = {"hang_minutes": 5}
    (said,) = mistakes(lambda: preflight(SweepSpec(**raw)))
    assert said.startswith("resources.hang_minutes: ends trials by how long they take")
    assert "remove it; or accounting: composed" in said


def test_a_selection_that_an_earlier_version_began_with_hang_minutes_goes_on_without(raw):
    raw["privacy"]["accounting"] = "select"
    del raw["search"]["num_trials"]
    raw["resources"] = {"hang_minutes": 5}
    study = Study(SweepSpec(**raw))
    StudyLedger(study.files.ledger, terms=enforced_terms(study.spec), in_journal={}).close()
    study.close()
    (said,) = mistakes(lambda: preflight(SweepSpec(**raw)))
    assert "remove it" in said
    assert "composed" not in said  # accounting is a term of the ledger
    spec = SweepSpec(**{**raw, "resources": {}})
    preflight(spec)
    refuse_launch(spec)
    StudyLedger(study.files.ledger, terms=enforced_terms(spec), in_journal={}).close()


@pytest.mark.parametrize("accounting", ["composed", "select", "public"])
@pytest.mark.parametrize(
    "method",
    [
        "non_private",
        "scatternet_non_private",
        "adamix_paragon",
        "bitfit_non_private",
        "sparse_non_private",
    ],
)
def test_a_claim_covers_no_method_without_a_finite_epsilon(raw, accounting, method):
    raw["privacy"]["accounting"] = accounting
    if accounting == "composed":
        raw["privacy"]["study_epsilon"] = 4.0
    if accounting == "select":
        del raw["search"]["num_trials"]
        raw["privacy"]["selection"] = {"mean": 3, "shape": 1}
    raw["data"]["public"] = {"fraction": 0.2}
    raw["search"]["space"] = {"method": {"choice": ["dp_sgd", method]}}
    said = (
        f"search.space.method: {method} has no finite epsilon, so {accounting} cannot cover it "
        "(leave it out, or run it in a study of its own with accounting: unaccounted)"
    )
    assert said in mistakes(lambda: preflight(SweepSpec(**raw)))
