"""``vkep serve``: models and language models as a service in one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from vkep.cli import common
from vkep.cli.common import UsageError

_KEYS = "VKEP_API_KEYS"


@common.with_options
def serve_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]PATH...",
            help="ONNX models, folders of language models or encoders, "
            f"{common.HUB}. Requests give the NAME; default: the path's end.",
        ),
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8000,
    grpc_port: Annotated[
        int | None, typer.Option("--grpc-port", min=1, max=65535, help="Also serve KServe v2 over gRPC; needs grpcio.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="The most rows of one run; 1: requests share none.")] = 32,
    wait_ms: Annotated[
        float, typer.Option("--wait-ms", min=0, help="How long the first request of a run waits for others.")
    ] = 5.0,
    max_sequences: Annotated[
        int, typer.Option("--max-sequences", min=1, help="Answers that a language model makes at once; others wait.")
    ] = 16,
    client_answers: Annotated[
        int, typer.Option("--client-answers", min=0, help="How many of them one client may have; 0: three quarters.")
    ] = 0,
    client_requests: Annotated[
        int,
        typer.Option(
            "--client-requests", min=0, help="Requests of one client at once, beyond them 429; 0: any number."
        ),
    ] = 64,
    max_requests: Annotated[
        int,
        typer.Option("--max-requests", min=0, help="Requests of all clients at once, beyond them 503; 0: any number."),
    ] = 1024,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", help=f"A key that requests must have; repeatable. Better: {_KEYS}, separated by commas."
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            metavar="[MODEL:]NAME=PATH",
            help="An .onnx_adapter file of a language model; requests give its NAME as the model. Repeatable.",
        ),
    ] = None,
    stop_s: Annotated[
        float, typer.Option("--stop-s", min=1, help="Seconds that requests in progress have after SIGTERM or Ctrl-C.")
    ] = 10.0,
    log: Annotated[
        str, typer.Option("--log", help="The form of the log on standard error: text, json or none.")
    ] = "text",
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Serve models over HTTP: OpenAI's API, the Open Inference protocol (KServe v2), /metrics and /health."""
    with common.command(json_output, verbose):
        named = _named(models)
        adapters = _adapters(adapter or [], named)
        if log not in ("text", "json", "none"):
            raise UsageError(f"--log is {log!r}, expected text, json or none")
        try:
            from vkep.serving.logs import to_stream
            from vkep.serving.measures import Prometheus
            from vkep.serving.options import ServiceOptions
            from vkep.serving.server import serve
            from vkep.serving.service import Service, by_version

            if grpc_port is not None:
                import vkep.serving.servicer  # noqa: F401
        except ImportError as error:
            raise UsageError(f"vkep serve needs more packages: pip install 'vkep[serve]' ({error})") from None
        if log != "none":
            to_stream(log)
        keys = api_key or [key for key in os.environ.get(_KEYS, "").split(",") if key]
        if not all(keys):
            raise UsageError("--api-key has an empty key, which every client knows")
        chosen = ServiceOptions(
            rows=rows,
            wait_ms=wait_ms,
            max_sequences=max_sequences,
            adapters=adapters,
            client_answers=client_answers,
            client_requests=client_requests,
            max_requests=max_requests,
            keys=keys,
            session=options,
        )

        def started(url: str) -> None:
            if json_output:
                common.print_json({"url": url, "models": list(named)})
            else:
                common.echo(
                    f"{', '.join(named)} at {url} (OpenAI's API: {url}/v1, KServe v2: {url}/v2, pages: {url}/docs)"
                )

        service = Service(by_version(named), chosen, Prometheus())
        serve(service, host, port, stop_s=stop_s, grpc_port=grpc_port, started=started)


def _named(models: list[str]) -> dict[str, str]:
    """Paths by name. Raises `UsageError`."""
    from vkep.generation.published import served

    found: dict[str, str] = {}
    for given in models:
        name, equals, path = given.partition("=")
        if not equals or Path(given).exists():
            path = given
            name = _usual_name(path)
        path = str(common.located(Path(path), served))
        if not Path(path).exists():
            raise UsageError(f"{path}: there is no such file or folder")
        if not name or "/" in name or name in found:
            raise UsageError(f"{given}: each model needs a name of its own without slashes: NAME=PATH")
        found[name] = path
    return found


def _adapters(given: list[str], models: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Paths of adapters by name, by the model that they are for. Raises `UsageError`."""
    folders = [name for name, path in models.items() if Path(path).is_dir()]
    found: dict[str, dict[str, str]] = {}
    for one in given:
        left, _, path = one.partition("=")
        model, _, name = left.rpartition(":")
        if not model and len(folders) == 1:
            model = folders[0]
        if not path or not name or "/" in name or model not in folders:
            raise UsageError(
                f"--adapter {one}: expected NAME=PATH, or MODEL:NAME=PATH for one of several models; the folders are {folders}"
            )
        if not Path(path).is_file():
            raise UsageError(f"--adapter {path}: there is no such file")
        if name in models or any(name in names for names in found.values()):
            raise UsageError(f"--adapter {one}: {name!r} is the name of another model or adapter")
        found.setdefault(model, {})[name] = path
    return found


def _usual_name(path: str) -> str:
    from vkep.hub import HubName, is_hub_name

    if is_hub_name(path):
        name = HubName.of(path)
        return (name.path or name.repository).rpartition("/")[2].removesuffix(".onnx")
    return Path(path).stem if Path(path).is_file() else Path(os.path.abspath(path)).name
