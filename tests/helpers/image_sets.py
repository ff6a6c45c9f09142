"""Data sets of images as people have them, made small."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

RNG = np.random.default_rng(7)
ATTRIBUTES = ("Attractive", "Male", "Smiling", "Young")


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def cifar10(root, count=20):
    """Write batches of Python 2's protocol; return all training images, as they are stored."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    stored = []
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        batch = {b"data": pixels(count, 3072), b"labels": [n % 10 for n in range(count)]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        stored.append(batch[b"data"])
    names = {b"label_names": [f"kind {n}".encode() for n in range(10)], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    return np.concatenate(stored[:5])


def cifar100(root, count=200):
    folder = root / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = {"data": pixels(count, 3072), "fine_labels": [n % 100 for n in range(count)]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    names = {"fine_label_names": [f"kind {n}" for n in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))


def svhn(root, count=30):
    stored = {}
    for name in ("train", "test"):
        labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]  # 10 is the digit 0
        stored[name] = {"X": pixels(32, 32, 3, count), "y": labels}
        savemat(root / f"{name}_32x32.mat", stored[name])
    return stored


def mnist(root, end=".gz", count=40):
    for prefix in ("train", "t10k"):
        images, labels = pixels(count, 28, 28), np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            content = header + array.tobytes()
            path = root / f"{prefix}-{kind}-ubyte{end}"
            path.write_bytes(gzip.compress(content) if end else content)


def image(number, side=None):
    """Return an image of unequal sides whose colour tells its number."""
    rng = np.random.default_rng(number)
    size = side or (int(rng.integers(9, 40)), int(rng.integers(9, 40)))
    return Image.fromarray(np.full((*size, 3), number % 256, np.uint8))


def labelled(root, rows, *, header="file,label", names=None):
    root.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names or [name for name, _ in rows]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image(number).save(root / name)
    lines = [header, *(f"{name},{label}" for name, label in rows)]
    (root / "labels.csv").write_text("\n".join(lines) + "\n")


def celeba(root, count=60, end=".txt"):
    """Write a small CelebA: parts by thirds; attribute k of face n is a bit of n."""
    (root / "img_align_celeba").mkdir(parents=True)
    names = [f"{number + 1:06}.jpg" for number in range(count)]
    for number, name in enumerate(names):
        image(number, (218, 178)).save(root / "img_align_celeba" / name)
    bits = [[1 if number >> k & 1 else -1 for k in range(4)] for number in range(count)]
    is_csv = end == ".csv"
    glue = "," if is_csv else "  "
    head = [f"image_id,{','.join(ATTRIBUTES)}"] if is_csv else [str(count), " ".join(ATTRIBUTES)]
    rows = [glue.join([name, *map(str, row)]) for name, row in zip(names, bits)]
    (root / f"list_attr_celeba{end}").write_text("\n".join([*head, *rows]) + "\n")
    parts = [f"{name}{',' if is_csv else ' '}{3 * n // count}" for n, name in enumerate(names)]
    head = ["image_id,partition"] if is_csv else []
    (root / f"list_eval_partition{end}").write_text("\n".join([*head, *parts]) + "\n")
    return names


def saved(root, *, count=30, parts=("train", "test"), **columns):
    datasets = pytest.importorskip("datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "hen"])}
    kinds |= {name: kind for name, (kind, _) in columns.items()}
    rows = {
        "image": [image(number) for number in range(count)],
        "label": [number % 3 for number in range(count)],
        **{name: values for name, (_, values) in columns.items()},
    }
    kinds = {name: kind for name, kind in kinds.items() if kind is not None}
    rows = {name: rows[name] for name in kinds}
    split = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
    datasets.DatasetDict(dict.fromkeys(parts, split)).save_to_disk(str(root))
    return str(root)


def folders(root, end=".jpg", sub=""):
    for number in range(8):
        path = root / f"class_{number % 2}" / sub / f"{number}{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image(number).save(path)
