"""The registry: look-ups, the index, users' own directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.resources import data_dir
from kvplan.spec.lint import lint_specs
from kvplan.spec.registry import INDEX_NAME, Registry, build_index
from kvplan.spec.resolve import resolve_model
from kvplan.spec.spec_file import format_spec, read_specs, validate_spec

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"

OWN_MODEL = """\
id: own-model
aliases: [mine]
model_type: llama
dtype: bfloat16
max_context: 8192
blocks:
  attention: {kind: full_attention, query_heads: 8, kv_heads: 2, head_dim: 64}
layers:
- 4 x attention
provenance: {source: written by hand, confidence: verbatim}
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()


def test_every_collected_model_is_there(registry: Registry) -> None:
    assert len(registry.ids()) == 228


def test_the_index_is_current() -> None:
    directory = data_dir("model_specs")
    assert json.loads((directory / INDEX_NAME).read_text()) == build_index(directory)


def test_every_spec_equals_its_config() -> None:
    result = lint_specs([], CONFIGS)
    assert (result.specs, result.compared, result.problems) == (228, 228, [])


def test_trusted_and_validated_reading_agree(registry: Registry) -> None:
    for path in sorted(data_dir("model_specs").glob("*.yaml")):
        for spec in read_specs(path):
            assert registry.get(spec.id) == spec


def test_a_spec_survives_the_round_trip(registry: Registry, tmp_path: Path) -> None:
    for model_id in registry.ids():
        spec = registry.get(model_id)
        path = tmp_path / "one.yaml"
        path.write_text(format_spec(spec))
        assert read_specs(path) == [spec]


@pytest.mark.parametrize(
    "name", ["llama-3.1-70b", "LLAMA-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", "Meta-Llama-3.1-70B"]
)
def test_one_model_many_spellings(registry: Registry, name: str) -> None:
    assert registry.find(name).id == "llama-3.1-70b"


def test_an_unknown_name_offers_three(registry: Registry) -> None:
    with pytest.raises(InputError, match=r"'gemma-3-28b'.*nearest: \S+, \S+, \S+$"):
        registry.find("gemma-3-28b")


def test_an_ambiguous_name_lists_its_candidates(registry: Registry) -> None:
    with pytest.raises(
        InputError, match=r"'deepseek-v4' ?, which is short for \d+ models, expected one of deepseek-v4-pro"
    ):
        registry.find("deepseek-v4")


def test_a_users_directory_adds_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text(OWN_MODEL)
    assert Registry([tmp_path]).find("MINE").layer_count == 4
    (tmp_path / "own.yaml").write_text(OWN_MODEL.replace("own-model", "llama-3.1-8b"))
    assert Registry([tmp_path]).find("llama-3.1-8b").layer_count == 4
    assert Registry().find("llama-3.1-8b").layer_count == 32
    monkeypatch.setenv("KVPLAN_MODEL_PATH", str(tmp_path))
    assert resolve_model("llama-3.1-8b").spec.layer_count == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("kv_heads: 2", "kv_heads: 0"), "blocks.attention.kv_heads: found 0, expected greater than"),
        (("kv_heads: 2", "kv_heads: two"), "kv_heads: found 'two', expected a valid integer"),
        (
            ("head_dim: 64", "head_dimension: 64"),
            "blocks.attention.head_dimension: found an unknown field",
        ),
        (("head_dim: 64}", "head_dim: 64, window: 9}"), "window: found an unknown field"),
        (
            ("full_attention", "full_atention"),
            "blocks.attention.kind: found 'full_atention', expected a layer kind; nearest: full_attention",
        ),
        (("kind: full_attention", "kind: null"), "blocks.attention.kind: found null, expected a layer kind"),
        (("4 x attention", "4 x atention"), "names block 'atention', expected one of attention"),
        (("4 x attention", "4 times attention"), "expected a run such as '80 x attention'"),
        (("4 x attention", "999999 x attention"), "expected 1 to 10000"),
        (("max_context: 8192", "max_contest: 8192"), "max_contest: found an unknown field"),
        (("dtype: bfloat16", "dtype: bf17"), "dtype: found 'bf17'"),
        (("model_type: llama\n", ""), "model_type: found nothing, expected a value"),
        (("aliases: [mine]", "aliases: &a [mine]\nhf_ids: *a"), "found the alias"),
        (("id: own-model", "id: own-model\nid: twice"), "found the key 'id' twice"),
        (("id: own-model", "id: !!python/name:os.system own"), "found the tag"),
    ],
)
def test_a_bad_spec_gets_one_sentence(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    (tmp_path / "own.yaml").write_text(OWN_MODEL.replace(*change))
    with pytest.raises(InputError) as caught:
        Registry([tmp_path])
    assert sentence in str(caught.value)
    assert "own.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        ("id: own-model", 'id: "own model"'),
        ("id: own-model", 'id: "own\\nmodel"'),
        ("id: own-model", 'id: "own\\e[31m"'),
        ("id: own-model", "id: ''"),
        ("id: own-model", f"id: {'x' * 129}"),
        ("aliases: [mine]", 'aliases: ["mi ne"]'),
    ],
)
def test_a_name_is_printable_and_short(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN_MODEL.replace(*change))
    with pytest.raises(InputError, match=r"(id|aliases): found .*, expected 1 to 128 printable characters") as caught:
        read_specs(path)
    assert str(caught.value).isprintable()


def test_two_models_cannot_share_a_name(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN_MODEL + "---\n" + OWN_MODEL.replace("own-model", "other"))
    with pytest.raises(InputError, match="'mine' names both own-model and other"):
        Registry([tmp_path])


def test_two_models_cannot_share_an_id(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(OWN_MODEL.replace("aliases: [mine]\n", ""))
    with pytest.raises(InputError, match="id: found 'own-model' twice"):
        Registry([tmp_path])


def test_lint_finds_what_a_valid_file_hides(tmp_path: Path) -> None:
    block = "  attention: {kind: full_attention, query_heads: 8, kv_heads: 2, head_dim: 64}\n"
    texts = {
        "a.yaml": "# nothing yet\n",
        "b.yaml": OWN_MODEL,
        "c.yaml": OWN_MODEL.replace(block, block + "  spare: {kind: no_cache, role: mlp}\n"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    problems = lint_specs(sorted(tmp_path.glob("*.yaml")), None).problems
    assert ["no model" in problems[0], "which b.yaml has too" in problems[1], "blocks.spare" in problems[2]] == [
        True
    ] * 3
    assert len(problems) == 3


def test_a_missing_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--model-dir: found .*expected a directory"):
        resolve_model("llama-3.1-8b", model_dir=tmp_path / "absent")
    monkeypatch.setenv("KVPLAN_MODEL_PATH", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"KVPLAN_MODEL_PATH: found .*expected a directory"):
        resolve_model("llama-3.1-8b", model_dir=tmp_path)


def test_an_empty_folder_hides_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("llama-3.1-8b", "own"):
        (tmp_path / name).mkdir()
    assert resolve_model("llama-3.1-8b").spec.layer_count == 32
    with pytest.raises(InputError, match=r"the folder 'own' without config.json or .gguf"):
        resolve_model("own")
    (tmp_path / "llama-3.1-8b" / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, '
        '"num_key_value_heads": 1}'
    )
    assert resolve_model("llama-3.1-8b").spec.layer_count == 3


def test_paths_and_texts_are_both_taken(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN_MODEL)
    for given in (tmp_path / "own.yaml", str(tmp_path / "own.yaml")):
        assert resolve_model(given).spec.id == "own-model"
    for given in (tmp_path, str(tmp_path)):
        assert resolve_model("mine", model_dir=given).spec.id == "own-model"


@pytest.mark.parametrize("odd", [3, None, b"own", ["own"]])
def test_what_names_no_model_is_refused(odd: object) -> None:
    with pytest.raises(InputError, match="model: found"):
        resolve_model(odd)  # type: ignore[arg-type]


def test_a_sharing_layer_needs_an_owner() -> None:
    data = {
        "id": "x", "model_type": "x", "dtype": "bfloat16", "layers": ["2 x shared"],
        "blocks": {"shared": {"kind": "shared_cache", "owner": "nobody"}},
        "provenance": {"source": "x", "confidence": "verbatim"},
    }  # fmt: skip
    with pytest.raises(InputError, match="owner: found 'nobody'"):
        validate_spec(data, "x")
