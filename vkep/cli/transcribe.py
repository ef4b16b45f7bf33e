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
    continued: Annotated[
        bool, typer.Option("--condition-on-prev-tokens", help="Each window continues the text of those before it.")
    ] = False,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Make answers that repeat themselves or are improbable again at higher temperatures, and leave silence out, "
            "by OpenAI's thresholds.",
        ),
    ] = False,
    options: Any = None,
    json_output: common.JsonFlag = False,
    verbose: common.VerboseOption = 0,
) -> None:
    """Write what was said in sounds, with times, by a model of speech (Whisper, Moonshine)."""
    with common.command(json_output, verbose):
        from vkep.generation import Generator
        from vkep.generation.audio import read_wav
        from vkep.generation.long_form import OPENAI
        from vkep.generation.published import local_folder

        folder = common.located(folder, local_folder)
        sounds = [read_wav(path) for path in sound]
        settings: dict[str, Any] = {
            "language": language,
            "task": task,
            "max_tokens": max_tokens,
            "condition_on_prev_tokens": continued,
            **(OPENAI if retry else {}),
        }
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
            if len(sounds) == 1:  # its segments are written as they are made
                each = [made.stream_transcript(sounds[0], **settings)]
            else:
                each = [iter(one.segments) for one in made.transcribe(sounds, **settings)]
            for path, segments in zip(sound, each, strict=True):
                if len(sounds) > 1:
                    common.echo(f"{path}:")
                for segment in segments:
                    common.echo(f"{segment.start:8.2f} to {segment.end:7.2f} s: {segment.text.strip()}")
