"""All figures of a run."""

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.pipeline.array_run import ArrayFile
from headtree.pipeline.make_run import make_array_run, make_run
from headtree.pipeline.sources import TensorSource
from headtree.report.figures import FIGURES, draw_all, run_figures
from headtree.report.figures.run_figures import OF_SIMILARITIES, array_figures, network_figures
from headtree.report.page import details
from tests.measures.examples import families
from tests.report.figure_checks import assert_readable

HOSTILE = ["$x_1$ \\frac", "<script>alert(1)</script>" * 400]


def tensors(kind="scores"):
    """Two inputs of unequal length, causal."""
    result = []
    for seed, n in enumerate((16, 18)):
        att = families(seed, n_queries=n, n_keys=n)
        mask = np.triu(np.ones((n, n), bool), 1)
        values = np.where(mask, -np.inf, att.values)
        values = np.exp(values - np.logaddexp.reduce(values, axis=2, keepdims=True)) if kind == "probs" else values
        result.append(
            ht.AttentionTensor(
                np.where(mask, 0, values), att.heads, ["\u202e$t$"] * n, ["<b>"] * n, kind=kind, mask=mask
            )
        )
    return result


@pytest.fixture(scope="module", params=["scores", "probs"])
def run(request, tmp_path_factory):
    source = TensorSource(tensors(request.param), names=HOSTILE)
    return make_run(source, tmp_path_factory.mktemp("runs") / request.param, draw=False)


def test_every_figure_of_a_run_twice_the_same(run, tmp_path):
    paths = draw_all(run)
    names = [*FIGURES, *(f"{name}_questionnaire" for name in OF_SIMILARITIES)]
    assert list(paths) == names
    again = draw_all(ht.open_run(run.path), tmp_path / "again")
    for name, path in paths.items():
        assert path.parent == run.path / "figures"
        for ending in (".svg", ".png"):
            assert path.with_suffix(ending).read_bytes() == again[name].with_suffix(ending).read_bytes(), name
        text = path.read_text(encoding="utf-8")
        assert "<script" not in text
        assert "dc:date" not in text
        assert str(run.path) not in text
    assert sorted(path.name for path in (run.path / "figures").iterdir()) == sorted(
        f"{name}.{ending}" for name in names for ending in ("png", "svg")
    )


def test_every_figure_of_a_run_is_readable(run):
    for draw in network_figures(run).values():
        assert_readable(draw())


def test_paraproduct_of_probabilities_says_that_it_is_of_their_logarithm(run):
    title = network_figures(run)["paraproduct"]().get_suptitle()
    assert ("f = log p" in title) == (run.kind == "probs")


def test_figures_of_heads_say_which_similarity_they_show(run, tmp_path):
    raw = {"scores": "centred scores", "probs": "probabilities"}[run.kind]
    drawings = network_figures(run)
    for name, what in (("map", "Map"), ("affinity", "Affinity"), ("tree", "Tree")):
        for ending, which in (("", "looks alike"), ("_questionnaire", f"questionnaire of {raw}")):
            figure = drawings[name + ending]()
            titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
            assert f"{what} of heads: {which}" in titles


def test_what_is_made_of_raw_scores_is_labelled(tmp_path):
    run = make_run(TensorSource(tensors()), tmp_path / "raw", draw=False, raw=True)
    drawings = network_figures(run)
    assert drawings["coefficients"]().get_suptitle() == "Haar coefficients of raw scores"
    assert drawings["tree_questionnaire"]().axes[0].get_title() == "Tree of heads: questionnaire of raw scores"
    assert any("raw attention score" in axes.get_ylabel() for axes in drawings["head_top"]().axes)
    assert "raw scores" in drawings["paraproduct"]().get_suptitle()
    np.testing.assert_array_equal(run.values[0].values, run.attention[0].load().values)


def test_figure_and_page_decompose_the_same_matrix(tmp_path, monkeypatch):
    """Also where a probability is exactly 0: a matrix of logarithms has no such entry, so one must be chosen."""
    atts = tensors("probs")
    atts[0].values[:, 7, 3] = 0
    run = make_run(TensorSource(atts), tmp_path / "zeros", draw=False)
    head = int(np.argsort(run.heads["structure_rank"].to_numpy(), kind="stable")[run.attention[0].shape[0] // 2])
    seen = {}
    for module in (run_figures, details):
        taken_apart = module.decomposed

        def spying(f, *args, name=module.__name__, original=taken_apart):
            seen[name] = np.asarray(f).reshape(np.shape(f)[-2:])
            return original(f, *args)

        monkeypatch.setattr(module, "decomposed", spying)
    network_figures(run)["paraproduct"]()
    details.details(run.values[0], run.organization[0], [head])
    figure, page = seen.values()
    np.testing.assert_array_equal(figure, page)
    assert page[7, 3] == np.log(atts[0].values[head][atts[0].values[head] > 0].min())


def test_one_input(tmp_path):
    run = make_run(TensorSource(tensors()[:1]), tmp_path / "one", draw=False)
    assert list(draw_all(run))[: len(FIGURES)] == list(FIGURES)


def test_what_is_no_run_is_refused(tmp_path, run):
    with pytest.raises(HeadtreeError, match="open_run"):
        draw_all(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadtreeError, match="cannot be made"):
        draw_all(run, tmp_path / "file")


@pytest.mark.parametrize(("shape", "landmarks"), [((9, 7), None), ((8, 6, 5), 5)])
def test_a_run_of_an_array(tmp_path, shape, landmarks):
    values = np.random.default_rng(0).standard_normal(shape)
    values[(0,) * len(shape)] = np.nan
    np.save(tmp_path / "x.npy", values)
    names = ("sensor", "time", "trial")[: len(shape)]
    settings = ht.Questionnaire(landmarks=landmarks)
    source = ArrayFile(tmp_path / "x.npy", None, names)
    run = make_array_run(source, tmp_path / "run", questionnaire=settings, draw=False)
    drawings = array_figures(run)
    figures = [f"{kind}_{axis}" for axis in names for kind in ("map", "affinity", "tree")]
    assert set(drawings) == {"matrix", "compression", *figures}
    for draw in drawings.values():
        assert_readable(draw())
    drawn = drawings["matrix"]().axes[0].get_images()[0].get_array()
    largest = values if len(shape) == 2 else values[np.nansum(values**2, axis=(1, 2)).argmax()]
    np.testing.assert_array_equal(np.ma.filled(drawn, np.nan), largest)
    assert list(draw_all(run, tmp_path / "figures")) == list(drawings)
    assert ht.write_report(run, tmp_path / "page.html").is_file()
