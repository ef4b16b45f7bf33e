"""The command buffers of the runs of a recorded plan: the plan's own, and the copies before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from gpu_shared.commands import CommandBuffer
from gpu_shared.errors import ClosedError
from gpu_shared.steady import check_wanted, steady
from gpu_shared.timeline import PreparedSubmit
from vkep.device.arguments import ArgumentTable, Places, Sent
from vkep.device.host_ports import Fitting, HostPorts, Spans, Staging
from vkep.plan.records import Port
from vkep.plan.sized import MovedPorts

if TYPE_CHECKING:
    from vkep.device.delegate import VulkanDelegate

#: number of command buffers of copies that are kept, for runs of different sizes
_COPIES = 24
#: sides: the ports of a plan's inputs, and those of its outputs
INPUTS, OUTPUTS = 0, 1


class Buffers(NamedTuple):
    """Which command buffers a run consists of, around the plan's own."""

    table: Sent | None = None  #: what of the argument table the device is to be sent
    up: bool = False  #: inputs are copied from staging memory
    down: bool = False  #: outputs are copied to staging memory
    visible: bool = False  #: what the plan itself wrote is made visible to the host


#: a run of the plan's own command buffer alone
ALONE = Buffers()


class _Key(NamedTuple):
    """A run's command buffers, and the ranges of the host's ports that they copy."""

    run: Buffers
    up: Spans
    down: Spans

    @property
    def around(self) -> tuple[_Key | None, _Key | None]:
        """The command buffers before and after the plan's own, where there are any."""
        table, up, down, visible = self.run
        before, after = Buffers(table, up), Buffers(None, False, down, visible)
        return _Key(before, self.up, ()) if any(before) else None, _Key(after, (), self.down) if any(after) else None


_ALONE = _Key(ALONE, (), ())


class RunCommands:
    """A recording's command buffers, and the host's ports that they copy, for one run at a time."""

    def __init__(
        self,
        delegate: VulkanDelegate,
        places: Places,
        table: ArgumentTable,
        staging: tuple[Staging | None, Staging | None],
        main: CommandBuffer,
        making: RLock,
    ) -> None:
        """``staging``: for the inputs and the outputs of devices whose memory the host cannot map. ``making`` is locked while
        something is made for a run, which may have been interrupted."""
        self.main, self._making = main, making
        self.first_output = len(places.plan.inputs)  #: its place among the ports
        self._which = range(self.first_output), range(self.first_output, len(places.plan.ports))  # of each side
        self._delegate, self._places, self._table, self._staging = delegate, places, table, staging
        self._moved: Mapping[int, Port] = {}
        self._next: tuple[MovedPorts, list[list[Fitting] | None]] | None = None  # what `prepare` made
        self._host: list[HostPorts | None] = [None, None]  # of the ports that a run bound to the host
        self._copies: dict[_Key, CommandBuffer] = {}
        self._submits: dict[_Key, PreparedSubmit] = {}
        self._closed = False

    # ---- the host's ports

    def set_ports(self, moved: MovedPorts) -> None:
        """Set the ports of the next run, by the positions in the plan's: those that differ from the plan's. The device has
        finished the last run. Memory that is too small is freed."""
        grown = []
        with self._making:
            self._moved, prepared, self._next = moved, self._next, None
            found = prepared[1] if prepared is not None and prepared[0] is moved else self._fittings(moved)
            for side, (host, fitting) in enumerate(zip(self._host, found, strict=True)):
                if host is not None and fitting is not None:
                    host.fit(fitting)
                elif host is not None:
                    grown.append(side)
        for side in grown:
            self._drop_host(side)

    def prepare(self, moved: MovedPorts) -> None:
        """Make what `set_ports` needs for the run that probably follows."""
        self._next = moved, self._fittings(moved)

    def _fittings(self, moved: MovedPorts) -> list[list[Fitting] | None]:
        sides = zip(self._host, self._places.moving, strict=True)
        return [None if host is None else host.fitting(moved, places) for host, places in sides]

    def host(self, side: int) -> HostPorts:
        """The host's memory of a side, which `bind` made."""
        ports = self._host[side]
        assert ports is not None
        return ports

    def bind(self, side: int, which: Sequence[int]) -> HostPorts:
        """The host's memory of a side, for a run that binds its ports of the positions ``which`` to the host."""
        ports = self._host[side]
        if ports is not None and which == ports.used:
            return ports
        if ports is None or any(ports.capacity[k] is None for k in which):
            ports = self._make_host(side, which)
        ports.use(which)
        return ports

    @steady
    def _make_host(self, side: int, which: Sequence[int]) -> HostPorts:
        """Memory for a side that also has room for ``which``; a quarter more of each, once a port has outgrown the plan's."""
        with self._making:
            self._check_wanted()
            before = self._host[side]
            bound = set(which) | {
                k for k, capacity in enumerate(before.capacity if before else ()) if capacity is not None
            }
            self._drop_host(side)
            plan = self._places.plan.ports
            ports = [self._moved.get(k, plan[k]) for k in self._which[side]]
            grown = any(p.nbytes > plan[k].nbytes for k, p in zip(self._which[side], ports, strict=True))
            capacity = [p.nbytes * 5 // 4 if grown else p.nbytes for p in ports]
            wanted = [nbytes if k in bound else None for k, nbytes in enumerate(capacity)]
            made = self._host[side] = HostPorts(self._delegate, ports, wanted, self._staging[side])
            return made

    @steady
    def _drop_host(self, side: int) -> None:
        with self._making:
            self._drop_copies()
            ports, self._host[side], self._next = self._host[side], None, None
            if ports is not None:
                ports.close()

    # ---- command buffers

    def buffers(self, run: Buffers) -> list[CommandBuffer]:
        """The command buffers of a run, in order. Its inputs and outputs are bound, and the device has finished the run
        before it."""
        before, after = self._key(run).around
        if (before is not None and before not in self._copies) or (after is not None and after not in self._copies):
            with (
                self._delegate.lock,
                self._making,
            ):  # in this order: recordings are closed where the delegate's lock is held
                self._check_wanted()
                if len(self._copies) > _COPIES - 2:
                    self._drop_copies()
                for key in (before, after):
                    if key is not None and key not in self._copies:
                        self._copies[key] = self._record(key)
        first = [] if before is None else [self._copies[before]]
        return [*first, self.main, *([] if after is None else [self._copies[after]])]

    def prepared(self, run: Buffers) -> PreparedSubmit:
        """The submit of `buffers`."""
        key = _ALONE if run is ALONE else self._key(run)
        return self._submits.get(key) or self._make_submit(key)

    @steady
    def _make_submit(self, key: _Key) -> PreparedSubmit:
        buffers = self.buffers(key.run)
        with self._making:
            self._check_wanted()
            made = self._submits.get(key)
            if made is None:
                made = self._submits[key] = self._delegate.lease.prepare(buffers)
            return made

    def _key(self, run: Buffers) -> _Key:
        up, down = self._host
        return _Key(run, up.spans if run.up and up else (), down.spans if run.down and down else ())

    def _record(self, key: _Key) -> CommandBuffer:
        run = key.run
        first = bool(run.table or run.up)
        commands = self._delegate.allocate_commands(f"copies {'before' if first else 'after'} a plan")
        try:
            commands.begin(simultaneous=True)
            if first or run.down:
                commands.barrier_before_transfer()
            if run.table:
                self._table.send(commands, run.table)
            if run.up:
                self.host(INPUTS).copy(commands, down=False)
            if run.down:
                self.host(OUTPUTS).copy(commands, down=True)
            if first:
                commands.barrier_after_transfer()
            else:
                commands.barrier_to_host()
            return commands.end()
        except BaseException:
            commands.close()
            raise

    def _drop_copies(self) -> None:
        """Close the command buffers around the plan's own; the device has finished with them."""
        self._submits.clear()
        while self._copies:
            self._copies.popitem()[1].close()

    def _check_wanted(self) -> None:
        """Raise where the recording has a new owner: checked under the lock, since the run that made it may have been
        interrupted."""
        check_wanted()
        if self._closed:
            raise ClosedError("the recording of a plan")

    def close(self) -> None:
        """Free everything; the runs have ended."""
        with self._making:
            self._closed = True
            self._drop_copies()
            for side in (INPUTS, OUTPUTS):
                self._drop_host(side)
