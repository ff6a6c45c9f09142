"""Learning curves of the simulator: made up, recorded, and files that are no good."""

import json
import math

import numpy as np
import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.simulation.curves import Row, SyntheticCurves, TableCurves, place, read_curves
from dpsweep.search_spaces import SearchSpace
from dpsweep.spec.space.parameter import Parameter

PARAMETERS = SearchSpace.from_spec(
    {
        "method": "dp_sgd",
        "optim.lr": {"loguniform": [0.01, 1]},
        "train.epochs": {"uniform": [5, 15]},
        "noise.shape": {"choice": ["constant", "cosine"]},
        "noise.end_ratio": {"uniform": [0.5, 1.5], "when": {"noise.shape": "cosine"}},
    }
).parameters
FRACTIONS = np.linspace(0.1, 1, 10)


def draws(count, seed=0):
    space, rng = SearchSpace(PARAMETERS), np.random.default_rng(seed)
    return [space.sample(rng) for _ in range(count)]


def scores(curves, trial, values):
    return curves.scores(trial, values, fractions=FRACTIONS, epsilons=2 * FRACTIONS)


def test_place_follows_the_scale_of_a_range():
    assert place(Parameter("a", "uniform", 5, 15), 7.5) == pytest.approx(0.25)
    assert place(Parameter("a", "logint", 1, 100), 10) == pytest.approx(0.5)
    assert place(Parameter("a", "int", 3, 3), 3) == 0.5


def test_made_up_curves_depend_on_their_arguments_alone():
    values = draws(6)
    first = SyntheticCurves(PARAMETERS, seed=1)
    forwards = [scores(first, trial, v)[0] for trial, v in enumerate(values)]
    second = SyntheticCurves(PARAMETERS, seed=1)
    backwards = [scores(second, trial, v)[0] for trial, v in reversed(list(enumerate(values)))]
    assert np.array_equal(forwards, backwards[::-1])
    other = SyntheticCurves(PARAMETERS, seed=2)
    assert not np.array_equal(forwards[0], scores(other, 0, values[0])[0])
    assert not np.array_equal(forwards[0], scores(first, 1, values[0])[0])  # other noise
    assert np.array_equal(scores(first, 0, values[0])[1], scores(first, 1, values[0])[1])


BRANCHES = SearchSpace.from_spec(
    {
        "method": {"choice": ["dp_sgd", "adamix"]},
        "optim.lr": {
            "by": {
                "method": {
                    "dp_sgd": {"loguniform": [0.1, 10]},
                    "adamix": {"loguniform": [0.001, 0.1]},
                }
            }
        },
    }
).parameters


def test_a_range_of_one_method_says_nothing_of_another():
    rows = [
        Row({"method": method, "optim.lr": rate}, ((1.0, number / 10),))
        for number, (method, rate) in enumerate(
            [("dp_sgd", 0.2), ("dp_sgd", 5.0), ("adamix", 0.002), ("adamix", 0.05)]
        )
    ]
    table = TableCurves(rows, BRANCHES)
    for row in rows:
        assert table.nearest(row.hparams) is row
    curves = SyntheticCurves(BRANCHES, seed=0)
    low = {"method": "adamix", "optim.lr": 0.001}
    high = {"method": "adamix", "optim.lr": 0.1}
    assert abs(scores(curves, 0, low)[1][-1] - scores(curves, 0, high)[1][-1]) > 0.01
    # Placed in its own range, a rate loses no more than the whole weight of one parameter.
    assert min(scores(curves, 0, low)[1].min(), scores(curves, 0, high)[1].min()) > 0.1


def test_made_up_curves_rise_level_off_and_cross():
    curves = SyntheticCurves(PARAMETERS, seed=0)
    exact = np.array([scores(curves, n, v)[1] for n, v in enumerate(draws(60))])
    assert np.all(np.diff(exact) > 0)
    assert np.all(np.diff(exact)[:, -1] < np.diff(exact)[:, 0])
    assert np.all((exact > 0.1) & (exact < 0.96))
    assert np.ptp(exact[:, -1]) > 0.2  # configurations can be told apart
    first, last = exact[:, :1] - exact[:, 0], exact[:, -1:] - exact[:, -1]
    assert np.any((first > 0.01) & (last < -0.01))  # some pass others on the way


def test_quality_has_an_optimum_within_the_range():
    curves = SyntheticCurves(PARAMETERS, seed=3)
    base = {"method": "dp_sgd", "train.epochs": 10.0, "noise.shape": "constant"}
    rates = np.geomspace(0.01, 1, 101)
    ends = [scores(curves, 0, {**base, "optim.lr": float(rate)})[1][-1] for rate in rates]
    assert 0 < int(np.argmax(ends)) < 100
    assert np.sum(np.diff(np.sign(np.diff(ends))) != 0) == 1  # one peak


def test_losses_fall_where_accuracies_rise():
    values = draws(1)[0]
    rising = scores(SyntheticCurves(PARAMETERS, seed=0), 0, values)[1]
    falling = scores(SyntheticCurves(PARAMETERS, seed=0, maximize=False), 0, values)[1]
    assert np.allclose(falling, -np.log(rising))


def test_noisy_validation_scores_are_noisier():
    values, calm = draws(1)[0], SyntheticCurves(PARAMETERS, seed=0)
    noisy = SyntheticCurves(PARAMETERS, seed=0, noise=0.05)

    def spread(curves):
        return np.std([np.subtract(*scores(curves, trial, values)) for trial in range(100)])

    assert 0.003 < spread(calm) < 0.005
    assert 0.04 < spread(noisy) < 0.06


ROWS = [
    Row({"optim.lr": 0.01, "noise.shape": "constant"}, ((0.1, 0.2), (1.0, 0.5))),
    Row({"optim.lr": 1.0, "noise.shape": "constant"}, ((0.5, 0.4), (1.0, 0.8))),
    Row({"optim.lr": 1, "noise.shape": "cosine"}, ((0.5, 0.3), (2.0, 0.9)), "epsilon"),
]


def test_a_table_gives_the_curve_of_the_nearest_row():
    curves = TableCurves(ROWS, PARAMETERS)
    base = {"method": "dp_sgd", "train.epochs": 10.0, "noise.shape": "constant"}
    assert curves.nearest({**base, "optim.lr": 0.05}) is ROWS[0]
    assert curves.nearest({**base, "optim.lr": 0.5}) is ROWS[1]
    assert curves.nearest({**base, "optim.lr": 0.5, "noise.shape": "cosine"}) is ROWS[2]
    assert curves.nearest({**base, "optim.lr": 0.1}) is ROWS[0]  # equally near: the first


def test_a_table_interpolates_and_stays_level_beyond_its_points():
    curves = TableCurves(ROWS, PARAMETERS)
    values = {"optim.lr": 1.0, "noise.shape": "constant", "train.epochs": 7.0}
    seen, exact = scores(curves, 0, values)
    assert seen[0] == seen[4] == 0.4
    assert seen[-1] == 0.8
    assert seen[6] == pytest.approx(0.56)
    assert np.array_equal(seen, exact)
    by_epsilon = scores(curves, 0, {**values, "noise.shape": "cosine"})[0]
    assert by_epsilon[4] == pytest.approx(0.5)  # at epsilon 1, a third of the way from 0.5 to 2


def write(tmp_path, *lines):
    path = tmp_path / "curves.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return str(path)


def test_a_file_of_curves_is_read(tmp_path):
    path = write(
        tmp_path,
        {"hparams": {"optim.lr": 0.5}, "curve": [[0, 0.1], [1, 0.8]]},
        "",
        {"hparams": {"optim.lr": 0.1}, "curve": [[3, 0.8]], "axis": "epsilon"},
    )
    rows = read_curves(path, metric="validation/accuracy", root=tmp_path)
    assert [row.axis for row in rows] == ["fraction", "epsilon"]
    assert rows[0].points == ((0.0, 0.1), (1.0, 0.8))


GOOD = {"hparams": {"optim.lr": 0.5}, "curve": [[0.5, 0.1], [1, 0.8]]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", "not JSON"),
        ([1, 2], "must be an object"),
        ({"curve": [[1, 0.5]]}, "needs hparams"),
        ({**GOOD, "curve": []}, "needs curve"),
        ({**GOOD, "curve": [[0.5]]}, "pairs of finite numbers"),
        ({**GOOD, "curve": [[0.5, "high"]]}, "pairs of finite numbers"),
        ({**GOOD, "curve": [[0.5, math.nan]]}, "pairs of finite numbers"),
        ({**GOOD, "curve": [[0.5, 0.1], [0.5, 0.2]]}, "must ascend"),
        ({**GOOD, "curve": [[0.5, 0.1], [3, 0.2]]}, "epsilon"),
        ({**GOOD, "axis": "steps"}, "axis must be"),
        ({**GOOD, "score": 1}, "unknown key 'score'"),
    ],
)
def test_a_bad_line_is_named_with_its_place_and_reason(tmp_path, line, words):
    path = write(tmp_path, GOOD, line)
    with pytest.raises(BadInputError) as error:
        read_curves(path, metric="validation/accuracy", root=tmp_path)
    assert error.value.message.startswith(f"{path}:2: ")
    assert words in error.value.message
    assert "\n" not in error.value.message
    assert error.value.fix


@pytest.mark.parametrize(
    ("hparams", "is_refused"),
    [
        ({"foo": 1}, True),
        ({"optim.lr": "fast"}, True),
        ({"noise.shape": "square"}, True),
        ({"foo": 1, "noise.shape": "cosine"}, False),
        ({"method": "dp_sgd", "train.epochs": 10}, False),
    ],
)
def test_a_line_without_a_searched_parameter_is_refused(tmp_path, hparams, is_refused):
    path = write(tmp_path, json.dumps(GOOD), json.dumps({**GOOD, "hparams": hparams}))

    def read(parameters):
        where = {"metric": "validation/accuracy", "root": tmp_path}
        return read_curves(path, parameters=parameters, **where)

    if is_refused:
        with pytest.raises(BadInputError, match="no value of a searched parameter") as error:
            read(PARAMETERS)
        assert error.value.message.startswith(f"{path}:2: ")
        assert "optim.lr" in error.value.message
    else:
        assert len(read(PARAMETERS)) == 2
    fixed = [p for p in PARAMETERS if p.kind == "fixed"]
    assert len(read(fixed)) == 2  # nothing is searched


def test_a_study_without_a_searched_parameter_is_refused(tmp_path):
    journal(tmp_path, {"validation/accuracy": 0.5})
    where = {"metric": "validation/accuracy", "root": tmp_path}
    assert len(read_curves("study:old", parameters=PARAMETERS, **where)) == 1
    others = [p for p in PARAMETERS if p.name == "train.epochs"]
    with pytest.raises(BadInputError, match="study 'old': trial 0: no value of a searched"):
        read_curves("study:old", parameters=others, **where)


def test_all_bad_lines_are_told_up_to_a_number(tmp_path):
    with pytest.raises(BadInputError) as error:
        read_curves(write(tmp_path, *["{"] * 30), metric="validation/accuracy", root=tmp_path)
    lines = error.value.message.splitlines()
    assert len(lines) == 21
    assert "10 more" in lines[-1]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00"])
def test_a_file_without_curves_is_refused(tmp_path, content):
    path = tmp_path / "curves.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match=r"curves\.jsonl") as error:
        read_curves(str(path), metric="validation/accuracy", root=tmp_path)
    assert error.value.fix


def journal(tmp_path, metrics):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "spec.yaml").write_text("name: old\n")
    from dpsweep.foundation.durable import DurableLog

    log = DurableLog(folder / "journal.jsonl")
    log.append(
        {
            "time_ms": 1,
            "event": "trial_started",
            "trial": 0,
            "hparams": {"method": "dp_sgd", "optim.lr": 0.3},
            "plan": {"steps": 40},
            "tags": {"dp.sampling": "poisson"},
        }
    )
    for step in (10, 40):
        log.append(
            {
                "time_ms": 2,
                "event": "trial_report",
                "trial": 0,
                "step": step,
                "epsilon": step / 20,
                "metrics": metrics,
                "value": 0.5,
                "best_step": step,
                "charged": step,
                "rung": 0,
                "wall_s": 1.0,
            }
        )
    log.close()


def test_the_curves_of_a_study_come_from_its_journal(tmp_path):
    journal(tmp_path, {"validation/accuracy": 0.5})
    rows = read_curves("study:old", metric="validation/accuracy", root=tmp_path)
    assert rows == [Row({"method": "dp_sgd", "optim.lr": 0.3}, ((0.25, 0.5), (1.0, 0.5)))]


def test_a_study_without_the_metric_or_of_an_unknown_name_is_refused(tmp_path):
    journal(tmp_path, {"validation/loss": 0.5})
    with pytest.raises(BadInputError, match="no report of validation/accuracy"):
        read_curves("study:old", metric="validation/accuracy", root=tmp_path)
    with pytest.raises(BadInputError, match="no study 'older'"):
        read_curves("study:older", metric="validation/accuracy", root=tmp_path)
