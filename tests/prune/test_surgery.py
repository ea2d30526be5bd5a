"""Removed heads against the model with rows of W_O set to zero, and against the ablated model."""

import copy
import json

import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.cuts import cuts_of
from tests.models import zoo

D = 8  # features of a head in the zoo
#: of 3 layers with 4 heads: one head, unequal groups of queries, a layer without heads
CHOICES = {"one": [(1, 2)], "unequal": [(0, 0), (0, 1), (1, 3)], "all of a layer": [(2, h) for h in range(4)]}
W_O = {
    "bert": "encoder.layer.{}.attention.output.dense",
    "gpt2": "h.{}.attn.c_proj",
    "vit": "layers.{}.attention.o_proj",
    "llama": "layers.{}.self_attn.o_proj",
    "qwen3": "layers.{}.self_attn.o_proj",
    "gpt_oss": "layers.{}.self_attn.o_proj",
    "gpt_neox": "layers.{}.attention.dense",
    "modernbert": "layers.{}.attn.Wo",
    "deberta_v2": "encoder.layer.{}.attention.output.dense",
}
REFUSED = {
    "albert": "3 layers share the weights of encoder",
    "bloom": "depends on their number",
    "mpnet": "depends on their number",
    "xlnet": "is not the weight of a linear layer",
}


def output(model, read):
    with torch.no_grad():
        return model(**read)[0]


def n_weights(model):
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def models():
    built = {}

    def get(name):
        if name not in built:
            case = zoo.ALL[name]
            built[name] = case.build(), {key: value[:1] for key, value in case.read().items()}
        return built[name]

    return get


@pytest.mark.parametrize("heads", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("name", W_O)
def test_removed_heads_write_nothing(models, name, heads):
    model, read = models(name)
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        for layer, head in heads:
            module = by_hand.get_submodule(W_O[name].format(layer))
            rows = module.weight if name == "gpt2" else module.weight.T
            rows[head * D : (head + 1) * D] = 0
    pruned = ht.prune_heads(model, heads, inputs=read)
    assert torch.allclose(output(pruned, read), output(by_hand, read), atol=1e-5)
    # rows of W_O and columns of W_Q at least, with keys and values shared by two heads at most
    assert n_weights(model) - n_weights(pruned) >= len(heads) * 2 * 32 * D


def test_sizes_and_the_model_itself_stay_as_they_should(models):
    model, read = models("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruned = ht.prune_heads(model, [(0, 0), (0, 1), (1, 2)], inputs=read)
    first, second, third = (layer.self_attn for layer in pruned.layers)
    # L0 loses a whole group, L1 one of two queries of a group
    assert (first.q_proj.out_features, first.k_proj.out_features, first.num_key_value_groups) == (2 * D, D, 2)
    assert (second.q_proj.out_features, second.o_proj.in_features) == (3 * D, 3 * D)
    assert second.k_proj.linear.weight.shape == (2 * D, 32)
    assert (third.q_proj.out_features, third.v_proj.out_features) == (4 * D, 2 * D)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_pruned_model_generates_with_its_cache(models):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**zoo.ALL["llama"].settings)).eval()
    heads = [(0, h) for h in range(4)] + [(1, 2)]
    pruned = ht.prune_heads(model, heads)
    ids = torch.arange(5, 12)[None]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with ht.ModelView(model).ablated(heads):
        expected = model.generate(ids, **options)
    assert torch.equal(pruned.generate(ids, **options), expected)


def test_a_pruned_model_can_be_pruned_again(models):
    model, read = models("bert")
    once = ht.prune_heads(model, [(0, 1)], inputs=read)
    twice = ht.prune_heads(once, [(0, 1), (2, 0)], inputs=read)  # L0H1 was L0H2
    whole = ht.prune_heads(model, [(0, 1), (0, 2), (2, 0)], inputs=read)
    assert torch.allclose(output(twice, read), output(whole, read), atol=1e-6)
    assert [cuts.heads for cuts in cuts_of(twice)] == [((0, 1),), ((0, 1), (2, 0))]


@pytest.mark.parametrize("name", ["txl", "vit"])
def test_bundled_networks(name):
    network = ht.load_bundled(name)
    heads = [(layer, head) for layer in range(12) for head in range(8) if (layer + head) % 2] + [
        (3, head) for head in range(8)
    ]
    pruned = ht.prune_heads(network.model, heads)
    read = {key: value[..., :64] if name == "txl" else value for key, value in network.inputs[0].items()}
    with ht.ModelView(network.model).ablated(heads), torch.no_grad():
        expected = network.model(**read).logits
    with torch.no_grad():
        found = pruned(**read).logits
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_support_say_what_is_missing(models, name):
    model, read = models(name)
    with pytest.raises(HeadtreeError, match=REFUSED[name]) as error:
        ht.prune_heads(model, [(1, 2)], inputs=read)
    assert "ablated(heads)" in str(error.value)


def test_heads_must_exist_and_some_must_remain(models):
    model, read = models("bert")
    with pytest.raises(HeadtreeError, match="of layers 0 to 2, got \\(3, 0\\)"):
        ht.prune_heads(model, [(3, 0)], inputs=read)
    with pytest.raises(HeadtreeError, match="must leave at least one head, got all 12"):
        ht.prune_heads(model, [(layer, head) for layer in range(3) for head in range(4)], inputs=read)
    with pytest.raises(HeadtreeError, match="pairs"):
        ht.prune_heads(model, "L0H1", inputs=read)


@pytest.mark.parametrize("name", ["llama", "gpt2", "vit"])
def test_files_give_the_same_model(models, tmp_path, name):
    model, read = models(name)
    pruned = ht.prune_heads(model, [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)], inputs=read)
    ht.save_pruned(pruned, tmp_path / "small")
    again = ht.load_pruned(tmp_path / "small")
    assert torch.equal(output(again, read), output(pruned, read))
    assert not again.training
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [
        "config.json",
        "headtree-pruned.json",
        "pruned.safetensors",
    ]
    (att,) = ht.capture(str(tmp_path / "small"), inputs=read, kind="probs", layers=[0])
    assert len(att.heads) == 3


def test_files_of_a_model_with_tied_weights(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**zoo.ALL["gpt2"].settings)).eval()
    pruned = ht.prune_heads(model, [(0, 1)])
    ht.save_pruned(pruned, tmp_path / "small")
    again = ht.load_pruned(tmp_path / "small")
    read = {"input_ids": torch.arange(5, 12)[None]}
    assert torch.equal(output(again, read), output(pruned, read))
    assert again.lm_head.weight is again.transformer.wte.weight


def test_files_of_a_class_of_ones_own(tmp_path):
    class Own(type(ht.load_bundled("txl").model)):
        pass

    model = Own(ht.load_bundled("txl").model.config).eval()
    pruned = ht.prune_heads(model, [(0, 1)])
    ht.save_pruned(pruned, tmp_path / "small")
    with pytest.raises(HeadtreeError, match="cannot build a Own"):
        ht.load_pruned(tmp_path / "small")
    read = {"input_ids": torch.arange(5, 12)[None]}
    again = ht.load_pruned(tmp_path / "small", Own(model.config))
    assert torch.equal(output(again, read), output(pruned, read))


def test_bad_files(models, tmp_path):
    model, read = models("bert")
    with pytest.raises(HeadtreeError, match="must come from prune_heads"):
        ht.save_pruned(model, tmp_path / "small")
    pruned = ht.prune_heads(model, [(0, 1)], inputs=read)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(HeadtreeError, match="must be new, empty, or hold a pruned model"):
        ht.save_pruned(pruned, tmp_path / "other")
    with pytest.raises(HeadtreeError, match=r"has no headtree-pruned.json"):
        ht.load_pruned(tmp_path / "other")
    folder = tmp_path / "small"
    ht.save_pruned(pruned, folder)
    ht.save_pruned(pruned, folder)  # replaces its own files
    record = json.loads((folder / "headtree-pruned.json").read_text())
    for change, message in (
        ({"class": "pipeline"}, "has no pipeline"),
        ({"format": "other"}, "must have the format"),
        ({"cuts": []}, "does not fit"),
        ({"cuts": [{"heads": "x"}]}, "does not hold the cuts"),
        ({"cuts": [{**record["cuts"][0], "numbers": [{"module": "", "name": "forward", "value": 1}]}]}, "numbers"),
    ):
        (folder / "headtree-pruned.json").write_text(json.dumps({**record, **change}))
        with pytest.raises(HeadtreeError, match=message):
            ht.load_pruned(folder)
    (folder / "headtree-pruned.json").write_text("{")
    with pytest.raises(HeadtreeError, match="is damaged"):
        ht.load_pruned(folder)
