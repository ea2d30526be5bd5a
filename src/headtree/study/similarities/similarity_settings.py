"""Every setting of the comparison of similarities, in one place."""

from __future__ import annotations

#: Tokens of each input on which heads are compared.
TOKENS = 64

#: Most inputs of one network on which heads are compared.
MOST_INPUTS = 40

#: Random divisions of the inputs into halves whose trees are compared, and those whose families are.
HALVINGS = 20
FAMILY_HALVINGS = 6

#: Random halves of the heads, from which standard errors over heads come.
HEAD_SAMPLES = 50

#: Divisions of the inputs in every `consensus`.
BOOTSTRAP = 100

#: Clusters into which a plain tree is cut, the baseline of families: as many as there are families at most.
PLAIN_CLUSTERS = 8

#: Random permutations of heads within their layers.
SHUFFLES = 200

#: Size of the smallest folder whose transfer counts for TBE; the largest is half of the heads.
SMALLEST_FOLDER = 3

#: A difference of two similarities is called clear from so many standard errors on.
CLEAR = 2.0

#: Reactions for rxnmapper: those on which heads are compared, and others on which they are ablated.
REACTIONS = 40
REACTIONS_FOR_EFFECTS = 120

#: Pieces of text between whose embeddings MiniLM's heads make a difference.
PIECES_FOR_EFFECTS = 80

#: Pieces of text that share a run of so many tokens are of the same text.
SHARED_RUN = 8

#: Fewest pictures for the function of the ViT's heads, and pictures in a batch on a GPU and on a CPU.
FEWEST_PICTURES = 500
MOST_PICTURES = 10_000
BATCH_GPU, BATCH_CPU = 500, 20

#: Pictures that are in memory at a time.
AT_ONCE = 500

#: Source of all random numbers.
SEED = 0
