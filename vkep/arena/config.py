"""Arena configuration, parsed from the ``arena.*`` keys that ONNX Runtime users know.

The keys and defaults are those of ONNX Runtime's plugin arena (``ArenaConfig::FromKeyValuePairs``, CUDA plugin EP arena
allocator design, section 2.1); ``arena.mode`` is ours. Values arrive as strings (option maps) or as integers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum

KEY_PREFIX = "arena."

MIB = 1 << 20
GIB = 1 << 30


class ExtendStrategy(Enum):
    """The size of a new region, when no free chunk fits."""

    NEXT_POWER_OF_TWO = "kNextPowerOfTwo"  #: the growth size, doubled until the request fits and after each extension
    SAME_AS_REQUESTED = "kSameAsRequested"  #: exactly the (rounded) request


class ArenaMode(Enum):
    """How the arena serves a request."""

    BFC = "bfc"  #: best fit with coalescing, over regions
    SEPARATE = "separate"  #: every block is a separate region: slow, but other tools see each block's bounds


_STRATEGIES = {
    "0": ExtendStrategy.NEXT_POWER_OF_TWO,
    "1": ExtendStrategy.SAME_AS_REQUESTED,
    "knextpoweroftwo": ExtendStrategy.NEXT_POWER_OF_TWO,
    "ksameasrequested": ExtendStrategy.SAME_AS_REQUESTED,
}
_STRATEGY_VALUES = {ExtendStrategy.NEXT_POWER_OF_TWO: "0", ExtendStrategy.SAME_AS_REQUESTED: "1"}
_DECIMAL = re.compile(r"\+?[0-9]+")


@dataclass(frozen=True, slots=True)
class ArenaConfig:
    """Configuration of one arena; sizes in bytes.

    Raises:
        TypeError: a field of the wrong type.
        ValueError: a size that is not positive, or a negative ``max_mem``.
    """

    extend_strategy: ExtendStrategy = ExtendStrategy.NEXT_POWER_OF_TWO
    initial_chunk_size_bytes: int = 1 * MIB  #: the first region's size (power-of-two strategy)
    #: a chunk is split when the remainder would have at least this many bytes
    max_dead_bytes_per_chunk: int = 128 * MIB
    initial_growth_chunk_size_bytes: int = 2 * MIB  #: the first region's size after a shrink (power-of-two strategy)
    max_power_of_two_extend_bytes: int = 1 * GIB  #: the growth size stops doubling here
    max_mem: int = 0  #: limit of all regions and reserved blocks together; 0: no limit but the device's
    mode: ArenaMode = ArenaMode.BFC

    def __post_init__(self) -> None:
        if not isinstance(self.extend_strategy, ExtendStrategy):
            raise TypeError(f"ArenaConfig.extend_strategy: expected an ExtendStrategy, got {self.extend_strategy!r}")
        if not isinstance(self.mode, ArenaMode):
            raise TypeError(f"ArenaConfig.mode: expected an ArenaMode, got {self.mode!r}")
        for name in _SIZE_FIELDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"ArenaConfig.{name}: expected an int (bytes), got {type(value).__name__} {value!r}")
            least = 0 if name == "max_mem" else 1
            if value < least:
                what = "0 (no limit) or more" if least == 0 else "1 or more"
                raise ValueError(f"ArenaConfig.{name}: expected {what} bytes, got {value}")

    @classmethod
    def from_options(cls, options: Mapping[str, object] | None, *, strict: bool = False) -> ArenaConfig:
        """Read the bare ``arena.*`` keys of ``options``; absent keys keep their defaults.

        Keys outside ``arena.`` are other components' and are ignored; an unknown ``arena.*`` key is an error. A size of
        -1 is its default. With ``strict`` all of ``options`` belong to the arena: the prefix ``arena.`` is optional,
        and any other key is an error.

        Raises:
            TypeError: a key that is no string, or a value that is neither a string nor an integer.
            ValueError: an unknown key, one given twice, or a value that does not parse or is out of range.
        """
        found: dict[str, object] = {}
        for key, value in (options or {}).items():
            if not isinstance(key, str):
                raise TypeError(f"arena options: keys are strings, got {type(key).__name__} {key!r}")
            if not key.startswith(KEY_PREFIX) and not strict:
                continue
            name = key.removeprefix(KEY_PREFIX)
            if name not in _FIELD_NAMES:
                raise ValueError(_unknown_key(key))
            if name in found:
                raise ValueError(f"arena options: got both {name!r} and {KEY_PREFIX + name!r}, expected one of them")
            found[name] = _parse(key, name, value)
        return cls(**found)  # type: ignore[arg-type]  # _parse gives each field its type

    def to_options(self) -> dict[str, str]:
        """All settings as ``arena.*`` strings; ``from_options`` reads them back to an equal configuration."""
        options: dict[str, str] = {}
        for name in _FIELD_NAMES:
            value = getattr(self, name)
            if isinstance(value, ExtendStrategy):
                text = _STRATEGY_VALUES[value]
            else:
                text = value.value if isinstance(value, ArenaMode) else str(value)
            options[KEY_PREFIX + name] = text
        return options

    def differences(self, other: ArenaConfig) -> dict[str, tuple[str, str]]:
        """The keys in which two configurations differ: key -> (this value, the other's)."""
        mine, others = self.to_options(), other.to_options()
        return {key: (mine[key], others[key]) for key in mine if mine[key] != others[key]}


_FIELD_NAMES = tuple(field.name for field in fields(ArenaConfig))
_DEFAULTS = {field.name: field.default for field in fields(ArenaConfig)}
_SIZE_FIELDS = tuple(name for name in _FIELD_NAMES if name not in ("extend_strategy", "mode"))


def session_prefix(ep_name: str) -> str:
    """Prefix of an execution provider's session options: ``ep.<name, lower case>.`` (design, section 3.6)."""
    return f"ep.{_checked_name(ep_name).lower()}."


def factory_prefix(ep_name: str) -> str:
    """Prefix of its environment options: ``ep_factory.<name as it is>.``, case-sensitive (design, section 3.6)."""
    return f"ep_factory.{_checked_name(ep_name)}."


def strip_arena_prefix(options: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Return the ``<prefix>arena.*`` entries of ``options`` without the prefix, ready for ``from_options``.

    The prefix comes from ``session_prefix`` or ``factory_prefix``. Entries of other providers are ignored.
    """
    start = prefix + KEY_PREFIX
    return {key[len(prefix) :]: value for key, value in options.items() if key.startswith(start)}


def _checked_name(ep_name: str) -> str:
    if not isinstance(ep_name, str):
        raise TypeError(f"execution provider name: expected a string, got {type(ep_name).__name__}")
    if not ep_name:
        raise ValueError("execution provider name: expected a non-empty string (the factory's GetName)")
    return ep_name


def _unknown_key(key: str) -> str:
    prefix = KEY_PREFIX if key.startswith(KEY_PREFIX) else ""
    near = difflib.get_close_matches(key.removeprefix(prefix), _FIELD_NAMES, n=1, cutoff=0.6)
    hint = f"did you mean {prefix + near[0]!r}? " if near else ""
    return f"unknown arena option {key!r}: {hint}known keys: {', '.join(prefix + name for name in _FIELD_NAMES)}"


def _parse(key: str, name: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (str, int, Enum)):
        raise TypeError(f"option {key!r}: expected a string or an int, got {type(value).__name__} {value!r}")
    if name == "extend_strategy":
        if isinstance(value, ExtendStrategy):
            return value
        strategy = _STRATEGIES.get(str(value).strip().lower())
        if strategy is None:
            raise ValueError(f"option {key!r}: got {value!r}, expected '0' (kNextPowerOfTwo) or '1' (kSameAsRequested)")
        return strategy
    if name == "mode":
        if isinstance(value, ArenaMode):
            return value
        try:
            return ArenaMode(str(value).strip().lower())
        except ValueError:
            modes = " or ".join(repr(mode.value) for mode in ArenaMode)
            raise ValueError(f"option {key!r}: got {value!r}, expected {modes}") from None
    text = str(value).strip()
    if text == "-1":  # -1 is the default, as in OrtArenaCfg
        return _DEFAULTS[name]
    if isinstance(value, Enum) or not _DECIMAL.fullmatch(text):
        raise ValueError(f"option {key!r}: got {value!r}, expected a whole number of bytes, such as '1048576'")
    number = int(text)
    if number == 0 and name != "max_mem":
        raise ValueError(f"option {key!r}: got 0, expected 1 byte or more")
    return number
