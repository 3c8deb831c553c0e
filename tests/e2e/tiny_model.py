"""A tiny random Llama that talks: the committed weights with a byte-level tokenizer and a chat template made here.

Ids: 0 <pad>, 1 <s>, 2 </s>, 3..258 the bytes, 259 <|user|>, 260 <|assistant|>, 261 <|system|>, 262..499 words w262..w499;
500..511 are padding of the embeddings, without text.
"""
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests/fixtures/tiny/llama-tiny"
SPECIAL = {"<pad>": 0, "<s>": 1, "</s>": 2, "<|user|>": 259, "<|assistant|>": 260, "<|system|>": 261}
TEMPLATE = ("{{ bos_token }}{% for m in messages %}"
            "{% if m['role'] == 'user' %}<|user|>{% elif m['role'] == 'system' %}<|system|>{% else %}<|assistant|>{% endif %}"
            "{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")


def byte_chars():
    """The printable stand-ins of byte-level BPE: byte -> character."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, extra = {}, 0
    for b in range(256):
        if b in keep:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + extra)
            extra += 1
    return out


def tokenizer():
    vocab = {c: 3 + b for b, c in byte_chars().items()} | {f"w{i}": i for i in range(262, 500)} | SPECIAL
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t} | special for t, i in SPECIAL.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }


def make(folder, template=True):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(TINY / name, folder / name)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False))
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "add_bos_token": True}
    if template:
        config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ids(text):
    """What the tokenizer makes of plain text."""
    return [3 + b for b in text.encode()]
