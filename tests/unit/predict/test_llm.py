"""GPU memory estimates agree with published figures of the models."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.client.llm_sizing import (
    estimated_fields,
    fields_for,
    found_model,
    gpu_kinds,
    read_model,
    wanted_model,
)
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.sizing.memory import (
    GIB,
    MIB,
    Train,
    Use,
    fit_on,
    fits,
    known_kinds,
    memory_need,
    share_of_one,
)
from gpu_scheduler.sizing.model import LATENT, all_known, named_model, nearest, shape_of, weights_of

# Parameters as the Hugging Face Hub counts the tensors of each model ("Model size" on its page).
PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b": 30_532_122_624,
    "llama-3.1-1b": 1_235_814_400,
    "llama-3.1-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_shape_of_known_model_gives_published_parameter_count(name: str) -> None:
    assert all_known()[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        # "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1, in kB of 1000 bytes.
        ("qwen2.5-72b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("deepseek-v3", 70_272),
        # Llama 3.1 on the Hugging Face blog: 15.62 GB and 39.06 GB for 128,000 tokens.
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
    ],
)
def test_cache_per_token_is_as_published(name: str, bytes_per_token: int) -> None:
    shape = LATENT[name][1] if name in LATENT else all_known()[name]
    assert 2 * shape.cache_values_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", "qwen2.5-32b"),
        ("qwen2.5-7b-inst", "qwen2.5-7b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama-3.2-3b", "llama-3.1-3b"),
        ("llama3:70b", "llama-3.1-70b"),
        ("mixtral-8x7b-instruct-v0.1", "mixtral-8x7b"),
        ("Mistral-7B-v0.1", "mistral-7b"),
        ("phi-3-mini-4k-instruct", "phi-3-mini"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
    ],
)
def test_model_family_is_found_in_common_spellings(name: str, known: str) -> None:
    model = named_model(name)
    assert model.shape == all_known()[known]
    assert model.parameters_from == f"the published shape of {known}"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("our-13b", 13),
        ("big-1.5b-v2", 1.5),
        ("tiny-350m", 0.35),
        ("mix-8x3b", 8 * 3 * 0.82),
        ("qwen2.5-vl-7b-inst", 7),
    ],
)
def test_unknown_model_has_size_from_its_name(name: str, billions: float) -> None:
    model = named_model(name)
    assert model.parameters == round(billions * 1e9)
    assert "in the name" in model.parameters_from
    assert "nearest in size" in model.shape_from


@pytest.mark.parametrize("name", ["x", "", "resnet50", "yolov8m", "large", "bert-base", "8bit"])
def test_name_without_size_is_rejected_with_alternative(name: str) -> None:
    with pytest.raises(InvalidRequest, match="-7b, or the directory of the model"):
        named_model(name)


def test_nearest_known_model_is_measured_by_ratio() -> None:
    assert nearest(9_000_000_000)[0] == "gemma-2-9b"
    assert nearest(500_000_000_000)[0] == "llama-3.1-405b"
    assert nearest(1)[0] == "qwen2.5-0.5b"


def part(need: Any, name: str) -> float:
    return next(p.size_bytes for p in need.parts if p.name == name) / GIB


def test_inference_is_weights_cache_and_overhead() -> None:
    need = memory_need(named_model("qwen2.5-32b"), Use(context=32_768, dtype="bf16"))
    assert part(need, "weights") == pytest.approx(61.03, abs=0.01)
    assert part(need, "KV cache") == 8.0
    assert 70 < need.total_bytes / GIB < 73
    assert fit_on(need, "H100-80GB", 80 * 1024).count == 1
    assert fit_on(need, "A100-40GB", 40 * 1024).count == 2


def test_full_training_takes_sixteen_bytes_per_parameter() -> None:
    # ZeRO (Rajbhandari et al. 2020): 7.5 billion parameters take 120 GB before activations.
    need = memory_need(named_model("x-7.5b"), Use(train=Train.FULL, context=1))
    states = sum(p.size_bytes for p in need.parts[:3])
    assert states == 120_000_000_000
    same = memory_need(named_model("x-7.5b"), Use(train=Train.FULL, dtype="fp32", context=1))
    assert sum(p.size_bytes for p in same.parts[:3]) == 120_000_000_000


def test_qlora_fits_large_models_on_one_card() -> None:
    # QLoRA (Dettmers et al. 2023): 65 billion parameters on one GPU of 48 GB, 33 on 24 GB.
    large = memory_need(named_model("guanaco-65b"), Use(train=Train.QLORA, context=512))
    assert fit_on(large, "A40", 48 * 1024).count == 1
    small = memory_need(named_model("guanaco-33b"), Use(train=Train.QLORA, context=512))
    assert fit_on(small, "RTX3090", 24 * 1024).count == 1
    lora = memory_need(named_model("guanaco-33b"), Use(train=Train.LORA, context=512))
    assert fit_on(lora, "RTX3090", 24 * 1024).count > 1


def test_adapters_have_published_parameter_count() -> None:
    # peft, Llama 3.1 8B, r=16 on all linear layers: "trainable params: 41,943,040".
    assert all_known()["llama-3.1-8b"].adapter_parameters(16) == 41_943_040


def test_more_context_batch_or_bits_never_takes_less() -> None:
    model = named_model("llama-3.1-8b")
    for train in (None, *Train):
        # Full training takes the same 16 bytes in mixed and in full precision.
        bits: dict[str, Any] = {} if train is Train.FULL else {"dtype": "fp32"}
        for change in ({"context": 16_384}, {"batch": 4}, bits):
            small = memory_need(model, Use(train=train)).total_bytes
            large = memory_need(model, Use(**({"train": train} | change))).total_bytes
            assert large >= small, (train, change)
    kept = memory_need(model, Use(train=Train.LORA, checkpointing=False)).total_bytes
    assert kept > memory_need(model, Use(train=Train.LORA)).total_bytes


def test_quantised_weights_are_smaller_except_embeddings() -> None:
    model = named_model("llama-3.1-8b-awq")
    assert memory_need(model, Use()).dtype == "int4"
    # The files of such a quantisation of this model have 5.7 GB on the Hub.
    assert part(memory_need(model, Use()), "weights") * GIB / 1e9 == pytest.approx(5.7, abs=0.1)


def test_invalid_use_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="data type 'fp7' is not known"):
        Use(dtype="fp7")
    with pytest.raises(InvalidRequest, match="must be 1 or more"):
        Use(context=0)


# --- files


def a_tensor_file(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """A safetensors file without any data behind its header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def a_model(tmp_path: Path, config: dict[str, Any] = CONFIG) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_directory_is_counted_to_last_parameter(tmp_path: Path) -> None:
    directory = a_model(tmp_path)
    a_tensor_file(directory / "a.safetensors", {"x.weight": ("BF16", [100, 64], 12_800)})
    a_tensor_file(
        directory / "b.safetensors",
        {"y.weight": ("BF16", [64, 64], 8192), "y.bias": ("F32", [64], 256)},
    )
    a_tensor_file(directory / "other.safetensors", {"x": ("F32", [9], 36)})
    index = {"weight_map": {"x.weight": "a.safetensors", "y.weight": "b.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    model = read_model(directory)
    assert model.parameters == 6400 + 4096 + 64
    assert (model.dtype, model.weight_bytes) == ("bf16", 12_800 + 8192 + 256)
    assert model.parameters_from == "the headers of its safetensors files"
    assert found_model(f"{directory}/") == model
    need = memory_need(model, Use(context=10))
    assert need.parts[0].size_bytes == model.weight_bytes
    assert need.parts[1].size_bytes == 2 * 2 * 2 * 16 * 2 * 10
    other = memory_need(model, Use(context=10, dtype="fp32"))
    assert other.parts[0].size_bytes == model.parameters * 4


def test_directory_without_tensors_is_estimated_by_shape(tmp_path: Path) -> None:
    model = read_model(a_model(tmp_path))
    assert model.parameters == shape_of(CONFIG).parameters
    assert "no safetensors" in model.parameters_from
    assert model.dtype == "bf16"


def test_packed_weights_count_as_unpacked() -> None:
    header = {
        "q.qweight": {"dtype": "I32", "shape": [8, 64], "data_offsets": [0, 2048]},
        "q.scales": {"dtype": "F16", "shape": [4, 64], "data_offsets": [2048, 2560]},
        "n.weight": {"dtype": "F16", "shape": [64], "data_offsets": [2560, 2688]},
    }
    weights = weights_of([header], bits=4)
    assert weights.parameters == {"int4": 8 * 64 * 8, "fp16": 64}
    assert weights.size_bytes == 2688
    packed = {"q.weight": {"dtype": "U8", "shape": [100, 1], "data_offsets": [0, 100]}}
    assert weights_of([packed], bits=4).parameters == {"int4": 200}


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, struct.pack("<Q", 5) + b"[1,2]", struct.pack("<Q", 4) + b"{}"]
)
def test_invalid_safetensors_file_is_rejected(tmp_path: Path, data: bytes) -> None:
    directory = a_model(tmp_path)
    (directory / "model.safetensors").write_bytes(data)
    with pytest.raises(InvalidInput, match=r"model\.safetensors"):
        read_model(directory)


def test_index_cannot_leave_its_directory(tmp_path: Path) -> None:
    directory = a_model(tmp_path)
    index = {"weight_map": {"x": "../../etc/passwd"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidInput, match="outside of its directory"):
        read_model(directory)


@pytest.mark.parametrize("config", [[], {}, {"hidden_size": 8}, "x"])
def test_configuration_without_shape_is_rejected(tmp_path: Path, config: Any) -> None:
    with pytest.raises(InvalidInput, match=r"config\.json"):
        read_model(a_model(tmp_path, config))


def test_compressed_caches_and_nested_configurations_are_supported() -> None:
    latent = shape_of(CONFIG | {"kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert latent.cache_values_per_token == 2 * 576
    assert shape_of({"text_config": CONFIG}) == shape_of(CONFIG)


# --- GPUs and job requests


def test_fewest_gpus_come_first() -> None:
    need = memory_need(named_model("llama-3.1-70b"), Use())
    found = fits(need, known_kinds(["A100", "H200", "T4"]))
    assert [(fit.count, fit.gpu) for fit in found] == [
        (2, "A100-80GB"),
        (2, "H200-141GB"),
        (4, "A100-40GB"),
        (16, "T4-16GB"),
    ]
    assert all(fit.each_mb <= fit.memory_mb for fit in found)
    giant = memory_need(named_model("x-90000b"), Use())
    assert fit_on(giant, "T4", 16 * 1024) is None


def test_small_model_takes_share_in_steps() -> None:
    need = memory_need(named_model("qwen2.5-0.5b"), Use(context=512))
    assert share_of_one(need, 80 * 1024) == 0.05
    assert share_of_one(need, 4 * 1024) == pytest.approx(0.5, abs=0.1)
    assert share_of_one(memory_need(named_model("qwen2.5-32b"), Use()), 80 * 1024) == 1.0


KINDS = gpu_kinds([{"model": "A100", "memory_mb": 81_920}] * 8)


def test_model_of_file_uses_values_of_file() -> None:
    config = {"default_requirement": 3.0, "models": {"qwen2.5-7b": 2.5}}
    assert fields_for("qwen2.5-7b", config, {})[0] == {"gpu_count": 2.5}
    fields, how = fields_for("mystery", config, KINDS)
    assert fields == {"gpu_count": 3.0}
    assert "default of 3 GPUs" in how
    with pytest.raises(InvalidRequest, match="cannot be read from its name"):
        fields_for("mystery", {}, KINDS)


def test_unknown_model_is_estimated_for_available_gpus() -> None:
    fields, how = fields_for("llama-3.1-70b,context=32k", {}, KINDS)
    assert fields["gpu_count"] == 2
    assert fields["gpu_memory_mb_per_gpu"] * 2 * MIB > 141_000_000_000
    assert "2 x A100-80GB" in how
    share, _ = fields_for("qwen2.5-7b", {}, KINDS)
    assert 0.2 <= share["gpu_count"] < 0.4
    assert share["gpu_memory_mb"] <= share["gpu_count"] * 81_920
    with pytest.raises(InvalidRequest, match="there are 8 x A100-80GB; choose a smaller"):
        fields_for("x-2000b", {}, KINDS)
    with pytest.raises(InvalidRequest, match="there are no GPUs"):
        estimated_fields(named_model("x-7b"), Use(), {})


@pytest.mark.parametrize(
    "text", ["", ",context=1", "x-7b,context=", "x-7b,train=half", "x-7b,foo=1", "x-7b,batch=-1"]
)
def test_invalid_llm_option_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest):
        wanted_model(text)


def test_model_use_is_parsed() -> None:
    assert wanted_model("x-7b, context=32k,dtype=int4,batch=4,train=qlora,rank=8") == (
        "x-7b",
        Use(context=32_768, dtype="int4", batch=4, train=Train.QLORA, rank=8),
    )


def test_very_long_number_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="write a number such as"):
        wanted_model("qwen2.5-32b,context=" + "1" * 5_000)
