"""Effects of heads, asked for when a run is made or when it is done already."""

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.pipeline.make_run import make_run
from headtree.pipeline.model_source import ModelSource
from headtree.pipeline.sources import TensorSource
from headtree.report.words.summary import in_words, summarized
from tests.models import zoo
from tests.runs.examples import QUICK

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


@pytest.fixture(scope="module")
def gpt2_folder(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "gpt2"
    model = zoo.Case("GPT2LMHeadModel", "GPT2Config", zoo.ALL["gpt2"].settings).build()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_folder_is_measured_with_its_own_head(gpt2_folder, text, tmp_path):
    source = ModelSource(model=str(gpt2_folder), text=text, inputs=3, tokens=12)
    run = make_run(source, tmp_path / "run", measures=QUICK, effects=True, draw=False)
    found = run.effects
    assert found.objective == "cross entropy of the next token"
    assert (found.n_ablated, found.n_inputs) == (3, 15)  # all of the 150 words and their special tokens
    expected = ht.head_effects(gpt2_folder, texts=[text.read_text()], tokens=12, n_ablated=3)
    np.testing.assert_allclose(found.effect, expected.effect, atol=1e-9)
    np.testing.assert_allclose(found.changes, expected.changes, rtol=1e-5, atol=1e-6)
    assert found.heads == expected.heads
    np.testing.assert_allclose(run.heads["effect"], found.effect, rtol=1e-10)
    np.testing.assert_allclose(run.heads["effect_error"], found.error, rtol=1e-10)
    words = in_words(summarized(run))
    assert "The loss grows most without" in words
    assert str(run.heads.sort_values("effect", ascending=False)["name"].iloc[0]) in words
    section = run.sections.effects
    assert "rank correlation" in section.text[1]
    assert len(section.tables[0].rows) == 10
    assert type(ht.ModelView(gpt2_folder).model).__name__ == "GPT2Model"


def test_effects_are_added_to_a_finished_run(folder, text, tmp_path):
    source = ModelSource(model=str(folder), text=text, inputs=2, tokens=8, heads=[(0, 1), (2, 3)])
    path = tmp_path / "run"
    before = make_run(source, path, measures=QUICK, draw=False)
    with pytest.raises(HeadtreeError, match="has no effects of heads; make the run with --effects"):
        before.effects  # noqa: B018
    assert "The loss grows" not in in_words(summarized(before))
    told = []
    run = make_run(source, path, measures=QUICK, effects=True, draw=False, say=lambda name, _: told.append(name))
    assert told == ["effects"]
    assert run.effects.heads == ((0, 1), (2, 3))
    assert run.effects.objective.startswith("squared change of the output")  # a BERT without a head
    assert run.effects.n_inputs == 2
    assert np.isnan(run.effects.error).all()


def test_pictures_use_the_rest_of_the_folder(vit_folder, pictures, tmp_path):
    source = ModelSource(model=str(vit_folder), images=pictures, inputs=2, kind="probs")
    run = make_run(source, tmp_path / "run", measures=QUICK, effects=True, draw=False)
    assert run.effects.n_ablated == 2
    assert len(run.effects.heads) == 4


def test_tensors_have_no_effects(tmp_path):
    tensors = [ht.AttentionTensor.from_array(np.random.default_rng(i).normal(size=(4, 6, 6))) for i in range(2)]
    with pytest.raises(HeadtreeError, match="effects need the model"):
        make_run(TensorSource(tensors), tmp_path / "run", measures=QUICK, effects=True, draw=False)
