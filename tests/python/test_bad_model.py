"""Bad model folders: config.json, weights, tokenizer.

What is wrong with a job is said at once, with file, place, cause and cure, before torch is loaded and before
anything is written. One case a row of the tables; every one goes through the real program.
"""

import os

import pytest

from bad_input import Case, edit_weights, shard, write_safetensors

CONFIG, WEIGHTS, INDEX = (
    "{model}/config.json",
    "{model}/model.safetensors",
    "{model}/model.safetensors.index.json",
)
FIRST_EXPERT = "model.layers.0.mlp.experts.0.gate_proj.weight"
NORM = "model.norm.weight"


def config_text(text):
    return lambda job: (job.model / "config.json").write_text(text)


def config(**fields):
    return lambda job: job.edit_config(**fields)


def config_case(name, fields, *says):
    return Case(f"config-{name}", config(**fields), (CONFIG, *says))


CONFIG_CASES = [
    Case(
        "config-missing",
        lambda job: (job.model / "config.json").unlink(),
        (CONFIG, "No such file", "copy it from the original model"),
    ),
    Case(
        "config-broken",
        config_text('{"model_type": "qwen3_moe",\n "hidden_size": }'),
        (CONFIG + ":2:17", "copy it from the original model"),
    ),
    Case(
        "config-cut-off",
        config_text('{"model_type": "qwen3_moe"'),
        (CONFIG + ":1:", "copy it from the original model"),
    ),
    Case("config-no-object", config_text("[1, 2]"), (CONFIG, "array", "object")),
    Case(
        "config-twice",
        config_text('{"model_type": "a",\n"model_type": "b"}'),
        (CONFIG + ":2:", "model_type", "copy it from the original model"),
    ),
    Case(
        "config-deep",
        config_text("[" * 5000 + "]" * 5000),
        (CONFIG + ":1:", "deep", "copy it from the original model"),
    ),
    Case(
        "config-nan",
        config_text('{"model_type": "qwen3_moe", "rms_norm_eps": NaN}'),
        (CONFIG + ":1:", "copy it from the original model"),
    ),
    config_case("family-unknown", {"model_type": "qwen3_mo"}, "qwen3_mo", "qwen3_moe"),
    config_case(
        "quantised",
        {"quantization_config": {"quant_method": "fp8"}},
        "quantization_config is",
        "quantised weights are not trained",
        "save it as bfloat16",
    ),
    config_case("family-none", {"model_type": None}, "model_type"),
    config_case(
        "experts-per-token", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5", "num_experts = 4"
    ),
    config_case(
        "heads", {"num_key_value_heads": 3}, "num_key_value_heads is 3", "must divide num_attention_heads = 4"
    ),
    config_case("negative", {"hidden_size": -32}, "hidden_size is -32", "from 1 to"),
    config_case(
        "layers-huge", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000", "from 1 to 1000"
    ),
    config_case("experts-huge", {"num_experts": 10**6}, "num_experts is 1000000", "from 0 to 512"),
    config_case("text-for-number", {"hidden_size": "32"}, 'hidden_size is "32"', "must be an integer"),
    config_case("fraction", {"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5", "must be an integer"),
    config_case("odd-head", {"head_dim": 7}, "head_dim is 7", "must be even"),
    config_case("activation", {"hidden_act": "relu"}, 'hidden_act is "relu"', "silu"),
    config_case("dropout", {"attention_dropout": 0.1}, "attention_dropout is 0.1", "set it to 0"),
    config_case("rope", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral", "yarn"),
    Case(
        "config-2^64",
        config_text('{"hidden_size": 18446744073709551616}'),
        (CONFIG + ":1:", "18446744073709551616", "copy it from the original model"),
    ),
]


def cut(job):
    path = job.model / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)


def set_header(name, **fields):
    return lambda job: edit_weights(job, lambda header: header[name].update(fields))


def drop_tensor(job):
    path = job.model / "model.safetensors"
    import safetensors.numpy as st

    tensors = st.load_file(path)
    del tensors[NORM]
    st.save_file(tensors, path)


def rename_file(old, new):
    return lambda job: (job.model / old).rename(job.model / new)


def link_outside(job):
    outside = job.folder / "elsewhere.safetensors"
    (job.model / "model.safetensors").rename(outside)
    (job.model / "model.safetensors").symlink_to(outside)


def store_in_dtype(dtype):
    def store(job):
        import safetensors.numpy as st

        path = job.model / "model.safetensors"
        tensors = st.load_file(path)
        tensors[NORM] = tensors[NORM].astype(dtype)
        st.save_file(tensors, path)

    return store


def bad_weights(write):
    return lambda job: write(job.model / "model.safetensors")


WEIGHT_CASES = [
    Case(
        "weights-none",
        lambda job: (job.model / "model.safetensors").unlink(),
        ("{model}", "model.safetensors", "give the folder of a model"),
    ),
    Case(
        "weights-pickle",
        rename_file("model.safetensors", "pytorch_model.bin"),
        ("{model}", ".bin", "safetensors", "save_pretrained"),
    ),
    Case("weights-cut", cut, (WEIGHTS, "bytes", "fetch or write it again")),
    Case(
        "weights-empty", bad_weights(lambda path: path.write_bytes(b"")), (WEIGHTS, "fetch or write it again")
    ),
    Case(
        "weights-header-huge",
        bad_weights(lambda path: path.write_bytes(b"\xff" * 7 + b"\x7f{}")),
        (WEIGHTS, "header", "fetch or write it again"),
    ),
    Case(
        "weights-header-text",
        bad_weights(lambda path: write_safetensors(path, b"{broken", b"")),
        (WEIGHTS, ":1:", "fetch or write it again"),
    ),
    Case(
        "weights-overlap", set_header(NORM, data_offsets=[0, 128]), (WEIGHTS, NORM, "fetch or write it again")
    ),
    Case("weights-wrap", set_header(NORM, shape=[2**32, 2**32]), (WEIGHTS, NORM, "fetch or write it again")),
    Case("weights-dtype-unknown", set_header(NORM, dtype="F33"), (WEIGHTS, NORM, "F33", "known are BOOL")),
    Case(
        "weights-dtype-integer", store_in_dtype("int32"), (WEIGHTS, NORM, "I32", "take the unquantised model")
    ),
    Case(
        "weights-missing",
        drop_tensor,
        ("{model}", "missing", NORM, "use the config.json that was published with these weights"),
    ),
    Case(
        "weights-shape",
        config(moe_intermediate_size=8),
        (
            "{model}",
            FIRST_EXPERT,
            "[16, 32]",
            "[8, 32]",
            "use the config.json that was published with these weights",
        ),
    ),
    Case(
        "weights-surplus",
        config(num_experts=2),
        ("{model}", "experts.2.", "surplus", "use the config.json that was published with these weights"),
    ),
    Case(
        "weights-layers",
        config(num_hidden_layers=3),
        (
            "{model}",
            "missing",
            "model.layers.2.",
            "use the config.json that was published with these weights",
        ),
    ),
    Case("weights-outside", link_outside, (WEIGHTS, "leaves the folder", "put the file itself there")),
    Case(
        "index-missing-file",
        lambda job: shard(job, stored_as="lost"),
        ("{model}/model-00001-of-00001.safetensors", INDEX, "is missing", "fetch or write"),
    ),
    Case(
        "index-parent",
        lambda job: shard(job, "../x.safetensors", "x.safetensors"),
        (INDEX, "../x.safetensors", "expected the plain name"),
    ),
    Case(
        "index-absolute",
        lambda job: shard(job, "/etc/x.safetensors", "x.safetensors"),
        (INDEX, "/etc/x.safetensors", "expected the plain name"),
    ),
    Case(
        "index-broken",
        lambda job: (shard(job), (job.model / "model.safetensors.index.json").write_text('{"weight_map": {')),
        (INDEX + ":1:", "fetch or write the checkpoint again"),
    ),
]


def tokenizer_file(text):
    return lambda job: (job.model / "tokenizer.json").write_text(text)


def no_tokenizer(job):
    for path in job.model.glob("tokenizer*"):
        path.unlink()


TOKENIZER = "{model}/tokenizer.json"
TOKENIZER_CASES = [
    Case("tokenizer-none", no_tokenizer, ("{model}", "no tokenizer", "copy the tokenizer files")),
    Case(
        "tokenizer-broken",
        tokenizer_file('{"model": '),
        (TOKENIZER + ":1:", "copy the file from the original model"),
    ),
    Case(
        "tokenizer-too-large",
        tokenizer_file('{"model": {"vocab": {"a": 0, "b": 70000}}}'),
        (TOKENIZER, "largest token id is 70000", "vocab_size", "tokenizer that belongs to the model"),
    ),
]


@pytest.mark.parametrize("case", [*CONFIG_CASES, *WEIGHT_CASES, *TOKENIZER_CASES], ids=lambda case: case.name)
def test_bad_model_is_refused(case, job):
    case.check(job)
