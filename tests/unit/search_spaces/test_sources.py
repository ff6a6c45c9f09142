"""What presets, docstrings and documents say of the papers is what the papers say."""

import re
from pathlib import Path

import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.search_spaces import preset_spec, preset_titles

ROOT = Path(__file__).parents[3]
NAMES = list(preset_titles())
#: Paper -> where it is published.
ADDRESSES = {
    "bu2024": "https://arxiv.org/abs/2210.00036",
    "golatkar2022": "https://arxiv.org/abs/2203.11481",
    "luo2021": "https://openaccess.thecvf.com/CVPR2021",
    "tramer2021": "https://arxiv.org/abs/2011.11660",
    "zhao2020": "https://arxiv.org/abs/1910.01177",
}


def said(name):
    """Return the header of a preset as one line."""
    return preset_spec(name).split("\nname:")[0].replace("\n# ", " ")


def texts():
    """Return everything that is written about the papers, by file."""
    rooms = [ROOT / room for room in ("platform", "search_spaces", "trainables")]
    files = [path for room in rooms for path in room.rglob("*.py")]
    files += [ROOT / "README.md", ROOT / "BENCHMARKS.md", *(ROOT / "docs").glob("*.md")]
    return {path.relative_to(ROOT): " ".join(path.read_text().split()) for path in files}


@pytest.mark.parametrize("name", NAMES)
def test_each_preset_names_its_paper_s_address_and_no_other(name):
    found = set(re.findall(r"https://[\w./]+\w", said(name)))
    assert found == {ADDRESSES[name.split("/")[0]]}


def test_nothing_names_what_is_not_the_paper():
    for path, text in texts().items():
        assert "2103.01294" not in text, path  # another paper of that year
        assert "CINIC" not in text, path
        if path.name.startswith("sparse"):
            assert not re.search(r"Luo et al\. 2021[^.]*section 3", text), path


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("luo2021")])
def test_luo_s_data_are_those_of_the_paper(name):
    assert (
        "pre-trains a ResNet-18 with GroupNorm on CIFAR-100 and finetunes it on CIFAR-10"
        in said(name)
    )


def test_both_readings_of_luo_s_table_3_are_told():
    for row in ("cls_norm", "cls_conv"):
        assert "luo2021/cls_conv_* and luo2021/cls_norm_* are the two readings" in said(
            f"luo2021/{row}_five_classes"
        )


OF_TEXT = re.compile(r"bu2024/.*_(sst2|qnli|qqp|mnli|e2e)")


@pytest.mark.parametrize("name", [name for name in NAMES if OF_TEXT.match(name)])
def test_bu_s_rows_of_text_name_their_tables(name):
    assert ("table 4 in kind" if name.endswith("_e2e") else "table 3 in kind") in said(name)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith("bu2024") and not OF_TEXT.match(name)]
)
def test_bu_s_rows_are_on_images(name):
    text = said(name)
    assert "table 3" not in text
    assert "CIFAR-100 and finetunes" not in text  # that is what another paper does
    if name.endswith("_vit") and "_cifar" in name:
        place = "1+BiTFiT of tables" if "/two_phase_" in name else "the recipe of a row of table 5"
        assert place in preset_titles()[name]
    elif "_celeba_" in name:
        place = "section 3.4" if "/bitfit_add_" in name else "a row of table 6"
        assert place in preset_titles()[name]
    elif "/rates_" not in name:
        place = "X+BiTFiT of tables 14 to 16" if "/two_phase_" in name else "a row of table 5"
        assert f"in kind {place}" in preset_titles()[name]
    assert ("holds the classifier in the second phase" in text) == ("/two_phase_" in name)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("golatkar2022")])
def test_golatkar_s_presets_tell_what_is_not_the_paper_s(name):
    text = said(name)
    assert "Not in the paper: each step is divided by its clipping norm" in text
    assert "one fixed rate here (public.lr 1, 200 steps)" in text
    assert "figures 5 and 6" not in text  # figure 6 is not reproduced


def test_the_pull_is_not_called_ppgd():
    name = "golatkar2022/public_pull_fashion_mnist"
    assert "This is not the PPGD of table 1" in said(name)
    with pytest.raises(BadInputError, match=f"is called {name} now"):
        preset_spec("golatkar2022/ppgd_fashion_mnist")
    benchmarks = (ROOT / "BENCHMARKS.md").read_text()
    assert "| ppgd |" not in benchmarks
    assert "not the paper's PPGD" in benchmarks


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("zhao2020")])
def test_zhao_s_presets_tell_the_paper_s_settings(name):
    text = said(name)
    for setting in ("plain with finetune.replay: 0", "voters: top_k", "split.rule: sum"):
        assert setting in text


def test_describe_and_the_pages_tell_what_is_not_the_papers():
    from dpsweep.trainables import TRAINABLES

    docs = {h.name: h.doc for method in TRAINABLES.values() for h in method.hyperparameters}
    assert "The paper does not: false is its step" in docs["optim.step_over_clip"]
    assert "the paper has none: 0" in docs["finetune.replay"]
    assert "the best of several, as in the paper" in docs["public.lr"]
    assert "X+BiTFiT" in docs["bitfit.head_in_second_phase"]
    for size in ("model.image_size", "features.image_size"):
        assert "stretched to a square" in docs[size]
    pages = " ".join(" ".join(p.read_text().split()) for p in (ROOT / "docs").glob("*.md"))
    for knob in (
        "optim.step_over_clip", "finetune.replay: 0", "public.lr", "select.voters", "AdamW",
        "stretched to a square", "public_pull", "model.normalize", "data.class_names",
    ):  # fmt: skip
        assert knob in pages, knob
