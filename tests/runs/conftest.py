import pytest

from tests.runs.examples import small_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "small")
