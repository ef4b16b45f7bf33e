"""`Generator`: text from a folder with a language model.

This module imports little: a generator imports numpy, onnx and most of vkep while the driver opens the device.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from gpu_shared.steady import closing, steady
from gpu_shared.uncopied import Uncopied
from vkep.errors import InvalidInputError
from vkep.generation.folder import ModelFolder, read_folder
from vkep.generation.published import local_folder
from vkep.generation.sampling import Sampling
from vkep.session.contexts import ContextAhead
from vkep.session.session import options_of

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from gpu_shared.context import SharedGpuContext
    from gpu_shared.lease import DelegateLease
    from vkep.generation.batch import Answer, Batch, Reader
    from vkep.generation.beams import Hypothesis
    from vkep.generation.decoder import Decoder
    from vkep.generation.draft import Draft
    from vkep.generation.encoder_decoder import EncoderDecoder
    from vkep.generation.grammar import Grammar, Grammars
    from vkep.generation.images import ImageLike
    from vkep.generation.regions import TaskAnswer
    from vkep.generation.sounds import SoundLike
    from vkep.generation.speech import Segment
    from vkep.generation.text import Text, TextStream
    from vkep.generation.transcribe import Sound, Transcript
    from vkep.session import InferenceSession
    from vkep.session.options import SessionKeywords, SessionOptions
    from vkep.view.page import Page

    class _Options(SessionKeywords, total=False):
        sess_options: SessionOptions | None
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None
        provider_options: Sequence[Mapping[str, Any]] | None
        context: SharedGpuContext | DelegateLease | None


#: largest number of tokens that a run tests
MOST_GUESSED = 64
#: the kind of models whose prompts may be names of tasks
TASKED = "florence2"
Prompt: TypeAlias = "str | Sequence[int] | np.ndarray[Any, Any]"


class Generator(Uncopied):
    """A language model on Vulkan, from a folder that onnxruntime-genai's builder or optimum wrote.

    Args:
        folder: with ``genai_config.json`` or ``config.json``, the model, and ``tokenizer.json`` for prompts of text; or
            ``OWNER/NAME`` or ``hf:OWNER/NAME[@REVISION][/FOLDER]``, which the package huggingface_hub downloads.
        max_sequences: answers that are made at the same time; more prompts wait for their turn.
        lookup: up to so many tokens are guessed and tested in one run, where an answer repeats what the prompt or the
            answer said before; 0: none. The tokens are those of a run for each. It serves greedy answers, one at a time,
            of models without an encoder.
        draft: the folder of a smaller model with the same tokens, as ``folder``: it guesses what ``lookup`` does not. Sampled
            answers keep their distribution, and get other tokens of a seed than without it.
        draft_tokens: up to so many tokens are guessed by ``draft``.
        options: of `vkep.InferenceSession`.

    Caches stay after an answer: a prompt that begins as an earlier one and its answer did only computes the rest. For
    one thread; close it, or use ``with``.

    Raises ``FileNotFoundError``, `InvalidModelError`, `UnsupportedModelError`, `InvalidInputError` for ``max_sequences`` below 1,
    ``lookup`` or ``draft_tokens`` above 64 and a ``draft`` of or for a model with an encoder or with states, and as
    `vkep.InferenceSession`.
    """

    _instead = "open the folder again, in each process"

    def __init__(
        self,
        folder: str | Path,
        *,
        max_sequences: int = 16,
        lookup: int = 0,
        draft: str | Path | None = None,
        draft_tokens: int = 4,
        **options: Unpack[_Options],
    ) -> None:
        if max_sequences < 1:
            raise InvalidInputError(f"max_sequences is {max_sequences}, expected 1 or more")
        if not 0 <= lookup <= MOST_GUESSED:
            raise InvalidInputError(f"lookup is {lookup}, expected 0 to {MOST_GUESSED}")
        if not 1 <= draft_tokens <= MOST_GUESSED:
            raise InvalidInputError(f"draft_tokens is {draft_tokens}, expected 1 to {MOST_GUESSED}")
        self._limit, self._lookup = max_sequences, lookup
        read = read_folder(local_folder(folder))
        small = read_folder(local_folder(draft)) if draft is not None else None
        self._decoder: Decoder | EncoderDecoder
        self._decoder, self._draft = _opened(read, small, options, lookup, draft_tokens)
        self._batch = self.batch(max_sequences)

    @functools.cached_property
    def text(self) -> Text:
        """The folder's tokenizer. Raises as `Text`."""
        from vkep.generation.text import Text

        return Text(self._decoder.folder.path)

    def load_adapter(self, path: str | Path, name: str) -> None:
        """Load an adapter file of ONNX Runtime's (``.onnx_adapter``, as Olive and onnxruntime-genai write LoRA weights) for
        answers with ``adapter=name``. Its tensors stay on the device. Later answers with the name read these, answers in progress
        those that were loaded before.

        Raises ``FileNotFoundError``, `InvalidModelError` for another file, `InvalidInputError` for an empty name, tensors that
        the model does not take and a model with an encoder; `ArenaOutOfMemory`.
        """
        from vkep.generation.decoder import Decoder
        from vkep.session.ort_interface.adapters import AdapterFormat

        decoder = self._decoder
        if not name or not isinstance(decoder, Decoder):
            raise InvalidInputError(f"adapter {name!r}: expected a name, and a model without an encoder")
        decoder.load_adapter(AdapterFormat.read_adapter(path), name, f"the adapter {path}")

    @property
    def defaults(self) -> Sampling:
        """The folder's default settings, used where none are given."""
        return self._decoder.folder.defaults

    @property
    def decoder(self) -> Decoder | EncoderDecoder:
        """The model's session, with the roles of its inputs."""
        return self._decoder

    @property
    def has_tasks(self) -> bool:
        """Whether prompts may be names of tasks: see `vision_task`."""
        return self._decoder.folder.kind == TASKED

    @property
    def draft_sessions(self) -> list[InferenceSession]:
        """The sessions of the draft model; none without one."""
        return self._draft.sessions if self._draft is not None else []

    def sampling(self, **settings: Any) -> Sampling:
        """The folder's settings with some of them replaced. Raises `InvalidInputError`, and ``TypeError`` for an
        unknown name."""
        return replace(self.defaults, **settings)

    def batch(self, max_sequences: int | None = None) -> Batch:
        """A new batch, for servers that add answers and call `Batch.step` themselves; close it before the generator."""
        from vkep.generation.batch import Batch

        return Batch(
            self._decoder,
            self._encode,
            self._text_stream,
            self._begin,
            max_sequences or self._limit,
            self._lookup,
            self._draft,
        )

    @functools.cached_property
    def grammars(self) -> Grammars:
        """The grammars that answers may follow, for the folder's tokenizer."""
        from vkep.generation.grammar import Grammars

        return Grammars(self._decoder.folder, self._decoder.vocabulary)

    def tokens(
        self, prompt: Prompt, images: Sequence[ImageLike] = (), sounds: Sequence[SoundLike] = ()
    ) -> Sequence[int]:
        """The tokens of a text, or of token ids, with the features of ``images`` where the prompt has the model's token for an
        image (of Phi's models ``<|image_1|>`` in a text, -1 among ids), else before the prompt. They serve as a prompt as long as
        they live. ``sounds``, of Phi-4-multimodal: samples at 16 kHz float32 [count], or WAV files, where the text has
        ``<|audio_1|>``.

        Raises `InvalidInputError` where the model reads no images or sounds, for what is none, and for another number of them
        than the prompt has tokens for.
        """
        vision, passed = self._decoder.vision, len(images) + len(sounds) > 0
        numbered = (
            r"<\|image_([0-9]{1,9})\|>" if vision is not None and vision.folder.numbered is not None and passed else ""
        )
        if isinstance(prompt, str):
            found = self._encode(_with_sounds(prompt) if numbered else prompt, numbered)
        else:
            found = [int(token) for token in prompt]
        if not passed:
            return found
        decoder = self._decoder
        if vision is None:
            what = "images" if len(images) else "sounds"
            why = (
                decoder.no_images
                if what == "images" or decoder.folder.vision is not None
                else "has no encoder of sounds"
            )
            raise InvalidInputError(f"{what} are passed, and the model of {decoder.folder.path} {why}")
        return vision.prompt(
            found, images, lambda text: self.text.encode(text, special=False), decoder.folder.context, sounds
        )

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> Sequence[int]:
        """As `Text.chat`, with the images and sounds of the messages' parts: see `vkep.generation.parts.without_media`."""
        from vkep.generation.parts import without_media

        vision = self._decoder.vision
        if vision is None or vision.folder.numbered is None:
            texts, images, sounds = without_media(messages)
            return self.tokens(self.text.chat(texts, **more), images, sounds)
        from vkep.generation.vision import FIRST_SOUND

        name, after = secrets.token_hex(8), vision.folder.numbered
        first = {"image": 0, "audio": -FIRST_SOUND}
        texts, images, sounds = without_media(messages, lambda kind, k: f"{name}i{first[kind] + k}i{after}")
        return self.tokens(self.text.chat(texts, numbered=f"{name}i([0-9]+)i", **more), images, sounds)

    def _begin(self, grammar: str) -> Grammar:
        return self.grammars.begin(grammar)

    def _encode(self, prompt: str, numbered: str = "") -> list[int]:
        if self.has_tasks:
            from vkep.generation.regions import task_prompt

            prompt = task_prompt(prompt)
        return self.text.encode(prompt, numbered=numbered)

    @property
    def _writes_text(self) -> bool:
        """Whether answers have texts: where prompts are texts, or sounds. Prompts of ids need no tokenizer."""
        return "text" in vars(self) or (self._decoder.reads_sounds and self._decoder.folder.has_tokenizer)

    def _text_stream(self, sampling: Sampling) -> TextStream | None:
        if not self._writes_text and not sampling.stop and not sampling.grammar:
            return None
        from vkep.generation.text import TextStream

        return TextStream(self.text, sampling.stop)

    # ---- answers

    @overload
    def generate(
        self,
        prompts: str | np.ndarray[Any, Any],
        *,
        images: Sequence[ImageLike] = (),
        sounds: Sequence[SoundLike] = (),
        start: Sequence[int] = (),
        **settings: Any,
    ) -> Answer: ...
    @overload
    def generate(
        self,
        prompts: Sequence[int],
        *,
        images: Sequence[ImageLike] = (),
        sounds: Sequence[SoundLike] = (),
        start: Sequence[int] = (),
        **settings: Any,
    ) -> Answer: ...
    @overload
    def generate(self, prompts: Sequence[Prompt], *, start: Sequence[int] = (), **settings: Any) -> list[Answer]: ...
    def generate(
        self,
        prompts: Any,
        *,
        images: Sequence[ImageLike] = (),
        sounds: Sequence[SoundLike] = (),
        start: Sequence[int] = (),
        **settings: Any,
    ) -> Answer | list[Answer]:
        """The answer to a prompt, or a list of answers to several.

        Args:
            prompts: a text, token ids (a sequence or a 1-D array of integers), or for a model of speech audio, as an array
                that `EncoderDecoder.source` takes; or a list of these.
            images, sounds: of a prompt of text or token ids, as in `tokens`.
            start: as in `Batch.add`.
            settings: fields of `Sampling` that replace the folder's.

        An interrupt (Ctrl-C) leaves the generator usable. Raises as `Batch.add`, before the first token.
        """
        import numpy as np

        one = isinstance(prompts, (str, np.ndarray)) or not len(prompts) or isinstance(prompts[0], (int, np.integer))
        if len(images) or len(sounds):
            prompts, one = self.tokens(prompts, images, sounds), True
        made = self._generate([prompts] if one else prompts, self.sampling(**settings), start)
        return made[0] if one else made

    def _generate(self, prompts: Sequence[Prompt], sampling: Sampling, start: Sequence[int]) -> list[Answer]:
        from vkep.memory import ArenaOutOfMemory

        waiting = list(enumerate(prompts))
        readers: dict[int, Reader] = {}
        try:
            while waiting or any(not r.answer.ended for r in readers.values()):
                while waiting and len(self._batch.in_progress) < self._limit:
                    place, prompt = waiting[0]
                    try:
                        readers[place] = self._batch.read(prompt, sampling, start=start)
                    except ArenaOutOfMemory:
                        if not self._batch.in_progress:
                            raise
                        break  # until the caches of another answer are free
                    waiting.pop(0)
                for event in self._batch.step():
                    if event.answer.error is not None and any(r.answer is event.answer for r in readers.values()):
                        raise event.answer.error
        finally:
            for reader in readers.values():
                self._batch.leave(reader)
        return [readers[place].answer for place in range(len(readers))]

    def stream(
        self,
        prompt: Prompt,
        *,
        images: Sequence[ImageLike] = (),
        sounds: Sequence[SoundLike] = (),
        start: Sequence[int] = (),
        **settings: Any,
    ) -> Iterator[str]:
        """Yield the answer's text as it is generated; nothing for a model without tokenizer. Leaving the loop, or dropping the
        iterator, ends the answer. ``images`` and ``sounds`` as in `tokens`."""
        if len(images) or len(sounds):
            prompt = self.tokens(prompt, images, sounds)
        return self._pieces(self._batch.read(prompt, self.sampling(**settings), start=start))

    def _pieces(self, reader: Reader) -> Iterator[str]:
        answer, shown = reader.answer, 0
        try:
            while not answer.ended:
                self._batch.step()
                if len(answer.text) > shown:
                    piece, shown = answer.text[shown:], len(answer.text)
                    yield piece
            if answer.error is not None:
                raise answer.error
        finally:
            self._batch.leave(reader)

    def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> Answer:
        """The answer to a conversation, ``[{"role": "user", "content": "..."}, ...]``, by the folder's chat template. A content
        may be parts, ``[{"type": "text", "text": "..."}, {"type": "image", "image": "photo.jpg"}]``."""
        return self.generate(self.chat_tokens(messages), **settings)

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> Iterator[str]:
        """Yield the text of `chat` as it is generated."""
        return self.stream(self.chat_tokens(messages), **settings)

    def vision_task(
        self, task: str, image: ImageLike, text: str = "", *, box: Sequence[float] = (), **settings: Any
    ) -> TaskAnswer:
        """The answer of a model of Florence-2's form to one of `vkep.generation.regions.TASKS` about an image, with the regions
        that it names in the image's pixels.

        Args:
            task: such as "<OD>", "<CAPTION>", "<OCR_WITH_REGION>".
            text: what tasks such as "<OPEN_VOCABULARY_DETECTION>" ask about.
            box: left, top, right and bottom in pixels, of tasks about a region, such as "<REGION_TO_CATEGORY>".
            settings: fields of `Sampling` that replace the folder's.

        Raises `InvalidInputError` for another task or model, or where a task takes no text or box; and as `generate`.
        """
        from vkep.generation.images import opened
        from vkep.generation.regions import task_of

        self._check_tasks()
        picture = opened(image)
        answer = self.generate(task_of(task, text, box, picture.size), images=[picture], **settings)
        return self.read_task(task, answer.tokens, picture.size)

    def read_task(self, task: str, tokens: Sequence[int], size: tuple[int, int]) -> TaskAnswer:
        """What the tokens of an answer to a task say, about an image of ``size`` (width and height in pixels). Raises
        `InvalidInputError` for another task or model."""
        from vkep.generation.regions import TaskAnswer, regions_of, unnamed_phrases

        self._check_tasks()
        text = self.text.decode(tokens, special=True)
        regions = regions_of(task, text, size, unnamed_phrases(self._decoder.folder.path))
        return TaskAnswer(text, regions, tuple(tokens))

    def _check_tasks(self) -> None:
        folder = self._decoder.folder
        if not self.has_tasks:
            raise InvalidInputError(f"a model of kind {folder.kind!r} has no tasks; expected {TASKED} ({folder.path})")

    def search(
        self,
        prompt: Prompt,
        *,
        beams: int = 4,
        count: int = 1,
        max_tokens: int | None = None,
        length_penalty: float = 1.0,
        stop_tokens: Sequence[int] = (),
        ignore_end: bool = False,
        start: Sequence[int] = (),
    ) -> list[Hypothesis]:
        """The ``count`` best answers by beam search with ``beams`` beams, the best one first.

        ``length_penalty`` as in `Hypothesis`; ``max_tokens`` None: until the model's context is full; ``stop_tokens``,
        ``ignore_end`` as in `Sampling`; ``start`` as in `Batch.add`. The search has caches of its own. Raises
        `InvalidInputError` as `Batch.add` and `vkep.generation.beams.Search`, `ArenaOutOfMemory`.
        """
        from vkep.generation.batch import rows_of
        from vkep.generation.beams import Search, search
        from vkep.generation.decoder import Decoder
        from vkep.generation.rows import fed
        from vkep.generation.vision import images_of

        tokens, source = self._batch.tokens_of(prompt, start)
        folder = self._decoder.folder
        room = folder.context - len(tokens) if folder.context else None
        if max_tokens is None and room is None:
            raise InvalidInputError(f"max_tokens is None, and {folder.path} does not say the model's longest sequence")
        most = min(n for n in (max_tokens, room) if n is not None)
        ends = frozenset(stop_tokens) | (frozenset() if ignore_end else folder.end_tokens)
        asked = Search(beams, count, most, length_penalty, ends)
        rows = rows_of(self._decoder, beams)
        try:
            decoder = self._decoder
            adapter = decoder.adapter_for(images_of(prompt)) if isinstance(decoder, Decoder) else None
            row = rows.take(tokens, (), source, adapter)
            found = search(rows, self._decoder, row, fed(rows, row, tokens), asked)
        finally:
            rows.close()
        if not self._writes_text:
            return found
        return [replace(one, text=self.text.decode(one.tokens)) for one in found]

    @overload
    def transcribe(
        self, sounds: np.ndarray[Any, Any], *, language: str | None = None, task: str = "transcribe", **settings: Any
    ) -> Transcript: ...
    @overload
    def transcribe(
        self,
        sounds: Sequence[np.ndarray[Any, Any]],
        *,
        language: str | None = None,
        task: str = "transcribe",
        **settings: Any,
    ) -> list[Transcript]: ...
    def transcribe(
        self, sounds: Any, *, language: str | None = None, task: str = "transcribe", **settings: Any
    ) -> Transcript | list[Transcript]:
        """What was said in a sound of any length, or in each of several, with times: of models of speech.

        Args:
            sounds: samples at 16 kHz float32 [count], or features [bands, frames]; or a list of these, which are read at the
                same time.
            language: its code, such as "en"; None: the most probable one of each sound's first 30 seconds.
            task: "transcribe", or "translate" into English.
            settings: of `vkep.generation.long_form.LongForm`, and of `Sampling`; ``max_tokens`` is of each window of 30 seconds.

        Raises as `vkep.generation.transcribe.Transcriber` and `Batch.step`.
        """
        from vkep.generation.transcribe import Transcript

        many = isinstance(sounds, (list, tuple))
        given, found = self._transcribed(sounds if many else [sounds], language, task, settings)
        segments: list[list[Segment]] = [[] for _ in given]
        for number, segment in found:
            segments[number].append(segment)
        made = [Transcript(sound.language, parts) for sound, parts in zip(given, segments, strict=True)]
        return made if many else made[0]

    def stream_transcript(
        self, sound: np.ndarray[Any, Any], *, language: str | None = None, task: str = "transcribe", **settings: Any
    ) -> Iterator[Segment]:
        """Yield the segments of `transcribe` as windows are read."""
        _, found = self._transcribed([sound], language, task, settings)
        return (segment for _, segment in found)

    def _transcribed(
        self, sounds: Sequence[Any], language: str | None, task: str, settings: Mapping[str, Any]
    ) -> tuple[list[Sound], Iterator[tuple[int, Segment]]]:
        from vkep.generation.long_form import LongForm
        from vkep.generation.transcribe import Transcriber

        form, rest = LongForm.taken(settings)
        decode = self.text.decode if self._decoder.folder.has_tokenizer else _no_text
        made = Transcriber(self._decoder, decode, language, task, self.sampling(**rest), form)
        given: list[Sound] = []
        for k, sound in enumerate(sounds):
            try:
                given.append(made.sound(sound))
            except InvalidInputError as error:
                raise InvalidInputError(f"sound {k + 1} of {len(sounds)}: {error}") from None
        return given, made.segments(self._batch, given, self._limit)

    def view(self, prompt: Prompt, **settings: Any) -> Page:
        """A page of an answer, token by token: see `vkep.InferenceSession.view`. The answer is generated three times.
        Raises as `generate`."""
        from vkep.generation.viewing import answer_document
        from vkep.view.page import Page

        sampling = self.sampling(**settings)
        document = answer_document(
            self._decoder.sessions,
            str(self._decoder.folder.path),
            lambda: self.batch(1),
            lambda batch: batch.add(prompt, sampling),
        )
        return Page([document])

    @closing
    def close(self) -> None:
        """Close the session and its caches; idempotent."""
        self._batch.close()
        if self._draft is not None:
            self._draft.close()
        self._decoder.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _with_sounds(prompt: str) -> str:
    """A prompt in which sounds have numbers after those of images: see `vkep.generation.vision.FIRST_SOUND`."""
    from vkep.generation.vision import FIRST_SOUND

    return re.sub(r"<\|audio_([0-9]{1,7})\|>", lambda found: f"<|image_{int(found[1]) - FIRST_SOUND}|>", prompt)


def _no_text(tokens: Sequence[int]) -> str:
    return ""


@steady
def _opened(
    folder: ModelFolder, small: ModelFolder | None, options: Mapping[str, Any], lookup: int, guessed: int
) -> tuple[Decoder | EncoderDecoder, Draft | None]:
    """The folder's sessions, and those of a draft. Raises as `Generator`."""
    if small is not None and (folder.encoder or small.encoder):
        raise InvalidInputError(f"draft {small.path}: a model with an encoder neither has a draft nor is one")
    given = dict(options)
    with ContextAhead(options_of(**{k: v for k, v in given.items() if k != "context"}), given.get("context")) as ahead:
        from vkep.generation.decoder import Decoder
        from vkep.generation.draft import Draft
        from vkep.generation.encoder_decoder import EncoderDecoder

        given["context"] = ahead.result()
        if folder.encoder:
            return EncoderDecoder(folder, given), None
        with ExitStack() as opened:
            decoder = Decoder(folder, given, keep=1 + max(lookup, guessed if small is not None else 0))
            opened.callback(decoder.close)
            draft = None
            if small is not None:
                guesser = Decoder(small, given)
                opened.callback(guesser.close)
                if decoder.has_states or guesser.has_states:  # they do not go back after a wrong guess
                    raise InvalidInputError(
                        f"draft {small.path}: a model whose layers have states neither has a draft nor is one"
                    )
                draft = Draft(guesser, guessed)
            opened.pop_all()
            return decoder, draft
