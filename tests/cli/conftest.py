from tests.models.conftest import bert, folder, one_thread, tokenizer  # noqa: F401  (fixtures)
from tests.pipeline.conftest import pictures, text, vit_folder  # noqa: F401  (fixtures)
