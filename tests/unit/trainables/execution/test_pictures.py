"""Files that a method draws: those of its trial are sent to the tracking store, and no others."""

from pathlib import Path

import pytest
from raised import PanicException, raising

from dpsweep.foundation.errors import ModelError
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.trainables.execution import execution
from dpsweep.trainables.execution.finished import trials
from dpsweep.trainables.execution.private_report import PRIVATE_FOLDER

PLAN = Plan((EventRun(Gaussian(20.0), 20),))


@pytest.fixture
def drawn(lab, monkeypatch):
    """Return what is drawn, and what is said, by a method whose pictures are as given."""

    def draw(pictures):
        kind = type("Drawing", (execution.TRAINABLES["scripted"],), {"pictures": pictures})
        monkeypatch.setitem(execution.TRAINABLES, "scripted", kind)
        monkeypatch.setattr(trials, "TRAINABLES", execution.TRAINABLES)
        task, said = lab.scripted(PLAN), []
        lab.run(lab.settings(), task)
        more = {"study_seed": 0, "data": lab.data, "say": said.append}
        return trials.draw_pictures(lab.directory(), task, **more), said

    return draw


def test_files_elsewhere_are_left_out_with_a_line(lab, drawn, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("4711")

    def pictures(method, directory):
        private = directory / PRIVATE_FOLDER
        private.mkdir()
        for name in ("a.png", f"{PRIVATE_FOLDER}/report.json"):
            (directory / name).write_text("x")
        (directory / "link.png").symlink_to(secret)
        elsewhere = [secret, "/etc/passwd", 3, directory / ".." / "0000" / ".." / ".." / "secret"]
        inside = [directory / "link.png", directory / "absent.png", private / "report.json"]
        return [directory / "a.png", *elsewhere, *inside, directory]

    files, said = drawn(pictures)
    assert files == [lab.directory() / "a.png"]
    assert said == [
        "pictures of method scripted: 8 of 9 are no files below the directory that it was handed; "
        "they are left out"
    ]


def test_nothing_is_said_of_files_of_the_trial(lab, drawn):
    def pictures(method, directory: Path):
        (directory / "more").mkdir()
        path = directory / "more" / "a.png"
        path.write_text("x")
        return [path]

    assert drawn(pictures) == ([lab.directory() / "more" / "a.png"], [])


@pytest.mark.parametrize("value", [None, "a.png"])
def test_what_is_no_list_is_told(drawn, value):
    with pytest.raises(ModelError, match=f"has returned {type(value).__name__}"):
        drawn(lambda method, directory: value)


@pytest.mark.parametrize("error", [ValueError("record 4711"), PanicException("record 4711")])
def test_an_error_is_told_without_its_words(drawn, error):
    pictures = raising(error, module="others.method")
    with pytest.raises(ModelError, match="pictures of method scripted fails") as told:
        drawn(pictures)
    assert "4711" not in str(told.value)
    assert told.value.__suppress_context__
