"""Provider options, and how what is wrong with them (or with anything else) reaches the user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkep
from tests.ort.conftest import OpenSession, device_number, device_of, graph, where
from vkep.memory import ArenaConfig
from vkep.session.contexts import resolve_context

ADD = graph("g (float[2,3] x) => (float[2,3] y) { y = Add(x, x) }")
CHAIN = graph("g (float[2,3] x) => (float[2,3] y) { a = Add(x, x) b = Mul(a, x) y = Relu(b) }")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
EP, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokn": "a"}, r"unknown option 'tokn' of VulkanExecutionProvider \(did you mean 'token'\?\)"),
        ({"token": ""}, "option 'token' is empty"),
        ({"sync_mode": "x"}, "option 'sync_mode' is 'x', expected one of timeline, queue_wait_idle, none"),
        ({"group_id": "-1"}, "option 'group_id' is '-1', expected a whole number of at least 0"),
        ({"min_partition_size": "0"}, "option 'min_partition_size' is '0'"),
        ({"prefer": "cpu"}, "option 'prefer' is 'cpu'"),
        ({"fallback": "gpu"}, "option 'fallback' is 'gpu', expected one of cpu, error"),
        ({"enable_graph_capture": "maybe"}, "option 'enable_graph_capture' is 'maybe', expected 1 or 0"),
        ({"arena.max_mm": "1"}, r"unknown arena option 'arena.max_mm': did you mean 'arena.max_mem'\?"),
        ({"arena.max_mem": "many"}, "option 'arena.max_mem': got 'many'"),
        ({"context_mode": "lookup_only", "token": "nobody"}, "no live context has token 'nobody'"),
    ],
)
def test_wrong_options_are_refused_with_pythons_message(
    session: OpenSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        session(ADD, **options)


def test_options_that_users_write_for_cuda(registered: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By name, as CUDA's users do: the device's index, and options of the CUDA provider."""
    import onnxruntime

    number = device_number(registered)
    cuda = {
        "device_id": number,
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": 2**64 - 1,
        "prefer_nhwc_layout": "0",
        "enable_cuda_graph": "1",
        "has_user_compute_stream": "0",
        "use_tf32": 1,
        "do_copy_in_default_stream": True,
        "token": "as for CUDA",
    }
    for providers, options in (([(EP, cuda), CPU], None), ([EP, CPU], [cuda, {}])):
        made = onnxruntime.InferenceSession(CHAIN, providers=providers, provider_options=options, enable_fallback=0)
        assert made.get_providers() == [EP, CPU]
        mine = made.get_provider_options()[EP]
        given = {"device": str(number), "arena.extend_strategy": "kSameAsRequested", "arena.max_mem": "0"}
        assert given.items() <= mine.items() and mine["enable_graph_capture"] == "1" and mine["concurrency"] == "2"
        np.testing.assert_array_equal(made.run(None, {"x": X})[0], np.maximum(2 * X * X, 0))
    assert "option use_tf32=1 has no effect on Vulkan: float32 is computed in float32" in caplog.text
    assert caplog.text.count("do_copy_in_default_stream") == 2


def test_get_provider_options_of_a_session_by_device(registered: Any) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device_of(registered)], {"plan_cache_size": "3", "arena.max_mem": "-1"})
    mine = onnxruntime.InferenceSession(ADD, options).get_provider_options()[EP]
    assert mine["plan_cache_size"] == "3" and mine["arena.max_mem"] == "-1" and mine["fallback"] == "cpu"
    assert onnxruntime.InferenceSession(ADD, providers=[CPU]).get_provider_options() == {CPU: {}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_id": 77}, "no usable device matches the device 77; there are: 0: "),
        (
            {"user_compute_stream": "94000"},
            "option 'user_compute_stream' is '94000': a CUDA stream orders no Vulkan work",
        ),
        ({"gpu_external_alloc": "1"}, "a CUDA allocator gives no Vulkan memory"),
        ({"enable_cuda_graph": "1", "enable_graph_capture": "0"}, "'enable_graph_capture' by another name"),
    ],
)
def test_options_that_only_cuda_has(session: OpenSession, options: dict[str, str], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        session(ADD, **options)


def test_small_islands_stay_with_the_next_provider(session: OpenSession) -> None:
    assert where(session(CHAIN, min_partition_size=4, all_on_vulkan=False)) == {CPU: {"Add": 1, "Mul": 1, "Relu": 1}}
    assert set(where(session(CHAIN, min_partition_size=3))) == {EP}


def test_fallback_error_refuses_a_model_with_a_node_for_the_cpu(session: OpenSession) -> None:
    model = graph("g (float[4] x) => (string[4] y) { a = Relu(x) y = Cast<to=8>(a) }")  # texts never go to a GPU
    with pytest.raises(Exception, match=r"fallback='error', and Vulkan declines 1 node:\s+Cast"):
        session(model, fallback="error")
    assert session(ADD, fallback="error").run(None, {"x": X})[0].sum() == 30


def test_two_sessions_and_a_plain_one_share_a_context(session: OpenSession, registered: Any) -> None:
    import vkep
    from vkep.ort.boundary import live

    session(ADD, token="together", group_id=7)
    session(CHAIN, token="together", group_id=7)
    session(ADD, token="apart")
    by_label: dict[str, set[int]] = {}
    for ep in live("OrtEp"):
        by_label.setdefault(ep.runtime.context.label, set()).add(id(ep.runtime.context))
    assert {label: len(by_label[label]) for label in ("together:7", "apart:0")} == {"together:7": 1, "apart:0": 1}
    assert by_label["together:7"] != by_label["apart:0"]
    with vkep.InferenceSession(ADD, token="together", group_id=7) as plain:
        assert id(plain.context) in by_label["together:7"]


def test_without_a_token_a_session_shares_the_default_context_with_plain_ones(session: OpenSession) -> None:
    import vkep
    from vkep.ort.boundary import live

    session(ADD)
    contexts = {id(ep.runtime.context) for ep in live("OrtEp") if ep.runtime.context.label == "default:0"}
    with vkep.InferenceSession(ADD) as plain:
        assert contexts == {id(plain.context)}


@pytest.mark.parametrize("mode", ["timeline", "queue_wait_idle", "none"])
def test_sync_modes(session: OpenSession, mode: str) -> None:
    made = session(CHAIN, token=f"sync {mode}", sync_mode=mode)
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], np.maximum(2 * X * X, 0))


def test_arena_options_reach_the_sessions_arena(session: OpenSession) -> None:
    from vkep.ort.boundary import live

    options = {"arena.max_mem": "33554432", "arena.extend_strategy": "1"}
    made = session(ADD, token="small arena", **options)
    made.run(None, {"x": X})
    runtime = next(ep.runtime for ep in live("OrtEp") if ep.runtime.context.label == "small arena:0")
    assert runtime.domain.arena.config.max_mem == 33554432
    assert runtime.domain.arena.config.extend_strategy.value == "kSameAsRequested"


def test_each_shared_allocators_arena_has_its_options_or_warns(
    registered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`CreateSharedAllocator` with options, while other allocators of the context are in use."""
    from vkep.ort.boundary import NULL, live
    from vkep.ort.memory.allocator import ArenaAllocator, PinnedAllocator, ReadOnlyAllocator

    ort, small, other = live("OrtEpFactory")[-1].ort, ArenaConfig(max_mem=4 << 20), ArenaConfig(max_mem=8 << 20)
    context = resolve_context(vkep.SessionOptions(token="shared allocators"))
    made: list[Any] = []

    def allocator(kind: Any, config: ArenaConfig | None) -> Any:
        made.append(kind(ort, NULL, lambda: (context, config)))
        return made[-1]

    with caplog.at_level("WARNING"):
        pinned = allocator(PinnedAllocator, None)
        pinned._take(100)
        device = allocator(ArenaAllocator, small)
        with pytest.raises(vkep.ArenaOutOfMemory):
            device.domain.alloc(16 << 20)
        assert caplog.messages == []  # the pinned memory has an arena of its own
        allocator(ReadOnlyAllocator, other).domain.reserve(100)
        assert "keeps its configuration: arena.max_mem is 4194304 (asked: 8388608)" in caplog.text
        caplog.clear()
        allocator(PinnedAllocator, small)._take(100)
        assert "pinned memory of ONNX Runtime has users and keeps its configuration" in caplog.text
        for used in made:
            used.release()
        with pytest.raises(vkep.ArenaOutOfMemory):
            allocator(PinnedAllocator, small)._take(16 << 20)
        made[-1].release()


def test_the_environments_arena_options_are_overridden_by_the_sessions() -> None:
    from vkep.ort.options import EpOptions

    environment = {
        "ep_factory.VulkanExecutionProvider.arena.max_mem": "1000",
        "ep_factory.VulkanExecutionProvider.arena.extend_strategy": "1",
        "ep_factory.Other.arena.max_mem": "7",
    }
    entries = {"ep.vulkanexecutionprovider.arena.max_mem": "2000", "session.other": "x", "ep.other.token": "y"}
    options = EpOptions.from_entries(entries, environment)
    assert options.arena == {"arena.max_mem": "2000", "arena.extend_strategy": "1"}
    assert options.token is None


def test_a_session_entrys_prefix_is_in_lower_case(session: OpenSession) -> None:
    message = (
        r"'ep.VulkanExecutionProvider.concurrency': the prefix is written in lower case, 'ep.vulkanexecutionprovider.'"
    )
    with pytest.raises(RuntimeError, match=message):
        session(ADD, entries={"ep.VulkanExecutionProvider.concurrency": "1"})


def test_running_out_of_memory_is_an_error_and_said_in_the_log(
    session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    made = session(
        graph("g (float[n] x) => (float[n] y) { y = Add(x, x) }"), token="tiny", **{"arena.max_mem": "4000000"}
    )
    with caplog.at_level("ERROR", "vkep.ort"), pytest.raises(Exception, match="Allocation failed"):
        made.run(None, {"x": np.zeros(4_000_000, np.float32)})
    assert "is out of memory: asked" in caplog.text
    small = np.ones(10, np.float32)
    np.testing.assert_array_equal(made.run(None, {"x": small})[0], 2 * small)


def test_exceptions_of_a_run_reach_the_user(session: OpenSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from vkep.ort.nodes import fused

    made = session(ADD)

    def fail(*args: object) -> None:
        raise SystemExit("told to stop")

    with monkeypatch.context() as patch:
        patch.setattr(fused.FusedNode, "_run_by_address", fail)
        with pytest.raises(Exception, match="vkep: SystemExit: told to stop"):
            made.run(None, {"x": X})
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], 2 * X)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_a_claim_that_fails_fails_the_session(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    from vkep.ort import ep

    def fail(*args: object, **options: object) -> None:
        raise kind("cannot partition today")

    monkeypatch.setattr(ep, "claim", fail)
    with pytest.raises(Exception, match=r"vkep: .*cannot partition today"):
        session(ADD)
