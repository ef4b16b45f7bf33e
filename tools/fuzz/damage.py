"""Changes of files: of their bytes, and of an ONNX model's messages."""

from __future__ import annotations

import random
import struct
from typing import Any

import onnx


def by_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four changes: bits, bytes, words; ranges that are cut, doubled or inserted."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.choice(("bit", "byte", "word", "word", "long", "cut", "insert", "double", "zero"))
        at = rng.randrange(max(len(changed), 1))
        if kind == "cut":
            del changed[at : at + rng.choice((1, 4, 100, len(changed)))]
        elif kind == "insert":
            changed[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == "double":
            changed[at:at] = changed[at : at + rng.choice((4, 16, 256))]
        elif not changed:
            continue
        elif kind == "bit":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == "zero":
            changed[at : at + 16] = bytes(len(changed[at : at + 16]))
        else:
            size, form = (4, "<I") if kind == "word" else (8, "<Q")
            place = at // size * size
            if place + size <= len(changed):
                old = struct.unpack_from(form, changed, place)[0]
                most = 256**size - 1
                new = rng.choice((0, 1, most, most >> 1, old + 1, old - 1, 2 * old, old + 1000, rng.randrange(most)))
                struct.pack_into(form, changed, place, new & most)
    return bytes(changed)


NUMBERS = (-1, 0, 1, 2, 3, 7, 1 << 20, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
TEXTS = (
    "",
    "x",
    "y",
    "t",
    "Relu",
    "Conv",
    "If",
    "Loop",
    "ai.onnx.ml",
    "com.microsoft",
    "nope",
    "é" * 40,
    "../../etc",
    "a" * 5000,
)


def by_structure(proto: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """One to four fields of the model's messages take other values, or messages are dropped, doubled or swapped."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for _ in range(rng.choice((1, 1, 2, 2, 4))):
        message = _somewhere(changed, rng)
        field = rng.choice(message.DESCRIPTOR.fields)
        repeated = field.label == field.LABEL_REPEATED if hasattr(field, "label") else field.is_repeated
        try:
            if repeated:
                _change_list(getattr(message, field.name), field, rng)
            elif field.message_type is not None:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, _value(field, getattr(message, field.name), rng))
        except (ValueError, TypeError, OverflowError):
            continue
    return changed


def _somewhere(message: Any, rng: random.Random) -> Any:
    while True:
        inside = [
            one
            for field, value in message.ListFields()
            if field.message_type is not None
            for one in (list(value) if hasattr(value, "__len__") and not hasattr(value, "DESCRIPTOR") else [value])
        ]
        if not inside or rng.random() < 0.15:
            return message
        graphs = [one for one in inside if isinstance(one, onnx.GraphProto)]
        message = rng.choice(graphs if graphs and rng.random() < 0.8 else inside)  # not opsets most of the time


def _value(field: Any, old: Any, rng: random.Random) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((*NUMBERS, old + 1, old - 1, 2 * old, rng.randrange(1, 30)))
    if isinstance(old, float):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if isinstance(old, bytes):
        return by_bytes(old, rng) if old else rng.randbytes(8)
    return rng.choice(TEXTS)


def _change_list(items: Any, field: Any, rng: random.Random) -> None:
    kind = rng.choice(("drop", "double", "change", "clear"))
    if kind == "clear" and rng.random() < 0.3:
        del items[:]
    elif not len(items):
        if field.message_type is not None:
            items.add()
        else:
            items.append(rng.choice(NUMBERS) if field.cpp_type in (1, 2, 3, 4) else rng.choice(TEXTS))
    elif kind == "drop":
        del items[rng.randrange(len(items))]
    elif field.message_type is not None:
        items.add().CopyFrom(items[rng.randrange(len(items))])
    elif kind == "double":
        items.append(items[rng.randrange(len(items))])
    else:
        at = rng.randrange(len(items))
        items[at] = _value(field, items[at], rng)
