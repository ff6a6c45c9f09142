"""Mutations of files, seeded: bytes that are hurt, and records that are other ones with good sums.

What has a checksum is changed in two ways: as a disk does it, and as a hand does it that computes
the checksum anew.
"""

import json
import random
from pathlib import Path

from dpsweep.foundation.records import checked_json, encode_record

#: Values that stand where others belong.
ODD = (
    None, True, False, 0, -1, 1, 1.5, 1e308, -1e308, 10**40, "", "x", "nan", "../../etc/passwd",
    "\u0000", "9" * 5000, [], {}, [None], {"a": 1}, [[[[]]]],
)  # fmt: skip


def hurt_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return bytes that a disk, a copy or an editor might have left."""
    if not content:
        return b"\x00"
    at = rng.randrange(len(content))
    to = rng.randrange(at, len(content)) + 1
    lines = content.split(b"\n")
    how = rng.randrange(8)
    if how == 0:
        return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    if how == 1:
        return content[:at]
    if how == 2:
        return content[:at] + content[to:]
    if how == 3:
        return content[:at] + rng.randbytes(to - at) + content[to:]
    if how == 4:
        return content + content[at:to]
    if how == 5:
        line = rng.randrange(len(lines))
        return b"\n".join([*lines[: line + 1], *lines[line:]])
    if how == 6:
        line = rng.randrange(len(lines))
        return b"\n".join([*lines[:line], *lines[line + 1 :]])
    rng.shuffle(lines)
    return b"\n".join(lines)


def odd_tree(rng: random.Random, tree, *, top=True):
    """Return plain data with one place of it changed: a key lost, renamed, or its value odd."""
    if isinstance(tree, dict) and tree and (top or rng.random() < 0.8):
        key = rng.choice(sorted(tree, key=str))
        rest = {k: v for k, v in tree.items() if k != key}
        how = rng.randrange(6)
        if how == 0:
            return rest
        if how == 1:
            return {**rest, rng.choice(("x", "kind", "event", "", "trial", key + "s")): tree[key]}
        return {**tree, key: odd_tree(rng, tree[key], top=False)}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        at = rng.randrange(len(tree))
        how = rng.randrange(4)
        if how == 0:
            return [*tree[:at], *tree[at + 1 :]]
        if how == 1:
            return [*tree[:at], tree[at], *tree[at:]]
        return [*tree[:at], odd_tree(rng, tree[at], top=False), *tree[at + 1 :]]
    return rng.choice(ODD)


def odd_log(rng: random.Random, path: Path) -> bytes:
    """Return a log in which one record is another one, with sums and numbers that are right."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record.pop("crc")
    at, how = rng.randrange(len(records)), rng.randrange(5)
    if how == 0:
        records.insert(at, records[rng.randrange(len(records))])
    else:
        changed = odd_tree(rng, records[at])
        records[at] = changed if isinstance(changed, dict) else records[at]
    return "".join(
        encode_record({**record, "seq": number})
        for number, record in enumerate(_seq_first(records))
    ).encode()


def _seq_first(records):
    return [{"seq": 0, **{k: v for k, v in r.items() if k != "seq"}} for r in records]


def odd_document(rng: random.Random, path: Path) -> bytes:
    """Return a document of one JSON object with one place changed, and a sum that is right."""
    tree = json.loads(path.read_text())
    has_sum = tree.pop("crc", None) is not None
    changed = odd_tree(rng, tree)
    if not isinstance(changed, dict) or not has_sum:
        return json.dumps(changed).encode()
    return checked_json(changed)
