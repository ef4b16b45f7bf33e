"""Compile specs: building, parsing, defaults, overrides, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_shared.compile_spec import (
    KEYS,
    CompileSpec,
    ContextMode,
    Prefer,
    SharedGpuCompileSpec,
    SyncMode,
    make_shared_gpu_compile_specs,
    parse_shared_gpu_compile_spec,
)


def test_absent_specs_disable_sharing() -> None:
    cases: list[Any] = [None, [], {}, [("compile_flags", b"x")]]
    for specs in cases:
        spec = parse_shared_gpu_compile_spec(specs)
        assert not spec.enabled
        assert spec.mode is ContextMode.DISABLED


def test_defaults_are_the_rfcs() -> None:
    spec = parse_shared_gpu_compile_spec([("gpu_shared_group_id", b"0")])
    assert spec == SharedGpuCompileSpec()
    assert (spec.token, spec.mode, spec.sync_mode, spec.group_id, spec.min_partition_size, spec.prefer) == (
        "default",
        "lookup_or_create",
        "timeline",
        0,
        3,
        "auto",
    )
    assert spec.enabled
    assert spec.key == ("default", 0)


def test_make_then_parse_round_trips_all_keys() -> None:
    specs = make_shared_gpu_compile_specs("scène 0", "create_only", "none", 2**40, 7, "vgf_first")
    assert [s.key for s in specs] == list(KEYS)
    assert all(isinstance(s, CompileSpec) and isinstance(s.value, bytes) for s in specs)
    spec = parse_shared_gpu_compile_spec(specs)
    assert spec == SharedGpuCompileSpec("scène 0", ContextMode.CREATE_ONLY, SyncMode.NONE, 2**40, 7, Prefer.VGF_FIRST)
    assert spec.to_compile_specs() == specs


@pytest.mark.parametrize("mode", list(ContextMode))
@pytest.mark.parametrize("sync", list(SyncMode))
@pytest.mark.parametrize("prefer", list(Prefer))
def test_every_choice_round_trips(mode: Any, sync: Any, prefer: Any) -> None:
    spec = parse_shared_gpu_compile_spec(make_shared_gpu_compile_specs(mode=mode, sync_mode=sync, prefer=prefer))
    assert (spec.mode, spec.sync_mode, spec.prefer) == (mode, sync, prefer)
    assert spec.enabled == (mode is not ContextMode.DISABLED)


def test_accepts_pairs_objects_mappings_text_and_ints() -> None:
    expected = SharedGpuCompileSpec(token="t", group_id=5)
    assert parse_shared_gpu_compile_spec([("gpu_shared_context_token", "t"), ("gpu_shared_group_id", 5)]) == expected
    objects = [
        SimpleNamespace(key="gpu_shared_context_token", value=bytearray(b"t")),
        SimpleNamespace(key="gpu_shared_group_id", value=memoryview(b"5")),
    ]
    assert parse_shared_gpu_compile_spec(objects) == expected
    assert parse_shared_gpu_compile_spec({"gpu_shared_context_token": b"t", "gpu_shared_group_id": "5"}) == expected


def test_load_options_override_compile_specs() -> None:
    specs = make_shared_gpu_compile_specs(token="a", sync_mode="none", group_id=1)
    spec = parse_shared_gpu_compile_spec(specs, {"gpu_shared_context_token": "b", "gpu_shared_sync_mode": "timeline"})
    assert (spec.token, spec.sync_mode, spec.group_id) == ("b", SyncMode.TIMELINE, 1)
    assert parse_shared_gpu_compile_spec(None, {"gpu_shared_group_id": 3}) == SharedGpuCompileSpec(group_id=3)
    assert not parse_shared_gpu_compile_spec(specs, {"gpu_shared_context_mode": "disabled"}).enabled


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([("gpu_shared_sync_mod", b"none")], ["sync_mod", "mean 'gpu_shared_sync_mode'", "gpu_shared_prefer"]),
        ([("gpu_shared_context_mode", b"lookup")], ["'lookup'", "disabled, lookup_only, lookup_or_create, create"]),
        ([("gpu_shared_sync_mode", b"timelin")], ["did you mean 'timeline'"]),
        ([("gpu_shared_prefer", b"")], ["gpu_shared_prefer", "auto, vgf_first, vulkan_first"]),
        ([("gpu_shared_group_id", b"-1")], ["gpu_shared_group_id", "-1", "from 0"]),
        ([("gpu_shared_group_id", b"1.5")], ["'1.5'", "decimal integer"]),
        ([("gpu_shared_group_id", b"0x10")], ["decimal integer"]),
        ([("gpu_shared_group_id", 2**63)], [str(2**63)]),
        ([("gpu_shared_group_id", "9" * 5000)], ["decimal integer"]),
        ([("gpu_shared_min_partition_size", b"-3")], ["gpu_shared_min_partition_size", "-3"]),
        ([("gpu_shared_context_token", b"")], ["gpu_shared_context_token", "not empty"]),
        ([("gpu_shared_context_token", b"a\0b")], ["NUL"]),
        ([("gpu_shared_context_token", b"\xff\xfe")], ["UTF-8"]),
        ([("gpu_shared_group_id", b"1"), ("gpu_shared_group_id", b"2")], ["given twice", "b'1'", "b'2'"]),
    ],
)  # fmt: skip
def test_bad_values_name_key_value_and_what_is_allowed(specs: Any, words: Any) -> None:
    with pytest.raises(ValueError) as caught:
        parse_shared_gpu_compile_spec(specs)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "specs",
    [
        [("gpu_shared_group_id", True)],
        [("gpu_shared_group_id", 1.0)],
        [("gpu_shared_context_token", 3)],
        [("gpu_shared_context_mode", None)],
        [("gpu_shared_group_id",)],
        [(1, b"x")],
        "gpu_shared_group_id",
        [3],
    ],
)
def test_wrong_types_are_type_errors(specs: Any) -> None:
    with pytest.raises(TypeError):
        parse_shared_gpu_compile_spec(specs)


def test_errors_say_whether_specs_or_options_are_meant() -> None:
    with pytest.raises(ValueError, match="load-time options"):
        parse_shared_gpu_compile_spec(None, {"gpu_shared_prefer": "vgf"})
    with pytest.raises(ValueError, match=r"^'gpu_shared_context_mode' is 'never'"):
        make_shared_gpu_compile_specs(mode="never")


def test_the_pure_modules_load_neither_cffi_nor_vulkan() -> None:
    code = (
        "import sys, gpu_shared, gpu_shared.capabilities, gpu_shared.vk\n"
        "loaded = {'vulkan', 'cffi', '_cffi_backend', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
