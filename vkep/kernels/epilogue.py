"""An expression fused into a kernel: applied to each result element before it is stored (shaders/epilogue.glsl)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vkep.shaders.interface import Operand


@dataclass(frozen=True)
class Epilogue:
    """GLSL that changes ``v``, and its operands and scalars.

    ``body`` may use ``o`` (flat output index), ``row``, ``col`` and, of two products, ``w`` (the second result); it reads
    extra operand k as ``TensorType(operand(args.ek, EXTRA_BASE + ku)).v[...]`` and extra scalars as ``args.<name>``.
    ``eight_reads`` and ``eight_body`` are of eight results of a row, from a multiple of eight on: the operands that are read as
    vectors, and the GLSL that changes the ``i``-th result ``v``. They are empty where no operand lies in vectors.
    """

    body: str
    decls: str = ""
    operands: tuple[tuple[Operand, Any], ...] = ()
    params: tuple[tuple[str, str, int | float], ...] = ()
    eight_reads: str = ""
    eight_body: str = ""

    def call_arguments(self, defines: dict[str, str]) -> dict[str, Any]:
        """Keyword arguments for `Kernel.call`, with this epilogue's defines added to the kernel's own."""
        defines = {**defines, "EPILOGUE_BODY": self.body, "EPILOGUE_DECLS": self.decls}
        if self.eight_reads:
            defines |= {"EIGHT_READS": self.eight_reads, "EIGHT_BODY": self.eight_body}
        return {
            "defines": defines,
            "extra_operands": self.operands,
            "extra_params": self.params,
        }


def call_arguments(epilogue: Epilogue | None, defines: dict[str, str]) -> dict[str, Any]:
    """As `Epilogue.call_arguments`, also for no epilogue."""
    return epilogue.call_arguments(defines) if epilogue else {"defines": defines}
