"""Requests that mean harm or come from broken programs, byte by byte over raw sockets. After each the server still answers."""
import concurrent.futures
import json
import os
import random
import socket
import struct
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from local_server import ANSWER, Server  # noqa: E402

HOST = b"Host: localhost\r\n"
CHAT = json.dumps({"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}).encode()


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


@pytest.fixture(autouse=True)
def still_alive(server):
    yield
    assert server.process.poll() is None
    server.wait_queue(running=0, waiting=0, preparing=0, within_s=20)
    assert ask(server, post(CHAT))[2]["choices"][0]["message"]["content"] == ANSWER


def dial(s, timeout=60):
    return socket.create_connection((s.host, s.port), timeout=timeout)


def post(body, headers=b"", path=b"/v1/chat/completions"):
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def answer(sock):
    """(status, headers, JSON or bytes) of one response."""
    f = sock.makefile("rb")
    line = f.readline()
    assert line.startswith(b"HTTP/1.1 "), line
    headers = {}
    while (h := f.readline()) not in (b"\r\n", b""):
        k, v = h.decode().split(":", 1)
        headers[k.lower()] = v.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while n := int(f.readline(), 16):
            body += f.read(n)
            f.readline()
        f.readline()
    else:
        body = f.read(int(headers["content-length"])) if "content-length" in headers else b""
    kind = headers.get("content-type", "")
    return int(line.split()[1]), headers, json.loads(body) if kind == "application/json" else body


def ask(s, data):
    with dial(s) as c:
        c.sendall(data)
        return answer(c)


def refused(s, data, status, code=None):
    t0 = time.monotonic()
    got, headers, body = ask(s, data)
    assert got == status, (got, body)
    assert set(body["error"]) == {"message", "type", "param", "code"} and headers["x-request-id"]
    assert code is None or body["error"]["code"] == code, body
    assert time.monotonic() - t0 < 5
    return body["error"]["message"]


def test_every_split_of_a_request(server):
    data = post(CHAT, b"Content-Type: application/json\r\n")
    with dial(server) as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(data)):
            c.sendall(data[:cut])
            time.sleep(0.001)
            c.sendall(data[cut:])
            status, _, body = answer(c)
            assert status == 200 and body["choices"][0]["message"]["content"] == ANSWER, cut
        for b in data:
            c.sendall(bytes([b]))
        assert answer(c)[0] == 200


@pytest.mark.parametrize("data, status", [
    (b"GET / HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET / HTTP/1.1\n" + b"Host: localhost\n\n", 400),
    (b"GET / HTTP/3.0\r\n" + HOST + b"\r\n", 505),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET / HTTP/1.1\r\n" + HOST + b" folded: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + HOST + b"A\x00B: x\r\n\r\n", 400),
    (b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    (b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    (b"GET /../../etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"\x00" * 100, 400),
    (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 20000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"h%d: v\r\n" % i for i in range(200)) + b"\r\n", 431),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\nGET /health HTTP/1.1\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 18446744073709551617\r\n\r\na", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n7fffffff\r\n", 413),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"\r\n", 411),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Expect: 200-ok\r\nContent-Length: 5\r\n\r\n", 417),
    (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
    (b"DELETE /v1/models/tiny-chat HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    (b"WHATEVER /health HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    (post(CHAT, b"Origin: https://evil.example\r\n"), 403),
])
def test_broken_heads(server, data, status):
    refused(server, data, status)


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"\x00", b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000 + b"1" + b"}" * 3000, CHAT + b"x", CHAT[:-1],
    b'{"model":"tiny-chat","messages":[{"role":"user","content":"a\x00b"}]}',
    b'{"model":"tiny-chat","messages":[{"role":"user","content":"a\\u0000b"}]}',
    b'{"model":"tiny-chat","messages":[{"role":"user","content":"\xff\xfe"}]}',
    b'{"model":"tiny-chat","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    b'{"model":"tiny-chat","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"tiny-chat","model":"tiny-chat","messages":[]}',
    b'{"model":"tiny-chat","seed":' + b"9" * 5000 + b"}",
    b"\xef\xbb\xbf" + CHAT,
], ids=lambda b: repr(b[:24]))
def test_bodies_that_are_no_request(server, body):
    message = refused(server, post(body), 400)
    assert len(message) < 512


def test_slow_heads_and_bodies(server):
    for start in (b"GET / HT", b"GET /health HTTP/1.1\r\nHost: localh"):
        with dial(server) as c:
            t0 = time.monotonic()
            c.sendall(start)
            c.setblocking(False)
            while time.monotonic() - t0 < 15:
                try:
                    if c.recv(1, socket.MSG_PEEK):
                        break
                except BlockingIOError:
                    c.sendall(b"o")
                    time.sleep(0.5)
            c.setblocking(True)
            status, _, body = answer(c)
            assert status == 408 and body["error"]["code"] == "timeout" and 8 < time.monotonic() - t0 < 12


def test_a_body_of_100_megabytes(server):
    before = server.memory_kib("VmHWM")
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n"
    assert "16777216" in refused(server, head + b"\r\n", 413, "body_too_large")
    refused(server, head + b"Expect: 100-continue\r\n\r\n", 413, "body_too_large")
    for framing in (head + b"\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"):
        chunked = b"chunked" in framing
        block = b"a" * 1000000
        with dial(server) as c:
            t0 = time.monotonic()
            c.sendall(framing)
            try:
                for _ in range(100):
                    c.sendall(b"%x\r\n" % len(block) + block + b"\r\n" if chunked else block)
            except (BrokenPipeError, ConnectionResetError):
                pytest.fail("the answer is lost when the connection is reset while the client writes")
            status, headers, _ = answer(c)
            assert status == 413 and headers["connection"] == "close" and time.monotonic() - t0 < 10
            assert c.recv(1) == b""
    assert server.memory_kib("VmHWM") - before < 100_000


def test_a_word_of_a_million_characters(server):
    """Longer than the context: refused with both numbers, while others are served."""
    body = json.dumps({"model": "tiny-chat", "messages": [{"role": "user", "content": "a" * 1_000_000}]}).encode()
    with dial(server) as c:
        c.sendall(post(body))
        slowest = 0
        for _ in range(10):
            t0 = time.monotonic()
            assert server.health()["status"] == "ok"
            slowest = max(slowest, time.monotonic() - t0)
        status, _, answer_body = answer(c)
    assert slowest < 0.5
    assert status == 400 and answer_body["error"]["code"] == "context_length_exceeded"
    assert "32768" in answer_body["error"]["message"] and "10000" in answer_body["error"]["message"]


@pytest.mark.parametrize("reset", [False, True])
def test_leaving_at_every_point(server, reset):
    data = post(json.dumps({"model": "tiny-chat", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode())
    for cut in [*range(0, len(data), 7), len(data)]:
        c = dial(server)
        c.sendall(data[:cut])
        if reset:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    for n in (1, 20, 200, 500):  # in the middle of the answer
        c = dial(server)
        c.sendall(data)
        c.recv(n)
        c.close()


def test_half_a_goodbye(server):
    """A client that closes its sending side is taken as gone; what it sent before is not run for nobody."""
    with dial(server) as c:
        c.sendall(post(CHAT))
        c.shutdown(socket.SHUT_WR)
        c.settimeout(5)
        while c.recv(65536):
            pass


def test_pipelined_requests(server):
    get = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
    with dial(server) as c:
        c.sendall((post(CHAT) + get) * 10)
        for _ in range(10):
            status, _, body = answer_of(c, "choices")
            assert status == 200 and body["choices"][0]["message"]["content"] == ANSWER
            assert answer_of(c, "status")[2]["status"] == "ok"
    with dial(server) as c:  # far more than is buffered
        flood = get * 5000
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sent = pool.submit(c.sendall, flood)
            f = c.makefile("rb")
            n = 0
            while n < 5000:
                line = f.readline()
                assert line
                n += line.count(b"HTTP/1.1 200")  # a body has no newline at its end
            sent.result()


def answer_of(sock, key):
    """Like answer, but reads no byte beyond the response."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    n = int([h for h in head.decode().split("\r\n") if h.lower().startswith("content-length:")][0].split(":")[1])
    body = b""
    while len(body) < n:
        body += sock.recv(n - len(body))
    parsed = json.loads(body)
    assert key in parsed
    return int(head.split()[1]), head, parsed


def test_200_connections(server):
    idle = [dial(server) for _ in range(100)]
    half = [dial(server) for _ in range(100)]
    for i, c in enumerate(half):
        c.sendall(post(CHAT)[: 10 + i])
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        got = list(pool.map(lambda _: ask(server, b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n")[0], range(200)))
    assert got == [200] * 200
    for i, c in enumerate(half):
        c.sendall(post(CHAT)[10 + i :])
    statuses = [answer(c)[0] for c in half]
    assert set(statuses) <= {200, 429} and statuses.count(200) >= 32  # 32 wait, the others are refused
    for c in idle + half:
        c.close()


def test_more_connections_than_allowed():
    with Server("--max-connections", "50") as s:
        held = [dial(s) for _ in range(50)]
        time.sleep(0.2)
        for _ in range(3):
            with dial(s) as c:
                status, headers, body = answer(c)
                assert status == 503 and body["error"]["code"] == "overloaded" and headers["retry-after"]
        crowd = [dial(s) for _ in range(300)]
        for c in crowd + held:
            c.close()
        s.wait_queue(running=0)
        assert ask(s, post(CHAT))[0] == 200


def test_a_reader_that_does_not_read(server):
    """It holds neither the engine nor memory; another client's answer comes meanwhile."""
    before = server.memory_kib()
    body = json.dumps({"model": "tiny-chat", "prompt": "x", "max_tokens": 3000, "stream": True, "logprobs": 5, "temperature": 0}).encode()
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.connect((server.host, server.port))
        c.sendall(post(body, path=b"/v1/completions"))
        server.wait_queue(running=1)
        assert ask(server, post(CHAT))[0] == 200  # queued behind it, and served although nobody reads the first answer
        assert server.memory_kib() - before < 40_000
        got = b""
        c.settimeout(60)
        while b"data: [DONE]" not in got[-100:]:  # when it reads at last, all is there
            part = c.recv(1 << 20)
            assert part
            got += part
        assert got.count(b'"finish_reason":"length"') == 1


def test_mutated_requests(server):
    """Valid requests with bytes changed, dropped, doubled and cut at random: an answer that is HTTP, or a close; never silence."""
    seed = int(os.environ.get("BL_SEED", "20260"))
    print(f"BL_SEED={seed}")
    rng = random.Random(seed)
    sources = [post(CHAT, b"Content-Type: application/json\r\n"), b"GET /v1/models/tiny-chat HTTP/1.1\r\n" + HOST + b"Accept: */*\r\n\r\n",
               post(json.dumps({"model": "tiny-chat", "prompt": [72, 105], "max_tokens": 4, "stream": True, "logprobs": 2}).encode(),
                    path=b"/v1/completions"),
               b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
               b"10\r\n{\"model\":\"tiny-c\r\n16\r\nhat\",\"prompt\":\"abcdef\"\r\n1\r\n}\r\n0\r\n\r\n"]
    interesting = [b"\r\n", b"\x00", b"\xff", b"{", b"[", b'"', b":", b"-1", b"99999999999999999999", b" ", b"\n", b"chunked", b"Content-Length: 3\r\n"]
    for _ in range(int(os.environ.get("BL_MUTATIONS", "400"))):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randint(1, 20)]
            elif kind == 2:
                data[at:at] = rng.choice(interesting)
            else:
                data[at:at] = data[at : at + rng.randint(1, 40)]
        with dial(server) as c:
            c.sendall(bytes(data))
            c.shutdown(socket.SHUT_WR)  # so that an incomplete request ends now and not at its deadline
            got = b""
            try:
                while part := c.recv(65536):
                    got += part
            except ConnectionResetError:
                pass
            assert got == b"" or got.startswith(b"HTTP/1.1 "), bytes(data)
