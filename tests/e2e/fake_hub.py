"""A server that behaves like the Hugging Face hub, and misbehaves on demand.

Two origins, as in life: the hub (API and /resolve, redirecting large files) and the CDN behind it (entity tags, ranges).
Every request is recorded. Faults are counters per file name: each matching request uses one up.
"""
import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class FakeHub:
    def __init__(self):
        self.repos = {}  # "org/repo" -> {name: bytes}
        self.lfs_from = 1000  # bytes from which a file lives on the CDN
        self.token = None  # bearer token the repositories need
        self.commit = "0123456789abcdef0123456789abcdef01234567"
        self.requests = []  # dicts: origin, path, range, if_range, auth, status
        self.cut = {}  # name -> [bytes to send before the connection breaks, ...]; one entry per answer
        self.serve = {}  # name -> bytes to send instead of the promised ones
        self.status = {}  # name or "api" -> [status, ...] answers before the real one
        self.listing = None  # raw bytes of the API's answer instead of the real one
        self.etag_salt = ""
        self.no_length = False  # answer without Content-Length, closing at the end
        self.chunk_pause = None  # threading.Event-like wait called between pieces
        self.hub = self._start("hub")
        self.cdn = self._start("cdn")
        self.url = f"http://127.0.0.1:{self.hub.server_address[1]}"

    def _start(self, origin):
        fake = self

        class Handler(_Handler):
            pass

        Handler.fake, Handler.origin = fake, origin
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def stop(self):
        for s in (self.hub, self.cdn):
            s.shutdown()
            s.server_close()

    def seen(self, origin=None, name=None):
        return [r for r in self.requests if origin in (None, r["origin"]) and (name is None or name in r["path"])]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake = None
    origin = ""

    def log_message(self, *args):
        pass

    def do_GET(self):
        f = self.fake
        path, _, query = self.path.partition("?")
        self.record = {"origin": self.origin, "path": urllib.parse.unquote(path), "query": query, "range": self.headers.get("Range"),
                       "if_range": self.headers.get("If-Range"), "auth": self.headers.get("Authorization"), "status": None}
        f.requests.append(self.record)
        parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/")]
        if self.origin == "cdn":
            repo, name = "/".join(parts[:2]), "/".join(parts[2:])
            return self.body(name, f.repos[repo][name])
        if f.token and self.headers.get("Authorization") != f"Bearer {f.token}":
            return self.plain(401, b"Access to this model is restricted")
        if parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "revision":
            return self.api("/".join(parts[2:4]), parts[5])
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.plain(404, b"no such page")

    def api(self, repo, revision):
        f = self.fake
        if f.status.get("api"):
            return self.plain(f.status["api"].pop(0), b"busy")
        if f.listing is not None:
            return self.plain(200, f.listing)
        if repo not in f.repos or revision not in ("main", "v1", f.commit):
            return self.plain(404, b'{"error":"Repository not found"}')
        siblings = []
        for name, data in f.repos[repo].items():
            s = {"rfilename": name, "size": len(data), "blobId": git_blob(data)}
            if len(data) >= f.lfs_from:
                s["blobId"] = git_blob(b"pointer of " + name.encode())
                s["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(s)
        return self.plain(200, json.dumps({"id": repo, "sha": f.commit, "siblings": siblings}).encode())

    def resolve(self, repo, revision, name):
        f = self.fake
        if repo not in f.repos or name not in f.repos[repo] or revision != f.commit:
            return self.plain(404, b"Entry not found")
        data = f.repos[repo][name]
        if len(data) < f.lfs_from:
            return self.body(name, data)
        location = f"http://127.0.0.1:{f.cdn.server_address[1]}/{urllib.parse.quote(repo)}/{urllib.parse.quote(name)}?signature=abc"
        self.send_response(302)
        self.record["status"] = 302
        self.send_header("Location", location)
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Content-Length", "9")
        self.end_headers()
        self.wfile.write(b"elsewhere")

    def plain(self, status, data):
        self.record["status"] = status
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self, name, promised):
        f = self.fake
        if f.status.get(name):
            return self.plain(f.status[name].pop(0), b"busy")
        data = f.serve.get(name, promised)
        etag = '"%s"' % hashlib.md5(data + f.etag_salt.encode()).hexdigest()
        start = 0
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range") in (None, etag):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            if start >= len(data):
                return self.plain(416, b"")
        self.record["status"] = 206 if start else 200
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", etag)
        if f.no_length:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        out = data[start:]
        cuts = f.cut.get(name)
        if cuts:
            out = out[:cuts.pop(0)]
            self.close_connection = True
        try:
            for i in range(0, len(out), 4096):
                self.wfile.write(out[i:i + 4096])
                self.wfile.flush()
                if f.chunk_pause:
                    f.chunk_pause(name, i)
        except OSError:
            self.close_connection = True
