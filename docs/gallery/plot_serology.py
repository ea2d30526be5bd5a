"""
Not attention: antibodies of 438 patients
=========================================

The method knows nothing of attention. This is a public data set that comes with the package tensorly: how strongly
antibodies in 438 blood samples bind to six antigens of SARS-CoV-2, measured with eleven receptors (Zohar et al.
2020; Tan et al. 2021). A tenth of the entries is hidden, to see whether the order that is found predicts them.
"""

import matplotlib.pyplot as plt
import numpy as np
from tensorly.datasets import load_covid19_serology

import headtree as ht
from headtree.report import figures

data = load_covid19_serology()
x = np.asarray(data.tensor)  # sample, antigen, receptor
status = np.asarray(data.ticks[0])
rng = np.random.default_rng(0)
hidden = rng.random(x.shape) < 0.1
seen = np.where(hidden, np.nan, x)
org = ht.organize_array(x, mask=hidden, names=("sample", "antigen", "receptor"))
print(x.shape, f"{hidden.mean():.0%} hidden;", org.status)

# %%
# Samples and receptors for one antigen, the spike protein S; grey entries are hidden.

spike = ht.organize_array(x[:, 0], mask=hidden[:, 0], names=("sample", "receptor"))
figures.organized_matrix(seen[:, 0], spike, title="S", unit="log titer", labels=(status, data.ticks[2]))

# %%
# Do the folders of samples know who was ill? Nobody told them.

agreement = ht.tree_agreement(org.trees.sample, status)
print(f"adjusted mutual information {agreement.information:.2f} (0: chance, 1: the same), p = {agreement.p_value}")
level = int(np.flatnonzero(org.trees.sample.n_folders <= 8)[-1])
folders = org.trees.sample.labels[level]
kinds = ["Negative", "Mild", "Moderate", "Severe", "Deceased"]
share = np.array([[np.mean(status[folders == f] == kind) for kind in kinds] for f in np.unique(folders)])
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
bottom = np.zeros(len(share))
for kind, column, colour in zip(kinds, share.T, plt.colormaps["viridis"](np.linspace(0, 1, 5)), strict=True):
    axes.bar(range(len(share)), column, bottom=bottom, label=kind, color=colour)
    bottom += column
axes.set(xlabel="folder of samples", ylabel="share", xticks=range(len(share)))
axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))

# %%
# Predict the hidden entries by the mean of what is seen in the same folder of samples, for the same antigen and
# receptor; beside it the mean over all samples.


def error(labels):
    """Share of the variance of hidden entries that group means leave unexplained."""
    guess = np.empty_like(x)
    for f in np.unique(labels):
        guess[labels == f] = np.nanmean(seen[labels == f], axis=0)
    guess = np.where(np.isnan(guess), np.nanmean(seen, axis=0), guess)
    return np.mean((guess - x)[hidden] ** 2) / np.var(x[hidden])


everyone = np.zeros(len(x), dtype=int)
print(f"mean over all samples {error(everyone):.2f}, over {len(share)} folders {error(folders):.2f}, ", end="")
print(f"over {len(share)} random groups {error(rng.permutation(folders)):.2f}")

# %%
# **How to read it.** Missing entries need no filling in: means and distances are taken over the entries that are
# there. All healthy people are in one folder, with patients whose response is weak; the other folders hold patients
# only. Means over four folders leave a third of the variance of the hidden entries unexplained, means over four
# random groups of the same sizes all of it. So the folders are in the data and not in the method.
#
# **What not to conclude.** Folders follow the strength of the response. They hardly tell severe from fatal cases,
# and they are no diagnosis: the p-value says only that folders and status are not independent.
