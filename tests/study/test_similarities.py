"""The comparison of similarities against plain loops, and whole on a tiny network."""

import csv
import dataclasses
import io
import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.models.bundled import vit
from headtree.models.bundled.bundle import BundledNetwork
from headtree.study.marked_parts import marks, write_parts
from headtree.study.similarities import compare_similarities as comparing
from headtree.study.similarities import (
    evidence_networks,
    predicted_function,
    prize_choice,
    replication,
    roles_agreement,
)
from headtree.study.similarities.candidate_kernels import candidate_kernels, product_kernel, value_tree_kernel
from headtree.study.similarities.evidence_networks import EvidenceNetwork, evidence_network, truth_by_loss
from headtree.study.similarities.functional_truth import FunctionalTruth, output_changes, truth_of
from headtree.study.similarities.geometries import PLAIN
from headtree.study.similarities.halved_estimates import HalvedEstimate, MeanDifference, halvings
from headtree.study.similarities.reactions import GROUPS, RULES, reactions
from headtree.study.similarities.similarities_report import QUESTIONS, csv_text, markdown_text
from headtree.study.similarities.variants import VARIANTS, of_variant
from headtree.study.similarities.vit_effects import other_pictures, read_truth, vit_effects, write_truth
from tests.models import zoo
from tests.models.test_effects import literal_changes, next_token, texts


def affinities(rng, n_inputs=4, n_heads=11):
    points = rng.normal(size=(n_heads, 3)) + rng.normal(size=(n_inputs, n_heads, 3)) / 2
    distances = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)
    return InputMatrices(np.exp(-distances)[None], False)


def folders(affinity):
    """Every folder of the average-linkage tree as a set, leaves and root included."""
    tree = linkage_tree(affinity)
    return {frozenset(leaves.tolist()) for level in range(tree.n_levels) for leaves in tree.folders(level)}


def test_tbe_literally():
    inputs = affinities(np.random.default_rng(0))
    first, second = [0, 2], [1, 3]
    trees = [folders(inputs.parts[0, half].mean(axis=0)) for half in (first, second)]
    means = []
    for one, other in (trees, trees[::-1]):
        found = []
        for folder in one:
            if 3 <= len(folder) <= 11 // 2:
                found.append(1 - min(len(folder ^ c) for c in other) / (len(folder) - 1))
        means.append(np.mean(found))
    assert replication.transfer_of_trees(inputs, first, second) == pytest.approx(np.mean(means))
    assert replication.transfer_of_trees(inputs, first, first) == 1


def test_plain_clusters_are_those_of_scikit_learn():
    x = np.random.default_rng(0).normal(size=(20, 3))
    affinity = np.exp(-np.abs(x[:, None] - x).sum(axis=2))
    theirs = AgglomerativeClustering(8, metric="precomputed", linkage="average").fit_predict(1 - affinity)
    assert adjusted_rand_score(replication.plain_clusters(affinity), theirs) == 1


def test_functional_similarity_literally():
    rng = np.random.default_rng(0)
    changes = rng.normal(size=(5, 40))
    changes[3] = 0  # a head that does nothing
    changes[4] = changes[0] + rng.normal(size=40) / 2
    half = np.arange(40) % 2 == 0
    truth = truth_of(changes, np.stack([half, ~half]), "numbers")
    for a in range(5):
        for b in range(5):
            expected = 0 if 3 in (a, b) else np.corrcoef(changes[a], changes[b])[0, 1]
            assert truth.similarity[a, b] == pytest.approx(expected)
    pairs = [(a, b) for a in range(5) for b in range(a)]
    by_half = [
        [0 if 3 in p else np.corrcoef(changes[p[0], h], changes[p[1], h])[0, 1] for p in pairs]
        for h in (half, ~half)
    ]
    assert truth.reliability == pytest.approx(spearmanr(*by_half).statistic)
    r = max(0, truth.reliability)
    assert truth.ceiling == pytest.approx(np.sqrt(2 * r / (1 + r)))


def test_function_of_a_model_is_that_of_plain_ablation():
    case = zoo.ALL["gpt2"]
    model = zoo.Case("GPT2LMHeadModel", case.config, case.settings).build()
    items = texts(4)
    view = ht.ModelView(model)
    truth = truth_by_loss(view, items, "words")
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    changes, _ = literal_changes(model, items, heads, next_token)
    np.testing.assert_allclose(truth.similarity, np.corrcoef(changes), atol=1e-3)
    np.testing.assert_allclose(
        truth.halves[1], np.corrcoef(changes[:, np.repeat(np.arange(4) % 2 == 1, 11)]), atol=1e-3
    )
    assert "44 words" in truth.what


def test_changes_of_outputs_are_those_of_plain_ablation():
    case = zoo.ALL["gpt2"]
    model = zoo.Case("GPT2LMHeadModel", case.config, case.settings).build()
    items = [texts(1, seed=seed)[0] for seed in range(3)] + [{"input_ids": torch.arange(5)[None]}]
    view = ht.ModelView(model)

    def read(output):
        return output.logits[:, -1, :7]

    for batch_size in (None, 1):
        whole, changes = output_changes(view, items, read, batch_size)
        with torch.no_grad():
            expected = torch.cat([read(model(**item)) for item in items])
            np.testing.assert_allclose(whole, expected, atol=1e-5)
            for h, pair in enumerate((layer, head) for layer in range(3) for head in range(4)):
                with view.ablated([pair]):
                    without = torch.cat([read(model(**item)) for item in items])
                np.testing.assert_allclose(changes[h], without - expected, atol=1e-5)


def test_correlation_with_function_over_pairs():
    rng = np.random.default_rng(0)
    n, layers = 24, np.repeat(range(4), 6)
    inputs = affinities(rng, n_heads=n)
    noise = rng.normal(size=(n, n))
    function = inputs.combined() + (noise + noise.T) / 10
    truth = FunctionalTruth(function, np.stack([function, function]), "numbers")
    for within in (False, True):
        pairs = [(a, b) for a in range(n) for b in range(a) if not within or layers[a] == layers[b]]
        expected = spearmanr([inputs.combined()[p] for p in pairs], [function[p] for p in pairs]).statistic
        answer = predicted_function.function_agreement(inputs, truth, layers, within_layers=within)
        assert answer.value == pytest.approx(expected)
        assert 0 < answer.error_heads < 0.5


def test_families_of_heads_that_do_the_same_stand_out():
    layers = np.repeat(range(6), 4)
    labels = np.tile(range(4), 6)
    function = np.where(labels[:, None] == labels, 0.5, 0.1) + np.eye(24)
    truth = FunctionalTruth(function, np.stack([function, function]), "numbers")
    found = predicted_function.family_function(labels, truth, layers)
    pairs = [(a, b) for a in range(24) for b in range(24) if a != b and labels[a] == labels[b]]
    assert found.within == pytest.approx(np.mean([function[p] for p in pairs])) == pytest.approx(0.5)
    assert 0.1 < found.shuffled < 0.3
    assert found.z > 4
    assert found.ratio == pytest.approx(found.within / found.shuffled)
    by_layer = predicted_function.family_function(layers, truth, layers)  # shuffling within layers changes nothing
    assert by_layer.within == pytest.approx(by_layer.shuffled)
    alone = predicted_function.family_function(np.arange(24), truth, layers)
    assert np.isnan(alone.ratio)


def test_information_about_roles_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=30)
    roles = [str(x) for x in (labels + (rng.random(30) < 0.3)) % 4]
    assert roles_agreement.information(labels, roles) == pytest.approx(adjusted_mutual_info_score(roles, labels))
    assert roles_agreement.information(np.arange(30), roles) == 0
    assert np.isnan(roles_agreement.information(labels, [""] * 30))


def test_errors_are_those_of_half_samples():
    """The mean of n numbers has the standard error σ/√n, and so says its spread over random halves."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=64)
    draws = halvings(64, 400, 0)
    assert all(len(a) == len(b) == 32 and not set(a) & set(b) for a, b in draws)
    answer = HalvedEstimate(values.mean(), np.array([values[a].mean() for a, _ in draws]), np.array([0.0]))
    assert answer.error == pytest.approx(values.std(ddof=1) / 8, rel=0.15)
    assert not answer.minus(answer).is_clear
    shifted = HalvedEstimate(answer.value + 1, answer.over_inputs + 1, answer.over_heads + 1)
    lead = shifted.minus(answer)
    assert (lead.value, round(lead.error, 9), lead.is_clear) == (pytest.approx(1), 0, True)
    both = MeanDifference.of([answer, answer])
    assert both.error == pytest.approx(answer.error / np.sqrt(2))


def test_reactions_are_different_and_closed():
    found = reactions(200, 0)
    assert len(set(found)) == 200
    assert found == reactions(200, 0) != reactions(200, 1)
    every = [rule.format(a=a, b=b) for rule in RULES for a in GROUPS for b in GROUPS]
    for smiles in every:
        for molecule in re.split(r">>|\.", smiles):
            plain = re.sub(r"\[[^\]]*\]", "C", molecule)
            assert plain.count("(") == plain.count(")")
            open_rings = set()
            for digit in re.findall(r"\d", plain):
                open_rings ^= {digit}
            assert not open_rings
            if "3" in plain:  # a ring of the rule is still open around its groups, whose numbers are others
                assert "3" not in "".join(GROUPS)
    with pytest.raises(ValueError, match="n must be 1 to 6912"):
        reactions(7000, 0)


def test_sixty_five_candidates():
    rng = np.random.default_rng(0)
    assert len(VARIANTS) == 65
    features = rng.normal(size=(3, 2, 8, 5))
    kernels = dict(zip("PSV", features @ features.swapaxes(2, 3), strict=True))
    both = of_variant(VARIANTS["P+V"], kernels, kernels["P"])
    np.testing.assert_array_equal(both.parts, np.stack([kernels["P"], kernels["V"]]))
    assert of_variant(VARIANTS["3S+V"], kernels, kernels["P"]).parts.shape[0] == 4
    mixed = of_variant(VARIANTS["0.25 Hellinger + 0.75 (P+V)"], kernels, kernels["S"])
    for i in range(2):
        expected = 0.25 * kernels["S"][i] + 0.75 * both.of_inputs([i]).combined()
        np.testing.assert_allclose(mixed.parts[0, i], expected)


def test_kernels_of_outputs_and_of_products():
    rng = np.random.default_rng(0)
    probs, values = torch.from_numpy(rng.random((4, 5, 6))), torch.from_numpy(rng.normal(size=(4, 6, 3)))
    products = torch.einsum("hqk,hkw->hqkw", probs, values).flatten(1)
    unit = products / products.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(product_kernel(probs, values), unit @ unit.T)
    probs[2] = 0
    assert (product_kernel(probs, values)[2] == 0).all()


def test_tree_kernels_know_which_heads_write_alike():
    rng = np.random.default_rng(0)
    groups = torch.from_numpy(rng.normal(size=(2, 8, 6))).repeat_interleave(3, dim=0)
    values = groups + torch.from_numpy(rng.normal(size=(6, 8, 6))) / 5
    sizes = torch.tensor([1.0, 5, 2, 1, 3, 9], dtype=torch.float64)[:, None, None]
    kernel = value_tree_kernel(sizes * values)
    np.testing.assert_allclose(kernel, kernel.T)
    np.testing.assert_allclose(np.median(kernel[np.triu_indices(6, 1)]), -1)
    same = np.arange(6)[:, None] // 3 == np.arange(6) // 3
    assert kernel[same & ~np.eye(6, dtype=bool)].min() > kernel[~same].max()


def test_candidate_kernels_of_a_model():
    view, given = ht.ModelView(zoo.ALL["gpt2"].build()), texts(2)
    atts = view.capture(inputs=given, kind="probs")
    found = candidate_kernels("PSVOJTU", view, given, atts)
    assert list(found) == list("PSVOJTU")
    for i, att in enumerate(atts):
        (cache,) = view.cache(inputs=[given[i]])
        writes = cache["writes"].values.astype(np.float64)
        centred = (writes - writes.mean(axis=1, keepdims=True)).reshape(len(writes), -1)
        unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
        np.testing.assert_allclose(found["O"][i], unit @ unit.T, atol=1e-5)
        halving = ht.PartitionTree.halving(att.shape[1])
        distance = ht.tree_emd(att.block().double().numpy(), 0, [halving, halving], alpha=-2)
        np.testing.assert_allclose(
            found["T"][i], -distance / np.median(distance[np.triu_indices(len(distance), 1)])
        )
    for name, kernel in found.items():
        assert kernel.shape == (len(given), len(atts[0].heads), len(atts[0].heads)), name
        assert np.isfinite(kernel).all(), name


def test_the_candidate_with_the_largest_smallest_margin_is_chosen(tmp_path):
    keys = [("net", "TBE"), ("net", "roles")]
    rng = np.random.default_rng(0)
    scores = {name: dict(zip(keys, rng.random(2), strict=True)) for name in (*PLAIN, *VARIANTS)}
    literal = {}
    for name in VARIANTS:
        literal[name] = min(scores[name][k] - max(scores[p][k] for p in PLAIN) for k in keys)
    assert prize_choice.margins(scores) == pytest.approx(literal)
    assert literal[prize_choice.choose(scores)] == max(literal.values())
    prize_choice.write_scores(tmp_path / "scores.csv", scores)
    again = prize_choice.read_scores(tmp_path / "scores.csv")
    assert list(again) == list(scores)
    for name, found in scores.items():
        assert again[name] == pytest.approx(found, abs=1e-4)


def test_what_was_tried_is_reported_whole():
    scores = prize_choice.read_scores()
    assert list(scores) == [*PLAIN, *VARIANTS]
    assert {network for found in scores.values() for network, _ in found} == {"txl", "minilm", "vit"}
    said, _, *rows = prize_choice.prize_words(scores)
    assert said.startswith("65 candidates were tried")
    assert f"It is **{comparing.CHOSEN}**" in said
    assert len(rows) == 2 + len(PLAIN) + 65
    chosen = next(row for row in rows if row.startswith(f"| {comparing.CHOSEN} |"))
    assert rows.index(chosen) == 2 + len(PLAIN)
    assert chosen.endswith(f"| {prize_choice.margins(scores)[comparing.CHOSEN]:+.3f} |")


def test_pictures_that_are_samples_are_left_out(tmp_path):
    pictures = torch.randint(0, 256, (520, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert len(other_pictures(pictures, pictures[5:15])) == 510
    with pytest.raises(ValueError, match="at least 500 that are no samples of the network, got 490"):
        other_pictures(pictures, pictures[:30])
    truth = FunctionalTruth(np.eye(3), np.stack([np.eye(3)] * 2), "three heads")
    write_truth(tmp_path / "measured" / "effects.npz", truth)
    again = read_truth(tmp_path / "measured" / "effects.npz")
    assert (again.what, again.similarity.tolist()) == ("three heads", truth.similarity.tolist())
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="vit_effects wrote"):
        read_truth(tmp_path / "bad.npz")


def test_function_of_a_vit_is_that_of_its_centred_logits():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = vit.make_vit({**sizes, "image_size": 32, "patch_size": 16}, 10).eval()
    pictures = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    pixels = vit.pixel_values(pictures, 32)
    network = BundledNetwork("vit", "trained", model, ({"pixel_values": pixels[:1]},), {}, images=pictures[:1])
    truth = vit_effects(network, pictures)
    view = ht.ModelView(model)
    rows = []
    with torch.no_grad():
        whole = model(pixel_values=pixels).logits.numpy()
        for head in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            with view.ablated([head]):
                change = model(pixel_values=pixels).logits.numpy() - whole
            rows.append(np.concatenate([row - row.mean() for row in change]))
    np.testing.assert_allclose(truth.similarity, np.corrcoef(rows), atol=1e-3)
    even = np.repeat(np.arange(6) % 2 == 0, 10)
    np.testing.assert_allclose(truth.halves[0], np.corrcoef(np.array(rows)[:, even]), atol=1e-3)
    assert truth.what.startswith("changes of the centred logits of 6 CIFAR-10")


def test_pictures_need_similarities():
    result = CliRunner().invoke(app, ["reproduce", "--pictures", "photos"])
    assert result.exit_code != 0
    assert "add --similarities" in result.output
    result = CliRunner().invoke(app, ["reproduce", "--similarities", "--networks", "gpt9", "-o", "unused"])
    assert result.exit_code != 0
    assert "got 'gpt9'" in result.output


def test_rxnmapper_reads_reactions_and_its_heads_are_ablated_on_others(monkeypatch):
    if find_spec("rxnmapper") is None:
        pytest.skip("pip install --no-deps -r tests/requirements-no-deps.txt")
    monkeypatch.setattr(evidence_networks, "REACTIONS", 2)
    monkeypatch.setattr(evidence_networks, "REACTIONS_FOR_EFFECTS", 2)
    network = evidence_network("rxnmapper")
    unknown = network.view.tokenizer.convert_tokens_to_ids("[UNK]")
    assert len(network.inputs) == 2
    assert all(unknown not in item["input_ids"][0].tolist() for item in network.inputs)
    truth = network.measure_function()
    assert truth.similarity.shape == (96, 96)
    assert re.fullmatch(r"changes of the cross entropy of masked tokens, \d+ tokens of other reactions", truth.what)


def test_pieces_of_the_same_text_are_told(monkeypatch):
    monkeypatch.setattr(evidence_networks, "SHARED_RUN", 3)
    known, same, other = (
        [{"input_ids": torch.tensor([ids])}] for ids in ([0, 5, 6, 7, 8, 1], [0, 9, 6, 7, 8, 1], [0, 5, 6, 8, 7, 1])
    )
    assert evidence_networks.without_shared_text([*same, *other], known) == other


def test_networks_without_text_for_ablation_are_refused():
    with pytest.raises(ValueError, match="got 'gpt9'"):
        evidence_network("gpt9")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """All similarities on a tiny network, with few draws, twice: the second time from what was stored."""
    case = zoo.ALL["gpt2"]
    model = zoo.Case("GPT2LMHeadModel", case.config, case.settings).build()
    view = ht.ModelView(model)
    network = EvidenceNetwork(
        "tiny", view, texts(4), "four texts", lambda: truth_by_loss(view, texts(4, seed=1), "words")
    )
    folder = tmp_path_factory.mktemp("similarities")
    with pytest.MonkeyPatch.context() as patch:
        for module in (replication, predicted_function, roles_agreement):
            for name, few in (("HALVINGS", 3), ("FAMILY_HALVINGS", 1), ("HEAD_SAMPLES", 4), ("BOOTSTRAP", 4)):
                if hasattr(module, name):
                    patch.setattr(module, name, few)
        found = comparing.compare_on(network, folder / "measured" / "tiny")
        patch.setattr(comparing, "geometry", None)
        patch.setattr(comparing, "family_replication", None)
        again = comparing.compare_on(network, folder / "measured" / "tiny")
    return folder, found, again


def test_every_similarity_answers_every_question(compared):
    _, found, again = compared
    assert list(found.results) == list(comparing.SIMILARITIES)
    for name, result in found.results.items():
        assert {"tbe", "ari", "function", "within"} <= set(result.answers), name
        assert all(-1 <= answer.value <= 1 for answer in result.answers.values())
        assert result.milliseconds > 0
    assert csv_text([again]) == csv_text([found])


def test_the_report_has_tables_and_computed_sentences(compared, tmp_path):
    _, found, _ = compared
    written = comparing.write_similarities([found], tmp_path)
    text = written.read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "similarities.csv").read_text(encoding="utf-8"))))
    for question in ("tbe", "ari", "function", "within"):
        best = max(found.results, key=lambda name: found.results[name].answers[question].value)
        said = text.split(f"**{QUESTIONS[question][0]}** ")[1].split("\n")[0]
        value = found.results[best].answers[question].value
        assert f"{value:.2f}".replace("0.", ".", 1) in said or value in (0, 1)
        assert sum(row["question"] == question for row in rows) == len(comparing.SIMILARITIES)
    for name in comparing.SIMILARITIES:
        assert sum(row["similarity"] == name and row["question"] == "milliseconds" for row in rows) == 1
    document = tmp_path / "similarities-page.md"
    begin, end = marks("similarities")
    document.write_text(f"# Title\n\n{begin}\n{end}\n\nafter\n")
    write_parts({"similarities": text}, [document])
    assert document.read_text().startswith(f"# Title\n\n{begin}\n\n## Similarities of heads compared")
    assert document.read_text().endswith(f"{end}\n\nafter\n")


def test_a_network_without_function_says_why(compared):
    _, found, _ = compared
    results = {
        name: dataclasses.replace(
            result, answers={"tbe": result.answers["tbe"]}, family_ratio=np.nan, family_z=np.nan
        )
        for name, result in found.results.items()
    }
    network = comparing.NetworkComparison("dumb", "nothing", 12, 4, None, "too few pictures", results)
    text = markdown_text([found, network])
    assert "Function was not measured: too few pictures." in text
    assert "Mean of 2 networks" in text
