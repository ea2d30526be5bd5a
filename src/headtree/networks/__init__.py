"""The paper's two networks: their code, their training, and small trained ones that come with headtree."""
