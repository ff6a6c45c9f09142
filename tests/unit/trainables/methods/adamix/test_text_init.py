from __future__ import annotations

import json
import pickle
import shutil
import string
import sys
from pathlib import Path

import pytest
import torch

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.methods.adamix.text_init import class_prompts, text_weights
from dpsweep.trainables.networks.pretrained import image_text, weights
from dpsweep.trainables.networks.pretrained.backbones import backbone_settings
from dpsweep.trainables.networks.pretrained.published_networks import build_backbone

transformers = pytest.importorskip("transformers")

NAMES = ["ankle_boot", "Bag", "T-shirt/top"]
MEAN, STD = [0.48, 0.45, 0.4], [0.26, 0.27, 0.28]


def info_of(*shape: int) -> DatasetInfo:
    return DatasetInfo("x", shape, 10, 100, 0, 0, 0, tuple("abcdefghij"))


def small_tokenizer():
    letters = string.ascii_lowercase + string.digits + "-/"
    vocab = {
        token: number for number, token in enumerate([*letters, *(c + "</w>" for c in letters)])
    }
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocab[token] = len(vocab)
    return transformers.CLIPTokenizer(vocab=vocab, merges=[]), vocab


def save_pair(path: Path, kind: str = "CLIP") -> Path:
    """Write a tiny pair with random weights, as ``save_pretrained`` lays it out."""
    tokenizer, vocab = small_tokenizer()
    width = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    text = {
        **width,
        "num_attention_heads": 2,
        "vocab_size": len(vocab),
        "max_position_embeddings": 40,
        "bos_token_id": vocab["<|startoftext|>"],
        "eos_token_id": vocab["<|endoftext|>"],
        "pad_token_id": vocab["<|endoftext|>"],
    }
    vision = {**width, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    options = {"projection_dim": 12} if kind == "CLIP" else {}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=vision, **options
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = getattr(transformers, f"{kind}Model")(config).eval()
        for parameter in pair.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    pair.save_pretrained(path)
    tokenizer.save_pretrained(path)
    facts = {"image_mean": MEAN, "image_std": STD}
    (path / "preprocessor_config.json").write_text(json.dumps(facts))
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    return save_pair(tmp_path_factory.mktemp("pair"))


def test_weights_are_scaled_normalised_encodings_of_the_names(pair: Path) -> None:
    found = text_weights(NAMES, model=str(pair))
    model = transformers.CLIPModel.from_pretrained(pair).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(pair)
    for row, words in zip(found, ["ankle boot", "Bag", "T-shirt/top"]):
        tokens = tokenizer(f"a photo of a {words}", return_tensors="pt")  # alone, unpadded
        with torch.no_grad():
            encoded = model.get_text_features(**tokens).pooler_output[0]
        assert torch.allclose(row, 100 * encoded / encoded.norm(), atol=1e-2)
    assert found.shape == (3, 12)
    assert torch.allclose(found.norm(dim=1), torch.full((3,), 100.0))
    assert float((found[0] - found[1]).norm()) > 1
    assert not found.requires_grad


def test_prompt_and_scale(pair: Path) -> None:
    base = text_weights(NAMES, model=str(pair))
    assert torch.allclose(text_weights(NAMES, model=f"clip/{pair}", scale=2.0), base / 50)
    other = text_weights(NAMES, model=str(pair), prompt="a drawing of a {}")
    assert float((other - base).norm()) > 1


def test_the_global_generator_is_left_alone(pair: Path) -> None:
    state = torch.get_rng_state()
    text_weights(NAMES, model=str(pair))
    build_backbone(backbone_settings(f"clip/{pair}"), info_of(1, 8, 8))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
@pytest.mark.parametrize("size", [None, 32])
def test_the_image_tower_is_the_pairs_own(tmp_path, kind: str, size: int | None) -> None:
    save_pair(tmp_path, kind)
    settings = backbone_settings(f"clip/{tmp_path}", image_size=size)
    assert settings["image_size"] == (size or 16)
    assert (settings["mean"], settings["std"]) == (tuple(MEAN), tuple(STD))
    tower = build_backbone(settings, info_of(3, 10, 10))
    images = torch.rand(3, 3, 10, 10)
    scaled = torch.nn.functional.interpolate(images, size=(size or 16,) * 2, mode="bilinear")
    mean, std = (torch.tensor(value).reshape(1, 3, 1, 1) for value in (MEAN, STD))
    model = getattr(transformers, f"{kind}Model").from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = model.get_image_features(
            (scaled - mean) / std, interpolate_pos_encoding=size is not None
        ).pooler_output
    found = tower(images)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert float((found[0] - found[1]).abs().max()) > 1e-3
    assert found.shape[1] == text_weights(NAMES, model=str(tmp_path)).shape[1]
    assert not any(parameter.requires_grad for parameter in tower.parameters())


def test_the_tower_can_be_exported_and_pickled_without_dpsweep(pair: Path) -> None:
    tower = build_backbone(backbone_settings(f"clip/{pair}"), info_of(1, 8, 8))
    origins = {type(module).__module__.partition(".")[0] for module in tower.modules()}
    assert origins <= {"torch", "transformers"}
    content = pickle.dumps(tower)
    assert b"dpsweep" not in content
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(pickle.loads(content)(images), tower(images))
    program = torch.export.export(
        tower, (images[:2],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    assert torch.allclose(program.module()(images), tower(images), atol=1e-5)


def test_settings_hold_what_is_in_the_directory_and_not_where(pair: Path, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pair, copy)
    settings = backbone_settings(f"clip/{pair}")
    assert backbone_settings(f"clip/{copy}") == settings
    assert str(pair) not in json.dumps(settings)
    (copy / "tokenizer.json").write_text("{}")  # nothing that image features depend on
    assert backbone_settings(f"clip/{copy}") == settings
    other = backbone_settings(f"clip/{save_pair(tmp_path / 'other', 'Siglip')}")
    assert other["sha256"] != settings["sha256"]


def test_a_worker_finds_the_pair_and_sees_that_it_changed(tmp_path, monkeypatch) -> None:
    settings = backbone_settings(f"clip/{save_pair(tmp_path)}")
    monkeypatch.setattr(weights, "_SEEN", {})
    arrived = pickle.loads(pickle.dumps(settings))
    build_backbone(arrived, info_of(1, 8, 8))
    save_pair(tmp_path, "Siglip")
    with pytest.raises(ModelError, match="have changed"):
        build_backbone(arrived, info_of(1, 8, 8))


def test_a_pair_on_the_hub_is_downloaded_and_pinned(pair: Path, monkeypatch) -> None:
    import huggingface_hub

    asked = []

    def fake(name: str, **_: object) -> str:
        asked.append(name)
        return str(pair)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    settings = backbone_settings("clip/someone/tiny-pair")
    assert set(asked) == {"someone/tiny-pair"}
    assert (settings["model"], settings["weights"]) == ("clip/someone/tiny-pair", "hub")
    assert settings["sha256"] == weights.hash_of(pair)
    monkeypatch.setattr(weights, "_SEEN", {})  # another machine: only the hash arrives
    tower = build_backbone({**settings, "sha256": str(settings["sha256"])}, info_of(1, 8, 8))
    local = build_backbone(backbone_settings(f"clip/{pair}"), info_of(1, 8, 8))
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(tower(images), local(images))
    expected = text_weights(NAMES, model=str(pair))
    assert torch.equal(text_weights(NAMES, model="someone/tiny-pair"), expected)


def test_a_failing_download_says_what_to_do(monkeypatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match="cannot download someone/tiny-pair") as caught:
        text_weights(NAMES, model="someone/tiny-pair")
    assert "directory" in str(caught.value.fix)


def test_missing_weights_are_refused_and_not_made_up(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    save_pair(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["text_projection.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"text_projection\.weight"):
        text_weights(NAMES, model=str(tmp_path))


def test_unknown_normalisation_is_refused(tmp_path) -> None:
    save_pair(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(BadInputError, match="how images are normalised"):
        backbone_settings(f"clip/{tmp_path}")
    facts = {"image_processor": {"image_mean": MEAN, "image_std": STD}}
    (tmp_path / "processor_config.json").write_text(json.dumps(facts))
    assert backbone_settings(f"clip/{tmp_path}")["std"] == tuple(STD)


def test_missing_packages_are_named_with_what_to_install(pair: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModelError) as caught:
        text_weights(NAMES, model=str(pair))
    assert caught.value.fix == "pip install 'dpsweep[text]'"
    with pytest.raises(ModelError, match="open_clip"):
        backbone_settings("clip/open_clip/ViT-B-32/openai")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "different name"),
        (["a", "a"], {}, "different name"),
        (["a", " "], {}, "different name"),
        (["a"], {"prompt": "a photo"}, "must have one"),
        (["a"], {"scale": 0}, "scale"),
        (["long " * 30], {}, "tokens"),
        (["a"], {"model": "nowhere"}, "no image-text pair"),
    ],
)
def test_nonsense_is_refused(pair: Path, names, options, message) -> None:
    with pytest.raises(BadInputError, match=message):
        text_weights(names, **{"model": str(pair), **options})


def test_braces_in_names_are_letters() -> None:
    assert class_prompts(["{x}", "0"], "the {}") == ["the {x}", "the 0"]


def test_open_clip(tmp_path, monkeypatch) -> None:
    open_clip = pytest.importorskip("open_clip")
    config = {
        "embed_dim": 12,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 16,
            "heads": 2,
            "layers": 1,
        },
    }
    (tmp_path / "tiny-pair.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "tiny-pair.json")
    model = open_clip.create_model("tiny-pair").eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    name = f"open_clip/tiny-pair/{tmp_path / 'w.pt'}"
    settings = backbone_settings(f"clip/{name}")
    assert str(tmp_path) not in json.dumps(settings)
    images = torch.rand(2, 3, 16, 16)
    columns = [torch.tensor(settings[key]).reshape(1, 3, 1, 1) for key in ("mean", "std")]
    with torch.no_grad():
        expected = model.encode_image((images - columns[0]) / columns[1])
        tokens = open_clip.get_tokenizer("tiny-pair")(class_prompts(NAMES))
        texts = model.encode_text(tokens)
    found = build_backbone(settings, info_of(3, 16, 16))(images)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    heads = text_weights(NAMES, model=name)
    assert torch.allclose(heads, 100 * texts / texts.norm(dim=1, keepdim=True), atol=1e-2)
    with pytest.raises(BadInputError, match="no architecture"):
        backbone_settings("clip/open_clip/no-pair/x")
    with pytest.raises(BadInputError, match="no weights 'x'"):
        backbone_settings("clip/open_clip/tiny-pair/x")
    tagged = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    monkeypatch.setattr(open_clip, "is_pretrained_cfg", lambda *_: True)
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda *_: tagged)
    monkeypatch.setattr(open_clip, "download_pretrained", lambda _: str(tmp_path / "w.pt"))
    published = backbone_settings("clip/open_clip/tiny-pair/some_tag")
    assert (published["model"], published["weights"]) == (
        "clip/open_clip/tiny-pair/some_tag", "hub"
    )  # fmt: skip
    assert (published["mean"], published["std"]) == (tagged["mean"], tagged["std"])


def test_pairs_of_another_build_are_refused(pair: Path, monkeypatch) -> None:
    original = image_text._pooled
    monkeypatch.setattr(image_text, "_pooled", lambda output: original(output) + 1)
    with pytest.raises(ModelError, match="not built like CLIP"):
        build_backbone(backbone_settings(f"clip/{pair}"), info_of(1, 8, 8))
