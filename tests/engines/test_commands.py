"""Launch commands, read as each engine's own parser reads them.

The rules are those of the parsers: vllm-project/vllm vllm/utils/argparse_utils.py, sgl-project/sglang
python/sglang/srt/server_args.py, ggml-org/llama.cpp common/arg.cpp, NVIDIA/TensorRT-LLM tensorrt_llm/commands/serve.py,
InternLM/lmdeploy lmdeploy/cli/serve.py, ollama/ollama envconfig/config.go.
"""

from __future__ import annotations

import pytest

from kvplan.engines.commands import LaunchCommand, parse_command
from kvplan.errors import InputError


def flags(text: str, **given: object) -> dict[str, object]:
    return dict(parse_command(text, **given).flags)  # type: ignore[arg-type]


class TestVllm:
    def test_the_command_of_the_documentation(self) -> None:
        read = parse_command("vllm serve Qwen/Qwen3-32B -tp 2 --kv-cache-dtype fp8 --port 8000 --served-model-name x")
        assert read.engine == "vllm"
        assert read.model == "Qwen/Qwen3-32B"
        assert dict(read.flags) == {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8"}
        assert set(read.ignored) == {"port", "served_model_name"}
        assert read.unknown == ()

    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("128k", 128_000),
            ("128K", 131_072),
            ("1m", 10**6),
            ("1M", 2**20),
            ("25.6k", 25_600),
            ("auto", -1),
            ("-1", -1),
            ("AUTO", -1),
        ],
    )
    def test_small_letters_count_in_thousands_and_capitals_in_powers_of_two(self, text: str, tokens: int) -> None:
        assert flags(f"vllm serve m/m --max-model-len {text}") == {"max_model_len": tokens}

    @pytest.mark.parametrize("text", ["1.5K", "1e6", "128kb", "12q", "''"])
    def test_a_length_vllm_refuses_is_one_sentence(self, text: str) -> None:
        with pytest.raises(InputError, match=r"--max-model-len: found .* expected a whole number"):
            parse_command(f"vllm serve m/m --max-model-len {text}")

    @pytest.mark.parametrize(
        "spelling",
        [
            "--tensor-parallel-size 8",
            "--tensor-parallel-size=8",
            "--tensor_parallel_size=8",
            "--tensor_parallel-size 8",
            "--tensor-parallel 8",
            "-tp 8",
            "-tp=8",
        ],
    )
    def test_every_spelling_of_a_flag(self, spelling: str) -> None:
        assert flags(f"vllm serve m/m {spelling}") == {"tensor_parallel_size": 8}

    def test_the_last_of_two_wins_and_is_said(self) -> None:
        read = parse_command("vllm serve m/m --max-num-seqs 4 --max-num-seqs 8")
        assert dict(read.flags) == {"max_num_seqs": 8}
        assert any("more than once" in warning for warning in read.warnings)

    def test_dotted_keys_make_json_with_lists(self) -> None:
        read = flags(
            "vllm serve m/m --compilation-config.cudagraph_mode PIECEWISE --compilation_config.pass_config.fuse=true "
            "--compilation-config.cudagraph_capture_sizes+ 1,2 --speculative-config.num_speculative_tokens 2"
        )
        assert read == {
            "compilation_config": {
                "cudagraph_mode": "PIECEWISE",
                "pass_config": {"fuse": True},
                "cudagraph_capture_sizes": [1, 2],
            },
            "speculative_config": {"num_speculative_tokens": 2},
        }

    @pytest.mark.parametrize(("word", "level"), [("-O3", 3), ("-O=2", 2), ("-O 1", 1)])
    def test_the_optimisation_level(self, word: str, level: int) -> None:
        assert flags(f"vllm serve m/m {word}", version="0.25.0") == {"optimization_level": level}

    def test_the_level_was_the_compilation_config_before(self) -> None:
        assert flags("vllm serve m/m -O3", version="0.9.2") == {"compilation_config": {"level": 3}}

    def test_negated_and_bare_switches(self) -> None:
        read = flags("vllm serve m/m --no-enable-prefix-caching --enforce-eager --no-enable-chunked-prefill")
        assert read == {"enable_prefix_caching": False, "enforce_eager": True, "enable_chunked_prefill": False}

    def test_the_model_as_a_flag_still_works_after_serve(self) -> None:
        read = parse_command("vllm serve --model Qwen/Qwen3-8B -dp 2")
        assert read.model == "Qwen/Qwen3-8B"
        assert any("right after serve" in warning for warning in read.warnings)

    def test_the_old_module_takes_no_positional_model(self) -> None:
        read = parse_command("python3 -m vllm.entrypoints.openai.api_server Qwen/Qwen3-8B --dtype half")
        assert read.model is None
        assert read.unknown == ("Qwen/Qwen3-8B",)

    def test_a_flag_that_left_is_unknown_from_then_on(self) -> None:
        old = parse_command("vllm serve m/m --swap-space 16", version="0.17.1")
        new = parse_command("vllm serve m/m --swap-space 16", version="0.18.0")
        assert dict(old.flags) == {"swap_space": 16.0}
        assert new.unknown == ("swap_space",)
        assert new.removed == {"swap_space": "0.18.0"}

    def test_an_unknown_flag_is_listed_and_takes_its_value_along(self) -> None:
        read = parse_command("vllm serve m/m --no-such-thing 5 --max-num-seqs 8")
        assert read.unknown == ("no_such_thing",)
        assert dict(read.flags) == {"max_num_seqs": 8}

    def test_an_ambiguous_beginning_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"--max-num is ambiguous"):
            parse_command("vllm serve m/m --max-num 8")

    def test_the_command_line_wins_over_the_config_file(self) -> None:
        text = "model: a/b\nmax-model-len: 65536\nenforce_eager: false\ncompilation-config: {cudagraph_mode: NONE}\n"
        read = parse_command("vllm serve --config c.yaml --max-model-len 32768", read_file={"c.yaml": text}.get)
        assert read.model == "a/b"
        assert dict(read.flags) == {
            "max_model_len": 32768,
            "enforce_eager": False,
            "compilation_config": {"cudagraph_mode": "NONE"},
        }

    def test_an_attached_config_is_not_read_by_vllm(self) -> None:
        read = parse_command("vllm serve a/b --config=c.yaml", read_file={"c.yaml": "max-model-len: 1"}.get)
        assert dict(read.flags) == {}
        assert any("not expanded" in warning for warning in read.warnings)

    def test_a_config_file_that_is_not_here_is_said(self) -> None:
        assert parse_command("vllm serve a/b --config c.yaml").not_knowable == (
            "what the options file c.yaml sets: it is not here",
        )

    def test_json_that_is_none(self) -> None:
        with pytest.raises(InputError, match=r"--speculative-config: found '\{method: mtp\}', expected JSON"):
            parse_command("vllm serve m/m --speculative-config '{method: mtp}'")


class TestSglang:
    def test_short_names_are_unique_beginnings(self) -> None:
        text = "python -m sglang.launch_server --model-path a/b --tp 8 --dp=8 --ep 4 --context-length 65536"
        assert flags(text) == {"tp_size": 8, "dp_size": 8, "ep_size": 4, "context_length": 65536}

    def test_long_names_are_the_same_flags(self) -> None:
        text = "python -m sglang.launch_server --model a/b --tensor-parallel-size 2 --expert-parallel-size 2"
        assert flags(text) == {"tp_size": 2, "ep_size": 2}

    def test_pp_is_ambiguous(self) -> None:
        with pytest.raises(InputError, match="--pp is ambiguous"):
            parse_command("python -m sglang.launch_server --model-path a/b --pp 2", version="0.5.23")

    def test_underscores_are_no_flags_of_sglang(self) -> None:
        assert parse_command("python -m sglang.launch_server --model-path a/b --tp_size 2").unknown == ("tp_size",)

    def test_serve_takes_a_positional_model_and_the_module_does_not(self) -> None:
        assert parse_command("sglang serve a/b").model == "a/b"
        assert parse_command("python -m sglang.launch_server a/b").unknown == ("a/b",)

    def test_an_old_name_of_the_graph_size(self) -> None:
        text = "python -m sglang.launch_server --model-path a/b --cuda-graph-max-bs 128"
        assert flags(text, version="0.5.9") == {"cuda_graph_max_bs": 128}

    def test_numbers_with_letters_are_refused(self) -> None:
        with pytest.raises(InputError, match="--context-length: found '128k'"):
            parse_command("python -m sglang.launch_server --model-path a/b --context-length 128k")


class TestLlamaCpp:
    def test_short_flags(self) -> None:
        read = parse_command(
            "llama-server -hf ggml-org/gemma-3-12b-it-GGUF:Q8_0 -c 65536 -np 4 -ngl all -fa on --no-mmproj"
        )
        assert dict(read.flags) == {
            "ctx_size": 65536,
            "parallel": 4,
            "n_gpu_layers": "all",
            "flash_attn": "on",
            "mmproj": False,
        }
        assert read.model is None
        assert read.hint is not None
        assert read.hint.model == "google/gemma-3-12b-it"
        assert read.hint.weights == "Q8_0"

    def test_there_is_no_form_with_an_equals_sign(self) -> None:
        assert parse_command("llama-server -m x.gguf --ctx-size=4096").unknown == ("ctx_size",)

    def test_there_are_no_abbreviations_and_underscores_are_dashes(self) -> None:
        read = parse_command("llama-server -m x.gguf --ctx 4096 --ubatch_size 256")
        assert read.unknown == ("ctx",)
        assert dict(read.flags) == {"ubatch_size": 256}

    def test_variables_come_first_and_flags_override_them(self) -> None:
        read = parse_command(
            "llama-server --ctx-size 65536",
            env={"LLAMA_ARG_CTX_SIZE": "131072", "LLAMA_ARG_N_PARALLEL": "2", "LLAMA_ARG_NO_KV_OFFLOAD": "1"},
        )
        assert dict(read.flags) == {"ctx_size": 65536, "parallel": 2, "kv_offload": False}
        assert read.overridden == ("--ctx-size 65536 wins over LLAMA_ARG_CTX_SIZE 131072",)

    def test_a_split_file_names_its_model(self) -> None:
        read = parse_command("llama-server -m /m/gpt-oss-120b-mxfp4-00001-of-00003.gguf")
        assert read.model_hint == (
            "openai/gpt-oss-120b from the file name gpt-oss-120b-mxfp4-00001-of-00003.gguf, weights MXFP4, "
            "first of 3 files"
        )


class TestOthers:
    def test_trtllm_serve_with_and_without_its_sub_command(self) -> None:
        for text in ("trtllm-serve a/b --tp_size 2", "trtllm-serve serve a/b --tensor_parallel_size=2"):
            read = parse_command(text)
            assert (read.model, dict(read.flags)) == ("a/b", {"tensor_parallel_size": 2})

    def test_click_knows_no_abbreviations_and_no_dashes(self) -> None:
        assert parse_command("trtllm-serve a/b --tp-size 2 --max_seq 5").unknown == ("tp_size", "max_seq")

    def test_the_options_file_of_trtllm_wins(self) -> None:
        text = "kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8}\nmax_batch_size: 8\nprint_iter_log: true\n"
        read = parse_command(
            "trtllm-serve a/b --kv_cache_free_gpu_memory_fraction 0.95 --max_batch_size 8 --config o.yaml",
            read_file={"o.yaml": text}.get,
        )
        assert dict(read.flags) == {
            "free_gpu_memory_fraction": 0.8,
            "max_batch_size": 8,
            "kv_cache_config": {"dtype": "fp8"},
        }
        assert read.ignored == ("print_iter_log",)
        assert len(read.overridden) == 1
        assert read.settings()["kv_cache_config.dtype"] == "fp8"

    def test_lmdeploy(self) -> None:
        read = parse_command(
            "lmdeploy serve api_server internlm/internlm3-8b-instruct --tp 2 --cache-max-entry-count 0.5"
        )
        assert read.model == "internlm/internlm3-8b-instruct"
        assert dict(read.flags) == {"tp": 2, "cache_max_entry_count": 0.5}

    def test_ollama_run_is_a_server_with_a_model(self) -> None:
        read = parse_command("OLLAMA_CONTEXT_LENGTH=8192 ollama run qwen3:32b-q8_0 --verbose 'hi there'")
        assert read.engine == "ollama" and read.hint is not None
        assert (read.hint.model, read.hint.weights, read.flags) == ("Qwen/Qwen3-32B", "Q8_0", {"context_length": 8192})

    def test_ollama_is_set_up_by_variables_alone(self) -> None:
        read = parse_command("OLLAMA_NUM_PARALLEL=4 OLLAMA_FLASH_ATTENTION=1 OLLAMA_KEEP_ALIVE=-1 ollama serve")
        assert dict(read.flags) == {"num_parallel": 4, "flash_attention": True}
        assert read.ignored == ("keep_alive",)

    def test_the_ranks_are_those_of_the_engine_models(self) -> None:
        read = parse_command("vllm serve m/m -tp 4 -pp 2 --enable-expert-parallel -dcp 2")
        parallel = read.parallelism()
        assert (parallel.tensor, parallel.pipeline, parallel.expert, parallel.decode_context) == (4, 2, True, 2)
        assert read.ranks == 8
        inside = parse_command("python -m sglang.launch_server --model a/b --tp 8 --dp 8 --enable-dp-attention")
        assert inside.ranks == 8


class TestAroundTheProgram:
    @pytest.mark.parametrize(
        "before",
        [
            "exec",
            "nohup",
            "CUDA_VISIBLE_DEVICES=0,1",
            "env HF_HOME=/x",
            "sudo -u llm",
            "timeout 30m",
            "numactl --cpunodebind=0 --membind=0",
            "uv run --with vllm==0.15.0",
            "srun --nodes=1 -w host",
            "mpirun -n 8 --allow-run-as-root",
            "conda run -n serving",
            "taskset -c 0-31",
        ],
    )
    def test_wrappers(self, before: str) -> None:
        assert parse_command(f"{before} vllm serve a/b -tp 2").model == "a/b"

    @pytest.mark.parametrize(
        "program",
        ["/opt/venv/bin/vllm serve", "python3 -m vllm.entrypoints.cli.main serve", "python /usr/local/bin/vllm serve"],
    )
    def test_ways_to_name_the_program(self, program: str) -> None:
        assert parse_command(f"{program} a/b").model == "a/b"

    @pytest.mark.parametrize(
        "text",
        [
            "tmux new -d -s v 'vllm serve a/b -tp 2'",
            "screen -dmS v vllm serve a/b -tp 2",
            "ssh -p 22 host vllm serve a/b -tp 2",
            "ssh host 'M=a/b; vllm serve $M -tp 2'",
            "su - llm -c 'vllm serve a/b -tp 2'",
            "docker exec -it c1 vllm serve a/b -tp 2",
            "docker compose exec c1 vllm serve a/b -tp 2",
            "kubectl exec pod -- bash -c 'vllm serve a/b -tp 2'",
            "singularity exec --nv v.sif vllm serve a/b -tp 2",
        ],
    )
    def test_shells_elsewhere(self, text: str) -> None:
        read = parse_command(text)
        assert (read.model, dict(read.flags)) == ("a/b", {"tensor_parallel_size": 2})

    def test_docker_run(self) -> None:
        read = parse_command(
            'docker run -d --gpus \'"device=0,1"\' -e HF_TOKEN="$T" -p 8:8 vllm/vllm-openai:v0.20.2 --model a/b -tp 2'
        )
        assert (read.engine, read.version, read.model) == ("vllm", "0.20.2", "a/b")
        assert dict(read.flags) == {"tensor_parallel_size": 2}

    def test_an_image_that_serves_by_itself_is_told_twice(self) -> None:
        read = parse_command("docker run vllm/vllm-openai:v0.25.0 vllm serve a/b --max-num-seqs 8")
        assert read.model == "a/b"
        assert len(read.mistakes) == 1
        assert "by itself" in read.mistakes[0]

    def test_variables_of_the_caller(self) -> None:
        read = parse_command("vllm serve $MODEL -tp ${TP:-4} --max-num-seqs $N", env={"MODEL": "a/b"})
        assert read.model == "a/b"
        assert dict(read.flags) == {"tensor_parallel_size": 4, "max_num_seqs": None}
        assert read.not_knowable == ("max_num_seqs: comes from N",)
        assert read.assumed == ("TP",)

    def test_words_are_taken_as_they_are(self) -> None:
        words = ["vllm", "serve", "a/b", "--hf-overrides", '{"a": "it\'s $HOME"}']
        assert dict(parse_command(words).flags) == {"hf_overrides": {"a": "it's $HOME"}}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("vllm serve 'x", "a single quote that isn't closed"),
            ('vllm serve "x', "a double quote that isn't closed"),
            ("echo vllm serve x", "expected a command that starts an engine"),
            ("ollama pull llama3.1:8b", "expected a command that starts an engine: .*ollama serve.*ollama run"),
            ("ollama run $MODEL", "expected a command that starts an engine"),
            ("", "expected a command that starts an engine"),
            ("vllm serve a/b; vllm serve c/d", "found 2 commands"),
            ("vllm serve a/b --max-num-seqs", "--max-num-seqs expects a value"),
            (
                "vllm serve a/b --gpu-memory-utilization half",
                "--gpu-memory-utilization: found 'half', expected a number",
            ),
            ("trtllm-serve a/b --max_batch_size 1e3", "--max_batch_size: found '1e3'"),
        ],
    )
    def test_bad_input_is_one_sentence(self, text: str, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            parse_command(text)
        assert "\n" not in str(caught.value)


def test_what_is_read_feeds_the_engine_models() -> None:
    from kvplan.engines.llama_cpp.engine import OPTIONS
    from kvplan.engines.options import read_options

    read = parse_command("llama-server -m x.gguf -c 8192 -np 2 -ngl all -ctk q8_0 -nkvo --flash-attn on")
    options = read_options(OPTIONS, read.settings())
    assert (options["ctx_size"], options["parallel"], options["cache_type_k"]) == (8192, 2, "q8_0")
    assert options["no_kv_offload"] is True


def test_plain_values_for_json() -> None:
    import json

    read: LaunchCommand = parse_command('vllm serve a/b -tp 2 --kv-transfer-config \'{"kv_role": "kv_both"}\'')
    assert json.loads(json.dumps(read.to_dict()))["flags"]["kv_transfer_config"] == {"kv_role": "kv_both"}
