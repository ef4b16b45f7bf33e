"""What every test shares: the driver that must be there, one context, and validation layers that must be silent."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest

from gpu_shared import steady
from gpu_shared.errors import DriverNotFoundError
from tests.nightly import interpreting, nightly, products_beyond_pairs
from tools.waiting import LONG_S

if TYPE_CHECKING:
    from gpu_shared import DeviceInfo, SharedGpuContext
    from vkep import InferenceSession

# The same examples in every run, however long each takes; VKEP_TEST_RANDOM=1 draws others.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=os.environ.get("VKEP_TEST_RANDOM") != "1")
hypothesis.settings.load_profile("suite")

#: a test that asks for one of these uses the GPU, and is marked so
GPU_FIXTURES = {"vulkan", "shared_context", "own_context", "open_session", "no_leak"}
#: whose tests run without one by the interpreter (`tests.ops.cases.on_vulkan`)
OPERATORS = Path(__file__).parent / "ops"
Alive = Callable[[], dict[str, int]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the tests that write gigabytes to disk")
    parser.addoption("--interpreter", action="store_true", help="run operators by the interpreter, without a device")
    parser.addoption("--nightly", action="store_true", help="also run what is marked nightly, and longer campaigns")
    parser.addoption(
        "--discrete", action="store_true", help="take the driver's device for a discrete GPU, in this process"
    )


def pytest_configure(config: pytest.Config) -> None:
    # More than half of the time of lavapipe's compiler goes into vectors of 8 numbers, its subgroups on most CPUs, and into
    # optimizing. Tests take vectors of 4, but for kernels of GPUs, that need 8. Its cache does not tell them apart. By default
    # each device, and numpy in each process, starts a thread for each core, which takes most of the time on many cores.
    discrete = config.getoption("--discrete")
    if config.getoption("--nightly"):
        os.environ["VKEP_TEST_NIGHTLY"] = "1"  # for tests/nightly.py, and the processes that tests start
    if config.getoption("--interpreter"):
        os.environ["VKEP_TEST_INTERPRETER"] = "1"
    os.environ.setdefault("GALLIVM_PERF", "nopt")
    os.environ.setdefault("LP_NUM_THREADS", "2")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the workers, and of the processes that tests start
    width = os.environ.setdefault("LP_NATIVE_VECTOR_WIDTH", "256" if discrete else "128")
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vkep-tests" / width
        cache.mkdir(parents=True, exist_ok=True)
        os.environ["MESA_SHADER_CACHE_DIR"] = str(cache)
        # Containers often set it: each of the hundreds of processes that tests start would compile all of vkep, half of its time.
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
            os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(cache.parent / "bytecode")
            sys.dont_write_bytecode = False
    except (OSError, RuntimeError):  # no folder that can be written
        os.environ["MESA_SHADER_CACHE_DISABLE"] = "true"
    steady.PATIENCE = LONG_S  # on a busy machine a device is not destroyed within a second
    if discrete:
        from tools.discrete import take_for_discrete

        patch = pytest.MonkeyPatch()
        take_for_discrete(patch.setattr)
        config.add_cleanup(patch.undo)
    if not hasattr(config, "workerinput"):  # not in the workers of pytest-xdist
        config.pluginmanager.register(_FailuresAtOnce(config))


class _FailuresAtOnce:
    """Prints what failed when it fails: pytest prints it at the end, which a run that is cut off does not reach."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_sep("_", f"{report.nodeid} ({report.when})")
            terminal.write_line(report.longreprtext)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        needs = GPU_FIXTURES & set(getattr(item, "fixturenames", ()))
        if interpreting() and needs <= {"vulkan"} and Path(item.path).is_relative_to(OPERATORS):
            continue
        if needs or item.get_closest_marker("wide"):
            item.add_marker("gpu")
        if "needs_gigabytes" in getattr(item, "fixturenames", ()) and not config.getoption("--run-slow"):
            item.add_marker(pytest.mark.skip(reason="writes gigabytes: --run-slow runs it"))
    if not nightly():
        usual = [item for item in items if not item.get_closest_marker("nightly")]
        beyond = set(products_beyond_pairs(usual))
        usual = [item for item in usual if item not in beyond]
        config.hook.pytest_deselected(items=list(set(items).difference(usual)))
        items[:] = usual


def pytest_collection_finish(session: pytest.Session) -> None:
    """The garbage collector, which `no_leak` runs in full, passes over what collecting 12,000 tests left in memory. By default it
    runs for every 700 new objects, which takes a twentieth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture
def needs_gigabytes() -> None:
    """Asked for by tests that run only with --run-slow."""


@pytest.fixture(scope="session")
def vulkan() -> DeviceInfo | None:
    """The device that the tests run on; None for the interpreter. Without one tests fail, unless VKEP_ALLOW_NO_GPU=1 lets them be
    skipped."""
    if interpreting():
        return None
    import gpu_shared

    try:
        return gpu_shared.select_device(gpu_shared.list_devices())
    except DriverNotFoundError as error:
        if os.environ.get("VKEP_ALLOW_NO_GPU") == "1":
            pytest.skip(f"no Vulkan driver: {error}")
        pytest.fail(f"no Vulkan driver (VKEP_ALLOW_NO_GPU=1 skips these tests): {error}")


@pytest.fixture(autouse=True)
def validation_is_silent() -> Iterator[None]:
    """With VKEP_VALIDATION=1 the layers watch every test; what they say fails the test that made them say it. Devices that a test
    dropped are destroyed before the next one (`settle_for_layers`)."""
    before, devices = _validation_messages(), _devices()
    yield
    if _devices() > devices:
        gc.collect()
    if devices or _devices():
        from tools.validation_layers import settle_for_layers

        settle_for_layers()
    if _validation_messages() > before:
        from tools.validation_layers import complaints

        assert [str(message) for message in complaints(since=before)] == []


@pytest.fixture
def no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that create or destroy a device while another thread uses another one: most versions of the layers may crash
    there (see `settle_for_layers`)."""
    monkeypatch.setenv("VKEP_VALIDATION", "0")


def _devices() -> int:
    lifetime = sys.modules.get("gpu_shared.lifetime")  # pure tests never load Vulkan
    return 0 if lifetime is None else len(lifetime._live["device"])


def _validation_messages() -> int:
    module = sys.modules.get("gpu_shared.instance")  # pure tests never load Vulkan
    return 0 if module is None else len(module.validation_log)


@pytest.fixture(scope="session")
def shared_context(vulkan: DeviceInfo) -> Iterator[SharedGpuContext]:
    """One context for all tests that do not look at a context itself."""
    import gpu_shared
    from tests import pipelines

    with gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "test session"}, device=vulkan) as context:
        pipelines.keep(context)
        yield context
        pipelines.drop(context)


@pytest.fixture(scope="module", autouse=True)
def pipelines_of_a_module() -> Iterator[None]:
    """Those of contexts that tests share go at a module's end, since all of them take gigabytes."""
    yield
    kept = sys.modules.get("tests.pipelines")  # pure tests never load Vulkan
    if kept is not None:
        kept.drop_all_made()


@pytest.fixture(autouse=True)
def wide_subgroups(request: pytest.FixtureRequest) -> None:
    """Skips what is marked ``wide`` where subgroups have fewer than eight lanes."""
    if request.node.get_closest_marker("wide") is not None:
        lanes = request.getfixturevalue("shared_context").capabilities.subgroup_size
        if lanes < 8:
            pytest.skip(f"subgroups of {lanes} lanes; LP_NATIVE_VECTOR_WIDTH=256 gives those of lavapipe 8")


@pytest.fixture
def no_leak(vulkan: DeviceInfo) -> Iterator[Alive]:
    """At the test's end no Vulkan object lives that was made since its start; called, it counts them."""
    from gpu_shared.lifetime import live
    from gpu_shared.steady import settle

    settle()
    before = live()  # one of an earlier test's may go meanwhile

    def since() -> dict[str, int]:
        settle()
        return dict(Counter(native.kind for native in live() - before))

    yield since
    if since():  # else nothing is left to collect: a collection takes up to 40 ms
        gc.collect()
    assert since() == {}


@pytest.fixture
def collected() -> None:
    """For tests that count objects: those that other tests left in reference cycles are gone before."""
    from gpu_shared.steady import settle

    gc.collect()
    settle()


@pytest.fixture
def no_collection(collected: None) -> Iterator[None]:
    """The garbage collector runs only where a test calls it."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def own_context(vulkan: DeviceInfo, no_leak: Alive) -> Iterator[SharedGpuContext]:
    """A context of the test's own, with nothing left behind."""
    import gpu_shared

    with gpu_shared.SharedGpuContext.create({"gpu_shared_context_token": "test"}, device=vulkan) as context:
        yield context


@pytest.fixture
def open_session(shared_context: SharedGpuContext) -> Iterator[Callable[..., InferenceSession]]:
    """Opens sessions on the shared context, closed at the test's end."""
    from vkep import InferenceSession

    opened: list[InferenceSession] = []

    def open_(model: Any, **options: Any) -> InferenceSession:
        options.setdefault("context", shared_context)
        opened.append(InferenceSession(model, **options))
        return opened[-1]

    yield open_
    for session in opened:
        session.close()


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """A module's generator RNG starts each test from the test's name: what it draws does not depend on the tests before it."""
    generator = getattr(request.module, "RNG", None)
    if generator is not None:
        seed = zlib.crc32(request.node.name.encode())
        generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture
def det_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Det as on a vkep that has no kernel for it: the tests' example of a node that Vulkan declines."""
    from vkep.ops import registry

    monkeypatch.delitem(registry._OPERATORS, ("", "Det"), raising=False)
