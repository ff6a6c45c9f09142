"""Files of weights that fit a network of timm's by timm's rules, and what is said of others."""

from __future__ import annotations

import pytest
import timm
import torch

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.pretrained.backbones import backbone_settings
from dpsweep.trainables.networks.pretrained.image_front import figures_of
from dpsweep.trainables.networks.pretrained.published_networks import build_backbone

VIT, RESNET = "test_vit", "test_resnet"  # timm's own tiny networks for tests, 160 x 160


def info_of(shape: tuple[int, ...], classes: int = 5) -> DatasetInfo:
    return DatasetInfo("x", shape, classes, 100, 10, 10, 0, ())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("weights")
    paths = {}
    for name in (VIT, RESNET):
        torch.manual_seed(3)
        network = timm.create_model(name, num_classes=7)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_()
        paths[name] = str(directory / f"{name}.pt")
        state = {f"module.{key}": value for key, value in network.state_dict().items()}
        torch.save({"epoch": 1, "state_dict": state}, paths[name])
    return paths


def test_position_embeddings_are_resized_as_for_features(files: dict[str, str]) -> None:
    shape = (3, 64, 64)
    model = build_model(f"timm/{VIT}", info_of(shape), seed=0, checkpoint=files[VIT])
    settings = backbone_settings(f"timm/{VIT}", checkpoint=files[VIT], image_size=64)
    frozen = build_backbone(settings, info_of(shape))[-1]
    own, other = model.state_dict(), frozen.state_dict()
    body = [key for key in other if not key.startswith("head")]
    assert own["pos_embed"].shape[1] < timm.create_model(VIT).pos_embed.shape[1]
    assert body
    assert all(torch.equal(own[key], other[key]) for key in body)


def test_the_first_layer_of_colour_weights_is_summed_for_grey_images(files: dict[str, str]) -> None:
    info = info_of((1, 32, 32))
    model = build_model(
        f"timm/{RESNET}", info, norm="frozen", seed=0, checkpoint=files[RESNET], is_initial=True
    )
    colour = build_model(
        f"timm/{RESNET}", info_of((3, 32, 32)), norm="frozen", seed=0, checkpoint=files[RESNET]
    )
    grey = torch.rand(2, 1, 32, 32)
    features, expected = (
        net.forward_features(x) for net, x in ((model, grey), (colour, grey.expand(2, 3, 32, 32)))
    )
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


def test_weights_of_another_network_are_refused_in_one_line(files: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match=r"does not fit the model: it lacks \d+ entr") as raised:
        build_model(
            f"timm/{RESNET}", info_of((3, 32, 32)), norm="frozen", seed=0, checkpoint=files[VIT]
        )
    assert "it has" in raised.value.message
    assert "\n" not in raised.value.message
    settings = backbone_settings(f"timm/{RESNET}", checkpoint=files[VIT], image_size=32)
    with pytest.raises(ModelError) as raised:
        build_backbone(settings, info_of((3, 32, 32)))
    assert "it lacks" in str(raised.value.because)


def test_another_shape_is_named(files: dict[str, str]) -> None:
    with pytest.raises(BadInputError, match=r"in another shape \(conv1"):
        build_model(
            f"timm/{RESNET}",
            info_of((3, 32, 32)),
            norm="frozen",
            seed=0,
            checkpoint=files[RESNET],
            options='{"stem_width": 48}',
        )


@pytest.mark.parametrize("text", ["0.5", "a/b", "0.5,0.5/0.2", "0.5/0", "0.1/0.2/0.3"])
def test_figures_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"^model\.normalize: "):
        figures_of(text)


def test_images_are_normalised_by_figures() -> None:
    model = build_model("linear", info_of((3, 4, 4)), seed=0, normalize="0.5,0.4,0.3/0.25")
    images = torch.rand(2, 3, 4, 4)
    mean = torch.tensor([0.5, 0.4, 0.3]).reshape(3, 1, 1)
    torch.testing.assert_close(model(images), model[1]((images - mean) / 0.25))
