"""The process that draws has vl_convert's own fonts, and the system's where a letter needs them."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpsweep import load_sweep
from dpsweep.results.page import drawing as drawing_process
from dpsweep.results.page.html import page_of
from dpsweep.results.pictures.confusion import keep_confusion
from dpsweep.results.pictures.fonts import is_covered, leave_out_system_fonts
from dpsweep.results.pictures.table import pictures_of
from dpsweep.running.gallery import Drawing

OLD = Path(__file__).parents[2] / "golden" / "old_studies"
SNOWMAN = "\u2603"
by_fontconfig = pytest.mark.skipif(sys.platform != "linux", reason="fonts are not fontconfig's")
DRAW = """
import base64, json, sys
import vl_convert

def svg(letter, weight):
    text = f'<text x="5" y="18" font-family="sans-serif" font-weight="{weight}">&#{ord(letter)};'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="24">{text}</text></svg>'

letters, weights = json.load(sys.stdin), ("normal", "bold")
images = [[vl_convert.svg_to_png(svg(a, weight)) for weight in weights] for a in letters]
print(json.dumps([[base64.b64encode(image).decode() for image in pair] for pair in images]))
"""


def images_of(letters, environment):
    """Return the images of letters, drawn by a process of their own."""
    command = [sys.executable, "-c", DRAW]
    done = subprocess.run(
        command,
        input=json.dumps(letters),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return [tuple(pair) for pair in json.loads(done.stdout)]


@pytest.fixture
def own_fonts():
    environment = dict(os.environ)
    leave_out_system_fonts(environment)
    return environment


@pytest.fixture
def environment_with_a_font(tmp_path):
    """Return an environment whose fonts are those of matplotlib, which has snowmen."""
    (package,) = find_spec("matplotlib").submodule_search_locations
    fonts = Path(package) / "mpl-data" / "fonts" / "ttf"
    config = tmp_path / "my-fonts.conf"
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">'
        f"<fontconfig><dir>{fonts}</dir></fontconfig>"
    )
    return {**os.environ, "FONTCONFIG_FILE": str(config)}


def test_letters_that_count_as_covered_are_drawn(own_fonts):
    covered = [chr(code) for code in range(0x21, 0x3000) if is_covered(chr(code))]
    assert len(covered) > 800
    # Spaces, hyphens that break no line, and codes without a letter.
    without_ink = {"\u00a0", "\u00ad", "\u03a2"}
    missing, *images = images_of(["\u4e2d", *covered], own_fonts)
    blank = images_of(["\u00a0"], own_fonts)[0]
    drawn = {
        letter for letter, image in zip(covered, images) if image[0] not in (missing[0], blank[0])
    }
    bold = {
        letter for letter, image in zip(covered, images) if image[1] not in (missing[1], blank[1])
    }
    assert set(covered) - drawn <= without_ink
    assert set(covered) - bold <= without_ink


@by_fontconfig
def test_a_snowman_is_not_covered(own_fonts, environment_with_a_font):
    assert not is_covered(f"a {SNOWMAN}")
    missing, own = images_of(["\u4e2d", SNOWMAN], own_fonts)
    assert own == missing
    assert images_of([SNOWMAN], environment_with_a_font) != [own]


@pytest.mark.slow
@by_fontconfig
@pytest.mark.parametrize("name", ["a", SNOWMAN])
def test_the_process_that_draws_has_the_fonts_that_letters_need(
    tmp_path, monkeypatch, own_fonts, environment_with_a_font, name
):
    shutil.copytree(OLD, tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    result, said = load_sweep("select", root=tmp_path / "studies"), []
    names = [name, "b"]
    keep_confusion(result.files, trial=0, part="test", names=names, counts=[[3, 1], [0, 4]])
    (picture,) = pictures_of(result)
    assert is_covered(picture.words()) == (name == "a")
    draw = (
        "import json, sys, vl_convert\n"
        "chart = json.load(sys.stdin)\n"
        "sys.stdout.buffer.write(vl_convert.vegalite_to_png(chart, scale=2))"
    )
    own, others = (
        subprocess.run(
            [sys.executable, "-c", draw],
            input=picture.words().encode(),
            capture_output=True,
            check=True,
            env={**environment, "PYTHONUTF8": "1"},
        ).stdout
        for environment in (own_fonts, environment_with_a_font)
    )
    assert (own != others) == (name == SNOWMAN)
    monkeypatch.setenv("FONTCONFIG_FILE", environment_with_a_font["FONTCONFIG_FILE"])
    with closing(Drawing(result, is_wanted=True)) as drawing:
        drawing.finish("finished", "trials ran", SimpleNamespace(on_message=said.append))
    assert said == []
    drawn = (result.files.pictures / "confusion.png").read_bytes()
    assert drawn == (own if name == "a" else others)
    # What was asked for meanwhile is drawn too.
    result.view.state, result.view.end_reason = "finished", "trials ran"
    assert result.files.page.read_text() == page_of(result)


@pytest.mark.parametrize("arguments", [[], ["with-system-fonts"]])
def test_fonts_are_chosen_before_anything_is_drawn(tmp_path, monkeypatch, arguments):
    class Left(BaseException):
        pass

    def leave(code):
        raise Left

    def prepare(files):
        seen.append(os.environ["FONTCONFIG_FILE"])
        raise ValueError("enough")

    seen = []
    # Restored after the test, whatever the process sets.
    monkeypatch.setenv("FONTCONFIG_FILE", "mine")
    monkeypatch.setattr(sys, "argv", ["drawing", str(tmp_path), *arguments])
    monkeypatch.setattr(drawing_process, "leave", leave)
    monkeypatch.setattr(drawing_process, "prepare", prepare)
    with pytest.raises(Left):
        drawing_process.main()
    assert [Path(path).name for path in seen] == ["mine" if arguments else "fonts.conf"]
