"""A service's models, by what they answer: tensors, texts, embeddings."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gpu_shared.timeline import set_polling
from vkep.serving.embeddings import Embedder, encoder_of
from vkep.serving.kserve import ProtocolError
from vkep.serving.language import Language, open_generator
from vkep.serving.limits import Limits, Turns
from vkep.serving.loaded import LoadedModel, Models
from vkep.serving.measures import Measures
from vkep.serving.options import ServiceOptions

logger = logging.getLogger("vkep.serving")

#: a run's thread needs the interpreter several times, and waits up to so long for the thread that reads requests; Python's
#: default, 5 ms, is more than a run takes
_SWITCH_S = 0.0001


def by_version(models: Any) -> dict[str, dict[str, Any]]:
    """Models by name and version. Raises ``ValueError`` where there are none."""
    if not isinstance(models, Mapping):
        models = {"model": models}
    found = {name: dict(one) if isinstance(one, Mapping) else {"1": one} for name, one in models.items()}
    if not found or not all(found.values()):
        raise ValueError(f"models is {models!r}, expected at least one model, each with at least one version")
    return found


class Service:
    """The open models of one process. Close it at the end."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, Any]],
        options: ServiceOptions,
        measures: Measures,
        device: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``models``: as `by_version` gives them: what a session opens, or the path of a folder with a language model or an
        encoder. ``device``: the device of sessions for which the options name none. Raises as `vkep.InferenceSession`,
        `LoadedModel`, `Language` and `Embedder`."""
        self.options, self.measures = options, measures
        sys.setswitchinterval(_SWITCH_S)
        set_polling(0)  # a thread that asks takes the interpreter from the one that reads requests
        self._pool = ThreadPoolExecutor(options.runs, thread_name_prefix="vkep-runs")
        self.limits, self.turns = Limits(options.client_requests, options.max_requests, options.keys), Turns()
        self.compiling = ThreadPoolExecutor(1, thread_name_prefix="vkep-grammars")
        self._session = dict(options.session)
        if self._session.get("device") is None and (found := device()) is not None:
            self._session["device"] = found
        loaded: dict[str, dict[str, LoadedModel]] = {}
        self.models = Models(loaded)
        self.languages: dict[str, Language] = {}
        self.embedders: dict[str, Embedder] = {}
        try:
            for name, versions in models.items():
                for version, source in versions.items():
                    folder = Path(source) if isinstance(source, (str, os.PathLike)) and Path(source).is_dir() else None
                    if folder is None:
                        loaded.setdefault(name, {})[version] = self._load(name, version, source)
                    elif (encoder := encoder_of(folder)) is not None:
                        one = self._load(name, version, encoder)
                        loaded.setdefault(name, {})[version] = one
                        self.embedders[name] = Embedder(folder, one)
                    else:
                        self.languages[name] = self._language(name, folder)
            for model, adapters in options.adapters.items():
                if model not in self.languages or set(adapters) & {*models, *self.languages}:
                    raise ValueError(
                        f"adapters {list(adapters)} of {model!r}: expected names of their own, and one of the language models "
                        f"{list(self.languages)}"
                    )
                self.languages |= {name: self.languages[model].adapted(name) for name in adapters}
        except BaseException:
            self.close()
            raise

    def _load(self, name: str, version: str, source: Any) -> LoadedModel:
        options = self.options
        return LoadedModel(
            name,
            version,
            source,
            {"concurrency": options.runs, **self._session},
            pool=self._pool,
            rows=options.rows,
            wait_s=options.wait_ms / 1000,
            runs=options.runs,
            observe=self._ran,
            waited=self._waited,
            independent=options.says_independent(name),
            example=options.examples.get(name),
        )

    def _language(self, name: str, folder: Path) -> Language:
        most = self.options.max_sequences
        of_client = self.options.client_answers or max(1, most * 3 // 4)
        opened = partial(open_generator, folder, most, self._session, self.options.adapters.get(name))
        return Language(name, opened, most, of_client, self.measures)

    def _ran(self, model: str, version: str, rows: int, requests: int, seconds: float) -> None:
        tags = {"model": model, "version": version}
        for name, value in (("run_rows", max(rows, 1)), ("run_requests", requests), ("run_seconds", seconds)):
            self.measures.add(name, value, **tags)

    def _waited(self, model: str, version: str, seconds: float) -> None:
        self.measures.add("queue_seconds", seconds, model=model, version=version)

    def language(self, name: str) -> Language:
        """A language model; the only one where the name is empty. Raises `ProtocolError` (404)."""
        return _found(self.languages if name else {n: one for n, one in self.languages.items() if not one.base}, name)

    def embedder(self, name: str) -> Embedder:
        """A model of embeddings; the only one where the name is empty. Raises `ProtocolError` (404)."""
        return _found(self.embedders, name)

    def gone(self) -> list[str]:
        """The models whose device is lost for good."""
        return [*self.models.gone(), *(name for name, one in self.languages.items() if one.writer.gone)]

    def end_answers(self) -> None:
        """End the answers of language models with an error, and close these models; idempotent."""
        for language in self.languages.values():
            language.close()

    def close(self) -> None:
        """End what is in progress, and close all models; idempotent."""
        self.end_answers()
        self._pool.shutdown()
        self.compiling.shutdown(wait=False, cancel_futures=True)
        self.models.close()


def _found(models: Mapping[str, Any], name: str) -> Any:
    if not name and len(models) == 1:
        return next(iter(models.values()))
    if name not in models:
        raise ProtocolError(404, f"there is no model {name!r} for this; there are {sorted(models)}", "model")
    return models[name]
