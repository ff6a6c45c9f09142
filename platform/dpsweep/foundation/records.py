"""Records as text with a checksum: the lines of a log, and documents of one record."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.errors import LedgerError

_SEAL = ', "crc": "'


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def encode_record(record: Mapping[str, Any]) -> str:
    """Return a record of a log as its line, checksum and newline included."""
    body = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f'{body[:-1]},"crc":"{_checksum(body)}"}}\n'


def _document(text: str) -> Any:
    """Return what a JSON text says; ``ValueError`` of one that is nested too deeply, too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _body(line: str) -> str | None:
    """Return what a line says without its checksum, or None if that is not of it."""
    body, seal, tail = line.rpartition(',"crc":"')
    if not seal or tail != f'{_checksum(body + "}")}"}}':
        return None
    return body + "}"


def _decode(line: str) -> dict[str, Any] | None:
    """Return the record of one complete line, or None if it is damaged."""
    body = _body(line)
    try:
        record = None if body is None else _document(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def raw_of(lines: Iterable[str]) -> bytes:
    """Return the lines of a log as a file has them."""
    return "".join(f"{line}\n" for line in lines).encode()


def decode_records(lines: Iterable[str], where: str, first: int = 0) -> list[dict[str, Any]]:
    """Return the records of a log's lines, which must be whole, in order and without gap.

    Args:
        lines: Without their newlines.
        where: The log, for the error.
        first: Number of the first of these lines.
    Raises:
        LedgerError: History was lost or damaged.
    """
    records = []
    for number, line in enumerate(lines, start=first):
        record = _decode(line)
        if record is None or record.get("seq") != number:
            raise LedgerError(
                f"{where}:{number + 1}: record damaged or missing; the log cannot be trusted",
                because="its checksum or its sequence number is wrong",
                fix="restore it from a backup, or start a new study",
            )
        records.append(record)
    return records


@dataclass(frozen=True)
class Decoded:
    """What a log said when it was read last.

    Attributes:
        raw: Its whole lines, byte for byte.
        records: Theirs, in order; nobody changes them.
        num_kept: How many of them the reading before it had decoded.
    """

    raw: bytes = b""
    records: Sequence[dict[str, Any]] = ()
    num_kept: int = 0


NOTHING = Decoded()


def decode_log(raw: bytes, where: str, before: Decoded = NOTHING) -> Decoded:
    """Return what the whole lines of a log say, decoding those that are new since ``before``.

    Where a byte of what was there before has changed, all is decoded.

    Args:
        raw: All of the log.
        where: The log, for the error.
        before: What it said before.
    Raises:
        LedgerError: History was lost or damaged.
    """
    if not raw.startswith(before.raw):
        before = NOTHING
    end = raw.rfind(b"\n") + 1
    lines = raw[len(before.raw) : end].decode("utf-8", "replace").split("\n")[:-1]
    records = decode_records(lines, where, first=len(before.records))
    return Decoded(raw[:end], [*before.records, *records], num_kept=len(before.records))


def unfinished(raw: bytes, whole: Decoded, where: str) -> tuple[list[dict[str, Any]], int]:
    """Return the record behind the last newline, if one is whole, and its length in bytes.

    A tail without a newline is an append that never finished, so nothing that waits for an append
    has happened; it is dropped, unless it is a whole record. Damage anywhere else means that
    history was lost: refused. So is a tail that begins as no record does: somebody else's file.

    Args:
        raw: All of the log.
        whole: What its whole lines say.
        where: The log, for the error.
    Raises:
        LedgerError: What stands there is no record.
    """
    number = len(whole.records)
    begin = f'{{"seq":{number},'.encode()
    # A file may have grown before what stands there was written.
    tail = raw[len(whole.raw) :].rstrip(b"\0")
    if not (tail.startswith(begin) or begin.startswith(tail)):
        raise LedgerError(
            f"{where}: its last line is no record; the log cannot be trusted",
            because="it does not begin as one",
            fix="name another file, restore this one from a backup, or start a new study",
        )
    text = tail.decode("utf-8", "replace")
    return ([], 0) if _body(text) is None else (decode_records([text], where, number), len(tail))


def checked_json(record: Mapping[str, Any]) -> bytes:
    """Return a record as one JSON document with a checksum of itself in its last key.

    >>> read_checked_json(checked_json({"step": 3}), known=("step",))
    {'step': 3}
    """
    body = json.dumps(record)
    return f'{body[:-1]}{_SEAL}{_checksum(body)}"}}'.encode()


def read_checked_json(content: bytes, *, known: Collection[str]) -> dict[str, Any]:
    """Return the record of a document that ``checked_json`` wrote.

    Documents of before there were checksums are read as they are.

    Args:
        content: The document.
        known: Every key that a document without a checksum may have.
    Raises:
        ValueError: It is damaged.
    """
    text = content.decode()
    body, seal, tail = text.rpartition(_SEAL)
    if seal and tail != f'{_checksum(body + "}")}"}}':
        raise ValueError("its checksum is not that of its content")
    record = _document(body + "}" if seal else text)
    if not isinstance(record, dict) or not (seal or set(record) <= set(known)):
        raise ValueError("its keys are not those that were written")
    return record
