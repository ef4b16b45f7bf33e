"""``vkep transcribe``: what was said in sounds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from vkep.cli import common


@common.with_options
def transcribe_command(
    folder: common.FolderArgument,
    sound: Annotated[list[Path], typer.Argument(help="WAV files of 16 bits at 16 kHz, of any length.")],
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="Its code, such as en. Without it the most probable one.")
    ] = None,
    task: Annotated[str, typer.Option("--task", help="transcribe, or translate into English.")] = "transcribe",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=1, help="Tokens of each window of 30 seconds.")
    ] = None,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Write what was said in sounds, with times, by a model of speech (Whisper)."""
    with common.command(json_output, verbose):
        from vkep.generation import Generator
        from vkep.generation.audio import read_wav
        from vkep.generation.published import local_folder

        folder = common.located(folder, local_folder)
        sounds = [read_wav(path) for path in sound]
        settings: dict[str, Any] = {"language": language, "task": task, "max_tokens": max_tokens}
        with (
            common.progress_bars(show=not json_output) as progress,
            Generator(folder, progress=progress, **options) as made,
        ):
            if json_output:
                found = made.transcribe(sounds, **settings)
                common.print_json(
                    {
                        "transcripts": [
                            {"sound": str(path), "language": one.language, "text": one.text}
                            | {"segments": [asdict(segment) for segment in one.segments]}
                            for path, one in zip(sound, found, strict=True)
                        ]
                    }
                )
                return
            for path, samples in zip(sound, sounds, strict=True):
                if len(sounds) > 1:
                    common.echo(f"{path}:")
                for segment in made.stream_transcript(samples, **settings):
                    common.echo(f"{segment.start:8.2f} to {segment.end:7.2f} s:{segment.text}")
