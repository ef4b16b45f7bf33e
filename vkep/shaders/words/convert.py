"""Conversions between types of which a device lacks some, and bit casts between them."""

from __future__ import annotations

from collections.abc import Sequence

from vkep.shaders.spirv import Instruction
from vkep.shaders.words import tables
from vkep.shaders.words.types import Scalar
from vkep.shaders.words.writer import F32, S32, U32, Writer


class Converter(Writer):
    """Converts values of one old type to another."""

    def converted(self, opcode: int, value: int, from_: Scalar, to: Scalar) -> int:
        """A value converted from one type to another, by 32-bit words."""
        if opcode == tables.F_CONVERT:
            return self._float(self._real(value, from_), from_, to)
        if opcode in (tables.F_TO_U, tables.F_TO_S):
            return self._float_to_int(opcode, value, from_, to)
        sign = "s" if opcode in (tables.S_CONVERT, tables.S_TO_F) else "u"
        word_type = S32 if sign == "s" else U32
        if from_.width == 64 and opcode in (tables.S_TO_F, tables.U_TO_F):
            if 64 not in self.types.widths:
                return self._float(self.emit(opcode, self.globals.float, value), F32, to)
            if to.width == 64:
                return self.call(f"{sign}64_to_f64", value)
            return self._float(self.call(f"{sign}64_to_f32", value), F32, to)
        word = self._word(opcode, value, from_, word_type)
        if opcode in (tables.S_TO_F, tables.U_TO_F):
            if to.width == 64 and 64 in self.types.widths:
                return self.call(f"{sign}32_to_f64", word)
            return self._float(self.emit(opcode, self.globals.float, word), F32, to)
        return self._from_word(opcode, word, word_type, to)

    def _word(self, opcode: int, value: int, from_: Scalar, word: Scalar) -> int:
        """An integer as one of 32 bits, extended by the opcode's rule; for a 64-bit one the low word."""
        if from_.width in (32, 64):
            return self.cast(self._low(value, from_), U32 if from_.width == 64 else from_, word)
        if from_.width not in self.types.widths:
            extend = tables.S_CONVERT if word is S32 else tables.U_CONVERT
            return self.emit(extend, self.register(word), value)
        wanted = Scalar(word.kind, from_.width)
        return value if wanted.kind == from_.kind else self.wrapped(value, from_, wanted)

    def _low(self, value: int, from_: Scalar) -> int:
        if from_.width == 32:
            return value
        if 64 in self.types.widths:
            return self.emit(tables.EXTRACT, self.globals.uint, value, 0)
        return self.emit(tables.U_CONVERT, self.globals.uint, value)

    def _from_word(self, opcode: int, word: int, word_type: Scalar, to: Scalar) -> int:
        """An integer type's value from a 32-bit one."""
        if to.width == 32:
            return self.cast(word, word_type, to)
        if to.width not in self.types.widths:
            return self.emit(opcode, self._native(to), word)
        if to.width < 32:
            return self.wrapped(word, word_type, to)
        high = self.number(0)
        if opcode in (tables.S_CONVERT, tables.F_TO_S):
            high = self.emit(tables.SHIFT_RIGHT_SIGNED, self.globals.int, word, self.number(31))
            high, word = self.cast(high, S32, U32), self.cast(word, word_type, U32)
        return self.emit(tables.CONSTRUCT, self.globals.pair, word, high)

    def _native(self, scalar: Scalar) -> int:
        return next(id_ for id_, found in self.types.of.items() if found == scalar)

    def _real(self, value: int, from_: Scalar) -> int:
        """A float of at most 32 bits as float32; a wider one unchanged."""
        if from_.width != 16:
            return value
        if 16 in self.types.widths:
            return self.call("f16_to_f32", value)
        return self.emit(tables.F_CONVERT, self.globals.float, value)

    def _float(self, value: int, from_: Scalar, to: Scalar) -> int:
        """A float32, or a float64 in words, as ``to``."""
        half_lost = 16 in self.types.widths
        if from_.width == 64 and 64 in self.types.widths:
            if to.width == 16:
                half = self.call("f64_to_f16", value)
                if half_lost:
                    return half
                return self.emit(tables.F_CONVERT, self._native(to), self.call("f16_to_f32", half))
            return self.call("f64_to_f32", value)
        if to.width == 32:
            return value if from_.width < 64 else self.emit(tables.F_CONVERT, self.globals.float, value)
        if to.width == 64:
            return self.call("f32_to_f64", value) if 64 in self.types.widths else self._widened(value, to)
        if from_.width == 64:  # rounded twice where the device has float64 and no float16
            value = self.emit(tables.F_CONVERT, self.globals.float, value)
        return self.call("f32_to_f16", value) if half_lost else self.emit(tables.F_CONVERT, self._native(to), value)

    def _widened(self, value: int, to: Scalar) -> int:
        return self.emit(tables.F_CONVERT, self._native(to), value)

    def _float_to_int(self, opcode: int, value: int, from_: Scalar, to: Scalar) -> int:
        sign, word_type = ("s", S32) if opcode == tables.F_TO_S else ("u", U32)
        wide_lost = 64 in self.types.widths
        value = self._real(value, from_)
        if from_.width == 64 and wide_lost:
            if to.width == 64:
                return self.call(f"f64_to_{sign}64", value)
            word = self.call(f"f64_to_{sign}32", value)
        elif to.width == 64 and wide_lost:
            return self.call(f"f32_to_{sign}64", value)
        elif to.width not in self.types.widths:
            return self.emit(opcode, self._native(to), value)
        else:
            word = self.emit(opcode, self.register(word_type), value)
        integer = tables.S_CONVERT if sign == "s" else tables.U_CONVERT
        return self._from_word(integer, word, word_type, to)

    # ---- bit casts

    def bits(self, o: tuple[int, ...]) -> None:
        """OpBitcast, or the conversion of a pointer, of or to a type that the device lacks or an address."""
        old = self.of[o[2]]
        before, after = self.types.parts(old), self.types.parts(o[0])
        if before is not None and after is not None and before[0].width == after[0].width < 32:
            self.each(o, [o[2]], lambda value: self.wrapped(value, before[0], after[0]))
        elif self.type(old) == self.type(o[0]):
            self.result(o[1], o[0], o[2])
        elif (
            before is None
            or after is None
            or (64 in (before[0].width, after[0].width) and max(before[1], after[1]) <= 2)
        ):
            self.made.add(o[1])
            self.out.append(Instruction(tables.BITCAST, (self.type(o[0]), *o[1:3])))
        else:
            self.result(o[1], o[0], self.joined(self.split(o[2], before), o[0], after))

    def split(self, value: int, parts: tuple[Scalar, int]) -> list[int]:
        """A value's words."""
        scalar, length = parts
        pieces = [value] if length == 1 else [self.element(value, k) for k in range(length)]
        if scalar.width == 64:
            return [self.emit(tables.EXTRACT, self.globals.uint, piece, k) for piece in pieces for k in range(2)]
        if scalar.width == 32:
            return [self.cast(piece, scalar, U32) for piece in pieces]
        words = []
        each = 32 // scalar.width
        for first in range(0, length, each):
            word = self.number(0)
            for k, piece in enumerate(pieces[first : first + each]):
                bits = self.wrapped(piece, scalar, Scalar("uint", scalar.width))
                moved = self.emit(tables.SHIFT_LEFT, self.globals.uint, bits, self.number(k * scalar.width))
                word = self.emit(tables.BITWISE_OR, self.globals.uint, word, moved)
            words.append(word)
        return words

    def joined(self, words: Sequence[int], type_: int, parts: tuple[Scalar, int]) -> int:
        """A value of an old type from its words."""
        scalar, length = parts
        if scalar.width == 64:
            pairs = zip(words[::2], words[1::2], strict=True)
            pieces = [self.emit(tables.CONSTRUCT, self.globals.pair, low, high) for low, high in pairs]
        elif scalar.width == 32:
            pieces = [self.cast(word, U32, scalar) for word in words]
        else:
            pieces = []
            each = 32 // scalar.width
            for k in range(length):
                by = self.number(k % each * scalar.width)
                low = self.emit(tables.SHIFT_RIGHT_UNSIGNED, self.globals.uint, words[k // each], by)
                pieces.append(self.wrapped(low, U32, scalar))
        return pieces[0] if length == 1 else self.emit(tables.CONSTRUCT, self.type(type_), *pieces)
