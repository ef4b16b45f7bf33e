"""The next token of each sequence of a language model, for `vkep.generation.choices`."""

from __future__ import annotations

from vkep.dtypes import FLOAT32, INT32, INT64
from vkep.graph.model import GENERATION
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.tokens.choose_token import SETTINGS, ChooseTokenProblem
from vkep.ops.microsoft import wants_output
from vkep.ops.registry import FLOATS, operator


@operator(
    "ChooseToken",
    domain=GENERATION,
    types={"logits": FLOATS, "settings": ("float32",), "seen": ("int64",), "never": ("int64",)},
)
def choose_token(
    b: Builder, logits: Tensor, settings: Tensor, seen: Tensor | None = None, never: Tensor | None = None
) -> list[Tensor]:
    """Tokens [batch, 1] (int64) and [batch] (int32) after the last position of ``logits`` [batch, length, vocabulary]; where
    asked for, each token's probability relative to the greatest one's, by the settings (float32 [batch, vocabulary])."""
    if logits.rank != 3 or 0 in logits.shape:
        b.invalid(f"logits of shape {list(logits.shape)}, expected [batch, length, vocabulary]")
    batch, length, vocabulary = logits.shape
    b.expect("settings", settings, (batch, len(SETTINGS)))
    last = logits.slice(1, length - 1, 1)
    if last.strides[2] != 1:
        last = b.contiguous(last)
    counts = seen.shape[1] if seen is not None else 0, never.size if never is not None else 0
    if seen is not None:
        b.expect("seen", seen, (batch, counts[0]))
    outputs = [b.empty(INT64, (batch, 1)), b.empty(INT32, (batch,))]
    if wants_output(b, 2):
        outputs.append(b.empty(FLOAT32, (batch, vocabulary)))
    more = [t for t, count in zip((seen, never), counts, strict=True) if t is not None and count]
    stride = last.strides[0] if batch > 1 else 0
    problem = ChooseTokenProblem(batch, vocabulary, stride, logits.dtype.name, *counts, len(outputs) > 2)
    b.compute(problem, [last, b.contiguous(settings), *(b.contiguous(t) for t in more)], outputs)
    return outputs
