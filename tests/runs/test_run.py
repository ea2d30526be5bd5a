import copy
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import xarray

import headtree as ht
from headtree.errors import DamagedFileError, HeadtreeError
from headtree.geometry.linkage import linkage_tree
from headtree.runs.organization_store import read_organization, read_part, write_organizations, write_part
from headtree.runs.record import signed
from headtree.runs.similarity_store import read_similarities, write_similarities
from headtree.section import Picture, Section, Table
from headtree.tensor.probabilities import as_probabilities
from tests.measures.examples import families, noise
from tests.runs.examples import small_run, tensors


def test_what_was_captured_comes_back(run):
    assert (run.name, run.kind, run.n_inputs) == ("small", "scores", 3)
    assert run.inputs == ("input 0", "input 1", "input 2")
    assert run.is_complete
    for att, stored in zip(tensors(), run.attention, strict=True):
        assert (stored.shape, stored.heads, stored.queries) == (att.shape, att.heads, att.queries)
        loaded = stored.load()
        np.testing.assert_array_equal(loaded.mask, att.mask)
        np.testing.assert_array_equal(loaded.values, np.where(att.mask, 0, att.values))
        block = (slice(3, 5), slice(0, 4), slice(2, None))
        np.testing.assert_array_equal(stored.block(*block), loaded.values[block])
        np.testing.assert_array_equal(stored.values[-1, ..., 1], loaded.values[-1, :, 1])
        np.testing.assert_array_equal(stored.values[[3, 1]], loaded.values[[3, 1]])


def test_organizations_come_back_as_they_were(run):
    for att, found in zip(tensors(), run.organization, strict=True):
        expected = ht.organize(att.centred())
        assert list(found.trees) == list(expected.trees)
        assert list(found.initial_trees) == list(expected.initial_trees)
        for axis in ("head", "query", "key"):
            for kind in ("affinities", "distances", "coordinates"):
                np.testing.assert_array_equal(getattr(found, kind)[axis], getattr(expected, kind)[axis])
        assert [list(step.trees) for step in found.history] == [list(step.trees) for step in expected.history]
        np.testing.assert_array_equal(found.moved, expected.moved)
        assert (found.status, found.settings) == (expected.status, expected.settings)


def test_similarities_come_back(run):
    """Looks alike first, of which families are made; tensors have no values, so no "function"."""
    assert list(run.similarities) == ["attention", "questionnaire"]
    assert run.consensus is run.similarities.attention
    for kind, given in (
        ("attention", ht.head_similarity(list(run.attention))),
        ("questionnaire", list(run.organization)),
    ):
        found, expected = run.similarities[kind], ht.consensus(given, n_bootstrap=20)
        assert (found.kind, found.n_inputs, found.n_bootstrap) == (kind, 3, 20)
        assert found.tree == expected.tree
        assert found.to_dict() == expected.to_dict()
        np.testing.assert_array_equal(found.affinity, expected.affinity)
        assert found.replication is expected.replication is None


def test_any_consensus_comes_back(tmp_path):
    """With its replication, in the order given, whatever the kinds are called."""
    atts = tensors(4, n_tokens=(8,))
    given = {kind: ht.consensus(ht.head_similarity(atts, kind), n_bootstrap=3) for kind in ("jensen-shannon", "l1")}
    n_folders = len(given["l1"].support)
    given["function"] = replace(given["l1"], kind="function", likeness=np.linspace(0, 1, n_folders))
    write_similarities(tmp_path / "s.zarr", given)
    found = read_similarities(tmp_path / "s.zarr")
    assert list(found) == list(given)
    for kind, each in given.items():
        assert found[kind].tree == each.tree
        assert found[kind].to_dict() == each.to_dict()
        assert found[kind].replication == each.replication
        assert (found[kind].n_inputs, found[kind].n_bootstrap) == (4, 3)
        np.testing.assert_equal(found[kind].likeness, each.likeness)
        np.testing.assert_array_equal(found[kind].affinity, each.affinity)


def test_tables_hold_the_measures(run):
    table = run.heads
    assert list(table.columns[:6]) == ["name", "layer", "head", "role", "family", "family_support"]
    assert not any(name == "entropy" or name.startswith("entropy_") for name in table.columns)
    for i in range(3):
        att, org = run.attention[i], run.organization[i]
        structure = ht.head_entropy(as_probabilities(att), org, top=60)
        np.testing.assert_allclose(table[f"structure_{i}"], structure.raw, rtol=1e-11)  # twelve digits are written
    means = table[[f"structure_{i}" for i in range(3)]].mean(axis=1)
    np.testing.assert_allclose(table["structure"], means)
    assert table["structure"].iloc[np.argsort(table["structure_rank"])].is_monotonic_decreasing
    raw = [ht.head_entropy(run.attention[i].centred(), run.organization[i], top=60).raw for i in range(3)]
    np.testing.assert_allclose(table["haar_entropy"], np.mean(raw, axis=0), rtol=1e-10)
    assert sorted(table["place_in_tree"]) == list(range(20))
    families = run.consensus.families()
    np.testing.assert_array_equal(table["family"], families.of_leaf)
    in_one = table["family"] >= 0
    np.testing.assert_allclose(table["family_support"][in_one], families.support[table["family"][in_one]])
    assert table["family_support"][~in_one].isna().all()
    by_layer = table.groupby("layer")["structure"].mean()
    np.testing.assert_allclose(run.layers["structure"], by_layer, rtol=1e-10)
    assert run.measures.stability.mean_correlation <= 1
    assert len(run.measures.sparsity.gain) == 3
    assert run.measures.consensus.kind == "attention"


def test_xarray_opens_both_with_named_axes(run):
    attention = xarray.open_zarr(run.path / "attention.zarr")
    assert attention["attention"].dims == ("input", "head", "query", "key")
    assert attention["mask"].dims == ("input", "head", "query", "key")
    assert attention["n_query"].values.tolist() == [18, 16, 14]
    assert bool(attention["mask"][1, :, 16:].all())  # what fills a short input up is missing
    head = attention["attention"].sel(head="L2H1").isel(input=0)
    np.testing.assert_array_equal(head, run.attention[0].load().values[11])
    organization = xarray.open_zarr(run.path / "organization.zarr")
    assert organization["tree_head"].dims == ("input", "level", "head")
    assert organization["affinity_query"].dims == ("input", "query", "query_2")
    assert organization["coordinate_key"].dims == ("input", "key", "component")
    similarity = xarray.open_zarr(run.path / "similarity.zarr")
    assert similarity["attention_affinity"].dims == ("head", "head_2")
    assert similarity["questionnaire_support"].dims == ("questionnaire_folder",)


def test_everything_is_reached_by_name_with_completion(run):
    assert "invariance" in dir(run.measures)
    assert run.settings.measures.head_functions == 60
    assert run.settings["questionnaire"]["alpha"] == 0
    assert run.info.steps.capture.status == "done"
    assert copy.deepcopy(run.settings) == run.settings
    with pytest.raises(AttributeError, match="there is no setting 'nothing'; there are source"):
        _ = run.settings.nothing
    with pytest.raises(IndexError, match="3 inputs"):
        _ = run.attention[3]
    assert run.attention[-1].shape == run.attention[2].shape


def test_sections_are_found(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    section = Section(
        "Depth", ["A paragraph."], [Table("numbers", ["a", "b"], [[1, "x"], [2.5, None]])],
        [Picture("figures/depth.svg", "what it shows")],
    )  # fmt: skip
    (folder / "sections").mkdir(exist_ok=True)
    (folder / "sections" / "depth.json").write_text(section.to_json())
    assert ht.open_run(folder).sections.depth == section
    assert set(json.loads(section.to_json())) == {"title", "text", "tables", "figures"}
    (folder / "sections" / "broken.json").write_text("{")
    with pytest.raises(HeadtreeError, match=r"broken\.json cannot be read as a section"):
        _ = ht.open_run(folder).sections
    with pytest.raises(HeadtreeError, match="2 columns, got 1"):
        Table("t", ["a", "b"], [[1]])


def test_one_input_has_a_tree_without_support(tmp_path):
    run = small_run(tmp_path / "one", n_inputs=1, kind="probs", causal=False)
    assert run.consensus.n_inputs == 1
    assert np.isnan(run.consensus.support).all()
    assert run.consensus.tree == linkage_tree(ht.head_similarity(run.attention[0]).combine())
    assert len(run.consensus.families()) == 0
    assert (run.heads["family"] == -1).all()
    assert "haar_entropy" not in run.heads  # of probabilities it is the structure score
    assert run.attention[0].mask is None
    assert "stability" not in run.measures
    assert "invariance" not in run.measures


@pytest.mark.parametrize("att", [families(0), noise(1), ht.AttentionTensor.from_array(np.ones((3, 4, 5)))])
@pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")
def test_any_organization_comes_back(att, tmp_path):
    org = ht.organize(att, ht.Questionnaire(tree="binary", n_iter=2, initial_axes=(0, 1, 2)))
    write_organizations(tmp_path / "o", [org])
    write_part(tmp_path / "o.npz", org)
    for found in (read_organization(tmp_path / "o", 0), read_part(tmp_path / "o.npz")):
        assert list(found.trees) == list(org.trees)
        assert list(found.initial_trees) == list(org.initial_trees)
        assert (found.settings, found.status) == (org.settings, org.status)
        np.testing.assert_array_equal(found.coordinates.head, org.coordinates.head)


def test_a_damaged_part_is_named(tmp_path):
    file = tmp_path / "o.npz"
    write_part(file, ht.organize(families(0), ht.Questionnaire(n_iter=1)))
    data = file.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for damaged in (b"", data[:-9], bytes(flipped)):
        file.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=f"{file} is damaged"):
            read_part(file)


def test_landmarks_come_back(tmp_path):
    """Of inputs with many tokens; those with few have none."""
    settings = ht.Questionnaire(landmarks=(None, 6, np.int64(7)), n_iter=2)
    orgs = [
        ht.organize(ht.AttentionTensor.from_array(noise(i).block()[:, :n, :n]), settings)
        for i, n in ((0, 12), (1, 6))
    ]
    write_organizations(tmp_path / "o", orgs)
    for i, org in enumerate(orgs):
        write_part(tmp_path / f"{i}.npz", org)
    stored = [(read_organization(tmp_path / "o", i), org) for i, org in enumerate(orgs)]
    for found, org in stored + [(read_part(tmp_path / f"{i}.npz"), org) for i, org in enumerate(orgs)]:
        assert list(found.trees) == list(org.trees)
        assert [step.trees.key for step in found.history] == [step.trees.key for step in org.history]
        assert found.settings == settings
        for name in org.names:
            for kind in ("affinities", "distances", "coordinates"):
                np.testing.assert_array_equal(getattr(found, kind)[name], getattr(org, kind)[name])
            own, theirs = org.landmarks[name], found.landmarks[name]
            assert (own is None) == (theirs is None)
            if own is not None:
                np.testing.assert_array_equal(own.slices, theirs.slices)
                np.testing.assert_array_equal(own.nearest, theirs.nearest)
    assert [own is None for own in orgs[0].landmarks] == [True, False, False]
    assert list(orgs[1].landmarks) == [None] * 3
    stored = xarray.open_zarr(tmp_path / "o")
    assert stored["affinity_key"].dims == ("input", "key_landmark", "key_landmark_2")
    assert stored["affinity_key"].shape == (2, 7, 7)
    assert stored["affinity_head"].dims == ("input", "head", "head_2")


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(HeadtreeError, match="does not exist"):
        ht.open_run(tmp_path / "nothing")
    with pytest.raises(HeadtreeError, match=r"has no run\.json"):
        ht.open_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadtreeError, match="is a file"):
        ht.open_run(tmp_path / "file")
    with pytest.raises(HeadtreeError, match="path must be a string"):
        ht.open_run(3)
    record = json.loads((run.path / "run.json").read_text())
    for text, message in (
        (json.dumps(record | {"format": "headtree.run/9", "headtree": "9.1"}), "another version of headtree .9.1"),
        (json.dumps({"format": record["format"]}), "is damaged"),
        (json.dumps(signed({"format": record["format"]})), "is damaged"),
        ("[]", "cannot be read as the record"),
        ("\udcff", "cannot be read as the record"),
    ):
        (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(HeadtreeError, match=message):
            ht.open_run(tmp_path)


def test_what_is_not_there_yet_says_which_step_is_missing(run, tmp_path):
    record = json.loads((run.path / "run.json").read_text())
    record["steps"]["organize"]["status"] = "running"
    (tmp_path / "run.json").write_text(json.dumps(signed(record)))
    unfinished = ht.open_run(tmp_path)
    assert "not finished" in repr(unfinished)
    with pytest.raises(HeadtreeError, match="step organize is not done"):
        _ = unfinished.organization
    record["steps"]["compare"]["status"] = "running"
    (tmp_path / "run.json").write_text(json.dumps(signed(record)))
    with pytest.raises(HeadtreeError, match="step compare is not done"):
        _ = ht.open_run(tmp_path).consensus
    with pytest.raises(HeadtreeError, match="run of a network"):
        _ = run.array


def test_values_are_what_was_organized(run):
    for i in range(3):
        assert run.values[i].provenance.get("centred")
        np.testing.assert_array_equal(run.values[i].values, run.attention[i].centred().values)
