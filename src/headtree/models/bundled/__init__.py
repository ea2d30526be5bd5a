"""The two trained demo networks: their code, their tokenizer, and how they are loaded.

The weights and sample inputs are in the package headtree-networks, which ``pip install 'headtree[demo]'`` installs.
"""
