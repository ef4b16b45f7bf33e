"""Converts rows of a table to a model's feeds and back: which rows may share a run, padding, and removing the padding.

Uses numpy only, neither Ray nor Vulkan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkep.serving.joining import Argument, rows_axis

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
Dims = Sequence[int | str | None]
#: calls a function for each of several feeds, as ``map`` does
Every = Callable[[Callable[[Columns], Sequence[Array]], Iterable[Columns]], Iterable[Sequence[Array]]]


@dataclass(frozen=True)
class Padding:
    """Padding of inputs to common sizes: ``values`` by input, and the sizes (``steps``, ascending) to which axis 1 and
    later axes of a symbolic size are rounded up. Sizes above the last step are not padded."""

    values: Mapping[str, Any]
    steps: Sequence[int]

    def __post_init__(self) -> None:
        if not self.steps or list(self.steps) != sorted(set(self.steps)) or self.steps[0] < 1:
            raise ValueError(f"steps is {self.steps!r}, expected sizes of 1 or more in ascending order")

    def size(self, size: int) -> int:
        """The size that ``size`` is padded to."""
        return next((step for step in self.steps if step >= size), size)


@dataclass(frozen=True)
class Table:
    """Runs a model on rows: its inputs and outputs without the axis of rows, and the number of rows in a run.

    rows: the axis of rows (`rows_axis`): a symbol (any number of rows) or a number that each run must have.
    """

    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]
    rows: int | str

    @classmethod
    def of(cls, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> Table:
        """The table of a model. Raises ``ValueError`` where the model has no axis of rows."""
        rows = rows_axis(inputs, outputs)
        if rows is None:
            shapes = {argument.name: argument.shape for argument in (*inputs, *outputs)}
            raise ValueError(
                f"the model has no axis of rows: the first axis of all inputs and outputs is to be the same symbol or size, "
                f"got {shapes}"
            )
        return cls(
            {a.name: tuple(a.shape or ())[1:] for a in inputs},
            {a.name: tuple(a.shape or ())[1:] for a in outputs},
            rows,
        )

    def run(
        self,
        columns: Columns,
        run: Callable[[Columns], Sequence[Array]],
        padding: Padding | None = None,
        most: int = 0,
        every: Every = map,
    ) -> Columns:
        """The outputs for all rows, in order. ``columns`` are by input, each an array [rows, ...] or an array of
        arrays, one for each row, whose shapes may differ; ``run`` takes feeds and returns the outputs in order. Rows of
        one (padded) shape share runs of ``most`` rows (0: any number). ``every`` calls ``run`` for each of several
        feeds, as ``map`` does, where all rows have one shape. An output whose rows differ in shape is an array of
        arrays.
        """
        count = row_count(columns)
        rows_of_run = self.rows if isinstance(self.rows, int) else most
        if count and padding is None and not any(column.dtype == object for column in columns.values()):
            return self._dense(columns, run, rows_of_run or count, every)
        found: dict[str, list[Array | None]] = {name: [None] * count for name in self.outputs}
        for members in groups(columns, self.inputs, padding):
            for part in parts(members, rows_of_run):
                feeds, cut = self._feeds(columns, part, padding)
                for name, result in zip(self.outputs, run(feeds), strict=True):
                    _check_rows(name, result, feeds)
                    for row, at in enumerate(part):
                        found[name][at] = result[row][cut(name, at)]
        return {name: _column(rows) for name, rows in found.items()}

    def _dense(self, columns: Columns, run: Callable[[Columns], Sequence[Array]], step: int, every: Every) -> Columns:
        """`run` for rows that all have one shape."""
        count = row_count(columns)

        def feeds_of(start: int) -> Columns:
            feeds = {name: columns[name][start : start + step] for name in self.inputs}
            missing = step - (count - start) if isinstance(self.rows, int) else 0
            if missing > 0:
                feeds = {name: stacked(list(rows), rows.shape[1:], 0, missing) for name, rows in feeds.items()}
            return feeds

        def checked(feeds: Columns) -> Sequence[Array]:
            results = run(feeds)
            for name, result in zip(self.outputs, results, strict=True):
                _check_rows(name, result, feeds)
            return results

        pieces = zip(*every(checked, map(feeds_of, range(0, count, step))), strict=True)
        return {
            name: np.concatenate(arrays)[:count] if len(arrays) > 1 else arrays[0][:count]
            for name, arrays in zip(self.outputs, pieces, strict=True)
        }

    def _feeds(
        self, columns: Columns, part: Sequence[int], padding: Padding | None
    ) -> tuple[Columns, Callable[[str, int], tuple[slice, ...]]]:
        """The feeds of a run, and the parts of an output's row that are results."""
        missing = (self.rows - len(part)) if isinstance(self.rows, int) else 0
        sizes: dict[tuple[str, int], int] = {}  # by symbol and row, before padding
        padded: dict[str, int] = {}
        feeds = {}
        for name, dims in self.inputs.items():
            rows = [np.asarray(columns[name][at]) for at in part]
            shape = padded_shape(rows[0].shape, dims, name, padding)
            for at, row in zip(part, rows, strict=True):
                for dim, size, wide in zip(dims, row.shape, shape, strict=False):
                    if isinstance(dim, str) and size != wide:
                        sizes[dim, at], padded[dim] = size, wide
            feeds[name] = stacked(
                rows, shape, padding.values[name] if padding and name in padding.values else 0, missing
            )

        def cut(name: str, at: int) -> tuple[slice, ...]:
            dims = self.outputs[name]
            return (
                tuple(slice(sizes.get((dim, at)) if isinstance(dim, str) else None) for dim in dims) if padded else ()
            )

        return feeds, cut


def _check_rows(name: str, result: Array, feeds: Columns) -> None:
    """Raise ``ValueError`` where a result has another number of rows than the feeds."""
    rows = row_count(feeds)
    if not result.ndim or len(result) != rows:
        raise ValueError(
            f"output {name!r} has shape {list(result.shape)} for {rows} rows: it does not have a row for each"
        )


def row_count(columns: Columns) -> int:
    """The number of rows of all columns. Raises ``ValueError`` where they differ."""
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"columns of one length are expected, got rows {counts}")
    return next(iter(counts.values()))


def groups(columns: Columns, inputs: Mapping[str, Dims], padding: Padding | None = None) -> list[list[int]]:
    """The rows that may share a run, by their indices: those whose inputs have the same shape after padding."""
    if not any(column.dtype == object for column in columns.values()):
        # all rows of a column have one shape, also after padding
        return [list(range(row_count(columns)))] if row_count(columns) else []
    found: dict[tuple[Any, ...], list[int]] = {}
    for at in range(row_count(columns)):
        key = tuple(
            padded_shape(np.shape(columns[name][at]), dims, name, padding)
            for name, dims in inputs.items()
            if name in columns
        )
        found.setdefault(key, []).append(at)
    return list(found.values())


def padded_shape(shape: Sequence[int], dims: Dims, name: str, padding: Padding | None) -> tuple[int, ...]:
    """The shape of a row after padding of the symbolic axes of inputs that ``padding`` has a value for."""
    if padding is None or name not in padding.values or len(shape) != len(dims):
        return tuple(shape)
    return tuple(padding.size(size) if isinstance(dim, str) else size for size, dim in zip(shape, dims, strict=True))


def stacked(rows: Sequence[Array], shape: Sequence[int], value: Any, missing: int = 0) -> Array:
    """Rows as one array [rows + missing, *shape]: padded with ``value``; the last row is repeated for missing ones."""
    if not missing and all(row.shape == tuple(shape) for row in rows):
        return np.stack(rows)
    whole = np.full((len(rows) + missing, *shape), value, rows[0].dtype)
    for index in range(len(rows) + missing):
        row = rows[min(index, len(rows) - 1)]
        whole[index][tuple(map(slice, row.shape))] = row
    return whole


def parts(members: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """``members`` in parts of at most ``most`` (0: all in one)."""
    step = most or len(members)
    for start in range(0, len(members), step):
        yield members[start : start + step]


def _column(rows: Sequence[Array | None]) -> Array:
    """The rows as an array, or as an array of arrays where their shapes differ."""
    arrays = [row for row in rows if row is not None]
    if len({row.shape for row in arrays}) <= 1:
        return np.stack(arrays) if arrays else np.empty(0)
    column = np.empty(len(arrays), object)
    column[:] = arrays
    return column
