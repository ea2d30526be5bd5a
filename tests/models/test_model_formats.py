"""GGUF files, adapters and quantized weights: the attention is that of the same numbers in a plain model."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")

IDS = torch.arange(3, 23)[None]
#: Pieces from which the words w0 to w9 are made.
PIECES = ["▁", "w", *map(str, range(10)), "▁w", *(f"▁w{i}" for i in range(10))]
TOKENS = ["<unk>", "<s>", "</s>", *PIECES, *(f"<{i}>" for i in range(61 - len(PIECES)))]


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(20)  # scores that are not all alike
    return model


def captured(model, **options):
    return ht.capture(model, inputs=IDS, **options)[0].values


def close(values, expected, share):
    """Whether values differ by at most this share of the largest one."""
    return float((values - expected).abs().max()) <= share * float(expected.abs().max())


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(path, model, quantization=None):
    """Write a Llama as llama.cpp does: its own names, and the two halves of rotary features interleaved."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
    writer.add_token_types([3 if token.startswith("<") else 1 for token in TOKENS])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, weight in model.state_dict().items():
        values, stored = weight.numpy(), name
        for own, other in GGUF_NAMES.items():
            stored = stored.replace(own, other)
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        n_heads = heads.get(stored.split(".")[-2])
        if n_heads:
            halves = values.reshape(n_heads, 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if quantization is None or values.ndim == 1:
            writer.add_tensor(stored, np.ascontiguousarray(values))
        else:
            writer.add_tensor(stored, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_the_model_it_was_made_from(llama, tmp_path):
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    expected = captured(llama)
    exact = write_gguf(tmp_path / "exact.gguf", llama)
    assert torch.equal(captured(exact), expected)
    eight_bits = write_gguf(tmp_path / "eight.gguf", llama, gguf.GGMLQuantizationType.Q8_0)
    assert close(captured(eight_bits), expected, 0.02)
    assert not torch.equal(captured(eight_bits), expected)
    half = captured(exact, model_dtype="bfloat16")
    assert close(half, expected, 0.05)
    assert not torch.equal(half, expected)


def test_a_run_of_a_gguf_file(llama, tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "models" / "tiny.gguf", llama)
    (tmp_path / "words.txt").write_text(" ".join(f"w{i % 10}" for i in range(40)))
    options = ["--text", "words.txt", "--tokens", "12", "--inputs", "2", "--no-draw", "-o", "run"]
    result = CliRunner().invoke(app, ["run", "models/tiny.gguf", *options])
    assert result.exit_code == 0, result.output
    run = ht.open_run("run")
    assert {"▁w0", "▁w1"} <= set(run.attention[0].queries)  # the tokenizer is in the file, too
    assert run.settings.source.fingerprint
    assert run.info.model.model == "models/tiny.gguf"


def test_a_gguf_file_without_its_packages_is_one_line(tmp_path, monkeypatch):
    from headtree import _extras

    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and so on")
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name in ("gguf", "accelerate") else True)
    said = "the GGUF file tiny.gguf needs gguf and accelerate, which are not installed; install with: pip install"
    with pytest.raises(ht.errors.MissingPackageError, match=f"{said} gguf accelerate$"):
        ht.ModelView(tmp_path / "tiny.gguf")


@pytest.fixture(scope="module")
def adapted(llama):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(copy.deepcopy(llama), config).eval()


def test_an_adapter_is_in_effect(llama, adapted):
    merged = copy.deepcopy(adapted).merge_and_unload().eval()
    expected = captured(merged)
    assert close(captured(adapted), expected, 1e-5)
    assert not close(captured(adapted), captured(llama), 0.01)
    with adapted.disable_adapter():
        assert torch.equal(captured(adapted), captured(llama))
    with pytest.raises(ht.HeadtreeError, match=r"2 projections.*merge adapters into the weights first"):
        ht.head_weights(adapted, inputs=IDS)
    assert ht.head_weights(merged, inputs=IDS)[0].query.shape == (4, 64, 16)
    found = ht.rank_residual(adapted, inputs=IDS, fresh=False)
    np.testing.assert_allclose(found.trained, ht.rank_residual(merged, inputs=IDS, fresh=False).trained, rtol=1e-4)


def test_the_folder_of_an_adapter_is_a_model(llama, adapted, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"base_model_name_or_path": str(tmp_path / "base")}))
    view = ht.ModelView(tmp_path / "adapter")
    assert close(view.capture(inputs=IDS)[0].values, captured(adapted), 1e-5)
    assert view.capture(texts=["w1 w2"])[0].queries == ("[CLS]", "w1", "w2", "[SEP]")  # the tokenizer of the base


def test_an_adapter_without_its_package_is_one_line(tmp_path, monkeypatch):
    from headtree import _extras

    (tmp_path / "adapter_config.json").write_text("{}")
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "peft" else True)
    with pytest.raises(ht.errors.MissingPackageError, match=r"needs peft, which is not.*pip install peft$"):
        ht.ModelView(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quantize_per_tensor:UserWarning")
def test_dynamic_quantization_of_torch(llama):
    def quantized(model):
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)

    small = quantized(llama)
    assert close(captured(small), captured(llama), 0.05)
    other = copy.deepcopy(llama)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(2)
    hashes = {ht.ModelView(model).provenance["weights_sha256"] for model in (small, quantized(other))}
    assert len(hashes) == 2  # weights that torch packs away count as well
    with pytest.raises(ht.HeadtreeError, match="no matrix of real numbers, as in a quantized layer"):
        ht.head_weights(small, inputs=IDS)


def test_weights_quantized_by_torchao(llama):
    quantization = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    small = copy.deepcopy(llama)
    quantization.quantize_(small, quantization.Int8WeightOnlyConfig())
    assert close(captured(small), captured(llama), 0.05)
    (att,) = ht.capture(small, inputs=IDS)
    assert att.provenance["weights_sha256"] != ht.ModelView(llama).provenance["weights_sha256"]
    with pytest.raises(ht.HeadtreeError, match="integers of a quantized weight"):
        ht.head_weights(small, inputs=IDS)


def test_weights_that_torchao_scales_before_the_product(llama):
    quantization = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    small = copy.deepcopy(llama)
    quantization.quantize_(small, quantization.IntxWeightOnlyConfig())
    exact = ht.head_weights(llama, inputs=IDS)[1]
    np.testing.assert_allclose(ht.head_weights(small, inputs=IDS)[1].query, exact.query.detach(), atol=0.02)
    (att,) = ht.capture(small, inputs=IDS)
    found = ht.diagnostics(att, model=small, inputs=IDS)
    assert not {"qk_rank", "copying", "prefix_matching"} & set(found.missing)


def test_weights_quantized_by_quanto(llama):
    quanto = pytest.importorskip("optimum.quanto")
    small = copy.deepcopy(llama)
    quanto.quantize(small, weights=quanto.qint8)
    quanto.freeze(small)
    assert close(captured(small), captured(llama), 0.05)
