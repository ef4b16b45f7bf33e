"""The compile specs by which delegates agree on one GPU context. Pure: importable without Vulkan.

Keys, modes and defaults are those of the ExecuTorch RFC "Unified Vulkan and VGF GPU backend path" (pytorch/executorch
issue 19298, phases 1 and 2). A compile spec is a key and bytes; values are UTF-8 text, integers in decimal.

Sync modes define the synchronization at the boundary between two delegates' regions, on one context:

``timeline``
    The next region's submit waits, on the GPU, for the previous region's timeline value. The host never blocks at a
    boundary.
``queue_wait_idle``
    The host waits until the queue is idle after each region. Slow and simple: for early integration and for debugging.
``none``
    No ordering between regions of different delegates is added; only the end of the run is waited for. Valid only
    when the regions are independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

PREFIX = "gpu_shared_"
CONTEXT_TOKEN = "gpu_shared_context_token"
CONTEXT_MODE = "gpu_shared_context_mode"
SYNC_MODE = "gpu_shared_sync_mode"
GROUP_ID = "gpu_shared_group_id"
MIN_PARTITION_SIZE = "gpu_shared_min_partition_size"
PREFER = "gpu_shared_prefer"
KEYS = (CONTEXT_TOKEN, CONTEXT_MODE, SYNC_MODE, GROUP_ID, MIN_PARTITION_SIZE, PREFER)

DEFAULT_TOKEN = "default"
DEFAULT_GROUP_ID = 0
DEFAULT_MIN_PARTITION_SIZE = 3
#: group ids are a signed 64-bit integer in the RFC's C++ structure
MAX_INT = 2**63 - 1


class ContextMode(str, Enum):
    """How a delegate obtains its context. Members compare equal to their text."""

    DISABLED = "disabled"  #: a private context: the registry is not used
    LOOKUP_ONLY = "lookup_only"  #: use a registered context; its absence is an error
    LOOKUP_OR_CREATE = "lookup_or_create"  #: the first delegate creates, later ones reuse
    CREATE_ONLY = "create_only"  #: create and register; an existing one is an error

    def __str__(self) -> str:
        return self.value


class SyncMode(str, Enum):
    """The synchronization between regions of different delegates (see the module's docstring)."""

    TIMELINE = "timeline"
    QUEUE_WAIT_IDLE = "queue_wait_idle"
    NONE = "none"

    def __str__(self) -> str:
        return self.value


class Prefer(str, Enum):
    """The delegate whose partitioner is tried first."""

    AUTO = "auto"
    VGF_FIRST = "vgf_first"
    VULKAN_FIRST = "vulkan_first"

    def __str__(self) -> str:
        return self.value


class CompileSpec(NamedTuple):
    """One compile spec, which is stored with a delegate's bytes."""

    key: str
    value: bytes


@dataclass(frozen=True)
class SharedGpuCompileSpec:
    """Parsed shared-GPU compile specs, checked at construction.

    Raises ``TypeError`` for a wrong type and ``ValueError`` for a value out of range, naming the key.
    """

    token: str = DEFAULT_TOKEN
    mode: ContextMode = ContextMode.LOOKUP_OR_CREATE
    sync_mode: SyncMode = SyncMode.TIMELINE
    group_id: int = DEFAULT_GROUP_ID
    min_partition_size: int = DEFAULT_MIN_PARTITION_SIZE
    prefer: Prefer = Prefer.AUTO

    def __post_init__(self) -> None:
        for key, (name, check) in _FIELDS.items():
            object.__setattr__(self, name, check(key, getattr(self, name)))

    @classmethod
    def disabled(cls) -> SharedGpuCompileSpec:
        """The spec of a delegate that shares nothing (the result of parsing no compile specs)."""
        return cls(mode=ContextMode.DISABLED)

    @property
    def enabled(self) -> bool:
        """False when the delegate has a private context."""
        return self.mode is not ContextMode.DISABLED

    @property
    def key(self) -> tuple[str, int]:
        """The registry's key: ``(token, group_id)``."""
        return (self.token, self.group_id)

    def to_compile_specs(self) -> list[CompileSpec]:
        """The six compile specs that parse back to this object."""
        return [CompileSpec(key, str(getattr(self, name)).encode()) for key, (name, _) in _FIELDS.items()]


def make_shared_gpu_compile_specs(
    token: str = DEFAULT_TOKEN,
    mode: ContextMode | str = ContextMode.LOOKUP_OR_CREATE,
    sync_mode: SyncMode | str = SyncMode.TIMELINE,
    group_id: int = DEFAULT_GROUP_ID,
    min_partition_size: int = DEFAULT_MIN_PARTITION_SIZE,
    prefer: Prefer | str = Prefer.AUTO,
) -> list[CompileSpec]:
    """Build the shared compile specs for every delegate of one program (RFC, phase 1).

    Raises ``TypeError`` and ``ValueError`` like `SharedGpuCompileSpec`.
    """
    return SharedGpuCompileSpec(
        token=token,
        mode=mode,  # type: ignore[arg-type]  # text is converted at construction
        sync_mode=sync_mode,  # type: ignore[arg-type]
        group_id=group_id,
        min_partition_size=min_partition_size,
        prefer=prefer,  # type: ignore[arg-type]
    ).to_compile_specs()


def parse_shared_gpu_compile_spec(
    specs: Iterable[Any] | Mapping[str, Any] | None,
    load_options: Mapping[str, Any] | None = None,
) -> SharedGpuCompileSpec:
    """Parse compile specs, and the load-time options that override them.

    ``specs`` is an iterable of ``(key, value)`` pairs or of objects with ``key`` and ``value`` attributes, or a
    mapping; values are bytes or text, or an ``int`` where the key is a number. ``load_options`` is a mapping of the
    same keys.

    Keys without the ``gpu_shared_`` prefix are ignored. With no shared key at all, sharing is disabled; otherwise
    missing keys take the RFC's defaults (token ``default``, ``lookup_or_create``, ``timeline``, group 0, minimum
    partition size 3, ``auto``).

    Raises ``ValueError`` for an unknown key with the prefix, a duplicate within one source, or a value that is not
    allowed; ``TypeError`` for a wrong type.
    """
    fields: dict[str, Any] = {}
    for source, where in ((specs, "compile specs"), (load_options, "load-time options")):
        for key, value in _read_source(source, where).items():
            name, check = _FIELDS[key]
            fields[name] = check(key, value, where)
    if not fields:
        return SharedGpuCompileSpec.disabled()
    return SharedGpuCompileSpec(**fields)


def _read_source(source: Iterable[Any] | Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, (str, bytes)):
        raise TypeError(f"{where}: got {type(source).__name__}, expected (key, value) pairs or a mapping")
    items = source.items() if isinstance(source, Mapping) else source
    found: dict[str, Any] = {}
    for item in items:
        key, value = _split_item(item, where)
        if not key.startswith(PREFIX):
            continue
        if key not in _FIELDS:
            raise ValueError(f"{where}: unknown key {key!r}{_did_you_mean(key, KEYS)}; known keys: {', '.join(KEYS)}")
        if key in found:
            raise ValueError(f"{where}: {key!r} is given twice, as {found[key]!r} and as {value!r}")
        found[key] = value
    return found


def _split_item(item: Any, where: str) -> tuple[str, Any]:
    if hasattr(item, "key") and hasattr(item, "value"):
        key, value = item.key, item.value
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        key, value = item
    else:
        raise TypeError(f"{where}: got {item!r}, expected a (key, value) pair or an object with both attributes")
    if not isinstance(key, str):
        raise TypeError(f"{where}: a key is {key!r} of type {type(key).__name__}, expected str")
    return key, value


def _did_you_mean(got: str, allowed: Iterable[str]) -> str:
    import difflib  # for the message alone

    close = difflib.get_close_matches(got, list(allowed), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _as_text(key: str, value: Any, where: str) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{_at(where)}{key!r} is {bytes(value)!r}, which is not UTF-8 text") from error
    if isinstance(value, str):
        return value
    raise TypeError(f"{_at(where)}{key!r} is {value!r} of type {type(value).__name__}, expected text or UTF-8 bytes")


def _check_token(key: str, value: Any, where: str = "") -> str:
    text = _as_text(key, value, where)
    if not text.strip() or "\0" in text:
        raise ValueError(f"{_at(where)}{key!r} is {text!r}, expected text that is not empty and has no NUL")
    return text


def _check_int(key: str, value: Any, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str, bytes, bytearray, memoryview)):
        raise TypeError(f"{_at(where)}{key!r} is {value!r} of type {type(value).__name__}, expected an integer")
    if not isinstance(value, int):
        text = _as_text(key, value, where)
        digits = text[1:] if text[:1] == "-" else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 40):
            raise ValueError(f"{_at(where)}{key!r} is {text!r}, expected a decimal integer")
        value = int(text)
    if not least <= value <= MAX_INT:
        raise ValueError(f"{_at(where)}{key!r} is {value}, expected an integer from {least} to {MAX_INT}")
    return value


def _check_group_id(key: str, value: Any, where: str = "") -> int:
    return _check_int(key, value, where, 0)


def _check_min_partition_size(key: str, value: Any, where: str = "") -> int:
    return _check_int(key, value, where, 0)


def _check_choice(choices: type[Enum], key: str, value: Any, where: str) -> Any:
    if isinstance(value, choices):
        return value
    text = _as_text(key, value, where)
    allowed = [member.value for member in choices]
    if text not in allowed:
        raise ValueError(
            f"{_at(where)}{key!r} is {text!r}{_did_you_mean(text, allowed)}; allowed: {', '.join(allowed)}"
        )
    return choices(text)


def _check_mode(key: str, value: Any, where: str = "") -> ContextMode:
    return _check_choice(ContextMode, key, value, where)


def _check_sync_mode(key: str, value: Any, where: str = "") -> SyncMode:
    return _check_choice(SyncMode, key, value, where)


def _check_prefer(key: str, value: Any, where: str = "") -> Prefer:
    return _check_choice(Prefer, key, value, where)


#: key -> (field of SharedGpuCompileSpec, checker): the only table that parsing and building use
_FIELDS: dict[str, tuple[str, Any]] = {
    CONTEXT_TOKEN: ("token", _check_token),
    CONTEXT_MODE: ("mode", _check_mode),
    SYNC_MODE: ("sync_mode", _check_sync_mode),
    GROUP_ID: ("group_id", _check_group_id),
    MIN_PARTITION_SIZE: ("min_partition_size", _check_min_partition_size),
    PREFER: ("prefer", _check_prefer),
}
