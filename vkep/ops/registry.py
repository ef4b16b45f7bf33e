"""Declaring an operator: one function, whose signature is the operator's ONNX schema.

    @operator("LeakyRelu", types={"T": FLOATS})
    def leaky_relu(b: Builder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
        return b.pointwise(lambda v, slope: where(v < 0, v * slope, v), x, alpha)

Positional parameters after the builder are the inputs in schema order (``None`` by default where optional; ``*xs``
where variadic); keyword-only ones are attributes with the schema's defaults, and ``opset`` of an operator of ONNX is
the version of the definition in force. The function lowers the node or declines it, so that exactly the nodes are
claimed that work. Each declaration is checked against ``onnx.defs`` when it is made: a misspelt attribute, a wrong
default or a type that the schema does not allow raises `OperatorDeclarationError` at import. An onnx package older than
`CHECKED_OPSET` lacks versions and operators that are declared here; with it declarations are not checked.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from vkep.dtypes import DTYPES
from vkep.errors import VkepError
from vkep.graph.attributes import Signature, overlap
from vkep.graph.model import Node

FLOATS = ("float32", "float16")
INTS = ("int32", "int64", "int8", "uint8")
INDICES = ("int32", "int64")
NUMERIC = FLOATS + INTS
ANY = (*NUMERIC, "bool")

#: domain of the two operators that replace an operator whose output size depends on data
#: (`vkep.placement.data_dependent`)
SIZED = "vkep.sized"

#: entry points of installed packages that declare operators: each names a module, which is imported
PLUGINS = "vkep.operators"

#: the opset of the onnx package against which declarations are checked
CHECKED_OPSET = 28

Function = Callable[..., Any]
#: domains whose operators are defined elsewhere
_TAKEN = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "ai.onnx.training",
    "com.microsoft",
    "com.ms.internal.nhwc",
)


class OperatorDeclarationError(VkepError):
    """A declared operator does not match its ONNX schema."""


@dataclass(frozen=True, eq=False)
class OperatorDef:
    """One declared operator, for the schema versions ``since`` to ``until`` (None: no end)."""

    op_type: str
    domain: str
    since: int
    until: int | None
    #: maps a type constraint of the schema to the element types that kernels support
    types: Mapping[str, tuple[str, ...]]
    function: Function
    signature: Signature
    #: for each input the type variable that it shares with others, where the onnx package has no schema
    constraints: tuple[str, ...]
    fixed: Mapping[str, Any]  #: attributes that the function does not have, with the one value that it implements
    checked: bool  #: False: the onnx package has no schema for the operator

    @property
    def is_users(self) -> bool:
        """Whether it was declared outside vkep, in another domain."""
        return not _is_own(self.function) and self.domain not in _TAKEN

    def accepts_version(self, version: int) -> bool:
        """Whether a schema version is among the declared ones."""
        return self.since <= version and (self.until is None or version <= self.until)


_OPERATORS: dict[tuple[str, str], list[OperatorDef]] = {}


def _is_own(function: Function) -> bool:
    return function.__module__.partition(".")[0] == "vkep"


def _place(function: Function) -> tuple[str, str, int]:
    return function.__module__, function.__qualname__, function.__code__.co_firstlineno


@functools.cache
def load_own() -> None:
    """Import the modules of vkep's own operators, which declare them: a third of a second of Python's, which a session with a
    saved plan does not need."""
    package = Path(__file__).parent
    for module in pkgutil.walk_packages([str(package)], f"{__package__}."):
        importlib.import_module(module.name)


def operator(
    op_type: str,
    *,
    domain: str = "",
    since: int = 1,
    until: int | None = None,
    types: Mapping[str, Collection[str]],
    fixed: Mapping[str, Any] | None = None,
    schema: bool | None = None,
) -> Callable[[Function], Function]:
    """Declare an operator (see the module's text). A user may declare operators of other domains the same way.

    ``schema``: whether the onnx package has a schema to check the declaration against (default: for the domains that it
    defines). Where it has none, ``types`` names the function's inputs in place of type constraints (``"x scale"`` are
    two that must have the same type), and ``fixed`` gives the default of attributes that the function does not
    implement (a model may contain them; any other value is declined).

    Raises `OperatorDeclarationError` where the declaration contradicts the schema, or versions are declared twice.
    """

    def declare(function: Function) -> Function:
        if not _is_own(function):
            load_own()  # so that it is compared with vkep's
        checked = domain in ("", "ai.onnx.ml", "ai.onnx.preview.training") if schema is None else schema
        definition = _define(function, op_type, domain, since, until, types, checked, fixed or {})
        entries = _OPERATORS.setdefault((domain, op_type), [])
        if _is_own(function):  # also again, where the first import of its module failed
            entries[:] = [other for other in entries if _place(other.function) != _place(function)]
        for other in entries:
            if both := overlap((since, until), (other.since, other.until)):
                raise OperatorDeclarationError(
                    f"{op_type}: {both} declared twice ({other.function.__qualname__} and {function.__qualname__})"
                )
        entries.append(definition)
        return function

    return declare


def versions(domain: str, op_type: str) -> str:
    """The declared versions of an operator in words; "" where none are."""
    entries = sorted(_entries(domain, op_type), key=lambda d: d.since)
    return ", ".join(
        f"{d.since} and later" if d.until is None else f"{d.since} to {d.until}" if d.until > d.since else f"{d.since}"
        for d in entries
    )


@functools.cache
def load_plugins() -> None:
    """Import the modules that installed packages name as entry points of the group `PLUGINS`; once in a process.

    Raises `OperatorDeclarationError` that names the entry point whose module raises."""
    import importlib.metadata  # its imports take long

    for point in importlib.metadata.entry_points(group=PLUGINS):
        try:
            point.load()
        except Exception as error:  # a package's module may raise anything
            package = point.dist.name if point.dist is not None else "an unknown package"
            raise OperatorDeclarationError(
                f"the entry point {point.name!r} of the package {package} (group {PLUGINS}) cannot be loaded: "
                f"importing {point.value} raises {type(error).__name__}: {error}; correct or uninstall the package"
            ) from error


def find(node: Node) -> OperatorDef | None:
    """The declaration for a node, or None. A model that does not import the node's domain gets the newest one. For an
    unknown operator of a domain that vkep does not define, `load_plugins` is called first; raises as it does."""
    version = node.since_version
    entries = _entries(node.domain, node.op_type)
    if not entries and node.domain not in _TAKEN:
        load_plugins()
        entries = _entries(node.domain, node.op_type)
    accepting = (d for d in entries if not version or d.accepts_version(version))
    return max(accepting, key=lambda d: d.since, default=None)


def at_version(domain: str, op_type: str, version: int) -> OperatorDef:
    """The declaration of a version of an operator. Raises ``LookupError`` where there is none."""
    for definition in _entries(domain, op_type):
        if definition.accepts_version(version):
            return definition
    raise LookupError(f"no declaration of {domain}.{op_type} takes version {version}")


def is_declared(domain: str, op_type: str) -> bool:
    """Whether any version of an operator is declared."""
    return bool(_entries(domain, op_type))


def _entries(domain: str, op_type: str) -> Sequence[OperatorDef]:
    load_own()
    return _OPERATORS.get((domain, op_type), ())


def declared() -> Iterator[OperatorDef]:
    """Every declared operator, by domain and name."""
    load_own()
    for key in sorted(_OPERATORS):
        yield from _OPERATORS[key]


def users_operators() -> list[OperatorDef]:
    """The operators that were declared outside vkep, by domain and name."""
    return [definition for key in sorted(_OPERATORS) for definition in _OPERATORS[key] if definition.is_users]


def _define(
    function: Function,
    op_type: str,
    domain: str,
    since: int,
    until: int | None,
    types: Mapping[str, Collection[str]],
    checked: bool,
    fixed: Mapping[str, Any],
) -> OperatorDef:
    signature = Signature.of(function, facts=("opset",) if checked else ())
    definition = OperatorDef(
        op_type=op_type,
        domain=domain,
        since=since,
        until=until,
        types={name: tuple(names) for key, names in types.items() for name in ([key] if checked else key.split())},
        function=function,
        signature=signature,
        constraints=tuple(next((key for key in types if name in key.split()), name) for name in signature.inputs),
        fixed=fixed,
        checked=checked,
    )
    for name, allowed in definition.types.items():
        wrong = [kind for kind in allowed if kind not in DTYPES]
        if not allowed or wrong:
            found = f"{wrong[0]!r} is no element type" if wrong else "there are none"
            raise OperatorDeclarationError(
                f"{op_type}: the types of {name!r}: {found}; expected some of {', '.join(DTYPES)}"
            )
    if not definition.checked:
        if unknown := set(definition.types) - set(signature.inputs):
            raise OperatorDeclarationError(
                f"{op_type}: types for {sorted(unknown)}, which are no inputs of the function: without a schema, types has "
                "the names of inputs"
            )
    elif onnx.defs.onnx_opset_version() >= CHECKED_OPSET:
        _check(definition)
    return definition


def _check(definition: OperatorDef) -> None:
    schemas = schema_versions(definition)
    name = f"{definition.op_type} (versions {definition.since} to {definition.until or 'newest'})"
    if not schemas:
        raise OperatorDeclarationError(
            f"{name}: the onnx package has no such operator or version; an operator of your own needs domain="
        )
    known = {a for s in schemas for a in s.attributes}
    for attribute, default in definition.signature.attributes.items():
        if attribute not in known:
            raise OperatorDeclarationError(f"{name}: the schema has no attribute {attribute!r}; it has {sorted(known)}")
        for schema in schemas:
            _check_default(name, schema, attribute, default)
    for schema in schemas:
        for attribute, spec in schema.attributes.items():
            if spec.required and attribute not in definition.signature.attributes:
                raise OperatorDeclarationError(f"{name}: required attribute {attribute!r} is not a parameter")
        variadic = any(i.option == onnx.defs.OpSchema.FormalParameterOption.Variadic for i in schema.inputs)
        if variadic and not definition.signature.variadic:
            raise OperatorDeclarationError(f"{name}: the schema's inputs are variadic, the function's are not")
    most = max(len(s.inputs) for s in schemas)
    if len(definition.signature.inputs) + definition.signature.variadic > most:
        raise OperatorDeclarationError(
            f"{name}: the function takes inputs {definition.signature.inputs}, the schema has at most {most}"
        )
    allowed: dict[str, set[str]] = {}
    for schema in onnx_history(definition.op_type, definition.domain):
        for c in schema.type_constraints:
            allowed.setdefault(c.type_param_str, set()).update(c.allowed_type_strs)
    for constraint, names in definition.types.items():
        if constraint not in allowed:
            raise OperatorDeclarationError(f"{name}: no type constraint {constraint!r}; it has {sorted(allowed)}")
        wrong = [n for n in names if f"tensor({DTYPES[n].onnx_name})" not in allowed[constraint]]
        if wrong:
            raise OperatorDeclarationError(
                f"{name}: no version's constraint {constraint} allows {wrong}, only {sorted(allowed[constraint])}"
            )


def schema_default(schema: onnx.defs.OpSchema, attribute: str) -> Any:
    """An attribute's default in its schema, None where it has none. Lists are lists, strings are text."""
    spec = schema.attributes[attribute]
    if not spec.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(spec.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return [e.decode() if isinstance(e, bytes) else e for e in value] if isinstance(value, list) else value


def _check_default(name: str, schema: onnx.defs.OpSchema, attribute: str, default: Any) -> None:
    expected = schema_default(schema, attribute) if attribute in schema.attributes else None
    if expected is None:
        return
    if isinstance(expected, list):
        expected = tuple(expected)
    close = (
        abs(expected - default) <= 1e-6 * max(1.0, abs(expected))
        if isinstance(expected, float)
        else expected == default
    )
    if not close:
        raise OperatorDeclarationError(
            f"{name}: attribute {attribute!r} has default {default!r}, version {schema.since_version} says {expected!r}"
        )


def schema_versions(definition: OperatorDef) -> list[onnx.defs.OpSchema]:
    """The schema of every version that a declaration covers."""
    history = onnx_history(definition.op_type, definition.domain)
    return [s for s in history if definition.accepts_version(s.since_version) and not s.deprecated]


@functools.cache
def onnx_history(op_type: str, domain: str) -> tuple[onnx.defs.OpSchema, ...]:
    """Every version of an operator's schema, the newest first; empty where there is none."""
    schemas = []
    version = 10**6
    while version >= 1:
        try:
            schema = onnx.defs.get_schema(op_type, version, domain)
        except onnx.defs.SchemaError:
            break
        schemas.append(schema)
        version = schema.since_version - 1
    return tuple(schemas)
