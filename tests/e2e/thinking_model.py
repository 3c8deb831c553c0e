"""tiny-chat, taught to think and to call a tool in the dialect of a family.

tiny-chat's head is set so that each token has one likeliest successor. Here whole pieces of an answer are added tokens in the padding of
its vocabulary, each the successor of the one before; the first follows the newline that ends the prompt. So a greedy answer is the pieces
in their order, whatever was asked."""
import json
import pathlib
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/fixtures/tiny-chat"
HIDDEN, FIRST_FREE, IM_END, HEAD_SCALE = 64, 308, 307, 0.18

# (piece, is a control token); a name given twice is one token
QWEN = {"template": "qwen3_5", "end": IM_END, "pieces": [
    ("hm, the weather", False), ("\n</think>\n\n", False), ("Let me see.", False), ("\n\n<tool_call>\n<function=get_weather>\n", False),
    ("<parameter=city>\nZürich\n</parameter>\n", False), ("<parameter=days>\n3\n</parameter>\n", False), ("</function>\n</tool_call>", False)]}
GEMMA = {"template": "gemma4", "end": None, "pieces": [
    ("<|channel>", True), ("thought\nhm, the weather\n", False), ("<channel|>", True), ("Let me see.", False), ("<|tool_call>", True),
    ("call:get_weather{city: \"Zürich\",", False), ("days:3}", False), ("<tool_call|>", True), ("<|tool_response>", True)]}


def to_bf16(x):
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    return (u + 0x7FFF + (u >> 16 & 1)) >> 16


class Weights:
    """Rows of bf16 matrices in a safetensors file."""

    def __init__(self, path):
        raw = path.read_bytes()
        n = struct.unpack_from("<Q", raw)[0]
        self.header, self.data = json.loads(raw[8:8 + n]), bytearray(raw)
        self.base = 8 + n

    def at(self, name, row):
        return self.base + self.header[name]["data_offsets"][0] + row * HIDDEN * 2

    def row(self, name, row):
        words = struct.unpack_from(f"<{HIDDEN}H", self.data, self.at(name, row))
        return [struct.unpack("<f", struct.pack("<I", w << 16))[0] for w in words]

    def set_row(self, name, row, values):
        struct.pack_into(f"<{HIDDEN}H", self.data, self.at(name, row), *map(to_bf16, values))


def make(folder, family):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    shutil.copy(TINY / "config.json", folder)
    shutil.copy(TINY / "generation_config.json", folder)
    shutil.copy(ROOT / f"tests/fixtures/templates/{family['template']}.jinja", folder / "chat_template.jinja")
    tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    newline = tokenizer["model"]["vocab"]["Ċ"]
    chain = [newline]
    for i, (piece, control) in enumerate(family["pieces"]):
        tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=FIRST_FREE + i, content=piece, special=control))
        chain.append(FIRST_FREE + i)
    chain += [family["end"]] if family["end"] is not None else []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}))
    w = Weights(TINY / "model.safetensors")
    for row in range(FIRST_FREE):
        if row != IM_END or family["end"] is None:
            w.set_row("lm_head.weight", row, [0.0] * HIDDEN)
    for before, after in zip(chain, chain[1:]):
        w.set_row("lm_head.weight", after, [x * HEAD_SCALE for x in w.row("model.embed_tokens.weight", before)])
    (folder / "model.safetensors").write_bytes(w.data)
    return folder
