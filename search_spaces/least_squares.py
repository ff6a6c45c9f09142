"""Recommended search spaces of least_squares, one per dataset.

The ridge follows from the noise (``methods.least_squares.knobs``). What may be worth a search is
how the privacy is split, and which of the two ways of Mehta et al. 2023
(https://arxiv.org/abs/2211.13403) it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.recommended import Recommended

#: Places of what only features of networks have.
_OF_NETWORKS = dict.fromkeys(("features.image_size", "normalize.kind", "normalize.groups"))


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "least_squares",
        "features.name": "none",
        **_OF_NETWORKS,
        "least_squares.variant": {"choice": ["closed_form", "feature_covariance"]},
        "least_squares.covariance_share": {"choice": [0.1, 0.2, 0.5]},
    }
    return changed(space, changes)


#: Features of a network do better by up to half a point with their mean taken out of each record.
_LITE0 = {
    "features__name": "efficientnet_lite0",
    "normalize__kind": "group",
    "normalize__groups": 1,
}
_AT_96 = {**_LITE0, "features__image_size": 96}

#: Dataset name -> ``search.space`` of a spec.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(),
    "fashion_mnist": _space(**_AT_96),
    "npz": _space(),
    "image_folder": _space(**_LITE0),
}


def _fixed(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "least_squares",
        "features.name": "none",
        **_OF_NETWORKS,
        "least_squares.variant": "feature_covariance",
    }
    return changed(space, changes)


#: Dataset name -> one configuration: of the two ways the better one wherever we looked, with its
#: defaults.
FIXED: Mapping[str, Mapping[str, Any]] = {
    "digits": _fixed(),
    "fashion_mnist": _fixed(**_AT_96),
    "npz": _fixed(),
    "image_folder": _fixed(**_LITE0),
}

#: Why each parameter is there, for the comments of starter specs.
WHY: Mapping[str, str] = {
    "method": "a linear head by noisy sums over all records: no learning rate, no length",
    "features.name": "none (raw records), efficientnet_lite0, timm/NAME, clip/NAME, scatternet",
    "features.image_size": "images are resized to this for the network, in pixels",
    "normalize.kind": "group: mean 0 and variance 1 in each group of a record's features",
    "normalize.groups": "1: all features of a record are one group",
    "least_squares.variant": "two sums, or steps that are divided by the covariance",
    "least_squares.covariance_share": "share of the privacy that the covariance gets",
}

#: The closed form has two positions, so there is nothing to compare on the way.
SCHEDULER = "scheduler: {{type: fifo}}        # every trial goes to its end\n"

RECOMMENDED = Recommended(SPACES, WHY, scheduler=SCHEDULER, fixed=FIXED)
