"""Sessions of ONNX Runtime on vkep's provider: registered once, never falling back, who-ran-what at hand."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.calls import noted
from tools.ort_cpu import cpu_session

if TYPE_CHECKING:
    from gpu_shared import DeviceInfo

ASSIGNMENT = "session.record_ep_graph_assignment_info"
OpenSession = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and "tests/ort" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))


def why_not() -> str:
    try:
        import onnxruntime
    except ImportError:
        return "onnxruntime is not installed"
    version = tuple(int(n) for n in re.findall(r"\d+", onnxruntime.__version__)[:2])
    if version < (1, 29):
        return f"onnxruntime {onnxruntime.__version__} is older than 1.29"
    if not any(shutil.which(c) for c in ("cc", "gcc", "clang")):
        return "no C compiler for the plugin library"
    return ""


def graph(text: str, *, opset: int = 18, domains: str = "") -> bytes:
    """A model from ONNX text: ``name (inputs) => (outputs) <constants> { nodes }``."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{domains}]> {text}')
    onnx.checker.check_model(model)
    return model.SerializeToString()


def where(session: Any) -> dict[str, Counter[str]]:
    """Operators by provider, as ONNX Runtime assigned them."""
    found: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, Counter()).update(n.op_type for n in part.get_nodes())
    return found


def reference(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime's CPU provider gives."""
    results: list[Any] = cpu_session(model).run(None, feeds)
    return results


@pytest.fixture(scope="session")
def registered(vulkan: DeviceInfo) -> Any:
    """The module, with the provider registered for the whole run."""
    import vkep.ort

    vkep.ort.register()
    return vkep.ort


@pytest.fixture
def session(registered: Any) -> Iterator[OpenSession]:
    """Opens a session on Vulkan that must not fall back; ``all_on_vulkan`` (default) holds ONNX Runtime's own assignment to
    that. Without ``optimize`` ONNX Runtime leaves the nodes as they are.
    """
    import onnxruntime

    opened: list[Any] = []

    def open_(
        model: Any,
        *,
        all_on_vulkan: bool = True,
        optimize: bool = True,
        parallel: bool = False,
        entries: dict[str, str] | None = None,
        **options: Any,
    ) -> Any:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1  # see `cpu_session`
        if not optimize:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if parallel:
            settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        settings.log_severity_level = 4
        settings.add_session_config_entry(ASSIGNMENT, "1")
        for key, value in (entries or {}).items():
            settings.add_session_config_entry(key, value)
        provider = (registered.EP_NAME, {k: str(v) for k, v in options.items()})
        made = onnxruntime.InferenceSession(model, settings, providers=[provider], enable_fallback=0)
        made.disable_fallback()
        opened.append(made)
        if all_on_vulkan:
            assert set(where(made)) == {registered.EP_NAME}
        return made

    yield open_
    opened.clear()


@pytest.fixture
def on_gpu(registered: Any) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Makes an OrtValue in the provider's memory."""
    import onnxruntime

    vendor, number = device_of(registered).device.vendor_id, device_number(registered)
    return lambda array: onnxruntime.OrtValue.ortvalue_from_numpy(array, "gpu", number, vendor)


def device_of(registered: Any) -> Any:
    """The OrtEpDevice of the device that sessions take by default."""
    return _devices(registered)[device_number(registered)]


def device_number(registered: Any) -> int:
    """That device's number among the provider's: the device id of its memory."""
    import gpu_shared

    default = gpu_shared.select_device(gpu_shared.list_devices()).capabilities.uuid
    return [d.ep_metadata["vulkan_uuid"] for d in _devices(registered)].index(default)


def _devices(registered: Any) -> list[Any]:
    import onnxruntime

    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == registered.EP_NAME]


def gpu_device(registered: Any) -> Any:
    """The OrtDevice that outputs are bound to."""
    import onnxruntime

    vendor, number = device_of(registered).device.vendor_id, device_number(registered)
    return onnxruntime.OrtDevice.make("gpu", number, vendor_id=vendor)._get_c_device()


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device memory that the host does not see, as on a discrete GPU: copies go through staging memory."""
    from vkep.device.delegate import VulkanDelegate
    from vkep.memory.device_arena import DeviceBlock
    from vkep.memory.staging_ring import StagingArena

    seen = vars(DeviceBlock)["mapped"].fget
    monkeypatch.setattr(
        DeviceBlock, "mapped", property(lambda b: seen(b) if isinstance(b._arena, StagingArena) else None)
    )
    monkeypatch.setattr(VulkanDelegate, "unified", property(lambda _: False))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every copy between host and device while the test runs."""
    from vkep.ort.memory.transfers import Transfers

    return noted(monkeypatch, Transfers, "run", lambda route, *_: route.direction)
