#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers/: small tokenizers of every supported shape, trained on the text below, and what the
reference library makes of awkward texts.

    pip install tokenizers==0.23.2
    tools/reference/make_tokenizers.py

NAME.tokenizer.json, NAME.expected.json: {"encode": [{text, ids, ids_special, ids_plain, decoded, decoded_skip}],
"decode": [{ids, decoded, decoded_skip}]}. ids: no special tokens added; ids_special: with them; ids_plain: control tokens
in the text stay text; decoded: of ids.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/fixtures/tokenizers"

CORPUS = """
A lighthouse keeper counts the ships: one, two, three, 10, 20, 300, 4096. She doesn't sleep; they've said it's the wind.
We'll see, I'm told, if you're right - and I'd bet it isn't. DON'T SHOUT! The Keeper's lamp turns, turns, turns again.
for (int i = 0; i < count; i++) { total += values[i]; } // sum of values
    if (total >= limit) {
        return total / count;
    }
def keep(lamp, hours=12):
\tfor hour in range(hours):
\t\tlamp.turn(hour)
\treturn lamp.state
Größe und Straße: der Leuchtturm ist groß. Le café était déjà fermé, naïve question. El niño corrió mañana.
Маяк стоит на скале, маяк светит ночью. Το φως γυρίζει, το φως μένει. 灯台の光が回る。灯台は高い。海は広い。
المنارة على البحر والضوء يدور ١٢٣ ٤٥٦. המגדלור עומד על הצוק. दीपक जलता है, दीपक घूमता है। 등대는 바다 위에 있다.
https://example.org/lamps?id=42&mode=slow#turn  CamelCaseNames and snake_case_names and HTTPServerError
\r\n\r\n1. first\r\n2. second\r\n\r\n   indented   text   with   spaces\n\n\n\n==== ---- .... !!!! ???? ....
😀 🙂 👍 naïve 😀😀 keep keeping keeper keepers light lights lighter lighthouse lighthouses
""".strip("\n")

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\r\n", "\r\n\r\n\r\n x\r\n", "\t\t tab", "The lighthouse keeper doesn't sleep.", "DON'T they'Re I'M we'LL it'S you'D o'clock 'tis",
    "it\u2019s", "'ſ it'ſ IT'ſt Keeperſ", "x'\u017f'\u017f\u017f", "  leading and trailing   ", "a  b   c    d     e\n  f\n\n   g", "1234567890 3.14 1,000,000", "٠١٢٣٤٥٦٧٨٩ ٣٤ x٣٤٥x",
    "½ ⅷ x² ①②", "Größe Straße café déjà niño", "cafe\u0301 deja\u0300 nin\u0303o a\u0323\u0307 a\u0307\u0323 q\u0307\u0323", "\u1100\u1161\u11a8 \uac01 \u1100\u1161", "Å \u212b \u2126 \ufb01 \uff21",
    "Маяк светит ночью.", "Το φως ΦΩΣ ΣΊΣΥΦΟΣ", "İstanbul ıi", "灯台の光が回る。", "المنارة على البحر", "המגדלור", "दीपक घूमता है।", "등대는 바다 위에 있다.",
    "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪🇫🇷", "😀😀😀", "a\u200db\u200cc\ufeffd", "\u00a0nbsp\u00a0 \u2003em\u3000full\u180emvs\u200bzw", "\u0085next\u2028line\u2029para\x0bvt\x0cff\x1cfs",
    "\x00\x01\x7f", "\ud7ff\ue000\uffff\U0001f600\U0010ffff", "𝕳𝖊𝖑𝖑𝖔 𝟘𝟙𝟚", "if (x<y&&z>=0) { return a[i++]; } // c", "def f(a,b):\n    return a+b\n\n\n# end\n",
    "CamelCaseNames HTTPServerError snake_case_names iPhone X", "ǅ ǆ Ǆ ʰˇ ªº", "a" * 300, "A" * 100 + "b", "=" * 65, " " * 130 + "x", "\n" * 70, "ab" * 80, "\u0301" * 40, "日" * 33,
    "....,,,!!!???---", "https://example.org/lamps?id=42&mode=slow#turn", "▁already▁metaspace▁▁", "Ġbyte Ċlevel", "<0x0A><0xFF><0xff><0x4>", "<|end|>", "x<|end|>y<|end|><|end|>z", " <|end|> ", "<|start|>user\nhi<|end|>\n<think>\n</think>",
    "<|end|", "<|end|>>", "<|<|end|>", "<ab><abc><abcd><abc", "<abcd", "ababcabcd<ab>c", "left  <L>  right", "left  <R>  right", "x <L>\n<R> y", "<R>  <L>", "word wordy sword word-word word", "wordword", "keepkeep keep",
    "ÜBER über Über", "UE\u0308BER", "<unk> <bos> <eos>", "the lamp <bos>turns<eos> again", "\u2581", " \u2581 ", "x\u2581y", "<eos><eos>",
]

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel.alphabet()
NO_REGEX = dict(add_prefix_space=False, use_regex=False)


def split(regex: str):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(**NO_REGEX)])


def train(t: Tokenizer, size: int, special: list[str], alphabet: list[str]) -> Tokenizer:
    t.train_from_iterator(CORPUS.splitlines(keepends=True), trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    return t


def byte_level(regex: str, nfc: bool, **model) -> Tokenizer:
    t = Tokenizer(models.BPE(**model))
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = split(regex)
    t.decoder = decoders.ByteLevel()
    train(t, 560, [], BYTES)
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in ("<|end|>", "<|start|>", "<bos>", "<eos>")])
    t.add_tokens([AddedToken(x, normalized=False) for x in ("<think>", "</think>")])
    return t


def qwen() -> Tokenizer:
    t = byte_level(QWEN, True)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def llama3() -> Tokenizer:
    t = byte_level(LLAMA3, False, ignore_merges=True)
    bos = t.token_to_id("<bos>")
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", bos)])])
    return t


def smollm() -> Tokenizer:
    """Digits, GPT-2's own pattern with a prefix space, and bytes that have no token (dropped: there is no unknown token)."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.TemplateProcessing(single="$A <|end|>", pair="$A $B", special_tokens=[("<|end|>", 0)])
    return train(t, 400, ["<|end|>", "<bos>", "<eos>"], [])


def all_splits(t: Tokenizer) -> Tokenizer:
    """Merges as Gemma's file has them: for every piece every split into two pieces, in the order of the pieces."""
    j = json.loads(t.to_str())
    vocab = j["model"]["vocab"]
    j["model"]["merges"] = [[p[:i], p[i:]] for p, _ in sorted(vocab.items(), key=lambda x: x[1]) for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab and not p.startswith("<")]
    return Tokenizer.from_str(json.dumps(j))


def gemma() -> Tokenizer:
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|start|>", "<|end|>"]
    train(t, 700, special + [f"<0x{b:02X}>" for b in range(256)], [])
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    j["added_tokens"].append(dict(id=max(j["model"]["vocab"].values()) + 1, content="<think>", single_word=False, lstrip=False, rstrip=False, normalized=False, special=False))
    t = all_splits(Tokenizer.from_str(json.dumps(j)))
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", 2)])
    return t


def llama2() -> Tokenizer:
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", pair="<bos> $A $B", special_tokens=[("<bos>", 1), ("<eos>", 2)])
    train(t, 700, ["<unk>", "<bos>", "<eos>"] + [f"<0x{b:02X}>" for b in range(256)], [])
    j = json.loads(t.to_str())
    j["added_tokens"] = j["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(j))


def metaspace() -> Tokenizer:
    """Metaspace on both sides, an unknown token that is not fused, NFKC and lower case."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    return train(t, 400, ["<unk>", "<bos>", "<eos>"], [])


def added() -> Tokenizer:
    """Added tokens with every flag, overlapping and adjacent, in raw and in normalized text; splits of every behaviour."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\s+"), "merged_with_next"), pre_tokenizers.Split("-", "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"[.!?]+"), "contiguous"), pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated", invert=True), pre_tokenizers.Split("#", "removed")])
    t.decoder = decoders.Fuse()
    train(t, 400, ["<unk>", "<bos>", "<eos>"], [])
    t.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False), AddedToken("<abcd>", special=True, normalized=False)])
    t.add_tokens([AddedToken("<ab>", normalized=False), AddedToken("<abc>", normalized=False), AddedToken("<ab", normalized=False), AddedToken("<|end", normalized=False),
                  AddedToken("<L>", normalized=False, lstrip=True), AddedToken("<R>", normalized=False, rstrip=True), AddedToken("word", normalized=False, single_word=True),
                  AddedToken("Keep", normalized=True), AddedToken("ÜBER", normalized=True, single_word=True), AddedToken("abab", normalized=True)])
    return t


def expected(t: Tokenizer, seed: int) -> dict:
    plain = Tokenizer.from_str(t.to_str())
    plain.encode_special_tokens = True
    rows = []
    for text in TEXTS:
        ids = t.encode(text, add_special_tokens=False).ids
        rows.append(dict(text=text, ids=ids, ids_special=t.encode(text).ids, ids_plain=plain.encode(text, add_special_tokens=False).ids,
                         decoded=t.decode(ids, skip_special_tokens=False), decoded_skip=t.decode(ids, skip_special_tokens=True)))
    r = random.Random(seed)
    known = list(range(t.get_vocab_size()))
    bare = []
    for _ in range(60):
        ids = [r.choice(known) for _ in range(r.randrange(1, 12))]
        bare.append(dict(ids=ids, decoded=t.decode(ids, skip_special_tokens=False), decoded_skip=t.decode(ids, skip_special_tokens=True)))
    return dict(encode=rows, decode=bare)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    makers = dict(qwen=qwen, qwen35=lambda: byte_level(QWEN35, True), llama3=llama3, o200k=lambda: byte_level(O200K, False, ignore_merges=True),
                  smollm=smollm, gemma=gemma, llama2=llama2, metaspace=metaspace, added=added)
    for seed, (name, make) in enumerate(makers.items()):
        t = make()
        j = json.loads(t.to_str())
        if name == "llama3":  # the older way of writing merges
            j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
        text = json.dumps(j, ensure_ascii=False, separators=(",", ":"))
        (OUT / f"{name}.tokenizer.json").write_text(text + "\n")
        (OUT / f"{name}.expected.json").write_text(json.dumps(expected(Tokenizer.from_str(text), seed), separators=(",", ":")).replace('},{"', '},\n{"') + "\n")
        print(name, len(text), t.get_vocab_size())


if __name__ == "__main__":
    main()
