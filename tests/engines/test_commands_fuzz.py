"""Command lines nobody vouches for: a launch command, or one sentence."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.commands import parse_command
from kvplan.engines.commands.flags import ENGINES, load_table
from kvplan.errors import InputError

STARTS = st.sampled_from([
    "vllm serve a/b", "python -m sglang.launch_server", "llama-server", "trtllm-serve a/b", "ollama serve",
    "lmdeploy serve api_server a/b", "docker run --gpus all vllm/vllm-openai:v0.24.0", "vllm serve", "",
])  # fmt: skip
SPELLINGS = sorted({name for engine in ENGINES for name in load_table(engine).spellings})
PIECES = st.one_of(
    st.sampled_from(SPELLINGS),
    st.sampled_from([
        "8", "128k", "1e5", "-1", "auto", "{}", '{"a": [1]}', "'{\"a\": 1}'", "true", "$X", "${X:-4}", "$(x)", "--",
        "-", "=", "--x.y", "--x.y=1", "--compilation-config.a.b", "-O", "-O3", "'", '"', "|", "&", "\\", "a b",
    ]),
    st.text(max_size=6),
)  # fmt: skip
BOUNDED = settings(max_examples=150, deadline=1000)


@BOUNDED
@given(start=STARTS, pieces=st.lists(PIECES, max_size=10), equals=st.booleans())
def test_any_command_line(start: str, pieces: list[str], equals: bool) -> None:
    text = f"{start} {('=' if equals else ' ').join(pieces)}"
    try:
        read = parse_command(text)
    except InputError as error:
        assert "\n" not in str(error)
        return
    known = load_table(read.engine)
    for flag in read.flags:
        assert flag in known.flags or flag in known.options
    assert not set(read.flags) & set(read.ignored)
    json.dumps(read.to_dict())
    read.settings()
    assert read.ranks >= 1


@BOUNDED
@given(words=st.lists(st.text(max_size=12), max_size=8))
def test_any_words(words: list[str]) -> None:
    try:
        parse_command(["vllm", "serve", *words])
    except InputError as error:
        assert "\n" not in str(error)


@BOUNDED
@given(
    st.sampled_from([flag for flag in load_table("vllm").flags.values() if flag.kind == "int"]), st.integers(1, 10**6)
)
def test_a_whole_number_comes_back_as_it_went(flag: object, number: int) -> None:
    name, spelling = flag.name, flag.names[0]  # type: ignore[attr-defined]
    try:
        read = parse_command(f"vllm serve a/b {spelling} {number}")
    except InputError:
        raise AssertionError(spelling) from None
    assert read.flags.get(name, number) == number
    assert (name in read.flags) != (name in read.ignored)
