#!/usr/bin/env python3
"""Greedy continuations of one GGUF file by llama.cpp and by build/golden, token by token.

    tools/reference/compare_llama_cpp.py --server PATH/llama-server --golden build/golden --model M.gguf [--tokens 64] [--threads 2]
        [--prompts prompts.txt] [--out bench/results/...md]

llama-server tokenises, generates, and reports the log-probabilities of its two best tokens. Then golden evaluates the same
prefixes (llama.cpp's own tokens), so that one early difference does not hide the rest: every position is compared. Where the two
disagree, the gap between the two best tokens is given for both, and what our float32-activation mode says.
"""
import argparse
import json
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "The three most important things to remember when writing a letter are",
]


def post(base: str, path: str, body: dict) -> dict:
    req = urllib.request.Request(base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(req, timeout=300) as r:
        return json.load(r)


def start(args: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([args.server, "-m", args.model, "--host", "127.0.0.1", "--port", str(port), "-t", str(args.threads), "-c", "2048",
                          "--parallel", "1", "--no-webui"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(base + "/health", timeout=2):
                return p, base
        except OSError:
            if p.poll() is not None:
                sys.exit("llama-server ended while starting")
            time.sleep(0.2)
    p.terminate()
    sys.exit("llama-server did not become healthy")


def theirs(base: str, prompt: str, n: int) -> tuple[list[int], list[int], list[tuple[int, float, int]], str]:
    """Prompt ids, generated ids, (best, log-probability gap, second) at each position, text."""
    ids = post(base, "/tokenize", {"content": prompt, "add_special": True})["tokens"]
    r = post(base, "/completion", {"prompt": ids, "n_predict": n, "temperature": 0, "top_k": 1, "n_probs": 2, "return_tokens": True,
                                   "ignore_eos": False, "cache_prompt": False, "post_sampling_probs": False})
    tops = [c["top_logprobs"] for c in r["completion_probabilities"]]
    return ids, r["tokens"], [(t[0]["id"], t[0]["logprob"] - t[1]["logprob"], t[1]["id"]) for t in tops], r["content"]


def ours(args: argparse.Namespace, ids: list[int], follow: list[int], mode: str) -> list[tuple[int, float, int]]:
    out = subprocess.run([args.golden, "--activations", mode, "--threads", str(args.threads), "--context", "2048",
                          "--tokens", ",".join(map(str, ids)), "--follow", ",".join(map(str, follow)), args.model],
                         check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in out.splitlines()]
    return [(int(a), float(b), int(c)) for a, b, c in rows]


def noise(a: list[tuple[int, float, int]], b: list[tuple[int, float, int]]) -> list[float]:
    """How far the gap between the two best moved, where both saw the same two (in either order)."""
    out = []
    for (p, x, q), (r, y, s) in zip(a, b):
        if (p, q) == (r, s):
            out.append(abs(x - y))
        elif (p, q) == (s, r):
            out.append(x + y)
    return out


def table(args: argparse.Namespace, base: str, prompts: list[str]) -> list[str]:
    lines, notes, n_all, n_equal, n_f32, n_theirs = [], [], 0, 0, 0, 0
    mine, other, both = [], [], []
    lines.append("| prompt | tokens | equal | first difference | texts equal up to it |")
    lines.append("|---|---|---|---|---|")
    for i, prompt in enumerate(prompts, 1):
        ids, want, gaps, text = theirs(base, prompt, args.tokens)
        int8, f32 = ours(args, ids, want, "int8"), ours(args, ids, want, "f32")
        differ = [k for k in range(len(want)) if int8[k][0] != want[k]]
        n_all += len(want)
        n_equal += len(want) - len(differ)
        n_f32 += sum(int8[k][0] == f32[k][0] for k in range(len(want)))
        n_theirs += sum(want[k] == f32[k][0] for k in range(len(want)))
        mine += noise(int8, f32)
        other += noise(gaps, f32)
        both += noise(gaps, int8)
        first = f"position {differ[0]}" if differ else "none"
        lines.append(f"| {i} | {len(want)} | {len(want) - len(differ)} | {first} | {differ[0] if differ else len(want)} tokens |")
        notes.append(f"\n**Prompt {i}** `{json.dumps(prompt)}`; llama.cpp: `{json.dumps(text)}`\n")
        if differ:
            notes.append("| position | llama.cpp | its gap (log-probability) | ours | our gap (logits) | ours, float32 activations | its gap |")
            notes.append("|---|---|---|---|---|---|---|")
        for k in differ:
            notes.append(f"| {k} | {want[k]} | {gaps[k][1]:.4f} | {int8[k][0]} | {int8[k][1]:.4f} | {f32[k][0]} | {f32[k][1]:.4f} |")
    lines.append(f"\nOf {n_all} positions, {n_equal} are equal in both programs. With float32 activations in place of 8-bit ones (same weights), "
                 f"{n_f32} of ours and {n_theirs} of llama.cpp's stay as they are.\n")
    lines.append("How far the gap between the two best tokens moves, where both saw the same two: median / 90% / largest")
    for name, v in (("ours, 8-bit against float32 activations", mine), ("llama.cpp against our float32 activations", other),
                    ("llama.cpp against ours", both)):
        v = sorted(v)
        lines.append(f"- {name}: {v[len(v) // 2]:.3f} / {v[len(v) * 9 // 10]:.3f} / {v[-1]:.3f} ({len(v)} positions)")
    return lines + notes


def main() -> int:
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--server", required=True)
    a.add_argument("--golden", default="build/golden")
    a.add_argument("--model", required=True)
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--prompts", help="one JSON string per line; five built-in ones by default")
    a.add_argument("--out", help="Markdown goes there instead of stdout")
    args = a.parse_args()
    prompts = [json.loads(x) for x in pathlib.Path(args.prompts).read_text().splitlines()] if args.prompts else PROMPTS
    p, base = start(args)
    try:
        lines = [f"### {pathlib.Path(args.model).name}\n"] + table(args, base, prompts)
    finally:
        p.terminate()
        p.wait()
    text = "\n".join(lines) + "\n"
    if args.out:
        pathlib.Path(args.out).write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
