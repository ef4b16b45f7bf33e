"""A kernel's interface, read from its GLSL: operands, scalar arguments, spec constants (docs/architecture.md, "Kernel
contract").

Planning needs the interface before anything is compiled, so the text is read: its preprocessor directives, ``ARGS_BODY`` and
the declarations of spec constants. `differences` compares the result with a compiled module.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkep.shaders.errors import ShaderSourceError
from vkep.shaders.source import GlslSource
from vkep.shaders.spirv import FOLD_IDS, LOCAL_SIZE_IDS

if TYPE_CHECKING:
    from vkep.shaders.reflect import Reflection

ADDRESS_BYTES, SCALAR_BYTES = 8, 4
OPERAND_TYPE = "uvec2"  #: the type of a tensor's address in the argument block
#: what a kernel writes for `OPERAND_TYPE` where it writes the tensor (``shaders/vkep.glsl``)
WRITTEN = "WRITTEN"
#: struct codes of the scalar argument types
SCALAR_CODES = {"uint": "I", "int": "i", "float": "f"}
#: ids of the spec constants that every kernel has, and their names
_RESERVED = {0: "INDIRECT", **LOCAL_SIZE_IDS, **FOLD_IDS}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LINE = re.compile(r"^[ \t]*#[ \t]*(?P<directive>\w+)[ \t]*(?P<rest>.*)$|^.*\bconstant_id\b.*$", re.MULTILINE)
_MACRO = re.compile(r"(\w+)(?:\(([^()]*)\))?\s*(.*)")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_CALL = re.compile(r"\s*\(([^()]*)\)")
_DEFINED = re.compile(r"\bdefined\b\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_CONDITION = re.compile(r"(?:\d+|[\s()<>=!+*/%&|^~-])*")
_SPEC = re.compile(r"layout\s*\(\s*constant_id\s*=\s*(\w+)\s*\)\s*const\s+\w+\s+(\w+)\s*=\s*([^;]+);")
_MEMBER = re.compile(r"(\w+)\s+(\w+)")
_DEEPEST = 64  #: chain of includes
#: parameters, or None, and text
_Macro = tuple[tuple[str, ...] | None, str]


@dataclass(frozen=True)
class Operand:
    """One tensor argument: its name in the GLSL argument block, and whether the kernel writes it, or only reads."""

    name: str
    writes: bool = False


@dataclass(frozen=True)
class Interface:
    """``operands`` and ``params`` (name, GLSL type) in the order of the argument block, operands first; ``spec`` has the default
    of each of the kernel's own spec constants, by name."""

    operands: tuple[Operand, ...]
    params: tuple[tuple[str, str], ...]
    spec: Mapping[str, int]

    @functools.cached_property
    def operand_names(self) -> frozenset[str]:
        """The operands' names."""
        return frozenset(operand.name for operand in self.operands)

    @functools.cached_property
    def param_names(self) -> frozenset[str]:
        """The scalar arguments' names."""
        return frozenset(name for name, _ in self.params)

    @functools.cached_property
    def codes(self) -> str:
        """The struct codes of the scalar arguments."""
        return "".join(SCALAR_CODES[kind] for _, kind in self.params)

    @property
    def argument_bytes(self) -> int:
        """Size of the argument block."""
        return ADDRESS_BYTES * len(self.operands) + SCALAR_BYTES * len(self.params)

    def arguments(self) -> Iterator[tuple[str, str, int]]:
        """Name, type and byte of each argument: the block has no padding."""
        for k, operand in enumerate(self.operands):
            yield operand.name, OPERAND_TYPE, ADDRESS_BYTES * k
        for k, (name, kind) in enumerate(self.params):
            yield name, kind, ADDRESS_BYTES * len(self.operands) + SCALAR_BYTES * k


class DeclaredInterface:
    """What a GLSL file declares, by definitions. Each combination of those that the interface depends on is read once."""

    def __init__(self, source: GlslSource) -> None:
        self._source = source
        self._known: list[tuple[Mapping[str, bool], Mapping[str, str], Interface]] = []

    def of(self, defines: Mapping[str, str]) -> Interface:
        """The interface with these definitions. Raises `ShaderSourceError` for GLSL that breaks the kernel contract, or that
        this reader does not understand."""
        for asked, used, interface in self._known:
            if _used(defines, asked) == used:
                return interface
        reading = _Reading(self._source, defines)
        interface = reading.interface()
        self._known.append((reading.asked, _used(defines, reading.asked), interface))
        return interface


def _used(defines: Mapping[str, str], asked: Mapping[str, bool]) -> dict[str, str]:
    """The definitions whose names were ``asked`` for, without their values where these did not matter."""
    names = ((name.partition("(")[0], value) for name, value in defines.items())
    return {name: value if asked[name] else "" for name, value in names if name in asked}


def _macro_of(head: re.Match[str], text: str) -> _Macro:
    return None if head[2] is None else tuple(map(str.strip, head[2].split(","))), text


@functools.cache
def _lines(text: str) -> tuple[tuple[str, str], ...]:
    """Name and rest of each directive of a GLSL text, and ("", line) for a line that declares a spec constant."""
    plain = _COMMENT.sub(" ", text.replace("\\\n", " "))
    return tuple((m["directive"] or "", m["rest"] if m["directive"] else m[0]) for m in _LINE.finditer(plain))


def _called(params: tuple[str, ...], body: str, arguments: str) -> str:
    """The text of a macro with parameters, called."""
    values = dict(zip(params, map(str.strip, arguments.split(",")), strict=False))
    pasted = _NAME.sub(lambda name: values.get(name[0], name[0]), re.sub(r"\s*##\s*", "##", body))
    return pasted.replace("##", "")


class _Reading:
    """One pass of the preprocessor over a file's directives. ``asked`` has the names that were looked up without a definition in
    the file, and whether their values mattered."""

    def __init__(self, source: GlslSource, defines: Mapping[str, str]) -> None:
        self.asked: dict[str, bool] = {}
        self._source, self._spec = source, dict[str, int]()
        self._given = {macro[1]: _macro_of(macro, value) for n, value in defines.items() if (macro := _MACRO.match(n))}
        self._macros: dict[str, _Macro] = {}
        #: of each open #if: whether its lines count, and whether one did before
        self._branches: list[tuple[bool, bool]] = []
        self._read(source.main.rewritten)

    def interface(self) -> Interface:
        if self._macro("ARGS_BODY") is None:
            raise self._error("it defines no ARGS_BODY, expected { and the arguments }")
        operands: list[Operand] = []
        params: list[tuple[str, str]] = []
        for statement in self._expanded("ARGS_BODY", frozenset({WRITTEN})).strip().strip("{}").split(";"):
            member = _MEMBER.fullmatch(statement.strip())
            if member and member[1] in (OPERAND_TYPE, WRITTEN) and not params:
                operands.append(Operand(member[2], member[1] == WRITTEN))
            elif member and member[1] in SCALAR_CODES:
                params.append((member[2], member[1]))
            elif statement.strip():
                raise self._error(
                    f"ARGS_BODY has {statement.strip()!r}, expected operands ({OPERAND_TYPE} or {WRITTEN}, and a name), then "
                    f"scalars ({', '.join(SCALAR_CODES)})"
                )
        if not any(operand.writes for operand in operands):
            raise self._error(f"no operand of ARGS_BODY is {WRITTEN}, expected one or more that the kernel writes")
        return Interface(tuple(operands), tuple(params), self._spec)

    def _error(self, what: str) -> ShaderSourceError:
        return ShaderSourceError(f"{self._source.path}: {what}")

    def _read(self, text: str, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise self._error(f"its files include one another, or {_DEEPEST} others in a chain")
        branches = self._branches
        for directive, rest in _lines(text):
            counts = not branches or branches[-1][0]
            if directive in ("elif", "else", "endif") and not branches:
                raise self._error(f"#{directive} without an #if")
            if directive in ("if", "ifdef", "ifndef"):
                holds = counts and self._holds(directive, rest)
                branches.append((holds, holds or not counts))
            elif directive in ("elif", "else"):
                done = branches[-1][1]
                holds = not done and (directive == "else" or self._holds("if", rest))
                branches[-1] = (holds, done or holds)
            elif directive == "endif":
                branches.pop()
            elif not counts:
                continue
            elif directive == "include":
                included = self._source.included(rest)
                if included is not None:
                    self._read(included.rewritten, depth + 1)
            elif directive == "define" and (macro := _MACRO.match(rest)):
                self._macros[macro[1]] = _macro_of(macro, macro[3])
            elif directive == "undef":
                self._macros.pop(rest.strip(), None)
            elif not directive:
                self._constant(rest)

    def _constant(self, line: str) -> None:
        for number, name, default in _SPEC.findall(line):
            if int(self._expanded(number), 0) in _RESERVED:
                continue
            try:
                self._spec[name] = int(self._expanded(default).strip().rstrip("uU"), 0)
            except ValueError:
                raise self._error(f"spec constant {name} is {default!r} by default, expected an integer") from None

    def _macro(self, name: str, valued: bool = True) -> _Macro | None:
        """A macro; without ``valued``, only whether it is defined matters."""
        if name in self._macros:
            return self._macros[name]
        self.asked[name] = valued or self.asked.get(name, False)
        return self._given.get(name)

    def _holds(self, directive: str, condition: str) -> bool:
        def defined(match: re.Match[str]) -> str:
            return str(int(self._macro(match[1] or match[2], False) is not None))

        if directive != "if":
            return (self._macro(condition.strip(), False) is not None) == (directive == "ifdef")
        text = _NAME.sub("0", self._expanded(_DEFINED.sub(defined, condition)))
        text = re.sub(r"\b(\d+)[uU]\b", r"\1", text)
        if not _CONDITION.fullmatch(text) or "**" in text:  # a power in Python, and none in GLSL
            raise self._error(f"#if {condition} is no condition of whole numbers and definitions")
        text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ").replace("/", "//"))
        try:
            return bool(eval(text))
        except (SyntaxError, ArithmeticError, TypeError) as error:
            raise self._error(f"#if {condition} cannot be evaluated: {error}") from error

    def _expanded(self, text: str, within: frozenset[str] = frozenset()) -> str:
        """``text`` with its macros replaced, but those ``within`` which it stands."""
        parts, at = [], 0
        for match in _NAME.finditer(text):
            name, end = match[0], match.end()
            macro = self._macro(name) if match.start() >= at and name not in within else None
            if macro is None:
                continue
            params, body = macro
            if params is not None:
                call = _CALL.match(text, end)
                if call is None:
                    continue
                body, end = _called(params, body, call[1]), call.end()
            parts += [text[at : match.start()], self._expanded(body, within | {name})]
            at = end
        return "".join(parts) + text[at:]


def differences(interface: Interface, reflection: Reflection) -> list[str]:
    """Every difference between a compiled module and what its GLSL declares, as sentences; empty where they agree."""
    found = []
    compiled = [(member.name, member.type, member.offset) for member in reflection.arguments]
    if compiled != (declared := list(interface.arguments())):
        found.append(f"the arguments (name, type, byte) are {compiled} in the module, {declared} in ARGS_BODY")
    constants = {constant.id: constant for constant in reflection.spec_constants}
    own = {constant.name: constant.default for number, constant in constants.items() if number not in _RESERVED}
    if own != interface.spec:
        found.append(f"the spec constants and defaults are {own} in the module, {dict(interface.spec)} in the GLSL")
    for number, name in _RESERVED.items():
        constant = constants.get(number)
        if constant is not None and (constant.name, constant.type) not in ((name, "uint"), ("", "uint")):
            found.append(f"spec constant {number} is the {constant.type} {constant.name!r}, expected the uint {name}")
    if 0 not in constants:
        found.append('spec constant 0 (INDIRECT) is missing: #include "vkep.glsl"')
    if reflection.local_size_ids != tuple(LOCAL_SIZE_IDS):
        found.append(
            f"the workgroup size is set by constants {reflection.local_size_ids}, expected {tuple(LOCAL_SIZE_IDS)} "
            f'({", ".join(LOCAL_SIZE_IDS.values())}): #include "vkep.glsl" and declare no local_size of its own'
        )
    return found + [
        f"{b.name or 'a resource'!r} uses a descriptor (set {b.set}, binding {b.binding}); kernels take addresses only"
        for b in reflection.bindings
    ]
