#!/usr/bin/env python3
"""What drafting gains: decode tokens per second with drafting over without, against how often drafts are right.

    bench/mtp_curve.py --model DIR --ids IDS.json --own --raw RAW.jsonl --svg CURVE.svg   # a trained model and a text's token ids
    bench/mtp_curve.py --model DIR --tokens 17 --rounds 2 --raw RAW.jsonl                  # random weights: forced acceptance only
    bench/mtp_curve.py --model DIR --read RAW.jsonl [--read MORE.jsonl]                    # the table again, nothing is run

build/mtp_curve does the runs: an engine that drafts and one that does not, in one process, in turn, the same greedy requests, the
same answers (it fails where one differs). At a forced rate each drafted token is the right one with that probability; --own adds
the head's own drafts. Depths 1, 2, 3 are fixed, "adaptive" may use 0 to 3.

Beside the measured ratio stands what bytes alone predict: a step at depth k reads the target once and head and output matrix k
times, and gives 1 + p + ... + p^k tokens. "At exactly that rate" is those tokens over the median cost of a step at that depth, since a short
run's drafts are right more or less often than asked for. Ratios are of one pair of runs; the table holds their medians and ranges, by the clock and by processor time
(which other programs on the machine disturb less). Prints Markdown.
"""
import argparse
import json
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ADAPTIVE = "adaptive"


def tensor_bytes(model: pathlib.Path) -> dict:
    """Bytes of the head and of the output matrix, from the headers."""
    sums = {"head": 0, "output": 0, "embedding": 0}
    for file in sorted(model.glob("*.safetensors")):
        with open(file, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for name, t in header.items():
            if name == "__metadata__":
                continue
            n = t["data_offsets"][1] - t["data_offsets"][0]
            if name.startswith("mtp."):
                sums["head"] += n
            elif "lm_head." in name:
                sums["output"] += n
            elif "embed_tokens." in name:
                sums["embedding"] += n
    sums["output"] = sums["output"] or sums["embedding"]
    return sums


def sizes(args) -> dict:
    info = json.loads(subprocess.run([args.darkbloom, "models", "info", args.model, "--json"], capture_output=True, text=True,
                                     check=True).stdout)
    return tensor_bytes(args.model) | {"target": info["read_bytes_per_token"]}


def run(args) -> list[dict]:
    rng, rows = random.Random(1), []
    ids = json.loads(args.ids.read_text()) if args.ids else None
    ids = ids["valid_ids"] if isinstance(ids, dict) else ids
    prompts = [[rng.randrange(1000, args.vocab) for _ in range(args.prompt)] if ids is None else ids[at:at + args.prompt]
               for at in (i * (len(ids or []) // args.prompts) for i in range(args.prompts))]
    for depth in [*args.depths, ADAPTIVE]:
        adaptive = depth == ADAPTIVE
        job = {"model": str(args.model), "depth": max(args.depths) if adaptive else depth, "fixed": not adaptive, "threads": args.threads,
               "context": args.prompt + max(args.tokens, args.adaptive_tokens) + 64, "tokens": args.adaptive_tokens if adaptive else args.tokens,
               "rounds": args.rounds, "settle": args.settle if adaptive else 0, "prompts": prompts,
               "rates": [None] * args.own + [r / 4 for r in range(5)]}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(job, f)
            f.flush()
            p = subprocess.run([args.mtp_curve, f.name], stdout=subprocess.PIPE, text=True)
        if p.returncode != 0:
            sys.exit(f"bench/mtp_curve.py: {args.mtp_curve} failed at depth {depth}")
        rows += [json.loads(line) | {"depth": depth} for line in p.stdout.splitlines()]
    if args.raw:
        args.raw.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return rows


def tokens_of(rates: list[float], depth: int) -> float:
    total, all_right = 1.0, 1.0
    for i in range(depth):
        all_right *= rates[min(i, len(rates) - 1)]
        total += all_right
    return total


def break_even(cost: float, depth: int) -> float:
    """The rate at which a step gives as many tokens as steps without drafts in the same time; over 1: never."""
    lo, hi = 0.0, 2.0
    for _ in range(50):
        mid = (lo + hi) / 2
        lo, hi = (mid, hi) if tokens_of([mid], depth) < cost else (lo, mid)
    return hi


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def measured(rows: list[dict], kind: str) -> list[float]:
    return [r[f"off{kind}_ns"] / r[f"on{kind}_ns"] for r in rows]


def step_cost(rows: list[dict]) -> list[float]:
    """Of a step that drafts over one that does not, in processor time. The first token comes with the prompt."""
    return [r["on_cpu_ns"] / (r["steps"] - 1) / (r["off_cpu_ns"] / r["tokens"]) for r in rows]


def acceptance(rows: list[dict], depth: int) -> list[float]:
    return [sum(r["accepted"][i] for r in rows) / max(1, sum(r["proposed"][i] for r in rows)) for i in range(depth)]


def table(rows: list[dict], size: dict) -> dict:
    """Prints; returns curves for the picture: name -> [(rate, ratio)]."""
    curves: dict = {}
    depths = sorted({r["depth"] for r in rows if r["depth"] != ADAPTIVE})
    costs = {d: statistics.median(step_cost([r for r in rows if r["depth"] == d])) for d in depths}
    rates = sorted({r["rate"] for r in rows}, key=lambda r: -1 if r is None else r)
    print("| drafts right | depth | tokens a step | on / off, clock | on / off, processor time | at exactly that rate | predicted by bytes | steps that drafted |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in rates:
        for depth in [*depths, ADAPTIVE]:
            some = [r for r in rows if r["rate"] == rate and r["depth"] == depth]
            if not some:
                continue
            own = acceptance(some, max(depths) if depth == ADAPTIVE else depth)
            by_bytes = {k: tokens_of(own if rate is None else [rate], k) / (1 + k * (size["head"] + size["output"]) / size["target"])
                        for k in ([0, *depths] if depth == ADAPTIVE else [depth])}
            name = "own: " + " / ".join(f"{p:.2f}" for p in own) if rate is None else f"{rate:.2f}"
            exact = "" if depth == ADAPTIVE else f"{tokens_of(own if rate is None else [rate], depth) / costs[depth]:.2f}"
            steps = sum(r["steps"] - 1 for r in some)
            print(f"| {name} | {depth} | {sum(r['tokens'] for r in some) / steps:.2f} | {spread(measured(some, ''))} "
                  f"| {spread(measured(some, '_cpu'))} | {exact} | {max(by_bytes.values()):.2f} | {100 * sum(r['drafting'] for r in some) / steps:.0f} % |")
            if rate is not None:
                curves.setdefault(f"{depth}", []).append((rate, statistics.median(measured(some, "_cpu"))))
    print("\n| depth | step with drafts / without: processor time | by bytes | drafts must be right: measured | by bytes |")
    print("|---|---|---|---|---|")
    for depth in depths:
        cost, by_bytes = costs[depth], 1 + depth * (size["head"] + size["output"]) / size["target"]
        ends = [f"{p:.2f}" if (p := break_even(c, depth)) <= 1 else "never pays" for c in (cost, by_bytes)]
        print(f"| {depth} | {spread(step_cost([r for r in rows if r['depth'] == depth]))} | {by_bytes:.2f} | {ends[0]} | {ends[1]} |")
        curves[f"{depth}, by bytes"] = [(i / 20, tokens_of([i / 20], depth) / by_bytes) for i in range(21)]
    return curves


def draw(curves: dict, file: pathlib.Path, title: str) -> None:
    w, h, left, top = 640, 400, 50, 40
    most = max(2.0, max(y for c in curves.values() for _, y in c)) * 1.05
    colours = {"1": "#1b6ca8", "2": "#2a8c4a", "3": "#b8651b", ADAPTIVE: "#111111"}

    def at(x, y):
        return f"{left + x * (w - left - 170):.1f},{top + (1 - y / most) * (h - top - 40):.1f}"

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
           f'<rect width="{w}" height="{h}" fill="#ffffff"/>', f'<text x="{left}" y="22" font-size="14">{title}</text>']
    for i in range(5):
        x, y = at(i / 4, 0).split(",")
        out.append(f'<text x="{x}" y="{float(y) + 18:.1f}" text-anchor="middle">{i / 4:.2f}</text>')
    for i in range(int(most / 0.5) + 1):
        (x, y), (x2, _) = at(0, i / 2).split(","), at(1, i / 2).split(",")
        out.append(f'<line x1="{x}" y1="{y}" x2="{x2}" y2="{y}" stroke="{"#888888" if i == 2 else "#dddddd"}"/>'
                   f'<text x="{float(x) - 6:.1f}" y="{float(y) + 4:.1f}" text-anchor="end">{i / 2:.1f}</text>')
    out.append(f'<text x="{left}" y="{h - 6}">how often a draft is right; up: tokens per second with drafting over without</text>')
    for n, (name, points) in enumerate(curves.items()):
        colour, dashes = colours.get(name.split(",")[0], "#555555"), ' stroke-dasharray="5 4"' if "bytes" in name else ""
        line = " ".join(at(x, y) for x, y in sorted(points))
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{3 if name == ADAPTIVE else 1.5}"{dashes}/>')
        y = top + 10 + 20 * n
        out.append(f'<line x1="{w - 160}" y1="{y}" x2="{w - 130}" y2="{y}" stroke="{colour}" stroke-width="{3 if name == ADAPTIVE else 1.5}"{dashes}/>'
                   f'<text x="{w - 124}" y="{y + 4}">{name if name == ADAPTIVE else "depth " + name}</text>')
    file.write_text("\n".join([*out, "</svg>"]) + "\n")


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--darkbloom", type=pathlib.Path, default=ROOT / "build" / "darkbloom")
    p.add_argument("--mtp-curve", type=pathlib.Path, default=ROOT / "build" / "mtp_curve")
    p.add_argument("--model", type=pathlib.Path, required=True)
    p.add_argument("--ids", type=pathlib.Path, help="JSON list of token ids, or an object whose valid_ids is one; without: random")
    p.add_argument("--vocab", type=int, default=4000, help="random ids are below")
    p.add_argument("--own", action="store_true", help="also the head's own drafts")
    p.add_argument("--depths", type=lambda s: [int(d) for d in s.split(",")], default=[1, 2, 3])
    p.add_argument("--prompts", type=int, default=2)
    p.add_argument("--prompt", type=int, default=32, help="tokens of each")
    p.add_argument("--tokens", type=int, default=129)
    p.add_argument("--adaptive-tokens", type=int, help="the same, for the adaptive depth")
    p.add_argument("--settle", type=int, default=256, help="tokens at each rate before the adaptive depth is measured")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--raw", type=pathlib.Path, help="keep the results of all pairs here")
    p.add_argument("--read", type=pathlib.Path, action="append", help="take such results instead of running")
    p.add_argument("--svg", type=pathlib.Path)
    args = p.parse_args()
    args.adaptive_tokens = args.adaptive_tokens or args.tokens
    rows = [json.loads(line) for f in args.read for line in f.read_text().splitlines()] if args.read else run(args)
    size = sizes(args)
    off = statistics.median(1e9 * r["tokens"] / r["off_ns"] for r in rows)
    print(f"{args.model.name}: target {size['target'] / 1e6:.1f} MB a token, head {size['head'] / 1e6:.1f} MB, output matrix "
          f"{size['output'] / 1e6:.1f} MB; without drafting {off:.1f} tokens/s by the clock (median); {len(rows)} pairs.\n")
    curves = table(rows, size)
    if args.svg:
        draw(curves, args.svg, f"{args.model.name}: what drafting gains")
    return 0


if __name__ == "__main__":
    sys.exit(main())
