"""Sounds in prompts: the encoder of sounds that Phi-4-multimodal has in onnxruntime-genai's folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto

from vkep import dtypes
from vkep.device.tensor import DeviceTensor
from vkep.errors import InvalidInputError, UnsupportedModelError
from vkep.fbank import SHIFT, WINDOW, energies, triangles
from vkep.generation.audio import read_wav, sound_of
from vkep.generation.caches import element_of
from vkep.generation.folder import Record, SoundFolder
from vkep.session import InferenceSession

Array = np.ndarray[Any, Any]
#: samples at 16 kHz float32 [count], or a WAV file of them: its path or its bytes
SoundLike: TypeAlias = "str | Path | bytes | Array"

#: roles of the encoder's inputs: features, which of them count, how many features it makes, what else the prompt has
_FEATURES, _MASK, _SIZES, _MODE = "audio_embeds", "audio_attention_mask", "audio_sizes", "audio_projection_mode"
#: bands, the highest one's hertz, and frames that become one feature, of the operator Phi4AudioEmbed of onnxruntime-extensions
_BANDS, _HIGH, _FRAMES = 80, 7690.0, 8
_OPERATION = "Phi4AudioEmbed"
#: seconds of a sound, as the published model takes
_LONGEST = 30 * 60


def features_of(samples: Array) -> Array:
    """Float32 [frames, 80] of samples float32 [count] of -1 to 1, as transformers' feature extractor of Phi-4-multimodal makes
    them. Raises `InvalidInputError` for a sound shorter than a window of 25 ms or longer than 30 minutes."""
    if not WINDOW <= samples.size <= _LONGEST * 16000:
        raise InvalidInputError(
            f"a sound has {samples.size} samples at 16 kHz; expected {WINDOW} to {_LONGEST * 16000}"
        )
    x = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64) * 32768, WINDOW)[::SHIFT]
    energy = energies(x, np.hamming(WINDOW), triangles(_BANDS, 0.0, _HIGH))
    return np.log(np.maximum(energy, 1)).astype(np.float32)


class SoundEncoder:
    """The encoder of sounds. Raises as `InferenceSession`, and `UnsupportedModelError` for other inputs or another file of
    steps."""

    def __init__(self, folder: SoundFolder, options: Mapping[str, Any]) -> None:
        steps = Record.read(folder.root, folder.steps).record("feature_extraction").values.get("sequence")
        operations = [step.get("operation", {}).get("type") for step in steps or () if isinstance(step, dict)]
        if _OPERATION not in operations:
            raise UnsupportedModelError(
                f"{folder.root / folder.steps} has operations {operations}; generation knows {_OPERATION}"
            )
        self.session = InferenceSession(str(folder.path), **options)
        ports = {folder.inputs.get(i.name, i.name): i for i in self.session.model.graph.inputs}
        if _FEATURES not in ports or not {*ports} <= {_FEATURES, _MASK, _SIZES, _MODE}:
            self.session.close()
            raise UnsupportedModelError(
                f"{folder.path} has inputs {list(ports)}; generation knows {_FEATURES}, {_MASK}, {_SIZES} and {_MODE}"
            )
        self._ports = {role: (port.name, numbers_of(port)) for role, port in ports.items()}
        #: the ONNX type of features
        self.element = element_of(self.session.model.graph.outputs[0])

    def read(self, sound: SoundLike, beside_images: bool) -> tuple[dict[str, Array], int]:
        """What the encoder reads of a sound by its inputs' names, and how many features it makes. Raises `InvalidInputError`,
        ``FileNotFoundError``."""
        samples = sound_of(read_wav(sound) if isinstance(sound, (str, Path, bytes)) else sound)
        made = features_of(samples)
        count = -(-len(made) // _FRAMES)
        given = {_FEATURES: made[None], _MASK: np.ones((1, len(made))), _SIZES: np.array([count])}
        given[_MODE] = np.array([3 if beside_images else 2])
        return {name: given[role].astype(kind) for role, (name, kind) in self._ports.items()}, count

    def encode(self, feeds: Mapping[str, Array]) -> DeviceTensor:
        """The features [1, count or more, width]. Raises as `InferenceSession.run`."""
        binding = self.session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output(self.session.get_outputs()[0].name)
        self.session.run_with_iobinding(binding)
        [features] = binding.results
        assert isinstance(features, DeviceTensor)
        return features


def numbers_of(port: Any) -> np.dtype[Any]:
    """numpy's type of an encoder's input. Raises as `element_of` for another than floats, bool and int64."""
    found = dtypes.from_onnx(element_of(port, (TensorProto.BOOL, TensorProto.INT64)))
    assert found is not None
    return found.numpy
