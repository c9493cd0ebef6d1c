import shutil
from pathlib import Path

import pytest

from tests.recipes.an4_source import write_source


@pytest.fixture(scope="session")
def an4_archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("an4")
    write_source(folder / "an4_feats")
    return Path(shutil.make_archive(str(folder / "an4_feats"), "tar", folder, "an4_feats"))
