"""The ``arena.*`` keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkep.memory import (
    ArenaConfig,
    ArenaMode,
    ExtendStrategy,
    factory_prefix,
    session_prefix,
    strip_arena_prefix,
)

configs = st.builds(
    ArenaConfig,
    extend_strategy=st.sampled_from(ExtendStrategy),
    initial_chunk_size_bytes=st.integers(1, 1 << 40),
    max_dead_bytes_per_chunk=st.integers(1, 1 << 40),
    initial_growth_chunk_size_bytes=st.integers(1, 1 << 40),
    max_power_of_two_extend_bytes=st.integers(1, 1 << 40),
    max_mem=st.integers(0, 1 << 40),
    mode=st.sampled_from(ArenaMode),
)


def test_defaults_are_onnx_runtimes() -> None:
    config = ArenaConfig.from_options({})
    assert config == ArenaConfig() == ArenaConfig.from_options(None)
    assert config.extend_strategy is ExtendStrategy.NEXT_POWER_OF_TWO
    assert config.initial_chunk_size_bytes == 1_048_576
    assert config.max_dead_bytes_per_chunk == 134_217_728
    assert config.initial_growth_chunk_size_bytes == 2_097_152
    assert config.max_power_of_two_extend_bytes == 1_073_741_824
    assert config.max_mem == 0
    assert config.mode is ArenaMode.BFC


@given(configs)
def test_options_round_trip(config: Any) -> None:
    options = config.to_options()
    assert all(isinstance(value, str) for value in options.values())
    assert ArenaConfig.from_options(options, strict=True) == config
    assert config.differences(config) == {}


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("0", ExtendStrategy.NEXT_POWER_OF_TWO),
        ("1", ExtendStrategy.SAME_AS_REQUESTED),
        (1, ExtendStrategy.SAME_AS_REQUESTED),
        ("kNextPowerOfTwo", ExtendStrategy.NEXT_POWER_OF_TWO),
        ("kSameAsRequested", ExtendStrategy.SAME_AS_REQUESTED),
        (ExtendStrategy.SAME_AS_REQUESTED, ExtendStrategy.SAME_AS_REQUESTED),
    ],
)
def test_extend_strategy(text: Any, strategy: Any) -> None:
    assert ArenaConfig.from_options({"arena.extend_strategy": text}).extend_strategy is strategy


def test_other_components_keys_are_ignored_unless_strict() -> None:
    options = {"arena.max_mem": "4294967296", "session.intra_op_threads": "4"}
    assert ArenaConfig.from_options(options).max_mem == 1 << 32
    with pytest.raises(ValueError, match=r"unknown arena option 'session.intra_op_threads'"):
        ArenaConfig.from_options(options, strict=True)


def test_strict_options_may_go_without_the_prefix() -> None:
    config = ArenaConfig.from_options({"max_mem": 5, "arena.mode": "separate"}, strict=True)
    assert config == ArenaConfig(max_mem=5, mode=ArenaMode.SEPARATE)
    assert ArenaConfig.from_options({"max_mem": 5, "max_mems": 5}) == ArenaConfig(), "another component's"
    with pytest.raises(ValueError, match=r"'max_mems': did you mean 'max_mem'\? known keys: extend_strategy, "):
        ArenaConfig.from_options({"max_mems": 5}, strict=True)
    with pytest.raises(ValueError, match=r"got both 'max_mem' and 'arena.max_mem', expected one of them"):
        ArenaConfig.from_options({"arena.max_mem": 5, "max_mem": 5}, strict=True)


def test_misspelt_key_names_its_neighbour() -> None:
    with pytest.raises(ValueError, match=r"'arena.max_memory': did you mean 'arena.max_mem'\?"):
        ArenaConfig.from_options({"arena.max_memory": "1"})


def test_a_size_of_minus_one_is_its_default() -> None:
    sizes = [key for key in ArenaConfig().to_options() if key not in ("arena.extend_strategy", "arena.mode")]
    assert len(sizes) == 5
    for value in ("-1", -1):
        assert ArenaConfig.from_options(dict.fromkeys(sizes, value)) == ArenaConfig()


@pytest.mark.parametrize(
    ("key", "value", "error", "match"),
    [
        ("arena.max_mem", "-2", ValueError, r"'arena.max_mem': got '-2', expected a whole number of bytes"),
        ("arena.max_mem", "4GB", ValueError, "whole number"),
        ("arena.max_mem", "", ValueError, "whole number"),
        ("arena.max_mem", 1.5, TypeError, "expected a string or an int, got float"),
        ("arena.max_mem", True, TypeError, "got bool"),
        ("arena.max_mem", None, TypeError, "got NoneType"),
        ("arena.initial_chunk_size_bytes", "0", ValueError, "expected 1 byte or more"),
        ("arena.extend_strategy", "2", ValueError, r"got '2', expected '0' \(kNextPowerOfTwo\)"),
        ("arena.mode", "slab", ValueError, "expected 'bfc' or 'separate'"),
        (7, "1", TypeError, "keys are strings"),
    ],
)
def test_bad_values(key: Any, value: Any, error: Any, match: Any) -> None:
    with pytest.raises(error, match=match):
        ArenaConfig.from_options({key: value})


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("max_mem", -1, ValueError),
        ("initial_chunk_size_bytes", 0, ValueError),
        ("max_dead_bytes_per_chunk", 1.0, TypeError),
        ("extend_strategy", "0", TypeError),
        ("mode", "bfc", TypeError),
    ],
)
def test_fields_are_checked_without_options_too(field: Any, value: Any, error: Any) -> None:
    with pytest.raises(error, match=field):
        ArenaConfig(**{field: value})


def test_prefixes_follow_onnx_runtimes_casing() -> None:
    options = {
        "ep.vulkanep.arena.max_mem": "1024",
        "ep.otherep.arena.max_mem": "1",
        "ep.vulkanep.cache_dir": "x",
        "ep_factory.VulkanEp.arena.max_mem": "2048",
        "ep_factory.vulkanep.arena.max_mem": "3",
    }
    assert strip_arena_prefix(options, session_prefix("VulkanEp")) == {"arena.max_mem": "1024"}
    assert strip_arena_prefix(options, factory_prefix("VulkanEp")) == {"arena.max_mem": "2048"}
    with pytest.raises(ValueError, match="non-empty"):
        session_prefix("")
    with pytest.raises(TypeError, match="expected a string"):
        factory_prefix(None)  # type: ignore[arg-type]


def test_differences_name_both_values() -> None:
    ours, theirs = ArenaConfig(max_mem=10), ArenaConfig(max_mem=20, mode=ArenaMode.SEPARATE)
    assert ours.differences(theirs) == {"arena.max_mem": ("10", "20"), "arena.mode": ("bfc", "separate")}
