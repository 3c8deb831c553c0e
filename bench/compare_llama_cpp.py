#!/usr/bin/env python3
"""Speed of darkbloom against llama.cpp's llama-bench: same GGUF, same threads, same machine, one run, alternating.

    bench/compare_llama_cpp.py --llama-bench PATH --model M.gguf [--model N.gguf] [--rounds 7] [--prompt 512] [--decode 128]

Each round runs one after the other (order flipped every round); the table holds medians, spreads and the median of the
per-round ratios. Prints Markdown on stdout. llama-bench is built by you, outside this repository.
"""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def ours(args, model: str) -> dict:
    cmd = [str(args.darkbloom), "benchmark", "--model", model, "--prompt-tokens", str(args.prompt), "--decode-tokens",
           str(args.decode), "--threads", str(args.threads), "--repeat", "1", "--json"]
    out = json.loads(subprocess.run(cmd, capture_output=True, text=True, check=True).stdout)
    return {"prefill": out["prefill_tps"], "decode": out["decode_tps"], "raw": out}


def theirs(args, model: str) -> dict:
    cmd = [str(args.llama_bench), "-m", model, "-t", str(args.threads), "-p", str(args.prompt), "-n", str(args.decode), "-r", "1",
           "-o", "json"]
    rows = json.loads(subprocess.run(cmd, capture_output=True, text=True, check=True).stdout)
    return {"prefill": next(r["avg_ts"] for r in rows if r["n_prompt"] and not r["n_gen"]),
            "decode": next(r["avg_ts"] for r in rows if r["n_gen"] and not r["n_prompt"])}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def cpu_name() -> str:
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--llama-bench", type=pathlib.Path, required=True)
    p.add_argument("--darkbloom", type=pathlib.Path, default=ROOT / "build" / "darkbloom")
    p.add_argument("--model", action="append", required=True)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--decode", type=int, default=128)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    print(f"Machine: {cpu_name()}, {args.threads} threads. Command: `{' '.join(['bench/compare_llama_cpp.py', *sys.argv[1:]])}`\n")
    print("| model | phase | darkbloom tok/s: median (min-max) | llama.cpp tok/s | ratio of each round: median (min-max) |")
    print("|---|---|---|---|---|")
    for model in args.model:
        a, b = [], []
        for i in range(args.rounds):
            for run in ((ours, a), (theirs, b)) if i % 2 == 0 else ((theirs, b), (ours, a)):
                run[1].append(run[0](args, model))
                print(f"{pathlib.Path(model).name}: round {i + 1}, {run[0].__name__}: {run[1][-1]['prefill']:.1f} / "
                      f"{run[1][-1]['decode']:.1f} tok/s", file=sys.stderr)
        for phase, n in (("prefill", args.prompt), ("decode", args.decode)):
            x, y = [r[phase] for r in a], [r[phase] for r in b]
            ratios = [u / v for u, v in zip(x, y)]
            print(f"| {pathlib.Path(model).name} | {phase} {n} | {spread(x)} | {spread(y)} | {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f}-{max(ratios):.2f}) |")
        raw = a[-1]["raw"]
        print(f"\n{pathlib.Path(model).name}: " + ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                                                            for k, v in raw.items() if not isinstance(v, (dict, list))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
