"""The GLSL of operations' epilogues (``shaders/epilogue.glsl``)."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.dtypes import DType, load_code
from vkep.ir import expr as ex
from vkep.ir.code import generate
from vkep.ir.ops import KernelOp
from vkep.ir.tensor import Tensor
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.fastdiv import magic_params
from vkep.kernels.problem import alignment_of
from vkep.passes.fuse import IndexTerm, epilogue_index
from vkep.shaders.interface import Operand
from vkep.sizes import matches, power_of_two_in


def epilogue_of(op: KernelOp) -> Epilogue:
    """The GLSL of an operation's epilogue (`shaders/epilogue.glsl`): ``v`` is an element of the kernel's result, ``w`` of its
    second product's, ``o`` its flat index in the output."""
    matrices = op.problem.matrices
    assert op.epilogue is not None and matrices is not None
    results = {t.storage: code for t, code in zip(op.epilogue_of, ("v", "w"), strict=False)}
    operands: list[Tensor] = []
    decls: dict[str, str] = {}
    params: list[tuple[str, str, int]] = []
    names: dict[tuple[int, tuple[int, ...], int], str] = {}
    in_eights: dict[str, str] = {}
    vectors: list[str] = []

    def read(leaf: ex.Leaf) -> str:
        """GLSL that reads a leaf: a result of the kernel, or an element of another tensor, which becomes an operand."""
        tensor = leaf.tensor
        assert tensor is not None
        if tensor.storage in results:
            return results[tensor.storage]
        key = (id(tensor.storage), tensor.strides, tensor.offset)
        if key not in names:
            k = len(operands)
            found = epilogue_index(tensor, matrices)
            assert found is not None
            index = " + ".join([_term(term, f"e{k}_{i}", params) for i, term in enumerate(found)]) or "0u"
            pointer, address = f"E_{tensor.dtype.name}", f"operand(args.e{k}, EXTRA_BASE + {k}u)"
            decls[pointer] = f"TENSOR({tensor.dtype.glsl}, {pointer})"
            names[key] = load_code(tensor.dtype, f"{pointer}({address}).v[{index}]")
            if _lies_in_eights(tensor, found):
                vector, of = tensor.dtype.glsl_vector, f"E4_{tensor.dtype.name}"
                decls[of] = f"VECTORS_OF_EIGHT({vector}, {_bytes_of_eight(tensor.dtype)}, {of})"
                low, high = f"e{k}_low", f"e{k}_high"
                vectors.append(f"{of} e{k}_of = {of}({address}); uint e{k}_at = ({index}) / 4;")
                vectors.append(f"{vector} {low} = e{k}_of.v[e{k}_at], {high} = e{k}_of.v[e{k}_at + 1];")
                in_eights[names[key]] = load_code(tensor.dtype, f"(i < 4 ? {low}[i & 3] : {high}[i & 3])")
            operands.append(tensor)
        return names[key]

    code = generate(op.epilogue, read)
    eight = generate(op.epilogue, lambda leaf: in_eights.get(name := read(leaf), name)) if vectors else None
    return Epilogue(
        body=f"{code.statements} v = {code.result};",
        eight_reads=" ".join(vectors),
        eight_body="" if eight is None else f"{eight.statements} v = {eight.result};",
        decls=" ".join(decls.values()),
        operands=tuple((Operand(f"e{k}"), t) for k, t in enumerate(operands)),
        params=(*params, *code.scalars),
    )


def _bytes_of_eight(dtype: DType) -> int:
    """Alignment of eight elements, of which four are a vector."""
    return min(8 * dtype.itemsize, 16)


def _lies_in_eights(tensor: Tensor, index: Sequence[IndexTerm]) -> bool:
    """Whether an epilogue's operand has eight consecutive results of a row, from a multiple of eight on, in aligned vectors."""
    along = [term for term in index if term.of in ("o", "col") and matches(term.stride, 1)]
    return (
        len(along) == 1
        and tensor.dtype.bits >= 8
        and tensor.dtype.itemsize <= 4
        and alignment_of(tensor) >= _bytes_of_eight(tensor.dtype)
        and all(power_of_two_in(term.stride, 8) == 8 for term in index if term is not along[0])
    )


def _term(term: IndexTerm, name: str, params: list[tuple[str, str, int]]) -> str:
    position = term.of
    if position == "matrix":
        position = _quotient("o", f"{name}_inner", term.inner, params)
        if term.dim:
            outer = _quotient("o", f"{name}_outer", term.inner * term.dim, params)
            params.append((f"{name}_dim", "uint", term.dim))
            position = f"({position} - {outer} * args.{name}_dim)"
    if matches(term.stride, 1):
        return position
    params.append((name, "uint", term.stride))
    return f"{position} * args.{name}"


def _quotient(of: str, name: str, divisor: int, params: list[tuple[str, str, int]]) -> str:
    magic = magic_params(name, divisor)
    params += [(key, "uint", value) for key, value in magic.items() if key != name]
    return f"fast_div({of}, args.{name}_mul, args.{name}_shift)"
