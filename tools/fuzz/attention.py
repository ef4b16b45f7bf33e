"""Draw calls of the attention operators (`tools.fuzz.attention_calls`), and compare vkep with others.

    python -m tools.fuzz.attention --cases 300 --seed 1 [--only GroupQueryAttention] [--case 17] [--few]

The reference is ONNX Runtime's CPU provider, in float32 for the other floats; where it lacks what a call asks for, numpy from the
operator's documentation (`tools.fuzz.attention_reference`); for operators of ONNX its own evaluator.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tools.fuzz import attention_calls, attention_reference, grouped_calls, written_attention
from tools.fuzz.attention_calls import MICROSOFT, Array, Case, Rng
from tools.ort_cpu import cpu_session
from vkep.kernels.attention import split as attention_split
from vkep.kernels.attention import stream as attention_stream
from vkep.passes import norms

#: the greatest difference from a reference in float32, of values near 1
NEAR = {"float32": 2e-4, "float16": 1e-2, "bfloat16": 8e-2}


def by_onnxruntime(case: Case) -> list[Array]:
    """The outputs of ONNX Runtime's CPU provider, floats in float32."""
    return list(cpu_session(case.model(wide=True)).run(None, case.feeds(wide=True)))


def _unpacked(case: Case) -> list[Array]:
    """Split packed inputs, since ONNX Runtime's CPU provider does not support them."""
    query, key = case.inputs["query"], case.inputs["key"]
    packed = key if key is not None else query
    assert query is not None and packed is not None
    rows = [np.ascontiguousarray(packed[:, :, :, i]).reshape(*packed.shape[:2], -1) for i in range(packed.shape[3])]
    parts: dict[str, Array | None] = dict(
        zip(("query", "key", "value"), rows if key is None else [query, *rows], strict=True)
    )
    return by_onnxruntime(replace(case, inputs=case.inputs | parts))


def _reference(case: Case) -> list[Array] | None:
    """The result of other engines for a call that ONNX Runtime does not support; None where none does."""
    if case.op == "GroupQueryAttention" and not case.attributes.get("sliding_window_cache"):
        return attention_reference.grouped(case)
    if case.op == "MultiHeadAttention" and any(t is not None and t.ndim == 5 for t in case.inputs.values()):
        return _unpacked(case)
    return None if case.domain == MICROSOFT else attention_reference.by_onnx(case)


def caches_in_place(case: Case, expected: Sequence[Array] | None) -> dict[str, str]:
    """The presents that the case binds to their pasts' tensors, and those: in a case in place the ones whose ``expected``
    shape is the past's."""
    if not case.in_place or expected is None:
        return {}
    shapes = dict(zip(filter(None, case.outputs), (np.shape(e) for e in expected), strict=True))
    pasts = {n: v.shape for n, v in case.inputs.items() if v is not None and n.startswith("past")}
    pairs = {n: n.replace("present", "past") for n in shapes if n.startswith("present")}
    return {n: past for n, past in pairs.items() if past in pasts and pasts[past] == shapes[n]}


def on_vulkan(case: Case, context: Any, over: Mapping[str, str]) -> list[Array]:
    """vkep's outputs, with every node on Vulkan; those in ``over`` are written to their input's tensor."""
    from vkep import InferenceSession

    feeds = case.feeds()
    with InferenceSession(case.model(), context=context, fallback="error") as session:
        for inputs in case.before:
            session.run(None, dict(inputs))
        if not over:
            return list(session.run(None, feeds))
        tensors = {name: session.device_tensor(feeds[name]) for name in over.values()}
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_input(name, tensors[name]) if name in tensors else binding.bind_cpu_input(name, value)
        for name in filter(None, case.outputs):
            binding.bind_output(name, tensors[over[name]] if name in over else None)
        session.run_with_iobinding(binding)
        return list(binding.copy_outputs_to_cpu())


def verdict(case: Case, context: Any) -> tuple[str, str]:
    """Compare two results: ``equal``, ``differs``, ``declined``, ``refused`` (by vkep alone), ``accepted`` (by vkep
    alone) or ``both refuse``, with the reason."""
    from vkep.errors import UnsupportedModelError, VkepError

    theirs: list[Array] | None = None
    reason = ""
    source = "onnxruntime"
    try:
        theirs = by_onnxruntime(case)
    except Exception as error:  # its exceptions share no base class
        reason = str(error)[:300]
    if theirs is None or not case.domain:  # onnx's evaluator is the reference for ONNX's operators
        theirs, source = _reference(case), "the reference"
    try:
        ours = on_vulkan(case, context, caches_in_place(case, theirs))
    except UnsupportedModelError as error:
        return "declined", str(error)[:300]
    except VkepError as error:
        return ("both refuse" if theirs is None else "refused"), f"{error}"[:300]
    if theirs is None:
        return "accepted", reason
    names = [n for n in case.outputs if n]
    for name, mine, right in zip(names, ours, theirs, strict=True):
        why = _difference(case, name, mine, np.asarray(right))
        if why:
            return "differs", f"{name}: {why} (from {source})"
    return "equal", ""


def _difference(case: Case, name: str, mine: Array, right: Array) -> str:
    if mine.shape != right.shape:
        return f"shape {list(mine.shape)}, expected {list(right.shape)}"
    cut: Callable[[Array], Array] = case.part.get(name, np.asarray)
    if mine.dtype.kind in "iu":  # quantized codes: a tie may be rounded either way
        a, b = cut(mine).astype(np.int32), cut(right.view(mine.dtype)).astype(np.int32)
        if mine.dtype == np.uint8:
            a, b = (np.stack([t & 15, t >> 4]) for t in (a, b))
        off = np.abs(a - b)
        most = 1 if case.dtype == "float32" else 2
        share = 0.01 if case.dtype == "float32" else 0.2
        return (
            f"codes differ by up to {off.max()}, {np.mean(off > 0):.1%} of them"
            if off.size and (off.max() > most or np.mean(off > 0) > share)
            else ""
        )
    a, b = cut(mine).astype(np.float64), cut(right).astype(np.float64)
    if not a.size:
        return ""
    hidden = np.isneginf(a) & (b < -1e4) | np.isneginf(b) & (a < -1e4)  # a masked score
    a, b = np.where(hidden, 0, a), np.where(hidden, 0, b)
    near = NEAR[case.dtype] * (8 if mine.dtype.name == "float8_e4m3fn" else 1)
    if case.inputs.get("mask_index") is not None:  # a query that sees no key: -10000 in float32 has a step of 0.001
        near = max(near, 2e-3)
    if case.dtype != "float32":  # a code next to a tie
        near *= {4: 30, 8: 4}.get(case.attributes.get("kv_cache_bit_width", 0), 1)
    wrong = ~np.isclose(a, b, rtol=near, atol=near, equal_nan=True)
    if mine.dtype.name == "float8_e4m3fn":  # the other side of a tie
        wrong &= np.abs(a - b) > 0.13 * np.maximum(np.abs(a), np.abs(b))
    return f"up to {np.nanmax(np.abs(a - b)[wrong]):.3g} off in {np.mean(wrong):.0%}" if wrong.any() else ""


OPERATORS: dict[str, Callable[[Rng], Case]] = {
    "GroupQueryAttention": grouped_calls.grouped,
    "windowed GroupQueryAttention": grouped_calls.windowed,
    "MultiHeadAttention": attention_calls.multi_head,
    "DecoderMaskedMultiHeadAttention": attention_calls.decoder_masked,
    "com.microsoft.Attention": attention_calls.self_attention,
    "Attention": attention_calls.standard,
    "RotaryEmbedding": attention_calls.rotary,
    "written": written_attention.written,
}


def draw(seed: int, index: int, only: Sequence[str] = ()) -> Case:
    """Case ``index`` of a seed."""
    rng = np.random.default_rng([seed, index])
    names = [n for n in OPERATORS if not only or n in only]
    case = OPERATORS[names[index % len(names)]](rng)
    return replace(case, in_place=bool(rng.random() < 0.5))


def main() -> int:
    """Compare, and print the cases that are not equal."""
    from gpu_shared import SharedGpuContext

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=list(OPERATORS))
    parser.add_argument("--case", type=int)
    parser.add_argument("--few", action="store_true", help="take the kernels of few queries, as a GPU does")
    args = parser.parse_args()
    if args.few:
        for module in (attention_split, attention_stream, norms):
            setattr(module, "is_cpu", lambda caps: False)  # noqa: B010
    context = SharedGpuContext.create({"gpu_shared_context_token": "attention"})
    found: Counter[tuple[str, str, str]] = Counter()
    for index in range(args.cases) if args.case is None else [args.case]:
        case = draw(args.seed, index, args.only)
        result, why = verdict(case, context)
        found[f"{case.domain}.{case.op}".lstrip("."), result, re.sub(r"\d+", "N", why)[:120]] += 1
        if result not in ("equal", "both refuse") or args.case is not None:
            print(f"{index} {result}: {why}\n    {case.text}", flush=True)
    print()
    for (op, result, why), count in sorted(found.items()):
        print(f"{count:5} {op} {result} {why}")
    return int(any(result in ("differs", "refused") for _, result, _ in found))


if __name__ == "__main__":
    sys.exit(main())
