"""A small model with a tokenizer, loaded and as a folder."""

import pytest
import torch

from tests.models import zoo


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Tiny models spend their time on waking threads otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *[f"w{i}" for i in range(59)]]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


@pytest.fixture(scope="session")
def bert():
    return zoo.ALL["bert"].build()


@pytest.fixture(scope="session")
def folder(bert, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "bert"
    bert.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
