"""Waiting for dropped objects where validation layers are on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from gpu_shared import instance, vk
from gpu_shared.errors import GpuError
from gpu_shared.instance import ValidationMessage
from gpu_shared.layers import VALIDATION_OWN_ERRORS
from gpu_shared.steady import on_end, settle
from tools import validation_layers
from tools.waiting import LONG_S


class Owner:
    """Anything with finalizers."""


def test_dropped_objects_are_destroyed_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_VALIDATION", "1")
    began, destroyed = threading.Event(), threading.Event()

    def destroy() -> None:
        began.wait(30)
        destroyed.set()

    owner = Owner()
    on_end(owner, destroy)
    del owner
    threading.Timer(0.05, began.set).start()
    validation_layers.settle_for_layers()
    assert destroyed.is_set()


def test_an_instance_with_layers_is_created_after_what_was_dropped(
    vulkan: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, destroyed = threading.Event(), threading.Event()
    then: list[bool] = []

    def destroy() -> None:
        began.wait(30)
        destroyed.set()

    def check(layers: Sequence[str]) -> set[str]:
        then.append(destroyed.is_set())
        raise GpuError("a test")

    monkeypatch.setattr(instance, "_check_layers", check)
    owner = Owner()
    on_end(owner, destroy)
    del owner
    threading.Timer(0.05, began.set).start()
    with pytest.raises(GpuError, match="a test"):
        instance.Instance(validation=True)
    assert then == [True]


@pytest.mark.parametrize("layers", [True, False])
def test_work_that_does_not_end_is_an_error_where_layers_are_on(layers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKEP_VALIDATION", "1" if layers else "0")
    monkeypatch.setattr(validation_layers, "_SECONDS", 0.05)
    may_end = threading.Event()

    def work() -> None:
        may_end.wait(LONG_S)

    owner = Owner()
    on_end(owner, work)
    del owner
    try:
        if layers:
            with pytest.raises(TimeoutError, match="not destroyed after"):
                validation_layers.settle_for_layers()
        else:
            validation_layers.settle_for_layers()
    finally:
        may_end.set()
        settle()


def test_what_the_layer_says_of_itself_is_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    own, real = (
        ValidationMessage("error", ("validation",), name, "text")
        for name in ("UNASSIGNED-VkSemaphore-state-timeout", "VUID-vkDestroyDevice-device-05137")
    )
    monkeypatch.setattr(validation_layers, "validation_log", [real, own, real, own])
    assert validation_layers.complaints() == [real, real]
    assert validation_layers.complaints(since=1) == [real]
    assert validation_layers.complaints(since=3) == []


@pytest.mark.parametrize("own", [True, False])
def test_what_the_layer_says_of_itself_is_no_error_in_the_log(own: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gpu_shared.validation")
    name = vk.ffi.new(
        "char[]", next(iter(VALIDATION_OWN_ERRORS)).encode() if own else b"VUID-vkDestroyDevice-device-05137"
    )
    data = vk.ffi.new("VkDebugUtilsMessengerCallbackDataEXT *")
    data.pMessageIdName = name
    messages: list[ValidationMessage] = []
    known = len(instance.validation_log)
    instance._message_callback(messages)(0x1000, 0x2, data, vk.ffi.NULL)
    del instance.validation_log[known:]
    assert len(messages) == 1
    assert [record.levelno for record in caplog.records] == [logging.DEBUG if own else logging.ERROR]
