"""Starts `darkbloom start --local` for a test and ends it."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build" / "darkbloom"))
TINY = ROOT / "tests/fixtures/tiny-chat"
ANSWER = (TINY / "answer.txt").read_text(encoding="utf-8")


class Server:
    def __init__(self, *args, model=TINY, env=None, key=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DARKBLOOM_")}
        clean["XDG_STATE_HOME"] = tempfile.gettempdir() + "/darkbloom-e2e-state"  # not the user's own
        clean["XDG_CONFIG_HOME"] = tempfile.gettempdir() + "/darkbloom-e2e-config"
        self.log = tempfile.NamedTemporaryFile(prefix="darkbloom-", suffix=".log", delete=False)
        self.process = subprocess.Popen([DARKBLOOM, "start", "--local", "--model", str(model), "--port", "0", *args],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env=clean | (env or {}))
        self.line = self.process.stdout.readline()
        m = re.match(r"listening on http://(\S+):(\d+)  model (\S+)  context (\d+)", self.line)
        assert m, f"start line {self.line!r}; log: {self.log_text()}"
        self.host, self.port, self.model, self.context = m[1], int(m[2]), m[3], int(m[4])
        self.url = f"http://{self.host}:{self.port}"
        self.key = key

    def log_text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def health(self):
        with urllib.request.urlopen(f"{self.url}/health", timeout=10) as r:
            return json.load(r)

    def wait_queue(self, within_s=5, **want):
        """Waits until /health's queue has these values; returns the seconds it took."""
        t0 = time.monotonic()
        while True:
            try:
                have = self.health()["queue"]
            except urllib.error.HTTPError as e:  # 503 while others close their connections
                have = dict.fromkeys(want, f"status {e.code}")
            if all(have[k] == v for k, v in want.items()):
                return time.monotonic() - t0
            assert time.monotonic() - t0 < within_s, f"queue is {have}, expected {want}"
            time.sleep(0.01)

    def memory_kib(self, what="VmRSS"):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+)", text)[1])

    def stop(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(timeout=40)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.stdout.close()
            self.log.close()
            self.last_log = self.log_text()
            os.unlink(self.log.name)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        code = self.stop()
        assert exc[0] is not None or code == 0, f"exit {code}: {self.last_log}"
