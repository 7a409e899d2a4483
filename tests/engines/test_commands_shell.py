"""Scripts followed without being run: each expected value is what bash makes of the same text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvplan.engines.commands import Word
from kvplan.engines.commands.scripts import read_script_text
from kvplan.errors import InputError


def words(text: str, **given: str) -> list[list[str]]:
    """The words of every `show` command of a script."""
    reading = read_script_text(text, environment={name: Word(value) for name, value in given.items()}, positional=())
    return [[word.text for word in run.words[1:]] for run in reading.other if run.words[0].text == "show"]


SCRIPTS = [
    "show a 'b c' \"d e\" f\\ g",
    "X=1; show $X ${X} \"$X$X\" '$X'",
    "X='a b'; show $X \"$X\"",
    "A=(1 '2 3'); A+=(4); show \"${A[@]}\" ${#A[@]}",
    'show ${UNSET_X:-d} ${UNSET_X-e} "${UNSET_X:-f g}"',
    "X=; show ${X:-d}y ${X-e}y ${X:+z}y",
    "X=/a/b.tar.gz; show ${X##*/} ${X%.*} ${X%%.*} ${X#/a} ${X/a/c} ${#X}",
    "X=Ab; show ${X^^} ${X,,} ${X:0:1}",
    "show $((1 + 2 * 3)) $((10 / 3 % 2))",
    "N=4; show $((N * 2)) $(($N - 1))",
    "show a \\\n  b # c\nshow d",
    "if [ 1 = 1 ]; then show y; else show n; fi",
    'if [ -z "$UNSET_X" ]; then X=5; fi; show $X',
    "if [[ a == b ]]; then show 1; elif [ 3 -gt 2 ]; then show 2; else show 3; fi",
    "case abc in a*) show first;; *) show other;; esac",
    'f() { show "$1" "$@" $#; }; f x \'y z\'',
    "show 1 && show 2",
    "[ a = b ] && show 1; [ a = b ] || show 2",
    "set -- p q; show $2 $1",
    'export X=1 Y="a b"; show $X "$Y"',
    "{ show g; }; ( show s )",
    "X=a; Y=${X}b; X=c; show $Y $X",
    'show "a"\'b\'c"d"',
    "X='--a \"b c\"'; show $X",
    "show '' \"\" $UNSET_X end",
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_words_are_those_that_bash_makes(script: str, tmp_path: Path) -> None:
    define = 'show() { printf \'%s\\0\' "$#" "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", define + script],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        check=False,
    )
    fields = done.stdout.split("\0")[:-1]
    expected = []
    while fields:
        count = int(fields.pop(0))
        expected.append([fields.pop(0) for _ in range(count)])
    found = [[word for word in row if word != "$UNSET_X"] for row in words(script)]
    assert found == expected


def test_what_only_a_run_would_tell_stays_unknown() -> None:
    reading = read_script_text("G=$(nvidia-smi -L | wc -l)\nif [ -f /x ]; then A=1; else A=2; fi\nshow $G $A $B")
    assert [word.unknown for word in reading.other[-1].words[1:]] == [("$(nvidia-smi -L | wc -l)",), ("A",), ("B",)]


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    read_script_text(f"touch {target}\necho $(touch {target}) > {target}\nbash -c 'touch {target}'")
    assert not target.exists()


def test_overrides_fill_what_nothing_sets() -> None:
    overrides = {"TP": Word("8"), "HOSTS": Word("h1")}
    reading = read_script_text("HOSTS=$(scontrol x)\nTP=4\nshow $TP $HOSTS $MORE", overrides=overrides)
    assert [word.text for word in reading.other[-1].words[1:]] == ["4", "h1", "$MORE"]


def test_every_start_in_a_script_with_its_line() -> None:
    text = (
        "#!/bin/bash\n"
        "MODEL=a/b\n"
        "# vllm serve in/comment\n"
        "echo vllm serve in/echo\n"
        "for i in 0 1; do\n"
        "  CUDA_VISIBLE_DEVICES=$i vllm serve $MODEL --port 800$i &\n"
        "done\n"
        'bash -c "cd /x && llama-server -m q.gguf -c $((4 * 1024))"\n'
        "cat <<'EOF'\nvllm serve in/heredoc\nEOF\n"
        "docker run --rm ollama/ollama:0.12.0\n"
    )
    starts = [(launch.head.engine, launch.run.line, launch.run.repeats) for launch in read_script_text(text).launches]
    assert starts == [("vllm", 6, 2), ("llama.cpp", 8, 1), ("ollama", 12, 1)]


def test_a_start_under_a_condition_says_so() -> None:
    launch = read_script_text("if [ -f /x ]; then\n vllm serve a/b\nfi").launches[0]
    assert launch.run.condition == "the if at line 1"


def test_a_start_after_a_failure_says_so() -> None:
    launch = read_script_text("docker start llm || vllm serve a/b").launches[0]
    assert launch.run.condition == "a failure before line 1"


def test_a_file_that_a_script_writes() -> None:
    reading = read_script_text(
        "N=4\ncat > /tmp/o.yaml <<EOF\nmax_batch_size: $N\nEOF\ntrtllm-serve a/b --config /tmp/o.yaml"
    )
    assert reading.files["/tmp/o.yaml"].text == "max_batch_size: 4\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\necho 'x", "line 2: found a single quote"),
        ('echo "x\n\n', "line 1: found a double quote"),
        ("echo $(x", "found '\\(' that isn't closed"),
        ("echo ${x", "found '{' that isn't closed"),
        ("A=(1 2", "the array A without an end"),
        ("x" * (1 << 21), "expected at most"),
        ("{ " * 60 + "\n", "nested deeper"),
        ("echo " + "${a:-" * 60 + "}" * 60, "nested too deep"),
    ],
)
def test_broken_scripts_are_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_script_text(text)
    assert "\n" not in str(caught.value)
