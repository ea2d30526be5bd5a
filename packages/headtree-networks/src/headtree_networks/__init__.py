"""Two small trained transformers and their sample inputs, as files; `headtree.load_bundled` reads them."""

from pathlib import Path

#: The folder that holds ``txl/``, ``vit/`` and ``passages.txt``.
FOLDER = Path(__file__).parent
