"""The journal of a selection keeps the day alone: the run time would tell how many trials ran."""

import time

import pytest
from whole_studies import make_spec

from dpsweep.foundation.logs import read_log
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import StudyDowngraded
from dpsweep.study.study import Study

DAY_MS = 86_400_000


@pytest.mark.parametrize("accounting", ["select", "unaccounted"])
def test_events_have_the_day_or_the_time(tmp_path, accounting):
    raw = make_spec(tmp_path, "times", tracking={"uri": None}, scheduler={"type": "fifo"})
    raw["search"] = {"sampler": "random", "num_trials": None, "space": {"method": "dp_sgd"}}
    raw["privacy"] = {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": accounting}
    if accounting == "select":
        raw["privacy"]["selection"] = {"mean": 3, "shape": 1}
    else:
        raw["search"]["num_trials"] = 3
    study = Study(SweepSpec(**raw))
    before = time.time_ns() // 1_000_000
    study.write(StudyDowngraded("none"))
    study.close()
    written = read_log(study.files.journal)[-1]["time_ms"]
    if accounting == "select":
        assert written in (before - before % DAY_MS, before - before % DAY_MS + DAY_MS)
    else:
        assert before <= written <= before + 60_000
