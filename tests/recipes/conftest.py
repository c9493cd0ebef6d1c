import shutil
from pathlib import Path

import pytest

from tests.recipes.an4_source import write_source
from tests.recipes.miniatures import Spoken, spoken_words


@pytest.fixture(scope="session")
def an4_archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("an4")
    write_source(folder / "an4_feats")
    return Path(shutil.make_archive(str(folder / "an4_feats"), "tar", folder, "an4_feats"))


@pytest.fixture(scope="session")
def words(shared_data) -> dict[str, list[Spoken]]:
    """Return real words of several speakers."""
    return spoken_words(shared_data)
