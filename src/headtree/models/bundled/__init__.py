"""The two trained networks that `headtree[demo]` installs: their code and how they are loaded."""
