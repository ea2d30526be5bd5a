"""What can be asked of capture: texts, images, parts, layers, heads, windows, batches, precision."""

import json

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.models.given_model import prepare
from headtree.models.model_files import weights_hash
from tests.models import zoo

LONG = " ".join(f"w{i}" for i in range(40))


def test_texts_through_a_folder_give_labelled_tensors(folder, bert):
    first, second = ht.capture(str(folder), texts=["w1 w2 w3", "w4 w5"])
    assert first.queries == first.keys == ("[CLS]", "w1", "w2", "w3", "[SEP]")
    assert second.shape == (12, 4, 4)
    assert first.heads == tuple((layer, head) for layer in range(3) for head in range(4))
    assert first.kind == "scores"
    assert first.mask is None
    assert first.provenance["model"] == str(folder)
    assert first.provenance["weights_sha256"] == weights_hash(bert)
    assert first.provenance["versions"]["torch"] == torch.__version__
    assert second.provenance["text"] == 1
    json.dumps(dict(first.provenance))


def test_paths_and_loaded_modules_are_the_same_model(folder, bert, tokenizer):
    (by_path,) = ht.capture(folder, texts=["w1 w2 w3"])
    (by_module,) = ht.capture(bert, texts="w1 w2 w3", tokenizer=tokenizer)
    assert torch.equal(by_path.values, by_module.values)


def test_a_module_loaded_from_a_folder_brings_its_tokenizer(folder):
    from transformers import AutoModel

    (att,) = ht.capture(AutoModel.from_pretrained(folder), texts=["w1 w2 w3"])
    assert att.queries[1] == "w1"


def test_tensors_alone_are_the_main_input():
    for name in ("bert", "vit"):
        (value,) = zoo.ALL[name].read().values()
        model = zoo.ALL[name].build()
        by_name = ht.capture(model, inputs=zoo.ALL[name].read())[1]
        assert torch.equal(ht.capture(model, inputs=value)[1].values, by_name.values)
        assert torch.equal(ht.capture(model, inputs=[value[:1], value[1:]])[1].values, by_name.values)
    ids = zoo._ids()
    assert ht.capture(zoo.ALL["t5"].build(), inputs=ids, part="cross")[0].shape == (8, 12, 12)


def test_weights_hash_tells_weights_apart(bert):
    other = zoo.ALL["bert"].build()
    assert weights_hash(other) == weights_hash(bert)
    with torch.no_grad():
        other.encoder.layer[0].output.dense.bias[0] += 1
    assert weights_hash(other) != weights_hash(bert)


def test_long_texts_are_cut_into_inputs_of_so_many_tokens(bert, tokenizer):
    atts = ht.capture(bert, texts=[LONG, LONG], tokens=18, tokenizer=tokenizer)
    assert [att.shape for att in atts] == [(12, 18, 18)] * 4
    assert [(att.provenance["text"], att.provenance["piece"]) for att in atts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert atts[1].queries == ("[CLS]", *LONG.split()[16:32], "[SEP]")


def test_batches_change_nothing_but_rounding_and_keep_the_order(bert, tokenizer):
    texts = ["w1 w2 w3", "w9", "w4 w5 w6", "w7 w8 w9 w10", "w11 w12 w13"]
    together = ht.capture(bert, texts=texts, tokenizer=tokenizer, batch_size=8)
    alone = ht.capture(bert, texts=texts, tokenizer=tokenizer, batch_size=1)
    assert [att.queries for att in together] == [att.queries for att in alone]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a.values, b.values, atol=1e-5, rtol=0)
    prepared = prepare(bert, texts=texts, tokenizer=tokenizer)
    assert prepared.batches() == [[0, 2, 4], [1], [3]]


@pytest.mark.parametrize("kind", ["scores", "probs"])
@pytest.mark.parametrize("name", ["llama", "gptj", "gpt_oss"])
def test_layers_heads_and_windows_are_parts_of_the_whole(name, kind):
    model, read = zoo.ALL[name].build(), zoo.ALL[name].read()
    whole = ht.capture(model, inputs=read, kind=kind)[0]
    part = ht.capture(model, inputs=read, kind=kind, layers=[2, 0], heads=[1, 3], window=(2, 9))[0]
    assert part.heads == ((0, 1), (0, 3), (2, 1), (2, 3))
    places = [whole.heads.index(head) for head in part.heads]
    torch.testing.assert_close(part.values, whole.values[places][:, 2:9, 2:9], atol=1e-5, rtol=0)
    assert torch.equal(part.mask, whole.mask[places][:, 2:9, 2:9])
    assert part.queries == whole.queries[2:9]
    if whole.sinks is not None:
        assert torch.equal(part.sinks, whole.sinks[places])
    single = ht.capture(model, inputs=read, kind=kind, heads=[(1, 2)], window=((0, 3), (0, 1)))[0]
    assert single.shape == (1, 3, 1)
    expected = whole.values[whole.heads.index((1, 2))][:3, :1]
    torch.testing.assert_close(single.values[0], expected, atol=1e-5, rtol=0)


def test_encoder_decoders_need_a_part_and_say_which():
    model, read = zoo.ALL["t5"].build(), zoo.ALL["t5"].read()
    with pytest.raises(HeadtreeError, match="'cross', 'decoder', 'encoder'"):
        ht.capture(model, inputs=read)
    with pytest.raises(HeadtreeError, match=r"'cross', 'decoder', 'encoder'.*got 'both'"):
        ht.capture(model, inputs=read, part="both")


def test_texts_and_targets_of_encoder_decoders_label_both_sides(tokenizer):
    model = zoo.ALL["bart"].build()
    options = {"texts": ["w1 w2 w3"], "tokenizer": tokenizer}
    (own,) = ht.capture(model, part="cross", **options)
    assert own.queries == ("[CLS]", "[CLS]", "w1", "w2", "w3")  # the start token of this model, then the text
    assert own.keys == ("[CLS]", "w1", "w2", "w3", "[SEP]")
    (given,) = ht.capture(model, part="cross", targets=["w7"], **options)
    assert given.shape == (12, 3, 5)
    assert given.queries[1:] == ("[CLS]", "w7")
    (encoder,) = ht.capture(model, part="encoder", **options)
    assert encoder.heads[-1] == (1, 3)
    assert encoder.queries == own.keys


def test_bart_parts_of_one_shape_are_told_apart():
    model = zoo.ALL["bart"].build()
    read = {"input_ids": zoo._ids(), "decoder_input_ids": zoo._ids(seed=3)}
    with torch.no_grad():
        eager = zoo.ALL["bart"].build("eager")(**read, output_attentions=True)
    for part in ("encoder", "decoder", "cross"):
        att = ht.capture(model, inputs=read, part=part, kind="probs")[0]
        expected = torch.cat([layer[0] for layer in eager[f"{part}_attentions"]])
        torch.testing.assert_close(att.values, expected, atol=1e-5, rtol=0)


def test_images_get_patch_positions():
    model = zoo.ALL["vit"].build()
    images = zoo.ALL["vit"].read()["pixel_values"]
    atts = ht.capture(model, images=list(images), kind="probs")
    assert atts[0].queries == ("class", "r0c0", "r0c1", "r0c2", "r1c0", "r1c1", "r1c2")
    again = ht.capture(model, images=images.numpy(), kind="probs")
    assert torch.equal(atts[1].values, again[1].values)


def test_images_go_through_the_processor_of_the_folder(tmp_path):
    from PIL import Image
    from transformers import ViTImageProcessor

    zoo.ALL["vit"].build().save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 16, "width": 24}).save_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (30, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    atts = ht.capture(tmp_path, images=[pixels, Image.fromarray(pixels), tmp_path / "image.png"])
    assert atts[0].queries[-1] == "r1c2"
    assert torch.equal(atts[0].values, atts[1].values)
    assert torch.equal(atts[0].values, atts[2].values)


def test_models_with_two_towers_use_the_one_that_reads_the_input(tokenizer):
    from transformers import CLIPConfig, CLIPModel

    text = {**zoo._TEXT, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    vision = {**zoo._SMALL, "image_size": 16, "patch_size": 8}
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).eval()
    assert ht.capture(clip, images=[torch.zeros(3, 16, 16)])[0].queries[0] == "class"
    assert ht.capture(clip, texts=["w1 w2"], tokenizer=tokenizer)[0].queries[1] == "w1"
    both = {"input_ids": zoo._ids(), "pixel_values": zoo._square()["pixel_values"]}
    with pytest.raises(HeadtreeError, match="'text_model', 'vision_model'"):
        ht.capture(clip, inputs=both)
    assert ht.capture(clip, inputs=both, part="vision_model")[0].shape == (12, 5, 5)


@pytest.mark.parametrize("name", ["bert", "llama", "mpnet", "t5"])
def test_padding_is_missing(name):
    model, part = zoo.ALL[name].build(), next(iter(zoo.ALL[name].parts))
    read = zoo.ALL[name].read()
    read["attention_mask"] = torch.ones_like(read["input_ids"])
    read["attention_mask"][0, -3:] = 0
    with torch.no_grad():
        eager = zoo.ALL[name].build("eager")(**read, output_attentions=True)[zoo.ALL[name].parts[part]]
    padded, full = ht.capture(model, inputs=read, part=part, kind="probs")
    assert padded.mask[:, :, -3:].all()
    assert full.mask is None or not full.mask[0, -1].any()
    torch.testing.assert_close(
        padded.values[:, :-3], torch.cat([layer[0] for layer in eager])[:, :-3], atol=1e-5, rtol=0
    )


def test_a_query_without_keys_is_missing_altogether():
    model = zoo.ALL["llama"].build()
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[0, :2] = 0  # padded on the left: the first queries may see nothing
    (att,) = ht.capture(model, inputs={"input_ids": zoo._ids()[:1], "attention_mask": mask}, kind="probs")
    assert att.mask[:, 0].all()
    assert torch.isfinite(att.values).all()


def test_half_precision_models_and_values():
    read = zoo.ALL["llama"].read()
    exact = ht.capture(zoo.ALL["llama"].build(), inputs=read)[0]
    rough = ht.capture(zoo.ALL["llama"].build().bfloat16(), inputs=read)[0]
    assert rough.values.dtype == torch.float32
    assert (rough.values - exact.values).abs().max() < 0.1 * exact.values.abs().max()
    half = ht.capture(zoo.ALL["llama"].build(), inputs=read, dtype="float16")[0]
    assert half.values.dtype == torch.float16
    torch.testing.assert_close(half.values.float(), exact.values, atol=1e-2, rtol=1e-2)
    assert ht.capture(zoo.ALL["llama"].build().double(), inputs=read)[0].values.dtype == torch.float64


def test_captured_tensors_are_organized(bert, tokenizer):
    (att,) = ht.capture(bert, texts=["w1 w2 w3 w4 w5 w6"], tokenizer=tokenizer)
    org = ht.organize(att, ht.Questionnaire(n_iter=1))
    assert org.trees.head.labels.shape[1] == 12


def test_a_model_in_training_mode_is_captured_without_dropout(bert, tokenizer):
    (calm,) = ht.capture(bert, texts=["w1 w2 w3"], tokenizer=tokenizer)
    bert.train()
    try:
        (busy,) = ht.capture(bert, texts=["w1 w2 w3"], tokenizer=tokenizer)
        assert all(module.training for module in bert.modules())
    finally:
        bert.eval()
    assert torch.equal(calm.values, busy.values)


def test_memory_is_estimated_before_running_and_refused_with_advice(bert, tokenizer):
    prepared = prepare(bert, texts=[LONG] * 20, tokenizer=tokenizer)
    assert prepared.estimate().result == 20 * 12 * 42 * 42 * 4
    with pytest.raises(HeadtreeError, match=r"needs about .* memory_limit is 1\.0 MB; .*fewer inputs at a time"):
        ht.capture(bert, texts=[LONG] * 20, tokenizer=tokenizer, memory_limit=1 << 20)
    assert prepare(bert, texts=[LONG], tokenizer=tokenizer, dtype="float16").estimate().result == 12 * 42 * 42 * 2


def test_nothing_is_run_when_memory_is_short(bert, tokenizer):
    lengths = []
    handle = bert.register_forward_hook(lambda module, args, output: lengths.append(output[0].shape[1]))
    try:
        with pytest.raises(HeadtreeError, match="memory_limit"):
            ht.capture(bert, texts=[LONG], tokenizer=tokenizer, memory_limit=1)
    finally:
        handle.remove()
    assert set(lengths) == {8}  # the short look alone


def test_a_device_without_enough_memory_is_said_with_advice(bert, tokenizer):
    def fail(module, args, output):
        if output[0].shape[1] > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = bert.register_forward_hook(fail)
    try:
        with pytest.raises(HeadtreeError, match="smaller batch_size"):
            ht.capture(bert, texts=[LONG], tokenizer=tokenizer)
    finally:
        handle.remove()
