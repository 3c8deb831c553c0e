#!/usr/bin/env python3
"""Darkbloom's server against llama.cpp's llama-server: tokens per second and time to the first token with 1, 4, 16 requests at a time.

Both serve the same GGUF with the same number of threads and get the same prompts over the same API (POST /v1/completions, streamed,
temperature 0, the same max_tokens). Only one of them runs at a time, each point in a fresh process; rounds alternate who goes first. Prompts share no beginning and
llama-server is told not to keep them (cache_prompt false), so that no prefix is reused. Neither has to be told to ignore the end of a
sequence: before the rounds each candidate prompt is tried on both, and those that end early on either are left out. Tokens are counted
from `usage`. A ratio is ours to theirs within one round.

  bench/server_vs_llama.py --llama-server PATH --model gemma-3-270m-q4_k_m.gguf
"""
import argparse
import asyncio
import json
import os
import pathlib
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
SENTENCES = ["The {a} {n} went down to the {p} before the {m} came in.", "Nobody in the {p} had seen a {a} {n} since the last {m}.",
             "She wrote about the {n} and the {p}, and about what the {m} had left.", "It was a {a} {m}, and the {n} of the {p} was {a} too.",
             "They asked the {n} why the {p} was so {a} after the {m}."]
PARTS = {"a": "old quiet green broken distant careful heavy bright narrow patient".split(),
         "n": "captain river lantern teacher engine farmer clock market bridge letter".split(),
         "p": "harbour valley city garden station island forest kitchen library desert".split(),
         "m": "storm winter morning war harvest festival night letter season tide".split()}


def make_prompts(n, words, seed):
    """Texts of about `words` words whose beginnings differ."""
    rng, out = random.Random(seed), []
    for i in range(n):
        text = f"{rng.choice(PARTS['a']).capitalize()} {rng.choice(PARTS['n'])} number {rng.randrange(10000)}, chapter {i + 1}."
        while len(text.split()) < words[i % len(words)]:
            text += " " + rng.choice(SENTENCES).format(**{k: rng.choice(v) for k, v in PARTS.items()})
        out.append(text)
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One of the two, started and ended here."""

    def __init__(self, name, args):
        self.name = name
        self.log = tempfile.NamedTemporaryFile(prefix=f"bench-{name}-", suffix=".log")
        most = max(args.concurrent)
        if name == "darkbloom":
            self.port, self.extra = None, {}
            command = [args.darkbloom, "start", "--local", "--model", args.model, "--port", "0", "--quiet", "--threads", args.threads,
                       "--context", args.context, "--max-concurrent", most, "--max-queue", most, *args.darkbloom_args.split()]
        else:
            self.port, self.extra = free_port(), {"cache_prompt": False}
            command = [args.llama_server, "-m", args.model, "--host", "127.0.0.1", "--port", self.port, "-t", args.threads,
                       "-tb", args.threads, "-np", most, "-c", args.context * most, *args.llama_args.split()]
        self.command = [str(c) for c in command]
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if not self.port else self.log,
                                        stderr=self.log, text=True)
        if not self.port:
            line = self.process.stdout.readline()
            m = re.match(r"listening on http://\S+?:(\d+)  ", line)
            if not m:
                sys.exit(f"no start line but {line!r}: {pathlib.Path(self.log.name).read_text()[-2000:]}")
            self.port = int(m[1])
        self.model = pathlib.Path(args.model).stem if name != "darkbloom" else args.model

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    async def wait(self):
        for _ in range(600):
            try:
                r, w = await asyncio.open_connection("127.0.0.1", self.port)
                w.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                ok = (await r.read()).startswith(b"HTTP/1.1 200")
                w.close()
                if ok:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended: {pathlib.Path(self.log.name).read_text()[-2000:]}")
            await asyncio.sleep(0.1)
        sys.exit(f"{self.name} did not become ready within 60 s")

    async def ask(self, prompt, n_tokens):
        """{"ttft", "seconds", "prompt_tokens", "completion_tokens"} of one streamed answer."""
        body = json.dumps({"model": self.model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "stream": True,
                           "stream_options": {"include_usage": True}, **self.extra}).encode()
        r, w = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        t0, first, usage = time.monotonic(), None, None
        w.write(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await r.readline()
        if b" 200" not in status:
            sys.exit(f"{self.name}: {status!r} {(await r.read())[:500]!r}")
        while line := await r.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if first is None and event.get("choices") and event["choices"][0].get("text"):
                    first = time.monotonic()
                usage = event.get("usage") or usage
            elif line.startswith(b"data: [DONE]"):
                break
        end = time.monotonic()
        w.close()
        if usage is None or first is None:
            sys.exit(f"{self.name}: a stream without text or usage")
        return {"ttft": first - t0, "seconds": end - t0, "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"]}

    async def point(self, prompts, n_tokens, concurrent):
        """The prompts with so many requests at a time."""
        todo, out = iter(prompts), []

        async def client():
            for prompt in todo:
                out.append(await self.ask(prompt, n_tokens))
        t0 = time.monotonic()
        await asyncio.gather(*[client() for _ in range(concurrent)])
        seconds = time.monotonic() - t0
        ttft = sorted(x["ttft"] for x in out)
        tokens, read = sum(x["completion_tokens"] for x in out), sum(x["prompt_tokens"] for x in out)
        return {"tokens_per_s": tokens / seconds, "seconds": seconds, "output_tokens": tokens, "prompt_tokens": read, "requests": len(out),
                "short": sum(x["completion_tokens"] != n_tokens for x in out),
                "ttft_p50_ms": 1000 * statistics.median(ttft), "ttft_p95_ms": 1000 * ttft[min(len(ttft) - 1, int(0.95 * len(ttft)))]}


async def choose_prompts(args):
    """Those that give all of their tokens on both."""
    want = args.requests + 1
    candidates = make_prompts(int(want * args.surplus), args.words, args.seed)
    for name in ("darkbloom", "llama.cpp"):
        s = Server(name, args)
        try:
            await s.wait()
            kept, most = [], max(args.concurrent)
            for i in range(0, len(candidates), most):
                group = candidates[i:i + most]
                answers = await asyncio.gather(*[s.ask(p, args.tokens) for p in group])
                kept += [p for p, x in zip(group, answers) if x["completion_tokens"] == args.tokens]
                if len(kept) >= want and name == "llama.cpp":
                    break
            print(f"{name}: {len(kept)} of {len(candidates)} prompts give {args.tokens} tokens", file=sys.stderr)
            candidates = kept
        finally:
            s.stop()
    if len(candidates) < want:
        sys.exit(f"{len(candidates)} prompts give {args.tokens} tokens on both, {want} are needed: choose fewer --tokens or more --surplus")
    return candidates[:want]


async def one_point(name, args, prompts, concurrent):
    """In a process of its own, so that nothing is kept from the point before."""
    s = Server(name, args)
    try:
        await s.wait()
        await s.ask(prompts[-1], min(args.tokens, 16))  # what the first request of a process costs is not the point
        out = await s.point(prompts[:-1], args.tokens, concurrent)
        print(f"  {name}, {concurrent} at a time: {out['tokens_per_s']:.1f} tokens/s, first token p50 {out['ttft_p50_ms']:.0f} "
              f"p95 {out['ttft_p95_ms']:.0f} ms", file=sys.stderr)
        return out
    finally:
        s.stop()


def spread(values, form="{:.1f}"):
    return f"{form.format(statistics.median(values))} ({form.format(min(values))}-{form.format(max(values))})"


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def report(args, rounds, load):
    print(f"Machine: {cpu_name()}, {args.threads} threads, load before the start {load:.1f}. Command: `{' '.join(['bench/server_vs_llama.py', *sys.argv[1:]])}`\n")
    print("| at a time | darkbloom tok/s: median (min-max) | llama.cpp tok/s | ratio of each round | darkbloom first token p50, p95 ms | "
          "llama.cpp p50, p95 ms | ratio of p95 |")
    print("|---|---|---|---|---|---|---|")
    for c in args.concurrent:
        a, b = [r["darkbloom"][c] for r in rounds], [r["llama.cpp"][c] for r in rounds]

        def col(side, key):
            return [x[key] for x in side]
        print(f"| {c} | {spread(col(a, 'tokens_per_s'))} | {spread(col(b, 'tokens_per_s'))} | "
              f"{spread([x['tokens_per_s'] / y['tokens_per_s'] for x, y in zip(a, b)], '{:.2f}')} | "
              f"{spread(col(a, 'ttft_p50_ms'), '{:.0f}')}, {spread(col(a, 'ttft_p95_ms'), '{:.0f}')} | "
              f"{spread(col(b, 'ttft_p50_ms'), '{:.0f}')}, {spread(col(b, 'ttft_p95_ms'), '{:.0f}')} | "
              f"{spread([x['ttft_p95_ms'] / y['ttft_p95_ms'] for x, y in zip(a, b)], '{:.2f}')} |")
    short = {side: sum(r[side][c]["short"] for r in rounds for c in args.concurrent) for side in ("darkbloom", "llama.cpp")}
    first = rounds[0]["darkbloom"][args.concurrent[0]]
    print(f"\n{len(rounds)} rounds, {first['requests']} requests of {first['prompt_tokens'] // first['requests']} prompt tokens on average and "
          f"{args.tokens} output tokens. Answers that ended early: {short['darkbloom']} and {short['llama.cpp']}.")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--llama-server", type=pathlib.Path, required=True)
    p.add_argument("--darkbloom", type=pathlib.Path, default=ROOT / "build" / "darkbloom")
    p.add_argument("--model", required=True)
    p.add_argument("--concurrent", type=lambda s: [int(x) for x in s.split(",")], default=[1, 4, 16])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--requests", type=int, default=32, help="of each point")
    p.add_argument("--tokens", type=int, default=64, help="of each answer")
    p.add_argument("--words", type=lambda s: [int(x) for x in s.split(",")], default=[24, 96, 192], help="of a prompt, in turn")
    p.add_argument("--context", type=int, default=1024, help="of each request")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--surplus", type=float, default=2.0, help="candidates for each prompt that is needed")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--darkbloom-args", default="", help="more options of darkbloom start")
    p.add_argument("--llama-args", default="--no-webui", help="more options of llama-server")
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine's load is {load:.1f} before the start: what follows is not worth much", file=sys.stderr)
    prompts = asyncio.run(choose_prompts(args))
    rounds = []
    for i in range(args.rounds):
        order = ("darkbloom", "llama.cpp") if i % 2 == 0 else ("llama.cpp", "darkbloom")
        print(f"round {i + 1}", file=sys.stderr)
        points = {name: {} for name in order}
        for c in args.concurrent:
            for name in order:
                points[name][c] = asyncio.run(one_point(name, args, prompts, c))
        rounds.append(points)
    report(args, rounds, load)
    if args.json:
        args.json.write_text(json.dumps({"command": sys.argv, "machine": cpu_name(), "rounds": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
