"""Small models in ONNX's text form whose shapes follow from sizes or counts: loops, selections, recurrences, signals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser

_TRIPS = """shape = Shape(x) zero = Constant <value_int: int = 0> () trips = Gather(shape, zero)
            go = Constant <value = bool {1}> ()"""
TEXTS: Mapping[str, str] = {
    "loop": f"""(float[t,1,64] x, float[64,64] w, float[1,64] h) => (float[1,64] y, float[t,1,64] ys) {{
        {_TRIPS} y, ys = Loop (trips, go, h) <
            body = body (int64 i, bool c, float[1,64] s) => (bool d, float[1,64] r, float[1,64] o) {{
                d = Identity(c) e = Gather(x, i) p = MatMul(s, w) q = Add(p, e) r = Tanh(q) o = Neg(r)
            }}> }}""",
    "growing loop": f"""(float[t,1,64] x, float[64,64] w, float[1,64] h) => (float[u,64] y, float[t,1,64] ys) {{
        {_TRIPS} y, ys = Loop (trips, go, h) <
            body = body (int64 i, bool c, float[g,64] s) => (bool d, float[k,64] r, float[1,64] o) {{
                d = Identity(c) e = Gather(x, i) r = Concat <axis: int = 0> (s, e)
                first = Constant <value_ints: ints = [0]> () o = ReduceMean (r, first)
            }}> }}""",
    "scan": """(float[t,1,64] x, float[64,64] w, float[1,64] h) => (float[1,64] y, float[t,1,64] ys) {
        y, ys = Scan <num_scan_inputs: int = 1,
            body = body (float[1,64] s, float[1,64] e) => (float[1,64] r, float[1,64] o) {
                p = MatMul(s, w) q = Add(p, e) r = Tanh(q) o = Neg(r)
            }> (h, x) }""",
    "rnn": """(float[t,1,32] x, float[1,256,32] w, float[1,256,256] r) => (float[t,1,1,256] y) {
        y = RNN <hidden_size: int = 256> (x, w, r) }""",
    "non-zero": """(float[n,m] x) => (float[k] y) {
        i = NonZero(x) t = Transpose(i) g = GatherND(x, t) y = Mul(g, g) }""",
    "rows by a test": """(float[n,16] x, float[16,16] w) => (float[k,16] y) {
        one = Constant <value_ints: ints = [1]> () zero = Constant <value_float: float = 1.5> ()
        first = Constant <value_ints: ints = [0]> () z = ReduceMax <keepdims: int = 0> (x, one)
        b = Greater(z, zero) i = NonZero(b) j = Squeeze(i, first) p = Gather(x, j) q = MatMul(p, w) y = Relu(q) }""",
    "compress": """(float[n,8] x, bool[n] c) => (float[k,8] y) { z = Compress <axis: int = 0> (x, c) y = Mul(z, z) }""",
    "unique": "(int64[n] ids) => (float[k] y) { v, i = Unique(ids) f = Cast <to: int = 1> (v) y = Sqrt(f) }",
    "largest of a share": """(float[1,n] x) => (float[1,k] y, int64[1,k] i) {
        s = Shape <start: int = 1> (x) four = Constant <value_ints: ints = [4]> () k = Div(s, four)
        y, i = TopK(x, k) }""",
    "largest k": "(float[1,n] x, int64[1] k) => (float[1,m] y, int64[1,m] i) { y, i = TopK(x, k) }",
    "non-maximum suppression": """(float[1,n,4] corners, float[1,2,n] x) => (float[k,4] y) {
        a, b = Split <axis: int = 2, num_outputs: int = 2> (corners) c = Abs(b) d = Add(a, c)
        boxes = Concat <axis: int = 2> (a, d) most = Constant <value = int64[1] {20}> ()
        over = Constant <value = float[1] {0.5}> () least = Constant <value = float[1] {0.0}> ()
        s = NonMaxSuppression(boxes, x, most, over, least) two = Constant <value = int64 {2}> ()
        r = Gather <axis: int = 1> (s, two) first = Constant <value_ints: ints = [0]> ()
        flat = Squeeze(boxes, first) y = Gather(flat, r) }""",
    "repeats by counts": """(float[1,n,16] x, float[1,n] lengths) => (float[1,16,t] y) {
        whole = Ceil(lengths) axis = Constant <value = int32 {1}> () ends = CumSum(whole, axis)
        last = Constant <value = int64 {-1}> () end = Gather <axis: int = 1> (ends, last) e = Cast <to: int = 7> (end)
        first = Constant <value_ints: ints = [0]> () limit = Squeeze(e, first) zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> () r = Range(zero, limit, one) f = Cast <to: int = 1> (r)
        column = Constant <value_ints: ints = [2]> () wide = Unsqueeze(ends, column) inside = Less(f, wide)
        i = Cast <to: int = 1> (inside) shifted = Constant <value_ints: ints = [0, 1, 0, 0, 0, 0]> ()
        p = Pad(i, shifted) zeros = Constant <value_ints: ints = [0]> () ones = Constant <value_ints: ints = [-1]> ()
        axes = Constant <value_ints: ints = [1]> () before = Slice(p, zeros, ones, axes) path = Sub(i, before)
        t = Transpose <perm: ints = [0, 2, 1]> (x) y = MatMul(t, path) }""",
    "greedy CTC": """(float[1,t,32] x) => (int64[k] y) {
        a = ArgMax <axis: int = 2, keepdims: int = 0> (x) first = Constant <value_ints: ints = [0]> () s = Squeeze(a, first)
        one = Constant <value_ints: ints = [1]> () most = Constant <value_ints: ints = [9223372036854775807]> ()
        none = Constant <value_ints: ints = [-1]> () late = Slice(s, one, most, first) early = Slice(s, first, none, first)
        same = Equal(late, early) other = Not(same) zero = Constant <value = int64[1] {0}> () blank = Equal(late, zero)
        text = Not(blank) keep = And(other, text) i = NonZero(keep) j = Squeeze(i, first) y = Gather(late, j) }""",
    "reverse by lengths": """(float[t,2,16] x, int64[2] ends) => (float[t,2,16] y) {
        z = ReverseSequence <batch_axis: int = 1, time_axis: int = 0> (x, ends) y = Mul(z, z) }""",
    "spectrum": """(float[1,samples,1] x) => (float[1,f,u] y) {
        step = Constant <value = int64 {64}> () size = Constant <value = int64 {256}> () w = HannWindow(size)
        s = STFT(x, step, w) two = Constant <value_ints: ints = [3]> () p = Mul(s, s)
        y = ReduceSum <keepdims: int = 0> (p, two) }""",
    "running sum": """(float[2,n] x) => (float[2,n] y) {
        axis = Constant <value = int32 {1}> () z = CumSum(x, axis) y = Tanh(z) }""",
    "affine grid": """(float[1,3,height,width] x, float[1,2,3] theta) => (float[1,3,a,b] y) {
        s = Shape(x) g = AffineGrid(theta, s) y = GridSample(x, g) }""",
    "resize to a share": """(float[1,3,height,width] x, float[4,3,3,3] w) => (float[1,4,a,b] y) {
        s = Shape <start: int = 2> (x) two = Constant <value_ints: ints = [2]> () h = Div(s, two) c = Conv(x, w)
        front = Shape <end: int = 2> (c) sizes = Concat <axis: int = 0> (front, h)
        y = Resize <mode = "linear"> (c, , , sizes) }""",
    "relative positions": """(float[1,4,n,16] x, float[255,16] w) => (float[1,4,n,n] y) {
        s = Shape <start: int = 2, end: int = 3> (x) first = Constant <value_ints: ints = [0]> () n = Squeeze(s, first)
        zero = Constant <value = int64 {0}> () one = Constant <value = int64 {1}> () r = Range(zero, n, one)
        last = Constant <value_ints: ints = [1]> () column = Unsqueeze(r, last) d = Sub(column, r)
        half = Constant <value = int64 {127}> () i = Add(d, half) e = Gather(w, i) q = Transpose <perm: ints = [0, 2, 1, 3]> (x)
        t = Transpose <perm: ints = [0, 2, 1]> (e) z = MatMul(q, t) y = Transpose <perm: ints = [0, 2, 1, 3]> (z) }""",
    "branch by length": """(float[1,t,8] x, float[8,8] w) => (float[1,t,8] y) {
        s = Shape <start: int = 1, end: int = 2> (x) first = Constant <value_ints: ints = [0]> () n = Squeeze(s, first)
        most = Constant <value = int64 {12}> () c = Less(n, most)
        y = If (c) <then_branch = a () => (float[1,t,8] p) { p = MatMul(x, w) },
                    else_branch = b () => (float[1,t,8] q) { r = MatMul(x, w) q = Relu(r) }> }""",
}


def text_model(name: str) -> onnx.ModelProto:
    """A model of `TEXTS`, with inputs `w`, `r` and `h` as random weights."""
    opset = 20 if name == "affine grid" else 18
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> g {TEXTS[name]}')
    rng = np.random.default_rng(0)
    for value in [v for v in proto.graph.input if v.name in ("w", "r", "h")]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        proto.graph.input.remove(value)
    return proto
