"""Input features of Whisper: logarithms of the energy in bands of the mel scale (arXiv:2212.04356, section 2.2)."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vkep.errors import InvalidInputError, InvalidModelError
from vkep.generation.folder import Record

Array = np.ndarray[Any, Any]
SETTINGS = "preprocessor_config.json"
_MOST = {
    "sampling_rate": 1 << 18,
    "n_fft": 1 << 14,
    "hop_length": 1 << 14,
    "feature_size": 1 << 10,
    "chunk_length": 600,
}
#: frames that are transformed at once
_FRAMES = 3000


@dataclass(frozen=True)
class Features:
    """The sizes of a model's features, as its folder's ``preprocessor_config.json`` has them, else Whisper's: 80 bands, windows
    of 400 samples, one every 160, 30 seconds at once."""

    rate: int
    size: int
    hop: int
    bands: int
    seconds: int

    @classmethod
    def read(cls, folder: Path) -> Features:
        """The sizes in a folder. Raises `InvalidModelError` for sizes that no model has."""
        given = Record.read(folder, SETTINGS, needed=False)
        sizes = (
            ("sampling_rate", 16000),
            ("n_fft", 400),
            ("hop_length", 160),
            ("feature_size", 80),
            ("chunk_length", 30),
        )
        found = cls(*(given.number(name, usual, _MOST[name]) for name, usual in sizes))
        if not all((found.rate, found.size, found.hop, found.bands, found.seconds)):
            raise InvalidModelError(f"{given.where}: a size is 0")
        return found

    @property
    def frames(self) -> int:
        """The frames that the model's encoder reads at once."""
        return self.seconds * self.rate // self.hop

    def of(self, samples: Array) -> Array:
        """Features float32 [bands, frames] of all samples float32 [count]: a frame for each ``hop`` of them."""
        padded = np.pad(samples.astype(np.float64), self.size // 2, mode="reflect" if samples.size > 1 else "edge")
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.size) / self.size)
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.size)[:: self.hop][: samples.size // self.hop]
        bands = mel_bands(self.bands, self.size, self.rate)
        logs = np.empty((self.bands, len(frames)), np.float32)
        for at in range(0, len(frames), _FRAMES):
            energy = np.abs(np.fft.rfft(frames[at : at + _FRAMES] * window)) ** 2
            logs[:, at : at + _FRAMES] = np.log10(np.maximum(bands @ energy.T, 1e-10))
        return (np.maximum(logs, logs.max(initial=-10) - 8) + 4) / 4


def sound_of(given: Any, what: str = "sound", rate: int = 16000, bands: int = 0) -> Array:
    """A sound: samples float32 [count] at ``rate`` (in Hz), or where ``bands`` is not 0 features [bands, frames] of floats, too.
    Raises `InvalidInputError` for others, an empty sound, and numbers that are not finite."""
    array = np.asarray(given)
    of_samples = array.ndim == 1 and array.dtype == np.float32
    of_features = bands > 0 and array.ndim == 2 and len(array) == bands and array.dtype.kind == "f"
    if not array.size or not (of_samples or of_features):
        also = f", or features [{bands}, frames]" if bands else ""
        raise InvalidInputError(
            f"the {what} is {array.dtype} {array.shape}; expected float32 samples [count] at {rate} Hz{also}"
        )
    if not np.isfinite(array).all():
        raise InvalidInputError(f"the {what} has {np.count_nonzero(~np.isfinite(array))} numbers that are not finite")
    return array


def log_mel(samples: Array, folder: Path) -> Array:
    """Features float32 [mels, frames] of samples at 16 kHz float32 [count], padded to the model's 30 seconds.

    Raises `InvalidInputError` for longer audio, `InvalidModelError` as `Features.read`.
    """
    sizes = Features.read(folder)
    most = sizes.seconds * sizes.rate
    if samples.size > most:
        raise InvalidInputError(
            f"{samples.size / sizes.rate:.1f} s of audio; the model reads {sizes.seconds} s at once: use transcribe"
        )
    return sizes.of(np.pad(samples, (0, most - samples.size)))


def read_wav(file: str | Path | bytes, rate: int = 16000) -> Array:
    """The samples of a WAV file of 16 bits, by its path or its bytes, float32 [count] in [-1, 1]; the mean of its channels.

    Raises ``FileNotFoundError``, `InvalidInputError` for another form or another rate than ``rate`` (in Hz).
    """
    name, path = ("the sound", "IN.wav") if isinstance(file, bytes) else (file, file)
    try:
        with wave.open(io.BytesIO(file) if isinstance(file, bytes) else str(file)) as opened:
            channels, width, found = opened.getnchannels(), opened.getsampwidth(), opened.getframerate()
            if (width, found) != (2, rate):
                raise InvalidInputError(
                    f"{name}: {8 * width} bits at {found} Hz, expected 16 bits at {rate} Hz: "
                    f"ffmpeg -i {path} -ac 1 -ar {rate} -c:a pcm_s16le OUT.wav"
                )
            data = opened.readframes(opened.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError(): a chunk ends after the file
        why = str(error) or "a length in it is wrong"
        raise InvalidInputError(f"{name} is no WAV file ({why}): ffmpeg -i {path} -ac 1 -ar {rate} OUT.wav") from None
    whole = np.frombuffer(data[: len(data) // (2 * channels) * 2 * channels], "<i2").reshape(-1, channels)
    return whole.mean(1, dtype=np.float32) / 32768


def mel_bands(count: int, size: int, rate: int) -> Array:
    """Triangles [count, size / 2 + 1] of equal area on Slaney's mel scale: linear up to 1 kHz, then logarithmic."""
    step = np.log(6.4) / 27

    def mel(hertz: float) -> float:
        return hertz * 3 / 200 if hertz < 1000 else 15 + float(np.log(hertz / 1000)) / step

    places = np.linspace(0, mel(rate / 2), count + 2)
    edges = np.where(places < 15, places * 200 / 3, 1000 * np.exp((places - 15) * step))
    hertz = np.fft.rfftfreq(size, 1 / rate)
    up = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]
