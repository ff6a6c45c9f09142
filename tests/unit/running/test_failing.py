"""A search that only fails ends with the commonest reason; a process that dies has a reason."""

import pytest

from dpsweep.foundation.errors import SweepError
from dpsweep.running.failing import Deaths, FailingSource
from dpsweep.search.sources import TaskList
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.study.trial import TrialReport, TrialState


def ends(source, failures, *, finished=0):
    for number, failure in enumerate([*failures, *[""] * finished]):
        state = TrialState.FAILED if failure else TrialState.FINISHED
        source.on_end(TrialReport(number, 0, {}, 0.0, failure=failure), state)


@pytest.mark.parametrize(
    ("failed", "finished", "is_over"),
    [(9, 0, False), (10, 0, True), (9, 1, True), (8, 2, False), (17, 2, False), (18, 2, True)],
)
def test_nine_of_ten_failures_end_a_search_of_at_least_ten(failed, finished, is_over):
    source = FailingSource(TaskList(["a task"]), is_hidden=False)
    ends(source, ["odd", *["diverged: at step 3\nand more"] * (failed - 1)], finished=finished)
    if not is_over:
        assert source.next_task(num_running=0) == "a task"
        return
    with pytest.raises(SweepError) as error:
        source.next_task(num_running=0)
    assert error.value.exit_code == 1
    said = error.value.message
    assert said.startswith(
        f"{failed} of {failed + finished} trials failed, and no more are started"
    )
    assert said.endswith(f"the commonest reason ({failed - 1} of them): diverged: at step 3")
    assert "run the same command again" in error.value.fix
    assert not source.is_exhausted


def test_nothing_is_told_of_hidden_trials():
    source = FailingSource(TaskList(["a task"]), is_hidden=True)
    ends(source, ["diverged"] * 50)
    assert source.next_task(num_running=0) == "a task"


def test_a_process_that_was_ended_for_silence_is_told_apart_from_one_that_died():
    deaths = Deaths(ResourcesSpec(max_failures=1, hang_minutes=1.5))
    assert deaths.note_hang(3) == "trial 3: no report for 1.5 minutes; its process is ended"
    assert "for want of memory" in deaths.reason(4)
    assert deaths.reason(3).startswith(
        "its process died more than 1 time, and was ended 1 time after 1.5 minutes without a report"
    )
