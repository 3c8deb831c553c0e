#!/usr/bin/env python3
"""Makes tests/fixtures/tiny-chat: a llama checkpoint of 0.1 million parameters with a byte-level tokenizer and a chat template.

Its weights are drawn at random, but for the embedding and the head, which are set so that each token's likeliest successor is the next
token of TEXT (and 'x' follows 'x' for ever). So a greedy chat answer is known, ends by itself, and carries characters of two,
three and four bytes whose bytes are tokens of their own; a prompt of "x" never ends; and at temperature 1 seeds matter.

    tools/reference/make_tiny_chat.py [FOLDER]     needs numpy; the result depends on the seed below alone
"""
import json
import pathlib
import re
import struct
import sys

import numpy as np

SEED = 20260
TEXT = "Good morning, world! \U0001F600 A caf\u00e9 here costs 5\u20ac."
WORDS = ["Good", " morning", " world", " A", " caf", " here", " costs", " 5", "user", "system", "assistant", " the", " of"]
END, LOOP = "<|im_end|>", "x"
SPECIAL = ["<|endoftext|>", "<|im_start|>", END]
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 64, 2, 4, 2, 128, 32768
HEAD_SCALE = 0.18  # logit of the successor about 11.5, of the others about 0 +- 1.4
TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if loop.first and message['role'] == 'assistant' %}{{ raise_exception('the first message must not be of the assistant') }}{% endif %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter of each byte."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in out:
            out[b] = chr(256 + n)
            n += 1
    return out


LETTERS = byte_letters()


def letters(text: str) -> str:
    return "".join(LETTERS[b] for b in text.encode())


def make_vocab() -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab = {LETTERS[b]: b for b in range(256)}
    merges = []
    for word in WORDS:
        w = letters(word)
        for i in range(1, len(w)):
            pair = (w[:i], w[i])
            if pair not in merges:
                merges.append(pair)
                vocab[w[: i + 1]] = len(vocab)
    return vocab, merges


def encode(text: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    ranks = {pair: i for i, pair in enumerate(merges)}
    ids = []
    for piece in re.findall(r" ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+(?!\S)|\s+", text):
        parts = list(letters(piece))
        while len(parts) > 1:
            rank, i = min((ranks.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
            if rank == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [vocab[p] for p in parts]
    return ids


def bf16(a: np.ndarray) -> bytes:
    u = np.ascontiguousarray(a, dtype=np.float32).view(np.uint32)
    return (((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")).tobytes()


def make_weights(n_vocab: int, chain: list[tuple[int, int]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    embed = rng.standard_normal((n_vocab, HIDDEN))
    embed /= np.sqrt((embed**2).mean(axis=1, keepdims=True))
    head = rng.standard_normal((n_vocab, HIDDEN)) * 0.02
    for before, after in chain:
        head[after] = embed[before] * HEAD_SCALE
    w = {"model.embed_tokens.weight": embed, "lm_head.weight": head, "model.norm.weight": np.ones(HIDDEN)}
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN, 0.1), "self_attn.k_proj": (kv, HIDDEN, 0.1), "self_attn.v_proj": (kv, HIDDEN, 0.1),
        "self_attn.o_proj": (HIDDEN, HIDDEN, 0.02), "mlp.gate_proj": (FFN, HIDDEN, 0.1), "mlp.up_proj": (FFN, HIDDEN, 0.1),
        "mlp.down_proj": (HIDDEN, FFN, 0.02),
    }
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        for name, (rows, cols, std) in shapes.items():
            w[f"{p}{name}.weight"] = rng.standard_normal((rows, cols)) * std
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}{name}.weight"] = 1 + 0.1 * rng.standard_normal(HIDDEN)
    return w


def write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        raw = bf16(tensors[name])
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/fixtures/tiny-chat"
    out.mkdir(parents=True, exist_ok=True)
    vocab, merges = make_vocab()
    special = {s: len(vocab) + i for i, s in enumerate(SPECIAL)}
    n_vocab = -(-(len(vocab) + len(SPECIAL)) // 32) * 32
    ids = [vocab[letters("\n")], *encode(TEXT, vocab, merges), special[END]]
    assert len(set(ids)) == len(ids), "a token of TEXT appears twice: its successor would be ambiguous"
    loop = vocab[LOOP]
    assert loop not in ids
    chain = [*zip(ids, ids[1:]), (loop, loop)]
    write_safetensors(out / "model.safetensors", make_weights(n_vocab, chain))
    write_json(out / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS,
        "intermediate_size": FFN, "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "vocab_size": n_vocab,
        "bos_token_id": special["<|im_start|>"], "eos_token_id": special[END],
    })
    write_json(out / "generation_config.json", {"eos_token_id": [special[END], special["<|endoftext|>"]], "temperature": 0.75, "top_p": 0.95})
    write_json(out / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for s, i in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                  "merges": [" ".join(p) for p in merges]},
    })
    write_json(out / "tokenizer_config.json", {
        "add_bos_token": False, "bos_token": "<|im_start|>", "eos_token": END, "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT, "tokenizer_class": "GPT2Tokenizer", "chat_template": TEMPLATE,
    })
    (out / "answer.txt").write_text(TEXT, encoding="utf-8")
    print(f"{out}: {len(vocab) + len(SPECIAL)} tokens, greedy answer of {len(ids) - 1} tokens: {TEXT}")


if __name__ == "__main__":
    main()
