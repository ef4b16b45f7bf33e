"""copy, deepcopy and pickle refuse objects that own something on a device, by name and with what to do."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_shared
import vkep
from gpu_shared.uncopied import Uncopied
from tests.executorch.cases import GIVEN
from tests.session.models import ADD_RELU
from vkep import InferenceSession, Replicas, SharedGpuContextRegistry
from vkep.executorch import Program
from vkep.generation import Generator
from vkep.models.language import write_language

WAYS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    pickle.dumps,
    lambda thing: copy.deepcopy({"in": [thing]}),
]
#: modules with public classes
MODULES = ["gpu_shared", "gpu_shared.external", "vkep", "vkep.cuda", "vkep.device.external", "vkep.executorch"]
MODULES += ["vkep.generation", "vkep.session", "vkep.session.external"]


def refused(thing: Any) -> None:
    for way in WAYS:
        with pytest.raises(TypeError, match=rf"^{type(thing).__name__} cannot be copied or pickled, .*: \w"):
            way(thing)


def test_sessions_and_what_they_make(vulkan: object) -> None:
    with InferenceSession(ADD_RELU, token="copies") as session, session.device_tensor(np.ones((2, 3), np.float32)) as x:
        binding = session.io_binding()
        with gpu_shared.Buffer(session.context.device, 64, "download") as buffer:
            things = [
                session,
                x,
                x.leading((1, 3)),
                x.reshaped((3, 2)),
                binding,
                session.context,
                session.lease,
                buffer,
            ]
            for thing in [*things, session.context.device, session.context.timeline, SharedGpuContextRegistry.get()]:
                refused(thing)
        feeds: dict[str, Any] = {"x": x, "b": np.ones(3, np.float32)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], np.full((2, 3), 2, np.float32))


def test_programs_methods_generators_and_replicas(vulkan: object, tmp_path: Path) -> None:
    with Program.load(GIVEN / "vk.pte") as program:
        refused(program)
        refused(program.load_method("forward"))
    with Replicas(ADD_RELU, devices=[0]) as replicas:
        refused(replicas)
    write_language(tmp_path / "gpt2", "gpt2", context=96, layers=1)
    with Generator(tmp_path / "gpt2") as generator:
        refused(generator)
        batch = generator.batch(1)
        refused(batch)
        batch.close()


def test_options_and_reports_are_plain(vulkan: object) -> None:
    with InferenceSession(ADD_RELU, token="copies") as session:
        for thing in (session.options, session.report(), session.get_inputs()[0], session.context.capabilities):
            assert pickle.loads(pickle.dumps(thing)) == thing
            assert copy.deepcopy(thing) == thing


@pytest.mark.parametrize("module", MODULES)
def test_every_public_class_with_an_end_refuses_copies(module: str) -> None:
    found = importlib.import_module(module)
    for name in getattr(found, "__all__", [n for n in vars(found) if not n.startswith("_")]):
        kind = getattr(found, name)
        ends = inspect.isclass(kind) and any(hasattr(kind, end) for end in ("close", "release", "__exit__"))
        if ends and kind.__module__.partition(".")[0] in (gpu_shared.__name__, vkep.__name__):
            assert issubclass(kind, Uncopied), f"{module}.{name}"
