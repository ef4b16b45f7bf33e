"""The capabilities of a device as a frozen record. Pure: planners read it, and tests construct records of imaginary
devices."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_shared.notebook import Readable, table

#: every name that ``DeviceCapabilities.features`` may hold
FEATURE_NAMES = frozenset(
    {
        "buffer_device_address",
        "timeline_semaphore",
        "scalar_block_layout",
        "synchronization2",
        "maintenance4",
        "host_query_reset",
        "float16",
        "float64",
        "int8",
        "int16",
        "int64",
        "storage_8bit",
        "storage_16bit",
        "bfloat16",
        "bfloat16_dot_product",
        "bfloat16_cooperative_matrix",
        "integer_dot_product",
        "subgroup_size_control",
        "compute_full_subgroups",
        "subgroup_arithmetic",
        "subgroup_ballot",
        "subgroup_shuffle",
        "subgroup_extended_types",
        "vulkan_memory_model",
        "vulkan_memory_model_device_scope",
        "cooperative_matrix",
        "tensors",
        "shader_tensor_access",
        "tensor_non_packed",
    }
)

DEVICE_TYPES = ("cpu", "integrated", "discrete", "virtual", "other")
QUEUE_FLAGS = ("graphics", "compute", "transfer", "sparse_binding", "protected", "data_graph")


@dataclass(frozen=True)
class CooperativeMatrixShape:
    """One row of vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR: ``result = a (m by k) * b (k by n) + c``.

    Types are numpy-like names (``float16``, ``float32``, ``bfloat16``, ``int8``, ``uint8``, ``int32`` ...); ``scope``
    is ``subgroup``, ``workgroup``, ``device`` or ``queue_family``.
    """

    m: int
    n: int
    k: int
    a_type: str
    b_type: str
    c_type: str
    result_type: str
    scope: str = "subgroup"
    saturating: bool = False


@dataclass(frozen=True)
class QueueFamily:
    """One queue family: its index, its number of queues, its operations (names of `QUEUE_FLAGS`), the width of its
    timestamps."""

    index: int
    count: int
    flags: frozenset[str]
    timestamp_valid_bits: int = 64


@dataclass(frozen=True)
class MemoryHeap:
    """A memory heap of a device: its size in bytes, and whether it is device-local."""

    size: int  #: bytes
    device_local: bool


@dataclass(frozen=True)
class DeviceCapabilities(Readable):
    """Properties, limits and features of one device (sizes in bytes). ``features`` are names of `FEATURE_NAMES`.

    For a created device, ``features`` and ``extensions`` are the enabled ones; for a device that is only listed, the
    available ones.
    """

    name: str
    vendor_id: int = 0
    device_id: int = 0
    uuid: str = ""  #: 32 hexadecimal digits
    driver_name: str = ""
    driver_info: str = ""
    driver_version: int = 0
    device_type: str = "other"  #: one of `DEVICE_TYPES`
    api_version: tuple[int, int, int] = (1, 3, 0)
    index: int = 0  #: position in the driver's enumeration
    subgroup_size: int = 32
    min_subgroup_size: int = 32
    max_subgroup_size: int = 32
    max_workgroup_invocations: int = 1024
    max_workgroup_size: tuple[int, int, int] = (1024, 1024, 64)
    max_workgroup_count: tuple[int, int, int] = (65535, 65535, 65535)
    max_shared_memory_bytes: int = 32768
    max_push_constants_size: int = 128
    #: cores that each run separate workgroups; None where the driver does not report it
    compute_units: int | None = None
    max_buffer_size: int = 2**31
    max_allocation_size: int = 2**31
    max_allocation_count: int = 4096
    max_storage_buffer_range: int = 2**27
    min_storage_buffer_alignment: int = 16
    features: frozenset[str] = frozenset()
    cooperative_matrix_shapes: tuple[CooperativeMatrixShape, ...] = ()
    timestamp_period_ns: float = 1.0
    host_visible_device_local: bool = False  #: unified memory: every device-local heap can be mapped, cached
    memory_heaps: tuple[MemoryHeap, ...] = ()
    extensions: frozenset[str] = frozenset()
    queue_families: tuple[QueueFamily, ...] = ()

    def __post_init__(self) -> None:
        if self.device_type not in DEVICE_TYPES:
            raise ValueError(f"device_type is {self.device_type!r}, expected one of {DEVICE_TYPES}")
        unknown = set(self.features) - FEATURE_NAMES
        if unknown:
            raise ValueError(f"unknown features {sorted(unknown)}; known: {sorted(FEATURE_NAMES)}")

    # hash of the fields that distinguish devices: planners cache decisions by it, and look them up often
    def __hash__(self) -> int:
        return hash((self.name, self.uuid, self.driver_version, self.device_type))

    def has(self, *features: str) -> bool:
        """Whether all the named features are present. Raises ``ValueError`` for a name that is not in
        `FEATURE_NAMES`."""
        unknown = set(features) - FEATURE_NAMES
        if unknown:
            raise ValueError(f"unknown features {sorted(unknown)}; known: {sorted(FEATURE_NAMES)}")
        return self.features.issuperset(features)

    @property
    def device_local_bytes(self) -> int:
        """Size of all device-local heaps."""
        return sum(heap.size for heap in self.memory_heaps if heap.device_local)

    @property
    def memory_bytes(self) -> int:
        """Size of all heaps."""
        return sum(heap.size for heap in self.memory_heaps)

    def restricted_to(self, extensions: Iterable[str], features: Iterable[str]) -> DeviceCapabilities:
        """This device with only these extensions and features enabled."""
        features = self.features & frozenset(features)
        return dataclasses.replace(
            self,
            extensions=self.extensions & frozenset(extensions),
            features=features,
            cooperative_matrix_shapes=self.cooperative_matrix_shapes if "cooperative_matrix" in features else (),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; sets become sorted lists."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    def to_json(self, indent: int | None = 2) -> str:
        """The record as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        version = ".".join(map(str, self.api_version))
        sizes = f"{self.min_subgroup_size}..{self.max_subgroup_size}"
        lines = [
            f"{self.name} ({self.device_type}, {self.driver_name} {self.driver_info}, Vulkan {version})",
            f"  subgroup {self.subgroup_size} ({sizes}), workgroup up to {self.max_workgroup_invocations}, "
            f"shared memory {self.max_shared_memory_bytes} B, push constants {self.max_push_constants_size} B"
            + ("" if self.compute_units is None else f", {self.compute_units} compute units"),
            f"  memory {self.device_local_bytes / 2**30:.1f} GiB"
            + (", unified" if self.host_visible_device_local else ""),
            f"  features: {', '.join(sorted(self.features)) or 'none'}",
        ]
        return "\n".join(lines)

    @classmethod
    def generic(cls, **changes: Any) -> DeviceCapabilities:
        """The minimum that vkep requires of a device: Vulkan 1.3 with the required limits of the specification (section
        "Required Limits") and the features that every kernel needs. For planning without a device."""
        base: dict[str, Any] = {
            "name": "generic Vulkan 1.3 device",
            "max_workgroup_invocations": 128,
            "max_workgroup_size": (128, 128, 64),
            "max_shared_memory_bytes": 16384,
            "min_storage_buffer_alignment": 256,
            "subgroup_size": 4,
            "min_subgroup_size": 4,
            "max_subgroup_size": 4,
            "features": REQUIRED_FEATURES | {"compute_full_subgroups", "subgroup_size_control", "integer_dot_product"},
            "memory_heaps": (MemoryHeap(2**31, True),),
            "queue_families": (QueueFamily(0, 1, frozenset({"graphics", "compute", "transfer"})),),
        }
        return cls(**{**base, **changes})

    @classmethod
    def for_tests(cls, **changes: Any) -> DeviceCapabilities:
        """An imaginary well-equipped CPU device (subgroups of 8, every scalar type, no cooperative matrices);
        ``changes`` override."""
        base: dict[str, Any] = {
            "name": "test device",
            "uuid": "00" * 16,
            "device_type": "cpu",
            "driver_name": "none",
            "subgroup_size": 8,
            "min_subgroup_size": 8,
            "max_subgroup_size": 8,
            "max_shared_memory_bytes": 32768,
            "features": FEATURE_NAMES - {f for f in FEATURE_NAMES if "bfloat16" in f or f == "cooperative_matrix"},
            "host_visible_device_local": True,
            "memory_heaps": (MemoryHeap(2**33, True),),
            "queue_families": (QueueFamily(0, 1, frozenset({"graphics", "compute", "transfer"})),),
        }
        return cls(**{**base, **changes})


#: a device without these is refused: the runtime itself needs them (all but scalar layout and the 64-bit integers are
#: mandatory in Vulkan 1.3)
REQUIRED_FEATURES = frozenset(
    {
        "buffer_device_address",
        "timeline_semaphore",
        "scalar_block_layout",
        "synchronization2",
        "maintenance4",
        "host_query_reset",
    }
)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True)
class DeviceInfo(Readable):
    """One entry of `list_devices`: the capabilities of the device, and whether a device can be created (empty
    ``problems``)."""

    capabilities: DeviceCapabilities
    problems: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join([str(self.capabilities), *(f"  unusable: {problem}" for problem in self.problems)])

    def _tables(self) -> str:
        return DeviceList([self])._tables()

    @property
    def index(self) -> int:
        """The device's number, as `list_devices` counts."""
        return self.capabilities.index

    @property
    def name(self) -> str:
        """The driver's name of the device."""
        return self.capabilities.name


class DeviceList(Readable, list[DeviceInfo]):
    """Devices in the driver's order."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def _tables(self) -> str:
        rows = []
        for info in self:
            caps = info.capabilities
            memory = f"{caps.device_local_bytes / 2**30:.1f} GiB" + (", unified" * caps.host_visible_device_local)
            version = ".".join(map(str, caps.api_version))
            state = "unusable: " + "; ".join(info.problems) if info.problems else "usable"
            driver = f"{caps.driver_name} {caps.driver_info}".strip()
            rows.append((info.index, info.name, caps.device_type, driver, version, memory, state))
        return table("Vulkan devices", ("index", "name", "type", "driver", "Vulkan", "memory", "state"), rows)
