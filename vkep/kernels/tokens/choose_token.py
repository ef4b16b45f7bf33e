"""The next token of each sequence, from its logits and settings: ``shaders/choose_token.comp``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, floor_power_of_two, grid, is_cpu
from vkep.kernels.matmul.tiles import OF_STORAGE, STORAGE
from vkep.kernels.problem import Need, Problem, extent
from vkep.kernels.select import Candidate, Emission, implement

#: settings of a sequence, in order
SETTINGS = ("temperature", "top_k", "top_p", "min_p", "penalty", "chance")
_BINS = 1024
#: words of a sequence's state, and of each block's in it
_STATE, _OF_BLOCK = 4 * _BINS + 16, 3
#: the last of the passes, which has one workgroup for a sequence, and the one before it
_PICK, _SUM = 5, 4
_LANES, _LANES_CPU = 256, 32
#: tokens of a block
_BLOCK, _BLOCK_CPU = 2048, 32768
#: number of values below 2**13 whose sum fits 32 bits
_LARGEST_VOCABULARY = 1 << 19


def _reach(call: KernelCall) -> Mapping[str, int]:
    rows, vocabulary, changed, kind = call["rows"], call["vocabulary"], call["CHANGED"], call["PASS"]
    return {
        "x": extent((rows, vocabulary), (call["x_row"], 1)) * call.size_of("T") if not changed or kind == 0 else 0,
        "settings": rows * 4 * len(SETTINGS),
        "seen": 8 * rows * call["seen_count"] if kind == 0 else 0,
        "never": 8 * call["never_count"] if kind == 0 else 0,
        "tokens": 8 * rows if kind == _PICK else 0,
        "chosen": 4 * rows if kind == _PICK else 0,
        "shares": 4 * rows * vocabulary * call["SHARES"] if kind == _SUM else 0,
        "logits": 4 * rows * vocabulary * changed,
        "state": 4 * rows * (_STATE + _OF_BLOCK * call["blocks"]),
    }


CHOOSE_TOKEN = Kernel("choose_token.comp", variants=OF_STORAGE, reach=_reach)


@dataclass(frozen=True)
class ChooseTokenProblem(Problem):
    """``tokens`` (int64 [rows]) and ``chosen`` (the same, int32) for logits ``x`` [rows, vocabulary] of ``row_stride``
    (elements) and type ``dtype`` (float32 or float16), by ``settings`` (float32 [rows, `SETTINGS`]).

    ``seen``: how many ids of each row's operand ``seen`` (int64 [rows, seen]) the repetition penalty applies to;
    ``never``: how many ids of the operand ``never`` (int64 [never]) are not chosen. Ids outside the vocabulary have no
    effect. 0: there is no such operand. ``with_shares``: a third result, float32 [rows, vocabulary], has each token's probability
    relative to the greatest one's, 0 for those that are not chosen.
    """

    rows: int
    vocabulary: int
    row_stride: int
    dtype: str
    seen: int = 0
    never: int = 0
    with_shares: bool = False

    def needs(self) -> tuple[Need, ...]:
        seen = [Need("seen", "int64", (self.rows, self.seen))] if self.seen else []
        never = [Need("never", "int64", (self.never,))] if self.never else []
        return (
            Need("x", self.dtype, (self.rows, self.vocabulary), (self.row_stride, 1)),
            Need("settings", "float32", (self.rows, len(SETTINGS))),
            *seen,
            *never,
        )

    def makes(self) -> tuple[Need, ...]:
        shares = [Need("shares", "float32", (self.rows, self.vocabulary), flat=True)] if self.with_shares else []
        return (
            Need("tokens", "int64", (self.rows,), flat=True),
            Need("chosen", "int32", (self.rows,), flat=True),
            *shares,
        )

    def reference(
        self, x: np.ndarray, settings: np.ndarray, seen: np.ndarray | None = None, never: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        tokens, every = np.empty(self.rows, np.int64), np.zeros((self.rows, self.vocabulary), np.float32)
        for row, (heat, top_k, top_p, min_p, penalty, chance) in enumerate(settings):
            logits = np.where(np.isnan(x[row]), -np.inf, x[row])
            if seen is not None:
                ids = np.unique(seen[row][(seen[row] >= 0) & (seen[row] < self.vocabulary)])
                logits[ids] = np.where(logits[ids] < 0, logits[ids] * penalty, logits[ids] / penalty)
            if never is not None:
                logits[never[(never >= 0) & (never < self.vocabulary)]] = -np.inf
            tokens[row] = np.argmax(logits)
            if heat <= 0 or np.isinf(logits.max()):
                every[row, tokens[row]] = 1
                continue
            z = (logits - logits.max()) / heat
            shares = np.where(z >= -32.0, np.exp(z), 0.0)  # tokens that are less probable are not chosen
            if top_k >= 1 and int(top_k) < self.vocabulary:
                shares[z < np.sort(z)[-int(top_k)]] = 0.0
            if top_p < 1:
                falling = np.sort(shares)[::-1]
                last = np.searchsorted(np.cumsum(falling), top_p * falling.sum())
                shares[shares < falling[min(int(last), self.vocabulary - 1)]] = 0.0
            shares[(z < np.log(min_p)) & (z < 0) if min_p > 0 else z != z] = 0.0
            passed = np.flatnonzero(np.cumsum(shares) > chance * shares.sum())
            tokens[row] = passed[0] if passed.size else np.flatnonzero(shares)[-1]
            every[row] = shares
        return (tokens, tokens, every) if self.with_shares else (tokens, tokens)


def _when(problem: ChooseTokenProblem, caps: DeviceCapabilities) -> str:
    if problem.dtype not in STORAGE:
        return f"logits are {problem.dtype}, expected one of {sorted(STORAGE)}"
    if not 0 < problem.vocabulary <= _LARGEST_VOCABULARY:
        return f"a vocabulary of {problem.vocabulary} tokens, expected 1 to {_LARGEST_VOCABULARY}"
    needed = 8 * _BINS + 8 * 32 + 8
    if caps.max_shared_memory_bytes < needed:
        return f"{caps.max_shared_memory_bytes} bytes of shared memory, expected {needed}"
    return ""


def _lanes(caps: DeviceCapabilities) -> int:
    """Lanes of a workgroup: two words each in shared memory, in addition to the bins."""
    most = min(
        caps.max_workgroup_invocations, caps.max_workgroup_size[0], (caps.max_shared_memory_bytes - 8 * _BINS - 8) // 8
    )
    return max(32, min(_LANES_CPU if is_cpu(caps) else _LANES, floor_power_of_two(most)))


def _choose(problem: ChooseTokenProblem, e: Emission) -> list[KernelCall]:
    rows, vocabulary = problem.rows, problem.vocabulary
    changed = problem.seen != 0 or problem.never != 0
    each = _BLOCK_CPU if is_cpu(e.caps) else _BLOCK
    blocks = ceil_div(vocabulary, each)
    logits = e.target.scratch("float32", (rows, vocabulary)) if changed else None
    state = e.target.scratch("uint32", (rows, _STATE + _OF_BLOCK * blocks))
    read = {name: e.get(name) for name in ("x", "seen", "never")}
    written = {_PICK: {name: e.get(name) for name in ("tokens", "chosen")}, _SUM: {"shares": e.get("shares")}}
    none = dict.fromkeys((*read, "tokens", "chosen", "shares"))
    calls = []
    for kind in range(_PICK + 1):
        # the first pass reads what changes logits; the others read the changed ones
        own = (read if kind == 0 else {} if changed else {"x": e["x"]}) | written.get(kind, {})
        call = CHOOSE_TOKEN.call(
            grid=grid(rows if kind == _PICK else rows * blocks),
            operands={**none, **own, "settings": e["settings"], "logits": logits, "state": state},
            params={
                "rows": rows,
                "vocabulary": vocabulary,
                "x_row": problem.row_stride,
                "seen_count": problem.seen,
                "never_count": problem.never,
                "blocks": blocks,
                "each": each,
                "parts": 1.0 / 8192.0,
            },
            spec={"CHANGED": int(changed), "PASS": kind, "SHARES": int(problem.with_shares)},
            defines={"T": STORAGE[problem.dtype]},
            local_size=(_lanes(e.caps),),
        )
        calls.append(call)
    return calls


implement(ChooseTokenProblem, Candidate("choose token", _choose, when=_when))
