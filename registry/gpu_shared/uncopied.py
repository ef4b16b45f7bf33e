"""Objects that copy, deepcopy and pickle refuse."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex


class Uncopied:
    """Base of objects that own something outside Python: two of them would free it twice, another process has it not."""

    _instead: ClassVar[str] = "create another one where it is needed"  #: what to do, for the error's message

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise ``TypeError``, which `copy.copy`, `copy.deepcopy` and pickle pass on."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, since it owns objects of a device: {self._instead}"
        )
