"""The terminal program, run as a person runs it: commands, options, exit codes, streams, a pseudo-terminal for chat."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pexpect
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import tiny_model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DARKBLOOM = os.environ.get("DARKBLOOM", str(ROOT / "build" / "darkbloom"))


def all_commands():
    """Whatever --help lists, and the subcommands."""
    text = subprocess.run([DARKBLOOM, "--help"], capture_output=True, text=True).stdout
    listed = re.findall(r"^  ([a-z]+) {2,}\S", text, re.M)
    subs = {"models": ("list", "info", "pull", "path"), "config": ("show", "get", "set", "explain"), "beta": ("list", "status", "enable", "disable")}
    return [*listed, *(f"{c} {s}" for c, names in subs.items() for s in names)]


COMMANDS = all_commands()
GEMMA = pathlib.Path(os.environ.get("DARKBLOOM_TEST_GEMMA", "/tmp/models/gemma-3-270m-q4_k_m.gguf"))
SMOLLM2 = pathlib.Path(os.environ.get("DARKBLOOM_TEST_SMOLLM2", "/tmp/models/SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    tiny_model.make(home / ".cache/darkbloom/models/acme--tiny")
    tiny_model.make(home / ".cache/darkbloom/models/acme--base", template=False)
    return home


@pytest.fixture(scope="module")
def env(home):
    drop = ("HF_", "DARKBLOOM_", "XDG_", "NO_COLOR")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop)} | {"HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="module")
def cli(env):
    def run(*args, stdin=b"", timeout=120, **extra):
        if isinstance(stdin, str):
            stdin = stdin.encode()
        r = subprocess.run([DARKBLOOM, *map(str, args)], input=stdin, capture_output=True, timeout=timeout, env=env | extra)
        r.out, r.err = r.stdout.decode(errors="surrogateescape"), r.stderr.decode(errors="surrogateescape")
        return r

    return run


def fails(r, code, *texts):
    """One line on standard error, nothing on standard output."""
    assert r.returncode == code, r.err
    assert r.out == ""
    lines = r.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("darkbloom: "), r.err
    for t in texts:
        assert t in lines[0], r.err


# ---- the frame ---------------------------------------------------------------------------------------------------------------------


def test_version_and_help(cli):
    r = cli("--version")
    assert r.returncode == 0 and re.fullmatch(r"darkbloom \d+\.\d+\.\d+\n", r.out)
    r = cli("--help")
    assert r.returncode == 0
    assert {"run", "chat", "tokenize", "models", "benchmark", "completion"} <= set(COMMANDS)
    assert cli().returncode == 2 and cli().out == ""
    assert cli("help", "run").out == cli("run", "--help").out == cli("run", "-h").out
    assert cli("help", "models", "pull").out == cli("models", "pull", "--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_completion_know_the_same_options(cli, command):
    text = cli(*command.split(), "--help").out
    assert text.startswith(f"Usage: darkbloom {command} ")
    in_help = set(re.findall(r"^  (?:-\w, |    )(--[a-z0-9-]+)", text, re.M))
    script = cli("completion", "bash").out
    arm = script.split(f"    '{command}')\n", 1)[1].split("esac ;;", 1)[0]
    in_completion = set(re.search(r"-\*\) _darkbloom_words '([^']*)'", arm)[1].split()) - {"--help"}
    assert in_help == in_completion
    assert all(len(line) <= 100 for line in text.splitlines())


def test_completion_works_in_bash(cli, env):
    def complete(*words):
        script = f"""source <('{DARKBLOOM}' completion bash)
COMP_WORDS=('{DARKBLOOM}' {' '.join(f"'{w}'" for w in words)}); COMP_CWORD={len(words)}; _darkbloom; printf '%s\\n' "${{COMPREPLY[@]}}" """
        return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, cwd="/").stdout.split()

    assert "tokenize" in complete("to")
    assert complete("run", "--temp") == ["--temperature"]
    assert complete("run", "--activations", "") == ["int8", "f32"]
    assert complete("models", "pu") == ["pull"]
    assert complete("models", "pull", "--fi") == ["--file"]
    assert complete("run", "--model", "acme/t") == ["acme/tiny"]
    assert "/tmp" in complete("run", "--prompt-file", "/tm")


def test_wrong_usage_is_two_and_one_line(cli):
    fails(cli("rn"), 2, "unknown command 'rn', did you mean 'run'?")
    fails(cli("--frobnicate"), 2, "unknown option '--frobnicate'")
    fails(cli("run", "--modle", "x"), 2, "did you mean '--model'?")
    fails(cli("run", "--prompt", "x"), 2, "no model given")
    fails(cli("run", "-m", "acme/tiny"), 2, "0 prompts given")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", "--tokens", "1"), 2, "2 prompts given")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", "--raw", "--chat"), 2, "--raw")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", "--max-tokens", "0"), 2, "--max-tokens is 0, allowed: 1 to")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", "--top-p", "1.5"), 2, "--top-p is 1.5, allowed: 0 to 1")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", DARKBLOOM_THREADS="many"), 2, "DARKBLOOM_THREADS is 'many'")
    fails(cli("models", "lst"), 2, "did you mean 'list'?")
    fails(cli("completion", "tcsh"), 2, "allowed: bash")
    fails(cli("tokenize"), 2, "no tokenizer given")


def test_failures_are_one_and_one_line(cli, tmp_path):
    fails(cli("run", "-m", "acme/tni", "-p", "x"), 1, "no model 'acme/tni' here, did you mean 'acme/tiny'?")
    fails(cli("run", "-m", "/nowhere", "-p", "x"), 1, "no file or folder '/nowhere'")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    fails(cli("run", "-m", bad, "-p", "x"), 1, "bad.gguf")
    fails(cli("models", "info", bad), 1, "bad.gguf")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", "--cpu-mask", "mmx"), 1, "mmx")
    fails(cli("run", "-m", "acme/tiny", "--tokens", "1,9999"), 1, "vocabulary of 512")
    fails(cli("run", "-m", "acme/tiny", "--tokens", "1,x"), 1, "a token id is 'x'")
    fails(cli("run", "-m", "acme/tiny", "-p", "x" * 200, "--context", "100"), 1, "100")
    fails(cli("run", "-m", "acme/tiny", "--prompt", "-", stdin=b"\xff\xfe"), 1, "not valid UTF-8")
    fails(cli("run", "-m", "acme/tiny", "-p", "x", "--max-memory", "1000"), 1, "0 MiB are allowed")


# ---- run ---------------------------------------------------------------------------------------------------------------------------


def run_json(cli, *args, **kw):
    r = cli("run", *args, "--json", **kw)
    assert r.returncode == 0, r.err
    assert r.out.count("\n") == 1
    return json.loads(r.out)


def test_json_is_one_object_with_everything(cli):
    j = run_json(cli, "-m", "acme/tiny", "--tokens", "1,5,9", "--max-tokens", "6", "--temperature", "0", "--logit-hash", "--logprobs", "3")
    assert len(j["tokens"]) == 6 and all(0 <= t < 512 for t in j["tokens"])
    assert j["finish_reason"] == "length" and j["stop_token"] is None and j["prompt_tokens"] == 3
    assert re.fullmatch(r"[0-9a-f]{16}", j["logit_hash"])
    t = j["timings"]
    assert t["prompt_tokens"] == 3 and t["output_tokens"] == 6
    assert all(t[k] >= 0 for k in ("load_ms", "ttft_ms", "prefill_ms", "prefill_tps", "decode_ms", "decode_tps"))
    assert [x["id"] for x in j["logprobs"]] == j["tokens"]
    for x in j["logprobs"]:
        assert x["top"][0] == {"id": x["id"], "logprob": x["logprob"]} and len(x["top"]) == 3
        assert x["top"][0]["logprob"] >= x["top"][1]["logprob"] >= x["top"][2]["logprob"]


def test_the_same_answer_however_it_is_computed(cli):
    prompt = ["-m", "acme/tiny", "--tokens", ",".join(str(3 + i % 200) for i in range(150)), "-n", "12", "--temperature", "2", "--seed", "7", "--logit-hash"]
    seen = {json.dumps([j["tokens"], j["logit_hash"]]) for j in (
        run_json(cli, *prompt), run_json(cli, *prompt, "--threads", "1"), run_json(cli, *prompt, "--chunk", "7"),
        run_json(cli, *prompt, "--chunk", "1", "--cpu-mask", "scalar"))}
    assert len(seen) == 1
    other = run_json(cli, *prompt[:-3], "--seed", "8")
    assert other["tokens"] != json.loads(seen.pop())[0] and other["seed"] == 8


def test_sources_of_the_prompt_are_the_same(cli, tmp_path):
    f = tmp_path / "prompt.txt"
    f.write_text("Grüße, 世界\n")
    common = ["-m", "acme/tiny", "-n", "4", "--temperature", "0"]
    answers = [run_json(cli, *common, "--prompt", f.read_text()), run_json(cli, *common, "--prompt-file", f),
               run_json(cli, *common, "--prompt-file", "-", stdin=f.read_text()), run_json(cli, *common, "--prompt", "-", stdin=f.read_text()),
               run_json(cli, *common, "-", stdin=f.read_text())]
    assert all(a["tokens"] == answers[0]["tokens"] for a in answers)
    n = len(tiny_model.ids(f.read_text()))
    assert answers[0]["prompt_tokens"] == 1 + 1 + n + 1


def test_template_by_default_raw_on_demand(cli):
    common = ["-p", "Hi", "-n", "3", "--temperature", "0"]
    templated = run_json(cli, "-m", "acme/tiny", *common)
    by_hand = run_json(cli, "-m", "acme/tiny", "-n", "3", "--temperature", "0", "--tokens",
                       ",".join(map(str, [1, 259, *tiny_model.ids("Hi"), 260])))
    assert templated["tokens"] == by_hand["tokens"] and templated["prompt_tokens"] == 5
    system = run_json(cli, "-m", "acme/tiny", *common, "--system", "Be brief")
    assert system["prompt_tokens"] == 5 + 1 + len("Be brief")
    raw = run_json(cli, "-m", "acme/tiny", *common, "--raw")
    base = run_json(cli, "-m", "acme/base", *common)
    assert raw["prompt_tokens"] == base["prompt_tokens"] == 3 and raw["tokens"] == base["tokens"]
    fails(cli("run", "-m", "acme/base", *common, "--chat"), 1, "has no chat template")
    # A control token written by a user is text in a template, and a control token without one.
    assert run_json(cli, "-m", "acme/tiny", "-p", "</s>", "-n", "1")["prompt_tokens"] == 3 + 4
    assert run_json(cli, "-m", "acme/tiny", "-p", "</s>", "-n", "1", "--raw")["prompt_tokens"] == 2


def test_text_streams_to_stdout_and_statistics_to_stderr(cli):
    args = ["-m", "acme/tiny", "--tokens", "1,40,41", "-n", "24", "--temperature", "0"]
    j = run_json(cli, *args)
    r = cli("run", *args)
    assert r.out == j["text"] + "\n"
    assert "24 tokens at" in r.err and "3 prompt tokens" in r.err
    r = cli("run", *args, "--quiet")
    assert r.out == j["text"] + "\n" and r.err == ""
    r = cli("run", *args, "--profile", "--quiet")
    assert "attention" in r.err and "calls" in r.err


def test_stop_strings_end_the_answer_before_them(cli):
    args = ["-m", "acme/tiny", "--tokens", "1,40,41", "-n", "40", "--temperature", "0"]
    whole = run_json(cli, *args)["text"]
    stop = whole[10:13]
    j = run_json(cli, *args, "--stop", stop, "--stop", "never seen")
    assert j["text"] == whole[:whole.index(stop)] and j["finish_reason"] == "stop"
    assert stop not in j["text"]


def test_stop_tokens_are_left_out_and_named(cli):
    # 2 is the checkpoint's end; the tiny model reaches it for some seed.
    for seed in range(60):
        j = run_json(cli, "-m", "acme/tiny", "--tokens", "1,40", "-n", "200", "--seed", seed, "--temperature", "5")
        if j["finish_reason"] == "stop":
            break
    assert j["finish_reason"] == "stop" and j["stop_token"] == 2 and 2 not in j["tokens"]
    again = run_json(cli, "-m", "acme/tiny", "--tokens", "1,40", "-n", "200", "--seed", seed, "--temperature", "5", "--ignore-eos")
    n = len(j["tokens"])
    assert len(again["tokens"]) == 200 and again["tokens"][:n] == j["tokens"] and again["tokens"][n] == 2


def test_ctrl_c_ends_an_answer(env):
    p = subprocess.Popen([DARKBLOOM, "run", "-m", "acme/tiny", "--tokens", "1,40", "-n", "4000", "--ignore-eos"], env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=10)
    assert p.returncode == 130 and b"interrupted" in err


def test_a_reader_that_goes_away_ends_the_run(env):
    p = subprocess.Popen([DARKBLOOM, "run", "-m", "acme/tiny", "--tokens", "1,40", "-n", "4000", "--ignore-eos", "-q"], env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(timeout=20) == 1
    assert b"standard output could not be written" in p.stderr.read()
    p.stderr.close()


# ---- tokenize ----------------------------------------------------------------------------------------------------------------------

TEXTS = ["", "Hello", " two  spaces\n\n", "Grüße 世界 🙂", "a\tb\r\n", "</s> in text <|user|>", "\x00\x01"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokenize_there_and_back(cli, text):
    ids = json.loads(cli("tokenize", "-m", "acme/tiny", "--json", "--no-special", stdin=text).out)
    if "<" not in text:
        assert ids == tiny_model.ids(text)
    assert json.loads(cli("tokenize", "-m", "acme/tiny", "--json", stdin=text).out) == [1, *ids]
    r = cli("tokenize", "-m", "acme/tiny", "--decode", stdin=json.dumps(ids))
    assert r.returncode == 0 and r.out == text
    r = cli("tokenize", "-m", "acme/tiny", "--decode", stdin=" ".join(map(str, ids)))
    assert r.out == text


def test_tokenize_reads_a_tokenizer_file(cli, home):
    f = home / ".cache/darkbloom/models/acme--tiny/tokenizer.json"
    assert cli("tokenize", "--tokenizer", f, "--json", stdin="hi").out == "[1,107,108]\n"
    r = cli("tokenize", "--tokenizer", f, stdin="h\n", DARKBLOOM_MODEL="acme/none")
    assert r.out.splitlines() == ['      1  "<s>"  control', '    107  "h"', '     13  "Ċ"'] and "3 tokens" in r.err
    assert cli("tokenize", "--tokenizer", f, "--decode", "--no-special", stdin="[1,107,108,2]").out == "hi"
    assert cli("tokenize", "--tokenizer", f, "--decode", stdin="1,107,108,2").out == "<s>hi</s>"
    for bad, text in (("[1", "']' at the end"), ("1]", "']' at the end"), ("[1] 2", "']' at the end"), ("x", "a token id is 'x'"),
                      ("-1", "a token id is '-1'"), ("1.5", "a token id is '1.5'"), ("99999999999", "a token id is")):
        fails(cli("tokenize", "--tokenizer", f, "--decode", stdin=bad), 1, text)
    assert cli("tokenize", "--tokenizer", f, "--decode", stdin="600").returncode == 1
    fails(cli("tokenize", "--tokenizer", f, "-m", "x"), 2, "both")
    assert cli("tokenize", "--tokenizer", f, stdin=b"\xff").returncode == 1


# ---- models, benchmark -------------------------------------------------------------------------------------------------------------


def test_models_list_and_path(cli, home):
    r = cli("models", "list")
    assert r.out.splitlines()[0].split() == ["NAME", "SIZE", "FAMILY", "WHERE"]
    assert re.search(r"^acme/tiny +1\.1 MB  llama ", r.out, re.M)
    listed = json.loads(cli("models", "list", "--json").out)
    assert [m["name"] for m in listed] == ["acme/base", "acme/tiny"]
    assert cli("models", "path", "tiny").out.strip() == listed[1]["path"]
    r = cli("models", "list", "--models-dir", "/nowhere")
    assert r.returncode == 0 and r.out == "" and "darkbloom models pull" in r.err


def test_a_model_in_the_hugging_face_cache(cli, tmp_path):
    """Snapshots are links into blobs/, as the reference client leaves them."""
    repo = tmp_path / "hub/models--org--linked"
    blobs, snapshot = repo / "blobs", repo / "snapshots/0123abcd"
    made = tiny_model.make(tmp_path / "made")
    for d in (blobs, snapshot, repo / "refs"):
        d.mkdir(parents=True)
    (repo / "refs/main").write_text("0123abcd")
    for i, f in enumerate(sorted(made.iterdir())):
        f.rename(blobs / f"b{i}")
        (snapshot / f.name).symlink_to(f"../../blobs/b{i}")
    r = cli("models", "list", "--names", HF_HOME=str(tmp_path))
    assert r.out.splitlines()[-1] == "org/linked"
    j = run_json(cli, "-m", "org/linked", "-p", "Hi", "-n", "3", "--temperature", "0", HF_HOME=str(tmp_path))
    assert j["tokens"] == run_json(cli, "-m", "acme/tiny", "-p", "Hi", "-n", "3", "--temperature", "0")["tokens"]


def test_models_info(cli):
    r = cli("models", "info", "acme/tiny", "--context", "256")
    assert r.returncode == 0 and "llama" in r.out and "the checkpoint's own" in r.out and "2 </s>" in r.out
    j = json.loads(cli("models", "info", "acme/tiny", "--context", "256", "--json").out)
    assert j["context"] == 256 and j["context_trained"] == 4096 and j["template"] == "checkpoint"
    assert any(s["id"] == 2 and s["piece"] == "</s>" and s["sources"] for s in j["stop_ids"])
    assert j["chat"]["dialect"] == "plain" and j["chat"]["system_role"] in (True, False) and j["chat"]["reason"]
    m = j["memory"]
    assert m["total_bytes"] == m["weights_bytes"] + m["kv_bytes"] + m["scratch_bytes"] + m["other_bytes"]


def test_needs_of_a_build(cli, tmp_path):
    """What a build needs goes with its id and with its config.json; a link under another name changes nothing."""
    model = tiny_model.make(tmp_path / "EigenLabs--Qwen3.8-27B-4bit")
    (tmp_path / "mine").symlink_to(model)
    for name in (model, tmp_path / "mine"):
        fails(cli("run", "-m", name, "-p", "x", "--cpu-mask", "scalar"), 1, "needs what this machine lacks: cpu:avx2")
        r = cli("models", "info", name)
        assert r.returncode == 0 and "requires     cpu:avx2, mem:18GiB" in r.out
    assert json.loads(cli("models", "info", "acme/tiny", "--json").out)["requires"] == []
    other = tiny_model.make(tmp_path / "other")
    config = json.loads((other / "config.json").read_text()) | {"darkbloom_requires": ["mem:1GiB", "apple_m5"]}
    (other / "config.json").write_text(json.dumps(config))
    for command in (["run", "-p", "x"], ["benchmark"], ["start", "--local", "--port", "0"]):
        fails(cli(*command, "-m", other), 1, "model 'other' needs what this machine lacks: apple_m5")
    j = json.loads(cli("models", "info", other, "--json").out)
    assert j["requires"] == ["mem:1GiB", "apple_m5"] and j["missing"] == ["apple_m5"]


def test_benchmark_prints_json_alone(cli):
    r = cli("benchmark", "-m", "acme/tiny", "--prompt-tokens", "40", "--decode-tokens", "8", "--repeat", "2", "--json")
    assert r.returncode == 0 and r.out.count("\n") == 1
    j = json.loads(r.out)
    assert j["prompt_tokens"] == 40 and j["decode_tokens"] == 8 and j["repeat"] == 2
    for k in ("prefill_tps", "ttft_ms", "decode_tps", "read_bytes_per_token", "machine_read_gbps", "read_bandwidth_share",
              "machine_int8_gops", "int8_peak_share"):
        assert j[k] > 0, k
    assert "decode" in r.err
    fails(cli("benchmark", "-m", "acme/tiny", "--prompt-tokens", "5000", "-q"), 1, "do not fit the context of 4096")


# ---- chat --------------------------------------------------------------------------------------------------------------------------


def test_chat_from_a_pipe(cli, tmp_path):
    saved = tmp_path / "c.json"
    lines = f"Hello\n/stats\nAgain \\\nand more\n/save {saved}\n/bogus\n//slash\n/clear\n/save {tmp_path / 'd.json'}\n/exit\nnever\n"
    r = cli("chat", "-m", "acme/tiny", "-n", "5", "--temperature", "0", "--system", "S", stdin=lines)
    assert r.returncode == 0, r.err
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "Hello" and messages[3]["content"] == "Again \nand more"
    assert r.out.startswith(messages[2]["content"] + "\n" + messages[4]["content"] + "\n")
    assert "unknown command '/bogus'" in r.err and "last answer: " in r.err and "\x1b" not in r.out + r.err
    assert json.loads((tmp_path / "d.json").read_text()) == [{"role": "system", "content": "S"}]
    # The first answer is what run gives.
    j = run_json(cli, "-m", "acme/tiny", "-n", "5", "--temperature", "0", "--system", "S", "-p", "Hello")
    assert messages[2]["content"] == j["text"]
    fails(cli("chat", "-m", "acme/base"), 1, "has no chat template")


def test_chat_survives_a_message_that_does_not_fit(cli):
    r = cli("chat", "-m", "acme/tiny", "--context", "64", "-n", "4", stdin="x" * 300 + "\nHi\n")
    assert r.returncode == 0 and "64" in r.err and len(r.out.strip()) > 0


@pytest.fixture
def terminal(env):
    children = []

    def start(*args, **extra):
        p = pexpect.spawn(DARKBLOOM, ["chat", *args], env=env | extra, encoding="utf-8", codec_errors="replace", timeout=20, dimensions=(30, 100))
        children.append(p)
        return p

    yield start
    for p in children:
        p.close(force=True)


def test_chat_on_a_terminal(terminal, home):
    p = terminal("-m", "acme/tiny", "-n", "5", "--temperature", "0", NO_COLOR="1")
    p.expect("/help shows commands")
    p.expect("> ")
    p.sendline("Grüße")
    p.expect("cut off")
    p.expect("> ")
    p.sendline("/help")
    p.expect("Ctrl-C stops an answer")
    p.expect("> ")
    p.send("half a line")
    p.sendcontrol("c")  # clears
    p.sendline("/stats")
    p.expect("1 answers")
    p.expect("> ")
    p.sendcontrol("c")  # leaves
    p.expect(pexpect.EOF)
    p.wait()
    assert p.exitstatus == 0
    kept = home / ".local/state/darkbloom/chat_history"
    assert kept.stat().st_mode & 0o777 == 0o600
    # The line comes back with the arrow key in the next session.
    p = terminal("-m", "acme/tiny", "-n", "5", "-q", NO_COLOR="1")
    p.expect("> ")
    p.send("\x1b[A\x1b[A\x1b[A")
    p.expect("Grüße")
    p.sendcontrol("c")
    p.sendcontrol("d")
    p.expect(pexpect.EOF)


def test_chat_ctrl_c_stops_the_answer_and_keeps_the_conversation(terminal, tmp_path):
    p = terminal("-m", "acme/tiny", "-n", "3000", "--temperature", "2", "--no-history", "--context", "4000")
    p.expect("> ")
    p.sendline("Hello")
    p.expect("Hello")
    p.expect(r"\w{8}")  # the answer has begun; all 3000 tokens of this tiny model take about a second
    p.sendcontrol("c")
    p.expect(r"\(stopped\)")
    p.sendline(f"/save {tmp_path / 'x.json'}")
    p.sendline("/stats")
    p.expect("1 answers")
    p.sendcontrol("d")
    p.expect(pexpect.EOF)
    assert [m["role"] for m in json.loads((tmp_path / "x.json").read_text())] == ["user", "assistant"]


# ---- real models -------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not GEMMA.exists(), reason=f"{GEMMA} is not here")
def test_gemma_goes_on_counting(cli):
    j = run_json(cli, "-m", GEMMA, "-p", "One, two, three, four, five,", "-n", "10", "--temperature", "0")
    assert j["text"].startswith(" six, seven, eight")


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"{SMOLLM2} is not here")
def test_smollm2_answers_in_its_template(cli):
    j = run_json(cli, "-m", SMOLLM2, "-p", "What is 2+2?", "-n", "60", "--temperature", "0")
    assert "4" in j["text"] and j["finish_reason"] == "stop" and j["stop_token"] == 2 and j["prompt_tokens"] > 30
