"""`deployment`: models as a Ray Serve application: the Open Inference protocol over HTTP and gRPC, and OpenAI's API.

Queues of requests, back-pressure, health checks, updates and the endpoint of metrics are Serve's. What answers is `vkep.serving`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.config import BackpressureConfig

from vkep.ray.devices import assigned_device
from vkep.ray.measures import RayMeasures
from vkep.ray.models import local
from vkep.serving.app import application as application_of
from vkep.serving.options import ServiceOptions
from vkep.serving.service import Service, by_version
from vkep.serving.servicer import Servicer

if TYPE_CHECKING:
    from vkep.ray.models import Source

#: how many requests a replica of a language model reads at once for each answer
_BODIES = 4


def deployment(
    models: Source | Mapping[str, Source | Mapping[str, Source]],
    *,
    name: str = "vkep",
    num_gpus: float = 0,
    max_ongoing_requests: int = 256,
    max_queued_requests: int = 1024,
    options: Mapping[str, Any] | None = None,
    **serve_options: Any,
) -> serve.Application:
    """A Ray Serve application for ``serve.run``.

    Args:
        models: a model (named ``model``), models by name, or versions by name by version. Each is a path that all nodes have
            (of a model, or of a folder with a language model or an encoder) or what `vkep.ray.ship` returned. All of a replica's
            models share one device context.
        name: of the deployment.
        num_gpus: GPUs of a replica: 1, a part of one, or 0 for CPU drivers.
        max_ongoing_requests: requests that one replica works on at once; more wait at the proxies.
        max_queued_requests: how many of them, at each proxy; more are answered with 503 and Retry-After.
        options: the fields of `ServiceOptions`.
        serve_options: of ``ray.serve.deployment``, such as ``num_replicas`` or ``autoscaling_config``.

    A model that cannot be opened fails the deployment; the status has the reason. Raises ``ValueError`` and
    ``TypeError`` for options that are not allowed.
    """
    chosen = ServiceOptions(**(options or {}))
    serve_options = {
        "ray_actor_options": {"num_gpus": num_gpus, **serve_options.pop("ray_actor_options", {})},
        "max_ongoing_requests": max_ongoing_requests,
        "max_queued_requests": max_queued_requests,
        "backpressure_config": BackpressureConfig(retry_after_s=chosen.retry_after_s),
        "health_check_period_s": 2,
        "max_constructor_retry_count": 3,
        **serve_options,
    }
    return serve.deployment(Replica).options(name=name, **serve_options).bind(by_version(models), asdict(chosen))


def generation(
    folder: str | os.PathLike[str],
    *,
    name: str = "generation",
    model: str = "",
    num_gpus: float = 0,
    max_sequences: int = 16,
    max_queued_requests: int = 256,
    options: Mapping[str, Any] | None = None,
    **serve_options: Any,
) -> serve.Application:
    """`deployment` of one language model.

    Args:
        folder: as `vkep.Generator` takes it, on all nodes.
        name: of the deployment. model: the name that requests give; the folder's by default.
        max_sequences: answers that a replica makes at the same time. It reads four times as many requests, which wait there;
            others wait at the proxies, ``max_queued_requests`` at each.
        options: further fields of `ServiceOptions`.
        num_gpus, serve_options: as of `deployment`.

    Streams are server-sent events. A replica generates answers in one batch, which they join and leave at any step. A
    client that goes away ends its answer. Raises as `deployment`.
    """
    called = model or os.path.basename(os.path.normpath(folder))
    return deployment(
        {called: os.fspath(folder)},
        name=name,
        num_gpus=num_gpus,
        # more than answers: a body that does not arrive takes the place of no answer
        **{"max_ongoing_requests": _BODIES * max_sequences, **serve_options},
        max_queued_requests=max_queued_requests,
        options={"max_sequences": max_sequences, "client_answers": max_sequences, **(options or {})},
    )


def application(arguments: dict[str, Any]) -> serve.Application:
    """`deployment` with ``arguments``, for Serve's configuration files: ``import_path: vkep.ray.service:application``."""
    return deployment(**arguments)


@serve.ingress()
class Replica(Servicer):
    """A replica. Its methods are called by Serve."""

    def __init__(self, models: Mapping[str, Mapping[str, Source]], options: Mapping[str, Any]) -> None:
        sources = {name: {v: local(source) for v, source in versions.items()} for name, versions in models.items()}
        self.service = Service(sources, ServiceOptions(**options), RayMeasures(), device=assigned_device)

    def __serve_build_asgi_app__(self) -> Any:
        return application_of(self.service)

    def check_health(self) -> None:
        """Raise ``RuntimeError`` where a device is lost for good: Serve then starts another replica."""
        if gone := self.service.gone():
            raise RuntimeError(f"the device is lost for good: {', '.join(gone)}")
