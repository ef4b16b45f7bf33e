"""The capacity plan's arithmetic, and its command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.bench.scale.__main__ import main
from tools.bench.scale.capacity import Rates, Service, Site, plan

RATES = Rates(
    model="m",
    device="d",
    batch=32,
    workers=4,
    bare=1000,
    data=950,
    service=800,
    requests=800,
    p99_ms=20,
    proxy=2000,
    start_s=10,
    row_bytes=1_000_000,
)


def test_gpus_are_the_limit_where_the_network_carries_them() -> None:
    found = plan(RATES, 100, Site(network_gbit=100, hours_between_failures=2400))
    assert (found.nodes, found.clusters) == (13, 1)
    assert found.data_rows == 95_000 and found.data_limit == "GPUs"
    assert found.service_rows == 80_000 and found.service_limit == "GPUs"
    assert found.rows_per_request == 4  # 8 GPUs at 800 rows per second, through a proxy of 2,000 requests
    assert found.node_gbit == pytest.approx(8 * 950 * 8e6 / 1e9)
    assert found.failures_a_day == 1 and found.lost_rows_a_day == 32 + 9500


def test_the_network_or_the_proxy_may_be() -> None:
    slow = plan(RATES, 10_000, Site(network_gbit=8))
    assert slow.nodes == 1250 and slow.clusters == 5
    assert slow.data_limit == slow.service_limit == "network of a node"
    assert slow.data_rows == pytest.approx(1250 * 1000)
    narrow = plan(replace(RATES, proxy=100), 8)
    assert (narrow.service_limit, narrow.service_rows, narrow.rows_per_request) == ("proxy of a node", 3200, 32)


def test_a_single_gpu_has_a_node_of_its_own() -> None:
    assert plan(RATES, 1).data_rows == 950
    with pytest.raises(ValueError, match="at least 1"):
        plan(RATES, 0)


def test_the_command_prints_the_plan_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rates.json"
    RATES.write(path)
    assert Rates.read(path) == RATES
    assert main(["plan", str(path), "--gpus", "100", "10000"]) == 0
    printed = capsys.readouterr().out
    assert "| | 100 GPUs | 10,000 GPUs |" in printed and "| batch jobs, rows/s | 95,000 | 9,500,000 |" in printed
    path.write_text("{}")
    with pytest.raises(ValueError, match="no file of rates"):
        main(["plan", str(path)])


def test_the_plan_is_made_with_the_fastest_service_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, services = tmp_path / "rates.json", tmp_path / "service.json"
    RATES.write(rates)
    Service.write(
        [Service(32, 8, 1, 2, 1200, 1200, 30), Service(32, 4, 1, 1, 900, 450, 24), Service(8, 1, 1, 1, 50, 50, 5)],
        services,
    )
    assert main(["plan", str(rates), "--service", str(services), "--gpus", "8"]) == 0
    printed = capsys.readouterr().out
    assert "0.90 for each GPU of a service (p99 24 ms)" in printed and "| service, rows/s | 7,200 |" in printed
    services.write_text('[{"batch": 1}]')
    with pytest.raises(ValueError, match="no file of services"):
        main(["plan", str(rates), "--service", str(services)])
