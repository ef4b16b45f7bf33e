"""``python -m tools.bench.scale``: rates of vkep on Ray, a campaign of kills, and a capacity plan from the rates.

    python -m tools.bench.scale measure --model resnet50 --float16 --gpus --batch 64 --workers 4 --clients 256 --out rates.json
    python -m tools.bench.scale measure --model mobilenetv2 --threads 1 --workers 2 --out rates.json     # lavapipe, a core each
    python -m tools.bench.scale plan rates.json --service service.json --gpus 100 10000
    python -m tools.bench.scale generate /models/llama-3-8b-int4 --gpus --clients 64
    python -m tools.bench.scale service --model resnet50 --float16 --gpus --haproxy --batches 32 --replicas 8 16 --clients 256
    python -m tools.bench.scale job --model bert-base --float16 --gpus --batch 64 --workers 2 --calls 1 2 3
    python -m tools.bench.scale pad --rows 256 --most 128
    python -m tools.bench.scale kill --seconds 300 --every 10 --clients 1000

``measure``, ``job``, ``service``, ``generate`` and ``kill`` need Ray; ``pad`` and ``plan`` do not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.bench.scale import capacity


def parser() -> argparse.ArgumentParser:
    """The command line."""
    site = capacity.Site()
    top = argparse.ArgumentParser(
        prog="python -m tools.bench.scale", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    commands = top.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure", help="measure rates on this machine and write them to a file")
    measured(one)
    worked(one)
    served(one)
    one.add_argument("--calls", type=int, default=2, help="batches that a worker of the job has in progress")
    one.add_argument("--replicas", type=int, default=1, help="of the service")
    one.add_argument("--runs", type=int, default=2, help="that a replica has in progress")
    one.add_argument("--out", default="rates.json")
    one = commands.add_parser("job", help="a job's rates by batches that a worker has in progress")
    measured(one)
    worked(one)
    one.add_argument("--calls", type=int, nargs="+", default=[1, 2])
    one = commands.add_parser("service", help="a service's rates by rows of a run and replicas")
    measured(one)
    served(one)
    one.add_argument("--batches", type=int, nargs="+", default=[8])
    one.add_argument("--replicas", type=int, nargs="+", default=[1])
    one.add_argument("--runs", type=int, nargs="+", default=[2], help="that a replica has in progress")
    one.add_argument("--each", type=int, nargs="+", default=[1], help="rows of a request")
    one.add_argument("--out", default="service.json")
    one = commands.add_parser("plan", help="print a capacity plan")
    one.add_argument("rates", type=Path, help="what measure wrote")
    one.add_argument("--service", type=Path, help="what service wrote: its fastest service is planned with")
    one.add_argument("--gpus", type=int, nargs="+", default=[100, 10_000])
    one.add_argument("--gpus-per-node", type=int, default=site.gpus_per_node)
    one.add_argument("--network-gbit", type=float, default=site.network_gbit, help="of a node")
    one.add_argument(
        "--nodes-per-cluster", type=int, default=site.nodes_per_cluster, help="that one Ray cluster is run with"
    )
    one.add_argument("--hours-between-failures", type=float, default=site.hours_between_failures, help="of one GPU")
    one = commands.add_parser("generate", help="tokens per second of a language model, with one client and with many")
    one.add_argument("folder", help="as vkep.generation.Generator takes it")
    one.add_argument("--clients", type=int, default=64)
    one.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    one.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    one.add_argument("--threads", type=int, default=0, help="processors of each lavapipe worker; 0: all")
    one.add_argument("--gpus", action="store_true")
    one = commands.add_parser("pad", help="a job's rates with rows of different lengths, padded and not")
    one.add_argument("--rows", type=int, default=256)
    one.add_argument("--most", type=int, default=128, help="the longest length")
    one.add_argument("--batch", type=int, default=64, help="rows of a batch of the job")
    one.add_argument("--float16", action="store_true")
    one = commands.add_parser("kill", help="kill replicas while clients ask")
    one.add_argument("--seconds", type=float, default=300)
    one.add_argument("--every", type=float, default=10, help="seconds between kills")
    one.add_argument("--clients", type=int, default=1000)
    one.add_argument("--workers", type=int, default=2)
    return top


def measured(one: argparse.ArgumentParser) -> None:
    """Arguments of what measures a model."""
    one.add_argument(
        "--model",
        default="mobilenetv2",
        help="of the catalog, with a batch axis (tools/models), bert-base, or an .onnx file",
    )
    one.add_argument("--float16", action="store_true")
    one.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    one.add_argument("--threads", type=int, default=0, help="processors of each lavapipe worker; 0: all")
    one.add_argument("--gpus", action="store_true", help="a GPU for each worker (as Ray counts them)")


def worked(one: argparse.ArgumentParser) -> None:
    """Arguments of what measures a job."""
    one.add_argument("--batch", type=int, default=8)
    one.add_argument("--workers", type=int, default=2)
    one.add_argument("--transport", action="store_true", help="a job's inputs come through Ray's object store")


def served(one: argparse.ArgumentParser) -> None:
    """Arguments of what measures a service."""
    one.add_argument("--clients", type=int, default=64)
    one.add_argument("--processes", type=int, default=1, help="that the clients run in")
    one.add_argument("--wait-ms", type=float, default=5.0)
    one.add_argument("--served", type=int, default=1, help="GPUs (or workers' processors) that the replicas share")
    one.add_argument("--haproxy", action="store_true", help="HAProxy as Serve's proxy")
    one.add_argument(
        "--unwatched",
        action="store_true",
        help="replicas do not watch for clients that disconnect (x-request-disconnect-disabled: ?1)",
    )


def main(argv: list[str] | None = None) -> int:
    """Run a command; its exit status."""
    arguments = parser().parse_args(argv)
    if arguments.command == "plan":
        rates = capacity.Rates.read(arguments.rates)
        if arguments.service is not None:
            rates = capacity.with_fastest(rates, capacity.Service.read(arguments.service))
        site = capacity.Site(
            arguments.gpus_per_node,
            arguments.network_gbit,
            arguments.nodes_per_cluster,
            arguments.hours_between_failures,
        )
        print(capacity.table(rates, [capacity.plan(rates, gpus, site) for gpus in arguments.gpus]))
        return 0
    if arguments.command in ("measure", "service", "job"):
        from tools.bench.scale import measure

        return {"measure": measure.main, "service": measure.service, "job": measure.jobs}[arguments.command](arguments)
    if arguments.command == "pad":
        from tools.bench.scale import pad

        return pad.main(arguments)
    if arguments.command == "generate":
        from tools.bench.scale import generate

        return generate.main(arguments)
    from tools.bench.scale import kill

    return kill.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
