"""Hashes (domain com.microsoft): MurmurHash3, and those of token n-grams for tables of embeddings (NGramHashMapping,
VarlenNGramHashMapping).

Semantics: the operators' schemas in ONNX Runtime 1.32, and its CPU provider's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from vkep.dtypes import INT32, UINT32, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr, apply
from vkep.ir.tensor import Tensor
from vkep.ops.arithmetic import mod
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, outputs, wants_output
from vkep.ops.movement import concat
from vkep.ops.packed import Packed, with_history
from vkep.ops.registry import INDICES, operator

_IDS = {"ids multipliers vocab_sizes past_ids head_offsets eos": INDICES, "segment_ids": ("int32",)}


@dataclass(frozen=True, kw_only=True)
class HashAttributes:
    """Attributes of both operators: n-grams of 2 to ``max_ngram_size`` tokens, and the number of hashes of each."""

    max_ngram_size: int
    n_head_per_ngram: int
    pad_id: int
    reset_on_eos: int = 0

    @property
    def earlier(self) -> int:
        """Tokens before the last that an n-gram has."""
        return self.max_ngram_size - 1


def _checked(
    b: Builder,
    a: HashAttributes,
    ids: Tensor,
    multipliers: Tensor,
    vocab_sizes: Tensor,
    others: dict[str, Tensor | None],
) -> None:
    if a.max_ngram_size < 2 or a.n_head_per_ngram < 1:
        b.invalid(
            f"max_ngram_size is {a.max_ngram_size}, n_head_per_ngram {a.n_head_per_ngram}; expected 2 and 1 at least"
        )
    if multipliers.rank != 1 or multipliers.size < a.max_ngram_size:
        b.invalid(f"multipliers has shape {list(multipliers.shape)}, expected {a.max_ngram_size} or more")
    heads = (a.earlier * a.n_head_per_ngram,)
    b.expect("vocab_sizes", vocab_sizes, heads)
    b.expect("head_offsets", others.pop("head_offsets"), heads)
    b.expect("eos_token_id", others["eos_token_id"], (), (1,))
    for name, tensor in {"multipliers": multipliers, "vocab_sizes": vocab_sizes, **others}.items():
        if tensor is not None and tensor.dtype is not ids.dtype:
            b.invalid(f"{name} is {tensor.dtype}, expected {ids.dtype} as the ids")


def _hashes(
    b: Builder,
    a: HashAttributes,
    shifts: list[Tensor],
    multipliers: Tensor,
    vocab_sizes: Tensor,
    head_offsets: Tensor | None,
    eos: Tensor | None,
    crossings: list[Expr],
) -> Tensor:
    """[..., heads] from the ids of each place and of those before it, ``shifts[k]`` those k tokens earlier. A token is not seen
    across an end of sequence, or across ``crossings[k]``: a border between the tokens k and k + 1 earlier.
    """
    lead, dtype = shifts[0].shape, shifts[0].dtype
    fill = b.scalar_like(a.pad_id, shifts[0]) if eos is None else b.reshape(eos, ())
    out = b.empty(dtype, (*lead, a.earlier * a.n_head_per_ngram))
    hidden: Expr | None = None
    mix: Expr | None = None
    for k, shifted in enumerate(shifts):
        value = b.expr("same", shifted)
        ends = [b.expr("eq", shifted, fill, ctype="bool")] if k and eos is not None and a.reset_on_eos else []
        for border in [*ends, *(crossings[k - 1 : k] if k else [])]:
            hidden = border if hidden is None else b.expr("or", hidden, border)
        if k and hidden is not None:
            value = b.expr("where", hidden, fill, value, ctype=dtype.glsl_compute)
        term = b.expr("mul", value, multipliers.slice(0, k, 1))
        mix = term if mix is None else mix ^ term
        if k:
            first = (k - 1) * a.n_head_per_ngram
            mixed = b.reshape(b.store(mix, dtype, shape=lead), (*lead, 1))
            sizes = vocab_sizes.slice(0, first, a.n_head_per_ngram)
            b.copy(mod(b, mixed, sizes), out=out.slice(len(lead), first, a.n_head_per_ngram))
    return out if head_offsets is None else b.pointwise("add", out, head_offsets)


@operator("NGramHashMapping", domain=MICROSOFT, types=_IDS)
def ngram_hash_mapping(
    b: Builder,
    ids: Tensor,
    multipliers: Tensor,
    vocab_sizes: Tensor,
    past_ids: Tensor | None = None,
    head_offsets: Tensor | None = None,
    eos: Tensor | None = None,
    segment_ids: Tensor | None = None,
    *,
    a: HashAttributes,
) -> list[Tensor]:
    others = {"past_ids": past_ids, "head_offsets": head_offsets, "eos_token_id": eos}
    _checked(b, a, ids, multipliers, vocab_sizes, others)
    if ids.rank != 2:
        b.invalid(f"input_ids has shape {list(ids.shape)}, expected [batch, length]")
    batch, length = ids.shape
    b.expect("past_ids", past_ids, (batch, a.earlier))
    b.expect("segment_ids", segment_ids, ids.shape)
    past = _missing(b, a, ids, eos, batch) if past_ids is None else past_ids
    whole = concat(b, past, ids, axis=1)
    shifts = [whole.slice(1, a.earlier - k, length) for k in range(a.max_ngram_size)]
    crossings = []
    if segment_ids is not None:  # before the chunk there is no border
        first = segment_ids.slice(1, 0, 1).expand((batch, a.earlier))
        wide = concat(b, first, segment_ids, axis=1)
        segments = [wide.slice(1, a.earlier - k, length) for k in range(a.max_ngram_size)]
        crossings = [b.expr("ne", s, t, ctype="bool") for s, t in pairwise(segments)]
    hashes = _hashes(b, a, shifts, multipliers, vocab_sizes, head_offsets, eos, crossings)
    return outputs(b, hashes, whole.slice(1, length, a.earlier))


def _missing(b: Builder, a: HashAttributes, ids: Tensor, eos: Tensor | None, batch: int) -> Tensor:
    fill = b.scalar_like(a.pad_id, ids) if eos is None else b.reshape(eos, ())
    return fill.expand((batch, a.earlier))


@dataclass(frozen=True, kw_only=True)
class VarlenHashAttributes(HashAttributes):
    """The attributes, and the number of a sequence's first tokens whose states are returned."""

    state_update_capacity: int = 0


@operator(
    "VarlenNGramHashMapping",
    domain=MICROSOFT,
    types={**_IDS, "starts segment_ids past_segment_ids capture_count": ("int32",)},
)
def varlen_ngram_hash_mapping(
    b: Builder,
    ids: Tensor,
    multipliers: Tensor,
    vocab_sizes: Tensor,
    starts: Tensor,
    past_ids: Tensor | None = None,
    head_offsets: Tensor | None = None,
    eos: Tensor | None = None,
    segment_ids: Tensor | None = None,
    past_segment_ids: Tensor | None = None,
    capture_count: Tensor | None = None,
    *,
    a: VarlenHashAttributes,
) -> list[Tensor]:
    others = {"past_ids": past_ids, "head_offsets": head_offsets, "eos_token_id": eos}
    _checked(b, a, ids, multipliers, vocab_sizes, others)
    if ids.rank != 1 or not ids.size:
        b.invalid(f"input_ids has shape {list(ids.shape)}, expected one axis of 1 or more")
    packed = Packed.of(b, starts, ids.size)
    history = (packed.batch, a.earlier)
    b.expect("past_ids", past_ids, history)
    b.expect("segment_ids", segment_ids, ids.shape)
    b.expect("past_segment_ids", past_segment_ids, history)
    past = _missing(b, a, ids, eos, packed.batch) if past_ids is None else past_ids
    shifts, table = _shifted(b, a, packed, ids, past)
    crossings, segment_table = [], None
    if segment_ids is not None:
        if past_segment_ids is None:  # the history is of the first token's segment
            first = packed.rows(b, segment_ids, positions(b, packed.batch), 0, 0, (packed.batch,))
            past_segment_ids = b.reshape(first, (packed.batch, 1)).expand(history)
        segments, segment_table = _shifted(b, a, packed, segment_ids, past_segment_ids)
        crossings = [b.expr("ne", s, t, ctype="bool") for s, t in pairwise(segments)]
    hashes = _hashes(b, a, shifts, multipliers, vocab_sizes, head_offsets, eos, crossings)
    row = b.reshape(positions(b, packed.batch), (packed.batch, 1))
    length, back, place = b.reads(b.reshape(packed.lengths, (packed.batch, 1)), a.earlier, positions(b, a.earlier))
    last = length - back + place
    present = packed.rows(b, table, row, last, a.earlier, history)
    present_segments = None
    if segment_table is not None:
        present_segments = packed.rows(b, segment_table, row, last, a.earlier, history)
    update = None
    if wants_output(b, 3):
        update = _captured(b, a, packed, table, capture_count)
    return outputs(b, hashes, present, present_segments, update)


def _shifted(b: Builder, a: HashAttributes, packed: Packed, rows: Tensor, past: Tensor) -> tuple[list[Tensor], Tensor]:
    """The tokens 0, 1, ... positions before each, and the table of tokens and history."""
    table = with_history(b, rows, past)
    shape = (packed.tokens,)
    shifts = [
        packed.rows(b, table, packed.owner, b.expr("sub", packed.place, k), a.earlier, shape)
        for k in range(1, a.max_ngram_size)
    ]
    return [rows, *shifts], table


def _captured(
    b: Builder, a: VarlenHashAttributes, packed: Packed, table: Tensor, capture_count: Tensor | None
) -> Tensor:
    """The last ids after each of a sequence's first tokens, [batch, capacity, earlier]; ``pad_id`` where none is
    requested."""
    if capture_count is None or a.state_update_capacity < 1:
        b.invalid(
            f"state_update needs capture_count and a state_update_capacity of 1 or more, got {a.state_update_capacity}"
        )
    b.expect("capture_count", capture_count, (packed.batch,))
    shape = (packed.batch, a.state_update_capacity, a.earlier)
    row = b.reshape(positions(b, packed.batch), (packed.batch, 1, 1))
    slot = b.reshape(positions(b, a.state_update_capacity), (1, a.state_update_capacity, 1))
    ends = [b.reshape(t, (packed.batch, 1, 1)) for t in (capture_count, packed.lengths)]
    at, first, place, count, length = b.reads(slot, 1 - a.earlier, positions(b, a.earlier), *ends)
    found = packed.rows(b, table, row, at + first + place, a.earlier, shape)
    value, pad = b.reads(found, a.pad_id)
    return b.store(where((at < count) & (at < length), value, pad), found.dtype, shape=shape)


def _words(x: Expr) -> list[Expr]:
    """The 32-bit words of an element, the lower one first."""
    if x.ctype == "double":
        return [apply("low_word", x), apply("high_word", x)]
    low = fn.float_bits(x) if x.ctype == "float" else fn.cast(x, "uint")
    return [low, fn.cast(x >> 32, "uint")] if x.ctype in ("int64_t", "uint64_t") else [low]


def _rotated_left(value: Expr, bits: int) -> Expr:
    return (value << bits) | (value >> (32 - bits))


@operator("MurmurHash3", domain=MICROSOFT, types={"x": ("int32", "uint32", "float32", "int64", "uint64", "float64")})
def murmur_hash(b: Builder, x: Tensor, *, positive: int = 1, seed: int = 0) -> Tensor:
    """MurmurHash3_x86_32 (Appleby) of each element's bytes."""
    words = _words(b.reads(x)[0])
    state = b.reads(words[0], seed & 0xFFFFFFFF)[1]
    for word in words:
        mixed = _rotated_left(word * 0xCC9E2D51, 15)
        state = _rotated_left(state ^ (mixed * 0x1B873593), 13) * 5 + 0xE6546B64
    state = state ^ (4 * len(words))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> shift)) * factor
    state = state ^ (state >> 16)
    made: DType = UINT32 if positive == 1 else INT32
    return b.store(fn.cast(state, made.glsl_compute), made, shape=x.shape)
