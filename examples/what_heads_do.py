"""What the heads of a text model do: roles, families in words, and what the structure score already contains.

    python examples/what_heads_do.py MODEL TEXTFILE [TOKENS]

MODEL is a folder or a hub id; of TEXTFILE, any plain text, the first 7000 characters are read, in inputs of TOKENS
tokens (128).
"""

import sys
from pathlib import Path

import headtree as ht
from headtree.report.words.diagnostics_section import diagnostics_section


def main(model, text_file, n_tokens=128):
    n_tokens = int(n_tokens)
    texts = [Path(text_file).read_text(encoding="utf-8")[:7000]]
    atts = ht.capture(model, texts=texts, tokens=n_tokens, kind="probs")
    structure = sum(ht.head_entropy(att, ht.organize(att)).raw for att in atts) / len(atts)
    found = ht.diagnostics(atts, model=model, texts=texts, tokens=n_tokens)
    contained = ht.overlap(found.heads.assign(structure=structure))
    section = diagnostics_section(found, overlap=contained, consensus=ht.consensus(ht.head_similarity(atts)))
    print(*section.text, sep="\n\n")
    for table in section.tables:
        print("\n" + table.caption, "\t".join(table.columns), sep="\n")
        for row in table.rows:
            print("\t".join(map(str, row)))


if __name__ == "__main__":
    main(*sys.argv[1:])
