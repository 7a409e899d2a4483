"""Files nobody vouches for: a reading, or one sentence, and never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.check.manifests import read_manifest
from kvplan.errors import InputError

FOLDER = Path(__file__).parent.parent / "evidence" / "manifests"
SAMPLES = {path.name: path.read_text() for path in sorted(FOLDER.iterdir()) if path.name != "expected.yaml"}
BOUNDED = settings(
    max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

KEYS = st.sampled_from([
    "accelerators", "affinity", "apiVersion", "applications", "args", "cmd", "command", "commands",
    "configMapKeyRef", "containers", "count", "data", "deploy", "device_ids", "devices", "engine_kwargs",
    "entrypoint", "env", "environment", "envs", "extends", "image", "initContainers", "key", "kind",
    "leaderWorkerTemplate", "limits", "livenessProbe", "llm_configs", "macros", "metadata", "model", "modelSpec",
    "models", "name", "nodeSelector", "nvidia.com/gpu", "predictor", "replicas", "resources", "run", "runtime",
    "serveConfigV2", "services", "servingEngineSpec", "size", "spec", "storageUri", "template", "value",
    "valueFrom", "vllmConfig", "volumeMounts", "volumes",
])  # fmt: skip
WORDS = st.sampled_from([
    "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192", "--tensor-parallel-size=2", "$(X)", "${X:-3}", "sh",
    "-c", "vllm serve a/b -tp 2", "python3 -m sglang.launch_server --model-path a/b", "vllm/vllm-openai:v0.24.0", "v1",
    "ollama/ollama:latest", "ghcr.io/ggml-org/llama.cpp:server", "LeaderWorkerSet", "InferenceService", "RayService",
    "ServingRuntime", "LLMInferenceService", "Deployment", "'", "{{.Name}}", "all", "NVIDIA-H100-80GB-HBM3", "-", "--",
    "",
])  # fmt: skip
BITES = ["'", '"', "${", "$(", "{{", "\t", "&a ", "*a", "<<EOF", "\\\n", "| ", ")"]
SCALARS = st.one_of(WORDS, st.integers(-5, 10**7), st.booleans(), st.none(), st.floats(allow_nan=False, width=16))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=30,
)


def reads_or_says(path: Path) -> None:
    try:
        reading = read_manifest(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    lines = path.read_text().count("\n") + 1
    for found in reading.commands:
        assert 1 <= found.line <= lines
    for finding in reading.findings:
        assert 1 <= finding.line <= lines
    reading.to_dict()


@BOUNDED
@given(tree=TREES)
def test_any_tree_of_the_usual_words(tree: object, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(tree))
    reads_or_says(path)


@BOUNDED
@given(
    name=st.sampled_from(sorted(SAMPLES)),
    at=st.floats(0, 1),
    drop=st.integers(0, 30),
    put=st.one_of(
        st.text(max_size=8),
        st.sampled_from(["'", '"', "${", "$(", "{{", "\t", "&a ", "*a", "<<EOF", "\\\n", "| ", ")"]),
    ),
)
def test_any_sample_with_a_bite_taken_out(name: str, at: float, drop: int, put: str, tmp_path: Path) -> None:
    text = SAMPLES[name]
    place = int(at * len(text))
    path = tmp_path / name
    path.write_text(text[:place] + put + text[place + drop :], encoding="utf-8", errors="surrogatepass")
    reads_or_says_bytes(path)


def reads_or_says_bytes(path: Path) -> None:
    try:
        read_manifest(path).to_dict()
    except InputError as error:
        assert "\n" not in str(error)


@BOUNDED
@given(
    text=st.text(max_size=300),
    name=st.sampled_from(["x.yaml", "x.sh", "x.md", "x.service", "x.sbatch", "Dockerfile", "x", "x.json"]),
)
def test_any_text(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "replace"))
    reads_or_says_bytes(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("laughs.yaml", "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 8)}]\n" for n in range(12)
        )),
        ("deep.yaml", "[" * 5000),
        ("deep.json", '{"a":' * 500 + "1" + "}" * 500),
        ("braces.sh", "echo " + "${a:-" * 2000 + "}" * 2000),
        ("parens.sh", "(" * 2000 + ")" * 2000),
        ("ifs.sh", "if true; then " * 500 + "fi; " * 500),
        ("calls.sh", "f() { f; f; }; f\n"),
        ("grow.sh", "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 40 + "vllm serve $A\n"),
        ("arrays.sh", "A=(x x x x x x x x)\n" + 'A=("${A[@]}" "${A[@]}" "${A[@]}")\n' * 40 + 'vllm serve "${A[@]}"\n'),
        ("nested.sh", "bash -c \"bash -c 'bash -c x'\"\n" * 50),
        ("range.sh", "for i in {0..9999}; do for j in {0..9999}; do vllm serve a/b & done; done\n"),
        ("sum.sh", "vllm serve a/b -tp $((9**9**9)) --max-num-seqs $((99999999999 * 99999999999 * 9))\n"),
        ("long.sh", "vllm serve a/b " + "--x " * 50_000 + "\n"),
        ("number.sh", "vllm serve a/b --max-num-seqs " + "9" * 10_000 + "\n"),
        ("zero.sh", "vllm serve a/b --config /dev/zero\n"),
        ("extends.yaml", "services: {a: {image: x, extends: b}, b: text, c: {image: y, extends: c}}\n"),
        ("macros.yaml", "macros: {a: '${a}${a}'}\nmodels: {m: {cmd: '${a} llama-server -m x'}}\n"),
        ("env.yaml", "kind: Pod\napiVersion: v1\nspec: {containers: [{command: [vllm, serve, a], env: [{x: A}]}]}\n"),
    ],
)  # fmt: skip
def test_what_is_made_to_hurt(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    reads_or_says(path)
