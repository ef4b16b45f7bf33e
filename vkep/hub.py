"""Models of the Hugging Face hub, by the package huggingface_hub (extra ``hub``): files are downloaded into its cache, and read
there."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vkep.errors import InvalidInputError
from vkep.text import one_line, shown

PREFIX = "hf:"
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.+))?")
#: where a model is searched that the name does not tell
_USUAL = ("model.onnx", "onnx/model.onnx")
#: files of a repository that a message lists
_LISTED = 8


@dataclass(frozen=True)
class HubName:
    """``OWNER/NAME[@REVISION][/PATH]``: a repository, a branch, tag or commit of it, and a file or folder in it."""

    repository: str
    revision: str | None
    path: str

    @classmethod
    def of(cls, name: str | Path) -> HubName:
        """The name's parts, with or without ``hf:``. Raises `InvalidInputError`."""
        text = (name if isinstance(name, str) else name.as_posix()).removeprefix(PREFIX)
        found = _NAME.fullmatch(text)
        if found is None:
            raise InvalidInputError(f"{shown(text)} is not OWNER/NAME, OWNER/NAME@REVISION or OWNER/NAME/PATH")
        return cls(found[1], found[2], (found[3] or "").strip("/"))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repository}{revision}" + (f"/{self.path}" if self.path else "")


def is_hub_name(name: str | Path) -> bool:
    """Whether a name begins with ``hf:``."""
    return (name if isinstance(name, str) else name.as_posix()).startswith(PREFIX)


def without_progress() -> None:
    """Let downloads of this process draw no progress bars. Without huggingface_hub it does nothing."""
    with contextlib.suppress(ImportError):
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()


class Snapshot:
    """A repository at one revision. ``names`` has its files, or those in the cache where the hub cannot be reached."""

    def __init__(self, name: HubName) -> None:
        """Raises ``FileNotFoundError`` where the package, the repository or the revision does not exist, or where the hub
        cannot be reached and nothing is in the cache."""
        try:
            import huggingface_hub
        except ImportError:
            raise FileNotFoundError(f"{name} needs the package huggingface_hub: pip install 'vkep[hub]'") from None
        self.name, self._hub, self._revision = name, huggingface_hub, name.revision
        self.names = {file for file in self._list() if _is_inside(file)}

    def _list(self) -> Collection[str]:
        asked = {"repo_id": self.name.repository, "revision": self._revision}
        try:
            return [one.rfilename for one in self._hub.HfApi().model_info(**asked).siblings or ()]
        except Exception as problem:  # also of its HTTP library, which is another one in each major release
            try:
                folder = Path(self._hub.snapshot_download(**asked, local_files_only=True, allow_patterns=[]))
            except Exception:
                raise FileNotFoundError(f"{self.name}: {_why(problem, self.name)}") from problem
            self._revision = folder.name
            return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    def fetch(self, names: Collection[str]) -> Path:
        """Download some of `names`, and return the folder of the repository. Raises ``FileNotFoundError``."""
        patterns = [glob.escape(name) for name in sorted(names)]
        try:
            folder = Path(
                self._hub.snapshot_download(self.name.repository, revision=self._revision, allow_patterns=patterns)
            )
        except Exception as problem:
            raise FileNotFoundError(f"{self.name}: {_why(problem, self.name)}") from problem
        self._revision = folder.name  # the commit: later files are of the same one
        return folder

    def fetch_models(self, names: Collection[str]) -> Path:
        """Download .onnx files and the files of their weights, and return the folder. Raises ``FileNotFoundError``,
        `InvalidModelError`."""
        from vkep.graph.initializers import file_locations

        folder = self.fetch(names)
        weights = {
            str(PurePosixPath(name).parent / location) for name in names for location in file_locations(folder / name)
        }
        return self.fetch(weights & self.names) if weights & self.names else folder

    def listed(self, suffix: str) -> str:
        """Files of that suffix, for a message."""
        found = sorted(name for name in self.names if name.endswith(suffix))
        return ", ".join(found[:_LISTED]) + (f" and {len(found) - _LISTED} others" if len(found) > _LISTED else "")


def model_file(name: str | Path) -> Path:
    """Download a model, and return its path in Hugging Face's cache.

    Args:
        name: ``OWNER/NAME[@REVISION][/PATH]``, with or without ``hf:``. PATH is a file, or the folder with ``model.onnx``,
            ``onnx/model.onnx`` or one .onnx file. Without PATH: the repository.

    Raises `InvalidInputError` for a text that is no such name, ``FileNotFoundError`` where the repository, the revision or the
    file does not exist, where the folder has several models, and where huggingface_hub is not installed; `InvalidModelError`.
    """
    return model_of(Snapshot(HubName.of(name)))


def model_of(snapshot: Snapshot) -> Path:
    """As `model_file`, for a name that was looked up."""
    path = snapshot.name.path
    if path not in snapshot.names:
        inside = f"{path}/" if path else ""
        here = [n for n in snapshot.names if n.endswith(".onnx") and n.startswith(inside)]
        usual = [f"{inside}{one}" for one in _USUAL if f"{inside}{one}" in here]
        if not usual and len(here) != 1:
            raise FileNotFoundError(f"{snapshot.name}: {_which(snapshot, here)}")
        path = (usual or here)[0]
    if not path.endswith(".onnx"):
        return snapshot.fetch([path]) / path
    return snapshot.fetch_models([path]) / path


def _which(snapshot: Snapshot, here: Collection[str]) -> str:
    if here:
        return f"has several models: {snapshot.listed('.onnx')}; name one: {PREFIX}{snapshot.name.repository}/PATH"
    if listed := snapshot.listed(".onnx"):
        return f"there is no such file; its models are: {listed}"
    return f"has no .onnx file; to export one: optimum-cli export onnx --model {snapshot.name.repository} FOLDER"


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name)


def _why(problem: Exception, name: HubName) -> str:
    """A sentence of huggingface_hub's errors, whose texts have many lines."""
    found = {type(one).__name__ for one in _causes(problem)}
    if "GatedRepoError" in found:
        return (
            "its owner must admit you: accept the terms on its page, then log in with `hf auth login` or set HF_TOKEN"
        )
    if "RepositoryNotFoundError" in found:
        return "there is no such repository, or it is private: log in with `hf auth login` or set HF_TOKEN"
    if "RevisionNotFoundError" in found:
        return f"it has no revision {name.revision!r}"
    return f"the hub cannot be reached, and the files are not in the cache ({one_line(str(problem)).strip()[:200]})"


def _causes(problem: BaseException | None) -> list[Any]:
    return [problem, *_causes(problem.__cause__)] if problem is not None else []
