#!/usr/bin/env python3
"""Load on loopback: many concurrent streams against a darkbloom that this script starts itself.

N clients work for T seconds. Most read whole answers; some leave in the middle, some read slowly, some stop reading, some
send what is no request. What goes wrong on purpose is counted as intended; anything else fails the run:

  - a status, an event or an end of a stream that should not be; the same greedy request answered differently
  - resident memory, without the prefix cache and the memory of keys and values (which have budgets of their own), that grows by more
    than --max-rss-growth-mib after the warm-up (the first third of the time)
  - keys and values or requests that are still held at the end (--kv-end-bytes allows some)
  - two tokens of a stream further apart than --max-gap-ms (the client's own lateness in that time is taken off)
  - an error in the server's log, or an exit status that is not 0

Prints a JSON summary on standard output (and to --json). Python 3.11 or later, nothing else.
  tests/load/load.py --model MODEL --streams 64 --seconds 600 --max-gap-ms 2000 -- --threads 2
What follows -- goes to `darkbloom start`.
"""
import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = "the sea and a ship under stars went north with salt wind over grey water until morning came".split()


class Server:
    def __init__(self, args, extra):
        self.log = tempfile.NamedTemporaryFile(prefix="darkbloom-load-", suffix=".log", delete=False)
        command = [str(args.darkbloom), "start", "--local", "--model", args.model, "--port", "0"]
        if args.concurrent is not None:
            command += ["--max-concurrent", str(args.concurrent)]
        command += ["--max-queue", str(args.max_queue), "--max-connections", str(args.streams * 2 + 64),
                    "--write-timeout", str(args.write_timeout), *extra]
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        m = re.match(r"listening on http://(\S+):(\d+)  model (\S+)  context (\d+)", line)
        if not m:
            sys.exit(f"load: no start line but {line!r}; log: {self.log_text()[-2000:]}")
        self.host, self.port, self.model, self.context = m[1], int(m[2]), m[3], int(m[4])

    def log_text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def rss_mib(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "killed after 60 s"


class Run:
    def __init__(self, args, server):
        self.args, self.server = args, server
        self.deadline = time.monotonic() + args.seconds
        self.counts = collections.Counter()      # of actions and how they ended
        self.intended = collections.Counter()
        self.unintended = collections.Counter()
        self.examples = []                       # of what was not intended
        self.ttft, self.gaps_over = [], []
        self.max_gap = 0.0
        self.tokens = 0
        self.answers = {}                        # greedy request -> its text
        self.lags = collections.deque()          # (when, how late this client was)
        self.samples = []

    def bad(self, kind, detail=""):
        self.unintended[kind] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{kind}: {detail}"[:300])

    # ---- one connection ----

    async def connect(self, receive_bytes=0):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.setblocking(False)
        if receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(s, (self.server.host, self.server.port))
        return await asyncio.open_connection(sock=s, limit=1 << 22)

    def post(self, path, body, more=""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return (f"POST {path} HTTP/1.1\r\nHost: {self.server.host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
                f"{more}Content-Length: {len(data)}\r\n\r\n").encode() + data

    async def get(self, path):
        r, w = await self.connect()
        try:
            w.write(f"GET {path} HTTP/1.1\r\nHost: {self.server.host}\r\nConnection: close\r\n\r\n".encode())
            data = await asyncio.wait_for(r.read(), 30)
        finally:
            w.close()
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body

    async def head_of(self, r):
        head = await asyncio.wait_for(r.readuntil(b"\r\n\r\n"), self.args.patience)
        retry = re.search(rb"\r\nRetry-After: (\d+)", head, re.I)
        return int(head.split(b" ", 2)[1]), retry and int(retry[1])

    async def full(self, retry, body, rng):
        """A 429 is intended as long as it says when to come back."""
        if retry is None or b'"code":"queue_full"' not in body:
            self.bad("429 without Retry-After or code", body[:200])
        self.intended["429 queue_full"] += 1
        await asyncio.sleep(min(retry or 1, 2) * rng.uniform(0.2, 1.0))

    def request(self, rng, **more):
        n = rng.choice((1, 4, 12, 40, 120))
        q = {"model": self.server.model, "prompt": " ".join(rng.choices(WORDS, k=n)), "max_tokens": rng.randint(1, self.args.max_tokens)}
        if rng.random() < 0.5:  # few of these, so that they come again
            rng2 = random.Random(rng.randrange(24))
            q = {"model": self.server.model, "prompt": " ".join(rng2.choices(WORDS, k=rng2.choice((3, 20, 90)))), "max_tokens": 24,
                 "temperature": 0}
        else:
            q["seed"] = rng.randrange(1 << 30)
        return q | more

    async def events(self, r, t0, stop_after=None, pause=None, timed=True):
        """Reads the events of a stream that was asked for at t0; (text, tokens, done, left early)."""
        raw, n, last = bytearray(), 0, None
        while True:
            try:
                line = await asyncio.wait_for(r.readuntil(b"\r\n"), self.args.patience)
                size = int(line, 16)
                event = (await asyncio.wait_for(r.readexactly(size + 2), self.args.patience))[:-2]
            except asyncio.IncompleteReadError:
                return raw, n, False, False
            raw += event
            if size == 0:
                return raw, n, raw.endswith(b"data: [DONE]\n\n"), False
            if b'"finish_reason":null' in event:
                now = time.monotonic()
                n += 1
                if timed and n == 1:
                    self.ttft.append(now - t0)
                elif timed:
                    self.gap(last, now)
                last = now
                if n == stop_after:
                    return raw, n, False, True
            if pause:
                await asyncio.sleep(pause)

    def gap(self, before, now):
        gap = now - before
        if gap * 1000 > self.args.max_gap_ms / 2:
            gap -= sum(lag for t, lag in self.lags if before <= t <= now + 0.05)
        self.max_gap = max(self.max_gap, gap)
        if gap * 1000 > self.args.max_gap_ms:
            self.gaps_over.append(round(gap * 1000))

    def check_answer(self, q, text):
        if q.get("temperature") == 0:
            key = json.dumps(q, sort_keys=True)
            if self.answers.setdefault(key, text) != text:
                self.bad("another answer to the same request", f"{len(text)} and {len(self.answers[key])} characters")

    # ---- what clients do ----

    async def stream(self, rng, leave=False, slow=False):
        q = self.request(rng)
        stop_after = rng.randint(1, 12) if leave else None
        r, w = await self.connect(4096 if slow else 0)
        try:
            t0 = time.monotonic()
            w.write(self.post("/v1/completions", q | {"stream": True}))
            status, retry = await self.head_of(r)
            if status == 429:
                await self.full(retry, await r.read(), rng)
                return
            if status != 200:
                self.bad(f"status {status} for a stream", (await r.read())[:200])
                return
            raw, n, done, left = await self.events(r, t0, stop_after, rng.uniform(0.005, 0.1) if slow else None, not slow)
            self.tokens += n
            if left:
                self.intended["left in the middle"] += 1
            elif not done:
                self.bad("a stream without its end", bytes(raw[-200:]))
            else:
                text = "".join(json.loads(e[6:])["choices"][0]["text"] for e in raw.split(b"\n\n") if e.startswith(b"data: {"))
                self.check_answer(q, text)
                self.counts["slow streams" if slow else "streams"] += 1
        finally:
            w.close()

    async def whole(self, rng):
        q = self.request(rng)
        r, w = await self.connect()
        try:
            w.write(self.post("/v1/completions", q))
            if rng.random() < self.args.leave_share:
                await asyncio.sleep(rng.uniform(0, 0.05))
                self.intended["left before the answer"] += 1
                return
            status, retry = await self.head_of(r)
            body = await asyncio.wait_for(r.read(), self.args.patience)
            if status == 429:
                await self.full(retry, body, rng)
            elif status != 200:
                self.bad(f"status {status} for an answer", body[:200])
            else:
                answer = json.loads(body)
                self.tokens += answer["usage"]["completion_tokens"]
                self.check_answer(q, answer["choices"][0]["text"])
                self.counts["whole answers"] += 1
        finally:
            w.close()

    async def stall(self, rng):
        """Stops reading, and is dropped or leaves."""
        r, w = await self.connect(4096)
        try:
            w.write(self.post("/v1/completions", {"model": self.server.model, "prompt": WORDS[rng.randrange(len(WORDS))],
                                                  "max_tokens": 20000, "stream": True}))
            status, retry = await self.head_of(r)
            if status == 429:
                await self.full(retry, await r.read(), rng)
                return
            w.transport.pause_reading()
            await asyncio.sleep(rng.uniform(0.2, 1.0) * 1.5 * self.args.write_timeout)
            self.intended["stopped reading"] += 1
        finally:
            w.transport.abort()

    async def malformed(self, rng):
        m = self.server.model
        cases = [  # bytes, the statuses that are right
            (self.post("/v1/completions", b'{"model": '), {400}),
            (self.post("/v1/completions", b"\xff\xfe{}"), {400}),
            (self.post("/v1/completions", b"[" * 5000), {400}),
            (self.post("/v1/completions", {"model": m}), {400}),
            (self.post("/v1/completions", {"model": m, "prompt": "x", "temperature": 9}), {400}),
            (self.post("/v1/completions", {"model": m, "prompt": [10**9]}), {400}),
            (self.post("/v1/completions", {"model": m, "prompt": "x", "n": 2}), {400}),
            (self.post("/v1/completions", {"model": "other", "prompt": "x"}), {404}),
            (self.post("/v1/chat/completions", {"model": m, "messages": [{"role": "robot", "content": "x"}]}), {400}),
            (self.post("/v1/completions", {"model": m, "prompt": "z " * (self.server.context + 10)}), {400, 413}),
            (self.post("/v1/embeddings", {"model": m, "input": "x"}), {400}),
            (self.post("/v1/nothing", {}), {404}),
            (b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", {405}),
            (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", {411}),
            (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxxx", {400}),
            (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", {413}),
            (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", {400}),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20000 + b"\r\n\r\n", {431}),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)), {400}),
        ]
        data, right = rng.choice(cases)
        r, w = await self.connect()
        try:
            w.write(data)
            if rng.random() < 0.1:
                self.intended["left after a malformed request"] += 1
                return
            status, _ = await self.head_of(r)
            if status not in right:
                self.bad(f"status {status} instead of {sorted(right)}", data[:80])
            else:
                self.intended[f"{status} for a malformed request"] += 1
        finally:
            w.close()

    async def client(self, i):
        rng, a = random.Random(self.args.seed * 100003 + i), self.args
        while time.monotonic() < self.deadline:
            x = rng.random()
            try:
                if x < a.malformed_share:
                    await self.malformed(rng)
                elif x < a.malformed_share + a.stall_share:
                    await self.stall(rng)
                elif x < a.malformed_share + a.stall_share + a.slow_share:
                    await self.stream(rng, slow=True)
                elif x < a.malformed_share + a.stall_share + a.slow_share + 0.1:
                    await self.whole(rng)
                else:
                    await self.stream(rng, leave=rng.random() < a.leave_share)
            except (TimeoutError, asyncio.TimeoutError):
                self.bad("nothing heard within the patience", f"{a.patience} s")
            except (OSError, EOFError, ValueError, KeyError) as e:
                self.bad(type(e).__name__, str(e))

    # ---- what is watched ----

    async def watch_self(self):
        while True:
            t = time.monotonic()
            await asyncio.sleep(0.02)
            now = time.monotonic()
            if now - t > 0.04:
                self.lags.append((now, now - t - 0.02))
            while self.lags and self.lags[0][0] < now - 60:
                self.lags.popleft()

    async def metrics(self):
        status, body = await self.get("/metrics")
        if status != 200:
            self.bad(f"status {status} for /metrics")
            return {}
        return {k: float(v) for k, v in re.findall(r"^darkbloom_(\S+) (\S+)$", body.decode(), re.M)}

    async def watch_server(self, t0):
        while True:
            try:
                m = await self.metrics()
                rss, budgeted = self.server.rss_mib(), m.get("prefix_cache_bytes_in_use", 0) + m.get("kv_bytes_committed", 0)
                self.samples.append({"s": round(time.monotonic() - t0, 1), "rss_mib": round(rss, 1),
                                     "other_mib": round(rss - budgeted / 2**20, 1),
                                     **{k: m.get(k) for k in ("requests_running", "requests_waiting", "kv_bytes_in_use",
                                                              "prefix_cache_bytes_in_use", "kv_bytes_committed", "connections", "output_tokens_total")}})
            except (OSError, TimeoutError, asyncio.TimeoutError) as e:
                self.bad("the server could not be watched", str(e))
            await asyncio.sleep(self.args.sample_s)

    async def until_idle(self):
        """The last numbers once nothing runs any more, or after 30 s."""
        for _ in range(300):
            m = await self.metrics()
            if m.get("requests_running") == 0 and m.get("requests_waiting") == 0 and m.get("connections") == 1:
                break
            await asyncio.sleep(0.1)
        return m

    async def main(self):
        t0 = time.monotonic()
        watchers = [asyncio.create_task(self.watch_self()), asyncio.create_task(self.watch_server(t0))]
        await asyncio.gather(*[self.client(i) for i in range(self.args.streams)])
        for w in watchers:
            w.cancel()
        self.took = time.monotonic() - t0
        return await self.until_idle()


def percentile(values, p):
    s = sorted(values)
    return round(1000 * s[min(len(s) - 1, int(p / 100 * len(s)))], 1) if s else None


def rss_growth(samples, seconds):
    """Largest value of the last quarter over the largest between the first third and 60 %."""
    early = [x["other_mib"] for x in samples if seconds / 3 <= x["s"] <= seconds * 0.6]
    late = [x["other_mib"] for x in samples if x["s"] >= seconds * 0.75]
    return round(max(late) - max(early), 1) if early and late else None


def judge(run, last, code, log):
    a, why = run.args, []
    growth = rss_growth(run.samples, a.seconds)
    if run.unintended:
        why.append(f"unintended errors: {dict(run.unintended)}")
    if growth is None or growth > a.max_rss_growth_mib:
        why.append(f"resident memory grew by {growth} MiB after the warm-up, {a.max_rss_growth_mib} are allowed")
    for key, allowed in (("kv_bytes_in_use", a.kv_end_bytes), ("requests_running", 0), ("requests_waiting", 0),
                         ("requests_preparing", 0), ("connections", 1)):
        if last.get(key) is None or last[key] > allowed:
            why.append(f"{key} is {last.get(key)} at the end, {allowed} is allowed")
    if run.gaps_over:
        why.append(f"{len(run.gaps_over)} gaps between tokens above {a.max_gap_ms} ms, the largest {max(run.gaps_over)}")
    if code != 0:
        why.append(f"the server's exit status is {code}")
    errors = [line for line in log.splitlines() if re.search(r" error |ERROR|Sanitizer|runtime error", line)]
    if errors:
        why.append(f"{len(errors)} errors in the server's log, the first: {errors[0][:200]}")
    if run.counts["streams"] == 0:
        why.append("no stream was read to its end")
    return why, growth


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="What follows -- goes to darkbloom start.")
    p.add_argument("--model", required=True)
    p.add_argument("--darkbloom", type=pathlib.Path, default=ROOT / "build" / "darkbloom")
    p.add_argument("--streams", type=int, default=64, help="clients at one time")
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--concurrent", type=int, help="given to the server; without it the server's default")
    p.add_argument("--max-queue", type=int, default=64)
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--write-timeout", type=int, default=3, help="given to the server, seconds")
    p.add_argument("--leave-share", type=float, default=0.15)
    p.add_argument("--slow-share", type=float, default=0.05)
    p.add_argument("--stall-share", type=float, default=0.02)
    p.add_argument("--malformed-share", type=float, default=0.10)
    p.add_argument("--patience", type=float, default=120, help="seconds without a byte that are an error")
    p.add_argument("--max-gap-ms", type=float, default=2000)
    p.add_argument("--max-rss-growth-mib", type=float, default=16)
    p.add_argument("--kv-end-bytes", type=float, default=0)
    p.add_argument("--sample-s", type=float, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=pathlib.Path, help="the summary with all samples goes there too")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    return p.parse_args(sys.argv[1:at]), sys.argv[at + 1:]


def main():
    args, extra = options()
    server = Server(args, extra)
    run = Run(args, server)
    try:
        last = asyncio.run(run.main())
    finally:
        code = server.stop()
    log = server.log_text()
    os.unlink(server.log.name)
    why, growth = judge(run, last, code, log)
    summary = {
        "command": server.command, "streams": args.streams, "seconds": round(run.took, 1), "seed": args.seed,
        "completed": dict(run.counts), "intended": dict(run.intended), "unintended": dict(run.unintended), "examples": run.examples,
        "tokens": run.tokens, "tokens_per_s": round(run.tokens / run.took, 1), "different_greedy_requests": len(run.answers),
        "ttft_ms": {f"p{p}": percentile(run.ttft, p) for p in (50, 95, 99)}, "max_gap_ms": round(run.max_gap * 1000, 1),
        "client_max_lag_ms": round(1000 * max((lag for _, lag in run.lags), default=0), 1),
        "rss_mib": {"first": run.samples[0]["rss_mib"], "max": max(x["rss_mib"] for x in run.samples),
                    "other_max": max(x["other_mib"] for x in run.samples), "other_growth_after_warm_up": growth},
        "kv_bytes_at_end": last.get("kv_bytes_in_use"), "slow_readers_dropped": last.get("slow_readers_dropped_total"),
        "preemptions": last.get("preemptions_total"), "failed": why,
    }
    if args.json:
        args.json.write_text(json.dumps(summary | {"samples": run.samples, "last_metrics": last}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
