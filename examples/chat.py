"""Chat with a language model: answers appear as they are generated, and caches stay from one turn to the next.

    vkep model decoder                            # a small model with random weights: its answers are noise
    python examples/chat.py decoder               # asks until an empty line
    python examples/chat.py decoder "Name three rivers."

A real model is a folder of onnxruntime-genai's builder (``python -m onnxruntime_genai.models.builder -m
meta-llama/Llama-3.2-1B-Instruct -o FOLDER -p int4 -e cpu``) or of optimum (``optimum-cli export onnx``).
"""

from __future__ import annotations

import sys

from vkep.generation import Generator


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/chat.py FOLDER [QUESTION]")
    messages: list[dict[str, str]] = []
    with Generator(sys.argv[1]) as generator:
        questions = iter(sys.argv[2:]) if sys.argv[2:] else iter(lambda: input("you: "), "")
        for question in questions:
            messages.append({"role": "user", "content": question})
            answer = ""
            for piece in generator.stream_chat(messages, max_tokens=64, temperature=0.7, top_p=0.9, seed=1):
                print(piece, end="", flush=True)
                answer += piece
            print(f"\n({len(answer)} characters)")
            messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
